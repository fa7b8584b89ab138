"""The best of a random number of runs: published corollaries, dp_accounting, exact small cases."""

import dataclasses
import math

import dp_accounting
import numpy as np
import pytest
import scipy
from dp_accounting import rdp
from dp_accounting.dp_event import RepeatAndSelectDpEvent

from jdp import accounting, ledger
from jdp.accounting.renyi import closed_forms
from jdp.accounting.renyi.repeated_runs import best_of_runs, log_gamma
from jdp.events import (
  BallsInBins,
  BestOfRuns,
  FixedSizeSampling,
  GaussianSum,
  LocalRelease,
  PoissonSampling,
  PureRelease,
  Round,
)
from jdp.guarantees import PureDP
from jdp.ledger import Ledger, subsampled_gaussian
from tests.helpers.gaussian import gaussian_delta

SHAPES = [0.0, 0.7, 1.0, 3.0, math.inf]


def pure(epsilon):
  return Ledger().append(Round(PoissonSampling(1.0), PureRelease(epsilon)))


@pytest.mark.parametrize("shape", [0.0, 0.5, 1.0, 5.0])
@pytest.mark.parametrize("mean", [1.0, 1.5, 30.0, 1e6])
def test_distribution_has_its_mean(shape, mean):
  gamma = math.exp(log_gamma(mean, shape))
  if mean == 1.0:
    assert gamma == 1.0
  elif shape:
    assert shape * (1 - gamma) / (gamma * (1 - gamma**shape)) == pytest.approx(mean, rel=1e-6)
  else:
    assert (1 / gamma - 1) / math.log(1 / gamma) == pytest.approx(mean, rel=1e-6)


@pytest.mark.parametrize("shape", [0.0, 1.0, 1000.0])
@pytest.mark.parametrize("mean", [math.nextafter(1, 2), 1 + 1e-13])
def test_hardly_more_than_one_run_costs_no_less_than_one(shape, mean):
  one, more = (
    accounting.selection_epsilon(pure(1.0), 1e-5, mean_runs=m, shape=shape) for m in (1.0, mean)
  )
  assert one <= more <= one + 1e-4


@pytest.mark.parametrize("shape", [0.0, 0.5, 1.0, 2.0])
def test_pure_runs_cost_as_published(shape):
  # Corollary 3 of arXiv 2110.03620: (2 + shape) epsilon, up to what the mean adds at large orders.
  found = accounting.selection_epsilon(pure(1.0), 1e-10, mean_runs=1000.0, shape=shape)
  assert found <= (2 + shape) * 1.0 + 1e-3
  assert found > 1.0


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mean", [2.0, 20.0])
def test_agrees_with_dp_accounting(shape, mean):
  event = dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(8.0), 20)
  orders = (1 + np.geomspace(0.01, 1000, 400)).tolist()
  peer = rdp.RdpAccountant(orders)
  peer.compose(RepeatAndSelectDpEvent(event, mean, shape))
  run = subsampled_gaussian(1.0, 8.0, 20)
  tuned = Ledger().append(accounting.best_of_runs(run, mean_runs=mean, shape=shape))
  by_divergences = accounting.epsilon(tuned, 1e-6, accountant="rdp")
  assert by_divergences == pytest.approx(peer.get_epsilon(1e-6), rel=2e-3)
  found = accounting.selection_epsilon(run, 1e-6, mean_runs=mean, shape=shape)
  assert found == pytest.approx(accounting.epsilon(tuned, 1e-6), rel=1e-3)
  assert found < 0.95 * by_divergences  # what privacy profiles gain


# The closed forms, and the parameters, of dp_accounting's own tests.
@pytest.mark.parametrize("shape", [0.0, 0.5, 1.0, 5.0])
@pytest.mark.parametrize(("rho", "gamma"), [(0.01, 0.01), (1.0, 0.1)])
def test_divergences_of_concentrated_runs_are_published_ones(rho, gamma, shape):
  if shape:
    mean = shape * (1 - gamma) / (gamma * (1 - gamma**shape))
  else:
    mean = (1 / gamma - 1) / math.log(1 / gamma)
  curve = best_of_runs(lambda orders: rho * np.array(orders), math.inf, mean, shape)
  for order in (1 + math.sqrt(math.log(mean) / rho), 2 + math.sqrt(math.log(mean) / rho), 1000.0):
    added = 2 * (1 + shape) * math.sqrt(-rho * math.log(gamma)) - shape * rho
    expected = rho * (order - 1) + math.log(mean) / (order - 1) + added
    # 200 orders of b, instead of the best of all: at most so much above, and never below.
    assert expected - 1e-7 <= float(curve((order,))[0]) <= expected * (1 + 2e-3)


