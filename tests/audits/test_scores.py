"""The bounds of audits hold as often as they say: on scores without information, and on scores of
known epsilon.
"""

import math

import numpy as np
import pytest
from scipy import stats

from jdp.accounting import gaussian_epsilon
from jdp.audits.bounds import clopper_pearson, epsilon_bound, gaussian_bound
from jdp.audits.residues import audit_residues
from jdp.audits.scores import audit_outcomes, audit_scores

TRIALS, SIZE, CONFIDENCE = 1000, 400, 0.95
LAWS = {  # first, second, bound, truth
  "null": (stats.norm(0, 1), stats.norm(0, 1), epsilon_bound(CONFIDENCE), 0.0),
  "null, delta": (stats.norm(0, 1), stats.norm(0, 1), epsilon_bound(CONFIDENCE, 0.01), 0.0),
  "normal, delta": (
    stats.norm(1, 1),
    stats.norm(0, 1),
    epsilon_bound(CONFIDENCE, 0.05),
    gaussian_epsilon(1.0, 0.05),
  ),
  "normal, mu": (stats.norm(1, 1), stats.norm(0, 1), gaussian_bound(CONFIDENCE), 1.0),
  "Laplace": (stats.laplace(1, 1), stats.laplace(0, 1), epsilon_bound(CONFIDENCE), 1.0),
}


def bounds(name, bound=None):
  """The bounds that an audit finds in every trial."""
  first, second, own_bound, _ = LAWS[name]
  rng = np.random.default_rng(7)
  draws = (law.rvs((TRIALS, SIZE), random_state=rng) for law in (first, second))
  return np.array(
    [audit_scores(a, b, bound or own_bound).bound for a, b in zip(*draws, strict=True)]
  )


@pytest.mark.slow
@pytest.mark.parametrize("name", LAWS)
def test_at_most_a_twentieth_of_the_bounds_lie_above_the_truth(name):
  """Two limits of 97.5 % each rarely fail together: a rate of 1.5 %, say, passes but on one of 1e12
  keys.
  """
  truth = LAWS[name][3]
  found = bounds(name)
  assert np.mean(found > truth) <= 1 - CONFIDENCE
  assert truth == 0 or np.median(found) > truth / 3


@pytest.mark.parametrize("name", ["null", "Laplace"])
def test_a_bound_without_limits_would_be_caught(name):
  def plain(hits, trials, false_hits, false_trials):
    return np.maximum(
      np.log(np.maximum(hits, 1) / trials) - np.log(np.maximum(false_hits, 1) / false_trials), 0.0
    )

  assert np.mean(bounds(name, plain) > LAWS[name][3]) > 4 * (1 - CONFIDENCE)


def test_limits_are_the_binomial_tails():
  n, error = 50, 0.003
  k = np.arange(1, n)
  low, high = clopper_pearson(k, n, error)
  np.testing.assert_allclose(stats.binom.sf(k - 1, n, low), error, rtol=1e-9)
  np.testing.assert_allclose(stats.binom.cdf(k, n, high), error, rtol=1e-9)
  ends = clopper_pearson([0, n], n, error)
  np.testing.assert_allclose(ends, [[0, error ** (1 / n)], [1 - error ** (1 / n), 1]], rtol=1e-9)


@pytest.mark.parametrize("trials", [10**8, 3 * 10**8, 10**9])
def test_limits_hold_where_the_inverse_of_scipy_is_wrong(trials):
  """At 999 and 1000 successes; the lower limit of 1000 was nearly twice the frequency."""
  k, error = np.arange(990, 1010), 1e-6
  low, high = clopper_pearson(k, trials, error)
  np.testing.assert_allclose(stats.binom.sf(k - 1, trials, low), error, rtol=2e-3)
  np.testing.assert_allclose(stats.binom.cdf(k, trials, high), error, rtol=2e-3)
  assert np.all(np.diff(low) > 0)
  assert np.all(np.diff(high) > 0)


