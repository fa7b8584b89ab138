"""Groups of records: closed forms, and exact hockey sticks of groups that take part."""

import math

import numpy as np
import pytest
import scipy

from jdp import accounting
from jdp.events import LaplaceSum, LocalRelease, PoissonSampling, Round
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


@pytest.mark.parametrize(("q", "z", "size"), [(0.1, 1.0, 2), (0.3, 2.0, 3), (0.01, 1.5, 4)])
@pytest.mark.parametrize("delta", [1e-3, 1e-6])
def test_never_below_a_group_that_is_sampled(q, z, size, delta):
  # All members contribute the most: a binomial mixture of Gaussians against one, both ways.
  epsilon = accounting.group_epsilon(subsampled_gaussian(q, z, 1), delta, group_size=size)
  x = np.linspace(-15 * z, 15 * z + size, 40_001)
  weights = scipy.stats.binom.pmf(np.arange(size + 1), size, q)
  densities = [scipy.stats.norm.pdf(x, taking_part, z) for taking_part in range(size + 1)]
  with_group, without = weights @ densities, densities[0]
  for p, q_ in ((with_group, without), (without, with_group)):
    stick = np.sum(np.maximum(p - math.exp(epsilon) * q_, 0.0)) * (x[1] - x[0])
    assert stick <= delta * (1 + 1e-9)


def test_groups_of_one_cost_what_the_tight_accountant_says():
  run = subsampled_gaussian(0.01, 1.1, 1000)
  one = accounting.epsilon(run, 1e-5, accountant="pld")
  found = accounting.group_epsilon(run, 1e-5, group_size=1)
  assert found == pytest.approx(one, rel=1e-3)
  two = accounting.group_epsilon(run, 1e-5, group_size=2)
  assert found < two < accounting.epsilon(run, 1e-12)


def test_deltas_of_local_releases_grow_with_the_steps():
  scope = {"relation": Relation.REPLACE_ONE, "unit": Unit.USER, "observer": Observer.SERVER}
  run = Ledger().append(LocalRelease(ApproxDP(1.0, 1e-6, **scope)))
  total = 1e-6 * (1 + math.e)  # of two steps
  assert accounting.group_epsilon(run, 1.01 * total, group_size=2) == pytest.approx(2.0, rel=1e-3)
  assert accounting.group_epsilon(run, 1e-6, group_size=2) == math.inf


def test_edges():
  assert accounting.group_epsilon(Ledger(), 1e-5, group_size=3) == 0
  assert accounting.group_epsilon(subsampled_gaussian(0.0, 1.0, 3), 1e-5, group_size=3) < 1e-9
  assert accounting.group_epsilon(subsampled_gaussian(0.5, 0.0, 3), 1e-5, group_size=1) == math.inf
  with pytest.raises(ValueError, match="group_size"):
    accounting.group_epsilon(Ledger(), 1e-5, group_size=0)
  with pytest.raises(ValueError, match="delta"):
    accounting.group_epsilon(Ledger(), 0.0, group_size=1)
