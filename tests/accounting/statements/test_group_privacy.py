"""Groups of records: closed forms, and exact hockey sticks of groups that take part."""

import itertools
import math

import numpy as np
import pytest
import scipy
from dp_accounting import dp_event
from dp_accounting.pld import pld_privacy_accountant as pld_accountant

from jdp import accounting
from jdp.accounting.observed import observed
from jdp.accounting.statements import group_privacy
from jdp.events import BallsInBins, GaussianSum, LaplaceSum, LocalRelease, PoissonSampling, Round
from jdp.guarantees import ApproxDP, Observer, Relation, Unit
from jdp.ledger import Ledger, subsampled_gaussian


@pytest.mark.parametrize(
  ("z", "size", "delta"), [(10.0, 4, 1e-5), (10.0, 20, 1e-8), (3.0, 1, 1e-12), (50.0, 100, 1e-3)]
)
def test_gaussian_releases_have_a_larger_sensitivity(z, size, delta):
  found = accounting.group_epsilon(subsampled_gaussian(1.0, z, 1), delta, group_size=size)
  exact = accounting.gaussian_epsilon(z / size, delta)
  assert exact <= found <= 1.002 * exact


def test_pure_losses_add_up():
  run = Ledger().append(Round(PoissonSampling(1.0), LaplaceSum(1.0, 10.0)))
  for size in (1, 2, 7):
    found = accounting.group_epsilon(run, 1e-9, group_size=size)
    # Of sums with Laplace noise the distance grows: a Laplace pair that many times as far apart.
    far = Ledger().append(Round(PoissonSampling(1.0), LaplaceSum(float(size), 10.0)))
    assert accounting.epsilon(far, 1e-9, accountant="pld") * (1 - 1e-6) <= found
    assert found <= 0.1 * size + 1e-9


def mixture_deltas(q, z, size, epsilon):
  """Both deltas of a Gaussian and its mixture, exactly: the loss rises, and is epsilon in a point.

  A sum over a grid errs where the hockey stick has its kink, by more than the bounds' slack.
  """
  members = np.arange(size + 1)
  weights, ratio = scipy.stats.binom.pmf(members, size, q), math.exp(epsilon)

  def loss(x):
    return math.log(weights @ np.exp((2 * members * x - members**2) / (2 * z**2)))

  def crossing(level):
    ends = -60 * z, 60 * z
    return (
      scipy.optimize.brentq(lambda x: loss(x) - level, *ends) if loss(ends[0]) < level else None
    )

  above, below, normal = crossing(epsilon), crossing(-epsilon), scipy.stats.norm
  yield weights @ normal.sf((above - members) / z) - ratio * normal.sf(above / z)
  if below is not None:
    yield normal.cdf(below / z) - ratio * (weights @ normal.cdf((below - members) / z))


@pytest.mark.parametrize(
  ("q", "z", "size", "delta"),
  [
    (0.1, 1.0, 2, 1e-6),
    pytest.param(0.3, 2.0, 3, 1e-3, marks=pytest.mark.slow),
    pytest.param(0.3, 2.0, 3, 1e-6, marks=pytest.mark.slow),
    pytest.param(0.01, 1.5, 4, 1e-6, marks=pytest.mark.slow),
  ],
)
def test_never_below_a_group_that_is_sampled(q, z, size, delta):
  # All members contribute the most: a binomial mixture of Gaussians against one, both ways.
  epsilon = accounting.group_epsilon(subsampled_gaussian(q, z, 1), delta, group_size=size)
  found = [
    max(mixture_deltas(q, z, size, factor * epsilon - (factor < 1) * 1e-4))
    for factor in (1.0, 0.998)
  ]
  assert found[0] <= delta * (1 + 1e-9)
  assert epsilon == 0 or found[1] > delta  # and tight