def test_the_bound_is_the_log_of_the_limits_ratio():
  bound = epsilon_bound(0.99, delta=0.1)
  (low, _), (_, high) = clopper_pearson(700, 1000, 0.005), clopper_pearson(30, 900, 0.005)
  assert bound(700, 1000, 30, 900) == pytest.approx(math.log((low - 0.1) / high), rel=1e-12)
  assert bound(100, 1000, 0, 900) == 0  # the lower limit of P is below delta
  assert (
    epsilon_bound(0.95)(0, 10, 0, 10)
    == gaussian_bound(0.95)(0, 10, 0, 10)
    == gaussian_bound(0.95)(9, 9, 9, 9)
    == 0
  )


@pytest.mark.parametrize("swapped", [False, True])
def test_the_event_is_found_on_either_side_and_reported_as_counted(swapped):
  """Rare low scores tell the inputs apart, on one side only; every score is a whole number, so ties
  are exact.
  """
  rng = np.random.default_rng(1)
  laws = ([0.2, 0.4, 0.4], [0.002, 0.499, 0.499])
  first, second = (rng.choice(3, size=20_000, p=p) for p in (laws if swapped else laws[::-1]))
  if swapped:
    first, second = 2 - first, 2 - second
  audit = audit_scores(first, second, epsilon_bound(0.999))
  assert 0.75 * math.log(100) < audit.bound < math.log(100)
  assert (audit.upper, audit.threshold) == ((True, 2.0) if swapped else (False, 0.0))
  likelier, other = (first, second) if swapped else (second, first)
  counts = [np.sum(x[10_000:] == audit.threshold) for x in (likelier, other)]
  assert [audit.hits, audit.false_hits] == counts
  assert audit.trials == audit.false_trials == 10_000


@pytest.mark.parametrize(("audited", "shape"), [(audit_scores, (40,)), (audit_residues, (40, 1))])
def test_a_bound_of_ones_own_is_given_arrays(audited, shape):
  """Python's own numbers refuse a division by 0."""

  def bound(hits, trials, false_hits, false_trials):
    with np.errstate(divide="ignore", invalid="ignore"):
      ratio = (hits.astype(float) / trials) / (false_hits.astype(float) / false_trials)
    return np.nan_to_num(ratio, nan=0.0, posinf=9.0)

  assert audited(np.full(shape, 3.0), np.zeros(shape), bound).bound == 9.0


def test_outcomes_share_the_confidence():
  counts = np.array([[600, 300, 100], [100, 300, 600]])
  found = audit_outcomes(counts, confidence=0.94, delta=0.05)
  low, high = clopper_pearson(600, 1000, 0.005)[0], clopper_pearson(100, 1000, 0.005)[1]
  assert found == pytest.approx(math.log((low - 0.05) / high), rel=1e-12)
  assert audit_outcomes(counts[:1].repeat(2, axis=0), confidence=0.9) == 0


def test_joint_bounds_of_histograms_hold_in_19_of_20_trials():
  """A channel of four levels with epsilon = 1: the joint limits are wider than each alone."""
  p = (np.ones((4, 4)) + (math.e - 1) * np.eye(4)) / (math.e + 3)
  counts = np.random.default_rng(3).multinomial(300, p, size=(500, 4))
  found = np.array([audit_outcomes(c, confidence=CONFIDENCE) for c in counts])
  assert np.mean(found > 1.0) <= 1 - CONFIDENCE
  assert np.median(found) > 0.3


@pytest.mark.parametrize(
  ("call", "message"),
  [
    (lambda: epsilon_bound(1.0), r"Expected confidence in \(0, 1\), got 1.0"),
    (lambda: epsilon_bound(math.nan), "Expected confidence"),
    (lambda: epsilon_bound(0.95, 1.0), r"Expected delta in \[0, 1\), got 1.0"),
    (lambda: gaussian_bound(0.0), "Expected confidence"),
    (
      lambda: audit_scores([1.0], [1.0, 2.0], epsilon_bound(0.9)),
      "Expected first to be at least two scores",
    ),
    (lambda: audit_scores([1.0, math.nan], [1.0, 2.0], epsilon_bound(0.9)), "none of them NaN"),
    (
      lambda: audit_outcomes([[1, 2]], confidence=0.9),
      "Expected counts >= 0 of at least two inputs",
    ),
    (lambda: audit_outcomes([[1, -2], [1, 2]], confidence=0.9), "Expected counts >= 0"),
  ],
)
def test_refusals(call, message):
  with pytest.raises(ValueError, match=message):
    call()
