"""Who sees the sample: every statement about a round asks the observer, and nothing else."""

import collections
import dataclasses
import itertools
import math

import numpy as np
import pytest
from scipy import optimize, stats

from jdp import accounting
from jdp.events import (
  ConcentratedRelease,
  CyclicPoissonSampling,
  FixedSizeSampling,
  GaussianSum,
  LaplaceSum,
  LocalRelease,
  MinSeparationSampling,
  PoissonSampling,
  PureRelease,
  RandomizedResponse,
  Round,
  TruncatedPoissonSampling,
  WeightedAverage,
)
from jdp.guarantees import PureDP
from jdp.ledger import Ledger
from jdp.sampling.registry import registered

SUM = GaussianSum(1.0, 1.0)


def run(sampling, count, query=SUM, relation="zero_out", observer="server"):
  return Ledger().append(Round(sampling, query, relation, observer=observer), count=count)


def gaussian_delta(epsilon, mu):
  """Of a shift by mu standard deviations."""
  mu = np.maximum(mu, 1e-300)
  return stats.norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon) * stats.norm.cdf(
    -mu / 2 - epsilon / mu
  )


def seen_delta(epsilon, q, rounds, mu):
  """Of Gaussian sums whose sample is seen: a binomial number of rounds, each a shift by mu."""
  k = np.arange(rounds + 1)
  return float(stats.binom.pmf(k[1:], rounds, q) @ gaussian_delta(epsilon, np.sqrt(k[1:]) * mu))


def seen_epsilon(delta, *run):
  return optimize.brentq(lambda e: seen_delta(e, *run) - delta, 0, 500, xtol=1e-10)


def test_the_reference_values():
  ledger = run(PoissonSampling(0.01), 1000)
  assert abs(seen_delta(1.828, 0.01, 1000, 1.0) - 0.71596) < 1e-5
  assert abs(accounting.epsilon(ledger, 1e-5, accountant="pld") - 23.3914) < 1e-3
  exact = seen_delta(1.828, 0.01, 1000, 1.0)
  assert exact <= accounting.delta(ledger, 1.828, accountant="pld") < 1.001 * exact
  by_model = run(PoissonSampling(0.01), 1000, observer="model")
  assert abs(accounting.epsilon(by_model, 1e-5) - 1.997) < 0.2


@pytest.mark.parametrize(
  ("sampling", "q"),
  [
    (PoissonSampling(0.03), 0.03),
    (FixedSizeSampling(2, 50), 0.04),
    (sampling := TruncatedPoissonSampling(0.25, 22, 100), sampling.inclusion_probability),
  ],
  ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("relation", ["zero_out", "replace_one"])
def test_a_sample_that_is_seen_costs_a_binomial_number_of_releases(sampling, q, relation):
  for z, rounds, delta in ((2.0, 40, 1e-5), (0.8, 3, 1e-6)):
    ledger = run(sampling, rounds, GaussianSum(1.0, z), relation)
    mu = (2 if relation == "replace_one" else 1) / z
    exact = seen_epsilon(delta, q, rounds, mu)
    lower, upper = accounting.epsilon_interval(ledger, delta)
    assert lower <= exact * (1 + 1e-9) <= upper * (1 + 2e-9)
    assert upper - lower <= 2e-3 * upper
    assert exact <= accounting.epsilon(ledger, delta, accountant="pld") <= 1.02 * exact
    assert exact <= accounting.epsilon(ledger, delta) <= 2 * exact
    assert exact <= accounting.epsilon(ledger, delta, accountant="moments")
    assert accounting.delta(ledger, 0.5) >= seen_delta(0.5, q, rounds, mu)


def test_other_releases_of_a_sample_that_is_seen():
  # Laplace: here the hockey stick is 1 - e^((eps - 1/b) / 2).
  ledger = run(PoissonSampling(0.1), 1, LaplaceSum(1.0, 0.5))
  for epsilon in (0.2, 1.0, 1.9):
    exact = 0.1 * -math.expm1((epsilon - 2) / 2)
    assert exact <= accounting.delta(ledger, epsilon, accountant="pld") <= 1.001 * exact
  # If it may take part it costs what it does whenever it does.
  assert accounting.epsilon(ledger, 0.0) == 2.0


def by_identity(sampling):
  """Who leaves moves nobody to another group."""
  fields = {field.name for field in dataclasses.fields(sampling)} & {"by_identity"}
  return dataclasses.replace(sampling, **dict.fromkeys(fields, True))


SAMPLINGS = [
  by_identity(sampler.event(sampler.init()))
  for sampler in (entry.make(100, 1) for entry in registered().values())
]
CAPPED = PoissonSampling(0.01, max_participations=15)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=lambda sampling: type(sampling).__name__)
def test_under_add_remove_who_takes_part_shows_itself(sampling):
  with pytest.raises(
    ValueError, match="zero_out or replace_one for an observer who sees who takes"
  ):
    accounting.epsilon(run(sampling, 1, relation="add_remove"), 1e-5)
  # An observer of the model does not see it, where nothing else speaks against the relation.
  unseen, why = run(sampling, 1, relation="add_remove", observer="model"), ""
  try:
    assert accounting.epsilon(unseen, 1e-5) > 0
  except ValueError as refused:
    why = str(refused)
  assert not why or "zero_out" in why


