"""Audits that stop early: their limits hold at all times, and they stop when they should."""

import numpy as np
import pytest
from scipy import stats

from jdp.audits.bounds import clopper_pearson, gaussian_bound
from jdp.audits.sequential import (
  anytime_epsilon_bound,
  anytime_gaussian_bound,
  anytime_limits,
  audit_until_refuted,
)

ERROR, RUNS, LOOKS, BATCH = 0.05, 2000, 20, 50


def ever_wrong(limits, probability):
  """How many of the runs ever have a lower limit above the truth, at looks after every batch."""
  rng = np.random.default_rng(3)
  hits = np.cumsum(rng.binomial(BATCH, probability, (RUNS, LOOKS)), axis=1)
  trials = np.broadcast_to(BATCH * np.arange(1, LOOKS + 1), hits.shape)
  return np.mean(np.any(limits(hits, trials, ERROR)[0] > probability, axis=1))


@pytest.mark.slow
@pytest.mark.parametrize("probability", [0.02, 0.5])
def test_looking_after_every_batch_costs_nothing(probability):
  """Both limits share the error, so either is wrong in half as many runs, or fewer."""
  assert 0 < ever_wrong(anytime_limits, probability) <= ERROR


def test_limits_for_one_number_of_outputs_would_be_caught():
  assert ever_wrong(clopper_pearson, 0.5) > 2 * ERROR


def test_limits_are_where_the_evidence_suffices():
  """At the limit the mixture's likelihood is 1/error times that of the limit."""
  error = 0.01
  low, high = anytime_limits(30, 100, error)
  prior = stats.beta(0.5, 0.5)
  mixture = prior.expect(lambda p: stats.binom.pmf(30, 100, p))
  for limit in (low, high):
    assert mixture / stats.binom.pmf(30, 100, limit) == pytest.approx(1 / error, rel=1e-4)
  assert 0 < low < 0.3 < high < 1
  assert [float(x) for x in anytime_limits(0, 0, error)] == [0.0, 1.0]
  assert anytime_limits(0, 1000, error)[0] == 0
  assert anytime_limits(1000, 1000, error)[1] == 1


def test_bounds_are_those_of_the_limits():
  low, _ = anytime_limits(600, 1000, 0.005)
  _, high = anytime_limits(200, 900, 0.005)
  found = anytime_epsilon_bound(0.99, 0.05)(600, 1000, 200, 900)
  assert found == pytest.approx(np.log((low - 0.05) / high), rel=1e-12)
  mu = anytime_gaussian_bound(0.99)(600, 1000, 200, 900)
  assert mu == pytest.approx(stats.norm.ppf(low) - stats.norm.ppf(high), rel=1e-12)
  assert 0 < mu < gaussian_bound(0.99)(600, 1000, 200, 900)


def batches(shift, number, seed=0):
  rng = np.random.default_rng(seed)
  for _ in range(number):
    yield rng.laplace(shift, size=500), rng.laplace(0.0, size=500)


def test_a_false_claim_is_refuted_early_and_a_true_one_is_not():
  bound = anytime_epsilon_bound(0.999)
  false = audit_until_refuted(batches(1.0, 200), 0.5, bound)
  assert false.stopped
  assert false.found.bound > 0.5
  assert false.num_batches < 20
  assert false.found.trials == 500 * (false.num_batches - 1)  # the first one chose the event
  true = audit_until_refuted(batches(1.0, 40), 1.0, bound)
  assert (true.stopped, true.num_batches) == (False, 40)
  assert 0.7 < true.found.bound < 1.0


def test_the_event_may_be_on_either_side():
  rng = np.random.default_rng(1)
  rare = [rng.choice(3, p=[0.2, 0.4, 0.4], size=4000) for _ in range(10)]
  common = [rng.choice(3, p=[0.002, 0.499, 0.499], size=4000) for _ in range(10)]
  audit = audit_until_refuted(zip(common, rare, strict=True), 9.0, anytime_epsilon_bound(0.99))
  assert not audit.found.upper
  assert audit.found.threshold == 0
  assert 3.5 < audit.found.bound < np.log(100)
  assert audit.found.hits == sum(np.sum(own == 0) for own in rare[1:])


@pytest.mark.parametrize(
  ("call", "message"),
  [
    (lambda: anytime_limits(1, 2, 0.0), "Expected error"),
    (lambda: anytime_epsilon_bound(1.0), r"Expected confidence in \(0, 1\)"),
    (lambda: anytime_epsilon_bound(0.9, 1.0), r"Expected delta in \[0, 1\)"),
    (lambda: audit_until_refuted([], 1.0, anytime_epsilon_bound(0.9)), "two batches or more"),
    (
      lambda: audit_until_refuted(batches(0.0, 1), 1.0, anytime_epsilon_bound(0.9)),
      "got one; the first only chooses",
    ),
  ],
)
def test_refusals(call, message):
  with pytest.raises(ValueError, match=message):
    call()