@pytest.mark.slow
def test_two_rounds_of_a_sampled_group_by_quadrature():
  """User-level sampling of examples: E over one round's losses of the other's exact hockey stick,
  in both directions. The trapezoidal rule errs by less than 1e-9 of the deltas here.
  """
  q, z, size, delta = 0.3, 2.0, 3, 1e-3
  found = accounting.group_epsilon(subsampled_gaussian(q, z, 2), delta, group_size=size)
  members, x = np.arange(size + 1), np.linspace(-24.0, 27.0, 401)
  weights = scipy.stats.binom.pmf(members, size, q)
  none = scipy.stats.norm.pdf(x, 0, z)
  mixed = scipy.stats.norm.pdf(x[:, None], members, z) @ weights
  losses, least = np.log(mixed / none), math.log(weights[0])

  def removed(epsilon):
    return next(mixture_deltas(q, z, size, epsilon)) if epsilon > least else -math.expm1(epsilon)

  def added(epsilon):
    return list(mixture_deltas(q, z, size, epsilon))[1] if -epsilon > least else 0.0

  def exact(epsilon):
    sticks = (
      [removed(epsilon - loss) for loss in losses],
      [added(epsilon + loss) for loss in losses],
    )
    step = x[1] - x[0]
    return max(float(np.sum(p * d)) * step for p, d in zip((mixed, none), sticks, strict=True))

  assert exact(found) <= delta * (1 + 1e-9)
  assert exact(found * (1 - 2e-3)) > delta  # and tight


@pytest.mark.slow
def test_sampled_groups_agree_with_dp_accounting():
  q, z, size, rounds = 0.1, 2.0, 2, 30
  weights = scipy.stats.binom.pmf(np.arange(size + 1), size, q)
  peer = pld_accountant.PLDAccountant(value_discretization_interval=5e-3)
  event = dp_event.MixtureOfGaussiansDpEvent(z, list(range(size + 1)), weights.tolist())
  peer.compose(event, rounds)
  found = accounting.group_epsilon(subsampled_gaussian(q, z, rounds), 1e-6, group_size=size)
  theirs = peer.get_epsilon(1e-6)  # from above, on a coarse grid
  assert 0.97 * theirs < found <= theirs


@pytest.mark.slow
def test_large_groups_of_sampled_records_have_bounds():
  run = subsampled_gaussian(0.01, 1.1, 1000)
  epsilons = [accounting.group_epsilon(run, 1e-5, group_size=size) for size in (1, 2, 4, 8)]
  assert all(a < b for a, b in itertools.pairwise(epsilons))
  assert epsilons[-1] < 40


def test_groups_of_one_cost_what_the_tight_accountant_says():
  run = subsampled_gaussian(0.01, 1.1, 1000)
  one = accounting.epsilon(run, 1e-5, accountant="pld")
  found = accounting.group_epsilon(run, 1e-5, group_size=1)
  assert found == pytest.approx(one, rel=1e-3)
  two = accounting.group_epsilon(run, 1e-5, group_size=2)
  assert found < two < accounting.epsilon(run, 1e-12, accountant="rdp")


def test_deltas_of_local_releases_grow_with_the_steps():
  scope = {"relation": Relation.REPLACE_ONE, "unit": Unit.USER, "observer": Observer.SERVER}
  run = Ledger().append(LocalRelease(ApproxDP(1.0, 1e-6, **scope)))
  total = 1e-6 * (1 + math.e)  # of two steps
  assert accounting.group_epsilon(run, 1.01 * total, group_size=2) == pytest.approx(2.0, rel=1e-3)
  assert accounting.group_epsilon(run, 1e-6, group_size=2) == math.inf


def test_only_plain_poisson_rounds_have_a_pair_for_groups():
  # Other events that are charged as Gaussians may add up across rounds: they are taken by steps.
  bins = Ledger().append(Round(BallsInBins(1, True), GaussianSum(1.0, 5.0)))
  plain = subsampled_gaussian(0.1, 5.0, 1)
  assert group_privacy._has_group_pairs(plain, observed(plain, None, None))
  both = plain + bins
  assert not group_privacy._has_group_pairs(both, observed(both, None, None))
  found = accounting.group_epsilon(bins, 1e-5, group_size=3)
  exact = accounting.gaussian_epsilon(5.0 / 3, 1e-5)
  assert exact <= found <= 1.002 * exact


def test_edges():
  assert accounting.group_epsilon(Ledger(), 1e-5, group_size=3) == 0
  assert accounting.group_epsilon(subsampled_gaussian(0.0, 1.0, 3), 1e-5, group_size=3) < 1e-9
  assert accounting.group_epsilon(subsampled_gaussian(0.5, 0.0, 3), 1e-5, group_size=1) == math.inf
  with pytest.raises(ValueError, match="group_size"):
    accounting.group_epsilon(Ledger(), 1e-5, group_size=0)
  with pytest.raises(ValueError, match="delta"):
    accounting.group_epsilon(Ledger(), 0.0, group_size=1)