QUERIES = [
  SUM,
  LaplaceSum(1.0, 1.0),
  WeightedAverage(1.0, 1.0, 1.0),
  PureRelease(0.26),
  RandomizedResponse(0.5, 3),
  ConcentratedRelease(0.03),
]


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: type(query).__name__)
@pytest.mark.parametrize(
  "sampling", [*SAMPLINGS, CAPPED], ids=lambda sampling: type(sampling).__name__
)
def test_nobody_sees_less_than_the_observer_of_the_model(sampling, query):
  """So nobody's epsilon is below the model's, whatever of it a sample cannot hide."""

  def epsilon(relation, observer):
    ledger = run(sampling, 20, query, relation, observer)
    return accounting.epsilon(ledger, 1e-5)

  for relation in ("zero_out", "replace_one"):
    try:
      hidden = epsilon(relation, "model")
    except ValueError:  # not analysed for a sample that is hidden
      continue
    for observer in ("clients", "server"):
      seen = epsilon(relation, observer)
      assert seen >= hidden * (1 - 1e-3)  # of two bounds by lattices
      assert observer == "server" or seen == hidden


def test_where_all_take_part_there_is_no_sample_to_see():
  for relation in ("add_remove", "zero_out", "replace_one"):
    costs = {
      accounting.epsilon(run(PoissonSampling(1.0), 5, relation=relation, observer=observer), 1e-5)
      for observer in ("model", "server")
    }
    assert len(costs) == 1


def test_who_sees_reports_sees_who_takes_part():
  scope = {"unit": "user", "observer": "model"}
  ledger = Ledger().append(Round(PoissonSampling(0.1), SUM, "zero_out", **scope), count=10)
  report = LocalRelease(PureDP(0.0, relation="zero_out", **scope))
  seen = run(PoissonSampling(0.1), 10)
  assert accounting.epsilon(ledger.append(report), 1e-5, accountant="pld") == pytest.approx(
    accounting.epsilon(seen, 1e-5, accountant="pld"), rel=1e-9
  )
  assert accounting.epsilon(ledger, 1e-5) < accounting.epsilon(seen, 1e-5)


LEDGER, EXACT = run(PoissonSampling(0.01), 1000), 23.3914
RATE = 0.01


def exact_rate():
  """Of true positives, of an attacker with the same threshold for each number of rounds."""
  k = np.arange(1001)
  shown = stats.norm.cdf(stats.norm.ppf(RATE) + np.sqrt(k))
  return float(stats.binom.pmf(k, 1000, 0.01) @ shown)


def test_every_statement_asks_the_observer():
  hidden = run(PoissonSampling(0.01), 1000, observer="model")
  assert accounting.group_epsilon(LEDGER, 1e-5, group_size=1) >= EXACT
  assert accounting.trade_off(LEDGER, [RATE])[0] >= exact_rate() > 0.6
  assert accounting.trade_off(hidden, [RATE])[0] < 0.05
  assert accounting.attacker_gain(LEDGER).true_positive_rates[1] >= exact_rate()
  assert accounting.odometer(LEDGER, 1e-5) >= EXACT
  assert accounting.selection_epsilon(LEDGER, 1e-5, mean_runs=1.0) >= EXACT
  best = accounting.best_of_runs(LEDGER, mean_runs=1.0)
  assert accounting.epsilon(Ledger().append(best), 1e-5) >= EXACT
  assert accounting.renyi_filter(0.99 * EXACT, 1e-5).spent(LEDGER) > 1
  assert accounting.renyi_filter(2.5, 1e-5).spent(hidden) < 1
  assert accounting.would_exceed(LEDGER, next(iter(LEDGER)), 0.99 * EXACT, 1e-5)
  with pytest.raises(ValueError, match="use renyi_filter"):
    accounting.gaussian_filter(100.0, 1e-5).spent(LEDGER)


def test_calibration_asks_the_observer():
  z = accounting.calibrate_noise(
    2.0, 1e-5, lambda z: run(PoissonSampling(0.01), 100, GaussianSum(1.0, z)), accountant="pld"
  )
  assert 1.96 <= seen_epsilon(1e-5, 0.01, 100, 1 / z) <= 2.0


def test_an_export_hides_nobody_of_a_sample_that_is_seen():
  dp_event = pytest.importorskip("dp_accounting").dp_event
  (exported,) = accounting.to_dp_event(LEDGER).event.events
  assert exported == dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(1.0), 1000)


def turns(sampling, count, **fields):
  return Ledger().extend(
    (Round(dataclasses.replace(sampling, position=t), SUM, "zero_out", **fields), 1)
    for t in range(count)
  )


def whole(number):
  return accounting.epsilon(run(PoissonSampling(1.0), number, observer="model"), 1e-5)