@pytest.mark.parametrize(
  ("epsilon", "mean"), [(1, 1), (0.1, 2), (10, 10), (0.001, 100), (2, 1000), (1, 1e10)]
)
def test_divergences_of_a_poisson_number_of_laplace_runs_are_published_ones(epsilon, mean):
  order = 1 + (1 - 1e-9) / math.expm1(epsilon)  # where delta is 0

  def one(orders):
    return closed_forms.laplace(np.array([float(epsilon)]), np.array(orders))[0]

  curve = best_of_runs(one, epsilon, mean, math.inf)
  shrunk = math.expm1((1 - 2 * order) * epsilon) * (order - 1) / (2 * order - 1)
  expected = epsilon + math.log1p(shrunk) / (order - 1) + math.log(mean) * math.expm1(epsilon)
  assert float(curve((order,))[0]) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("sigma", [0.5, 2.0])
def test_divergences_of_a_poisson_number_of_gaussian_runs_are_above_exact_deltas(sigma):
  orders = np.array([1.5, 4.0, 20.0])
  curve = best_of_runs(lambda orders: np.array(orders) / 2 / sigma**2, math.inf, 10.0, math.inf)
  deltas = np.array([gaussian_delta(sigma, math.log1p(1 / (a - 1))) for a in orders])
  exact = orders / 2 / sigma**2 + 10 * deltas + math.log(10) / (orders - 1)
  assert np.all(exact <= curve(tuple(orders)))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mean", [1.0, 3.0, 50.0])
def test_never_below_the_exact_best_of_responses(shape, mean):
  # One run answers one bit at epsilon 1; the best is the larger answer. Its probabilities follow
  # from the generating function of the number of runs.
  gamma = math.exp(log_gamma(mean, 1.0 if shape == math.inf else shape))
  none = math.exp(-mean) if shape == math.inf else 0.0  # no run: the same on both sides

  def generating(x):
    if shape == math.inf:
      return math.exp(mean * (x - 1)) - none
    if mean == 1.0:
      return x
    if shape == 0:
      return math.log1p(-(1 - gamma) * x) / math.log(gamma)
    return ((1 - (1 - gamma) * x) ** -shape - 1) / (gamma**-shape - 1)

  low = [1 / (1 + math.exp(sign)) for sign in (1.0, -1.0)]
  zero = np.array([generating(x) for x in low])  # all answers are 0
  for delta in (1e-3, 0.1):
    epsilon = accounting.selection_epsilon(pure(1.0), delta, mean_runs=mean, shape=shape)
    for p, q in (zero, zero[::-1]):
      stick = sum(
        max(a - math.exp(epsilon) * b, 0) for a, b in ((p, q), (1 - none - p, 1 - none - q))
      )
      assert stick <= delta


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("sigma", "mean"), [(1.0, 1.0), (1.0, 4.0), (4.0, 10.0)])
def test_profile_is_above_the_exact_best_of_gaussian_runs(sigma, mean, shape):
  """Each run releases its own score, a Gaussian of one of two means, and the largest is released.

  By the distribution of the best, on a grid: an epsilon_1 of half the size would be refused at
  small deltas, where shape and mean make it matter.
  """
  gamma = math.exp(log_gamma(mean, 1.0 if shape == math.inf else shape))

  def weight(below):  # the derivative of the generating function, normalised to the mean
    if shape == math.inf:
      return mean * np.exp(mean * (below - 1))
    return mean * (gamma / (1 - (1 - gamma) * below)) ** (1 + shape)

  y = np.linspace(-12 * sigma, 12 * sigma + 1, 40_001)
  step = y[1] - y[0]
  low, high = (scipy.stats.norm(mu, sigma) for mu in (0.0, 1.0))
  best = [weight(one.cdf(y)) * one.pdf(y) * step for one in (low, high)]
  none = math.exp(-mean) if shape == math.inf else 0.0
  assert [one.sum() + none for one in best] == pytest.approx([1, 1], abs=1e-3)
  tuned = Ledger().append(
    accounting.best_of_runs(subsampled_gaussian(1.0, sigma, 1), mean_runs=mean, shape=shape)
  )
  for delta in (1e-2, 1e-5):
    epsilon = accounting.epsilon(tuned, delta)
    sticks = [np.maximum(p - math.exp(epsilon) * q, 0).sum() for p, q in (best, best[::-1])]
    assert max(sticks) <= delta
    assert max(sticks) > delta / 30 or mean > 1  # of one run the bound is the truth
    if mean > 1 and shape != math.inf:  # less than the bound on one run is not enough
      single = accounting.epsilon(subsampled_gaussian(1.0, sigma, 1), delta)
      assert (
        max(np.maximum(p - math.exp(0.9 * single) * q, 0).sum() for p, q in (best, best[::-1]))
        > delta
      )