def test_a_record_is_charged_for_its_turns():
  apart = MinSeparationSampling(10, 3, 100)
  planned = run(apart, 100, observer="model")
  assert accounting.epsilon(planned, 1e-5) == whole(3)
  assert accounting.epsilon(turns(apart, 100), 1e-5) == whole(3)
  assert accounting.epsilon(turns(apart, 11), 1e-5) == whole(2)
  # Rounds that are recorded need not be successive: any two of these are 10 apart.
  some = Ledger().extend(
    (Round(dataclasses.replace(apart, position=t), SUM, "zero_out"), 1) for t in (0, 10, 25)
  )
  assert accounting.epsilon(some, 1e-5) == whole(3)
  # Two runs of one sampler
  assert accounting.epsilon(turns(apart, 11) + turns(apart, 11), 1e-5) == whole(4)
  # With the dearest rounds
  dear = Round(dataclasses.replace(apart, position=5), GaussianSum(1.0, 0.5), "zero_out")
  assert accounting.epsilon(turns(apart, 5).append(dear), 1e-5) == whole(4)

  cyclic = CyclicPoissonSampling(10, 0.2, 100)
  for found in (run(cyclic, 95, observer="model"), turns(cyclic, 95)):
    expected = accounting.epsilon(run(PoissonSampling(0.2), 10, observer="model"), 1e-5)
    assert accounting.epsilon(found, 1e-5) == pytest.approx(expected, rel=1e-9)
  seen = accounting.epsilon(turns(cyclic, 95, observer="server"), 1e-5, accountant="pld")
  exact = seen_epsilon(1e-5, 0.2, 10, 1.0)
  assert exact <= seen <= 1.02 * exact


def test_a_cap_costs_at_most_as_many_releases_and_at_most_the_uncapped_run():
  capped = run(PoissonSampling(1.0, max_participations=1), 100, observer="model")
  assert abs(accounting.epsilon(capped, 1e-5, accountant="pld") - 4.377) < 1e-3
  for q, rounds, cap, observer in (
    (0.5, 100, 2, "model"),
    (0.01, 100, 5, "model"),
    (0.5, 9, 2, "server"),
  ):
    found, free = (
      run(PoissonSampling(q, max_participations=most), rounds, observer=observer)
      for most in (cap, None)
    )
    for accountant in ("rdp", "pld"):
      uncapped = accounting.epsilon(free, 1e-5, accountant=accountant)
      releases = accounting.epsilon(run(PoissonSampling(1.0), cap), 1e-5, accountant=accountant)
      stated = accounting.epsilon(found, 1e-5, accountant=accountant)
      if accountant == "pld" and observer == "model":  # less, as turns are hidden
        assert stated <= min(uncapped, releases) * (1 + 1e-9)
      else:
        assert stated == pytest.approx(min(uncapped, releases), rel=1e-9)


@pytest.mark.parametrize(
  "sampling",
  [PoissonSampling(0.5, max_participations=2), MinSeparationSampling(10, 3, 100)],
  ids=lambda sampling: type(sampling).__name__,
)
def test_caps_of_two_runs_are_not_taken_for_one(sampling):
  once = run(sampling, 20, observer="model")
  with pytest.raises(ValueError, match=r"of two ledgers that are added, got \w+ in both"):
    once + once
  assert len(once.extend(once.entries)) == 40  # more rounds of one run
  assert len(once + run(PoissonSampling(0.5), 20, observer="model")) == 40


def response_law(value, others, noise=0.5, num_values=3):
  """Of two of three records, drawn uniformly: the responses, in no order. None: a null record."""

  def responses(value):
    uniform = np.full(num_values, 1 / num_values)
    own = uniform if value is None else np.eye(num_values)[value]
    return (1 - noise) * own + noise / num_values

  law = collections.Counter()
  for pair in itertools.combinations((value, *others), 2):
    for answers in itertools.product(range(num_values), repeat=2):
      chance = math.prod(responses(v)[a] for v, a in zip(pair, answers, strict=True))
      law[tuple(sorted(answers))] += chance / 3
  return law


@pytest.mark.parametrize(("relation", "other"), [("zero_out", None), ("replace_one", 1)])
def test_responses_of_a_hidden_sample_of_fixed_size_by_enumeration(relation, other):
  """The bound of who sees the sample holds for who does not, whatever the others hold.

  A mixture as of Poisson samples, which this is not, would state .00598 for .00850 at epsilon .5.
  """
  query = RandomizedResponse(0.5, 3, uniform_null=True)
  spent = run(FixedSizeSampling(2, 3), 1, query, relation, "model")
  for epsilon in (0.0, 0.2, 0.5, 1.0, 1.5):
    stated = accounting.delta(spent, epsilon)
    for others in itertools.product(range(3), repeat=2):
      first, second = response_law(0, others), response_law(other, others)
      for one, two in ((first, second), (second, first)):
        exact = sum(max(one[x] - math.exp(epsilon) * two[x], 0.0) for x in one)
        assert exact <= stated * (1 + 1e-9) + 1e-15