def test_the_best_of_a_fixed_number_costs_more_than_the_best_of_as_many_on_average():
  """By its exact distribution: the guarantee of one run is none, nor that of a random number.

  The largest of 20 Gaussian scores is small with the power of 20 of one's probability.
  """
  y = np.linspace(-12, 13, 40_001)
  step = y[1] - y[0]

  def best(mu, count):
    one = scipy.stats.norm(mu, 1.0)
    return count * one.cdf(y) ** (count - 1) * one.pdf(y) * step

  run, delta = subsampled_gaussian(1.0, 1.0, 1), 1e-3
  for count, epsilon in (
    (5, accounting.epsilon(run, delta)),
    (20, accounting.selection_epsilon(run, delta, mean_runs=20.0, shape=0.0)),
  ):
    low, high = best(0.0, count), best(1.0, count)
    assert np.maximum(low - math.exp(epsilon) * high, 0).sum() > 3 * delta


def test_of_several_kinds_of_runs_the_dearest_counts():
  cheap, dear = subsampled_gaussian(0.1, 3.0, 50), subsampled_gaussian(0.1, 1.5, 30)

  def costs(*kinds, **options):
    event = accounting.best_of_runs(*kinds, mean_runs=5.0)
    return accounting.epsilon(Ledger().append(event), 1e-5, **options)

  for accountant in ("rdp", "tightest"):
    assert costs(dear, cheap, accountant=accountant) == pytest.approx(
      costs(dear, accountant=accountant), rel=1e-3
    )
  # One is dearer at small deltas, and the other at large ones.
  once, often = subsampled_gaussian(0.01, 0.5, 1), subsampled_gaussian(1.0, 8.0, 3)
  for delta in (1e-2, 1e-9):
    both = accounting.best_of_runs(once, often, mean_runs=5.0)
    epsilons = [accounting.selection_epsilon(kind, delta, mean_runs=5.0) for kind in (once, often)]
    assert accounting.epsilon(Ledger().append(both), delta) >= max(epsilons) * (1 - 1e-3)
  event = accounting.best_of_runs(cheap, cheap, cheap, mean_runs=5.0)
  assert event == accounting.best_of_runs(cheap, mean_runs=5.0)
  with pytest.raises(ValueError, match="without others"):
    dataclasses.replace(event.query, others=(both.query,))
  with pytest.raises(ValueError, match="one number of repetitions"):
    dataclasses.replace(event.query, others=(dataclasses.replace(event.query, mean_runs=6.0),))


def test_overflows_count_for_every_run():
  event = Round(PoissonSampling(0.1, overflow_probability=1e-7), GaussianSum(1.0, 3.0))
  plain = subsampled_gaussian(0.1, 3.0, 50)
  spilled = Ledger().append(event, count=50)
  clean = accounting.selection_epsilon(plain, 1e-3, mean_runs=10.0)
  assert accounting.selection_epsilon(spilled, 1e-3, mean_runs=10.0) > clean
  assert math.isinf(accounting.selection_epsilon(spilled, 1e-5, mean_runs=10.0))
  assert accounting.selection_epsilon(Ledger(), 1e-5, mean_runs=10.0) == 0
  assert clean > accounting.epsilon(plain, 1e-3)


def test_event_composes_with_other_rounds_and_counts_overflows_of_every_run(tmp_path):
  inner = Ledger().append(
    Round(PoissonSampling(1.0, overflow_probability=1e-9), GaussianSum(1.0, 30.0)), count=50
  )
  for shape in (0.0, math.inf):
    event = accounting.best_of_runs(inner, mean_runs=10.0, shape=shape)
    assert event.query.overflow_probability == pytest.approx(10 * 50 * 1e-9)
    tuned = Ledger().append(event)
    alone = accounting.epsilon(tuned, 1e-4)
    assert alone == pytest.approx(
      accounting.selection_epsilon(inner, 1e-4, mean_runs=10.0, shape=shape), rel=1e-3
    )
    final = tuned.extend(inner.entries)
    assert alone < accounting.epsilon(final, 1e-4) < alone + accounting.epsilon(inner, 1e-4) * 2
    assert accounting.epsilon(final, 1e-4, accountant="pld") <= accounting.epsilon(final, 1e-4)
    assert accounting.epsilon_interval(tuned, 1e-4)[0] == 0  # nobody attains the bound
    final.save(tmp_path / "ledger.jsonl")
    assert ledger.load(tmp_path / "ledger.jsonl") == final


def test_keys_that_are_exposed_in_a_run_are_so_in_the_best():
  inner = Round(PoissonSampling(1.0), GaussianSum(1.0, 3.0), key_exposed=True)
  assert accounting.best_of_runs(Ledger().append(inner), mean_runs=3.0).key_exposed


def test_no_event_stands_for_runs_that_choose_their_rounds():
  """Filters admit adaptive events. What each repetition costs would differ, and is not known."""
  chosen = Round(PoissonSampling(1.0), GaussianSum(1.0, 3.0), adaptive=True)
  with pytest.raises(ValueError, match="fixed before the run"):
    accounting.best_of_runs(Ledger().append(chosen), mean_runs=3.0)
  # Whether the runs happen at all may be chosen.
  fixed = accounting.best_of_runs(subsampled_gaussian(1.0, 30.0, 1), mean_runs=3.0)
  fixed = dataclasses.replace(fixed, adaptive=True)
  assert accounting.renyi_filter(3.0, 1e-5).admits(Ledger(), fixed)


def test_a_run_costs_what_its_samplings_and_relation_cost():
  # Epochs, and samples of fixed size, are analysed within the run.
  bins = Ledger().append(Round(BallsInBins(4, True), GaussianSum(1.0, 3.0)))
  bins = bins.append(Round(BallsInBins(4, False), GaussianSum(1.0, 3.0)), count=3)
  whole = subsampled_gaussian(1.0, 3.0, 1)
  tuned = [Ledger().append(accounting.best_of_runs(run, mean_runs=5.0)) for run in (bins, whole)]
  costs = [accounting.epsilon(one, 1e-5, accountant="rdp") for one in tuned]
  assert costs[0] == pytest.approx(costs[1])
  # Loss distributions know what the bins hide.
  assert accounting.epsilon(tuned[0], 1e-5) < 0.6 * accounting.epsilon(tuned[1], 1e-5)
  fixed = Round(FixedSizeSampling(10, 100), GaussianSum(1.0, 3.0), "replace_one")
  tuned = Ledger().append(accounting.best_of_runs(Ledger().append(fixed), mean_runs=5.0))
  assert accounting.epsilon(tuned, 1e-5) > accounting.epsilon(Ledger().append(fixed), 1e-5)
  with pytest.raises(ValueError, match="FixedSizeSampling"):
    accounting.epsilon(tuned, 1e-5, relation="add_remove")


def test_events_that_are_not_analysed_are_refused():
  run = Round(PoissonSampling(1.0), GaussianSum(1.0, 3.0))
  with pytest.raises(ValueError, match="one count for each"):
    BestOfRuns((run,), (1, 2), 3.0)
  with pytest.raises(ValueError, match="events Round, got GaussianSum"):
    BestOfRuns((run.query,), (1,), 3.0)
  with pytest.raises(ValueError, match="counts"):
    BestOfRuns((run,), (10**400,), 3.0)
  with pytest.raises(ValueError, match="mean_runs"):
    BestOfRuns((run,), (1,), 0.5)
  best = BestOfRuns((run,), (1,), 3.0)
  for event, words in (
    (Round(PoissonSampling(0.5), best), "how they were sampled"),
    (Round(PoissonSampling(1.0), best, observer="server"), "unit and observer"),
  ):
    with pytest.raises(ValueError, match=words):
      accounting.epsilon(Ledger().append(event), 1e-5)
  local = Ledger().append(LocalRelease(PureDP(1.0)))
  with pytest.raises(ValueError, match="rounds alone"):
    accounting.best_of_runs(local, mean_runs=3.0)
  several = Ledger().append(run).append(Round(run.sampling, run.query, "zero_out"))
  with pytest.raises(ValueError, match="one relation"):
    accounting.best_of_runs(several, mean_runs=3.0)


def test_arguments_are_refused():
  with pytest.raises(ValueError, match="mean_runs"):
    accounting.selection_epsilon(pure(1.0), 1e-5, mean_runs=0.5)
  with pytest.raises(ValueError, match="shape"):
    accounting.selection_epsilon(pure(1.0), 1e-5, mean_runs=2.0, shape=-0.5)
