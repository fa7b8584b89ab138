"""Losses on a lattice: above and below the exact hockey sticks of single releases."""

import itertools
import math

import mpmath
import numpy as np
import pytest
from scipy import integrate, special, stats

from jdp.accounting.pld import discretise
from jdp.accounting.pld.discretise import Lattice
from jdp.accounting.pld.losses import fixed_size, pairs

EPSILONS = np.array([-1.5, -0.4, -0.009, 0.0, 0.003, 0.1, 0.7, 2.0, 3.9])
SAMPLED = [(0.01, 1.0), (0.1, 0.6), (0.5, 3.0), (1e-4, 0.8), (0.9, 1.3), (1.0, 2.0)]


def sampled_stick(q, z, epsilon, removed):
  """The exact hockey stick at eps: both probabilities of the half-line where the loss is more."""
  bound = epsilon if removed else -epsilon
  gain = math.expm1(bound) / q + 1
  t = (math.log(gain) * z + 0.5 / z) if gain > 0 else -math.inf
  none, one = (special.ndtr(-(t - s)) if removed else special.ndtr(t - s) for s in (0.0, 1 / z))
  mixed = (1 - q) * none + q * one
  return mixed - math.exp(epsilon) * none if removed else none - math.exp(epsilon) * mixed


def fixed_size_stick(q, z, epsilon, opposite=0.0):
  """By the definition of both halves, with densities over a grid of outputs: of a record against
  none, of which an opposite one is so far away.
  """
  x = np.linspace(-12 - opposite, 12 + 1 / z, 200_001)
  one, none, other = stats.norm.pdf(x - 1 / z), stats.norm.pdf(x), stats.norm.pdf(x + opposite)
  here, there = (other, other) if epsilon >= 0 else (one, one)
  p, q_law = (1 - q) * here + q * one, (1 - q) * there + q * none
  return integrate.trapezoid(np.maximum(p - math.exp(epsilon) * q_law, 0), x)


def laplace_stick(shift, epsilon):
  if abs(epsilon) < shift:
    return -math.expm1((epsilon - shift) / 2)
  return max(0.0, -math.expm1(epsilon))


def atoms_stick(pair, epsilon):
  return float(np.sum(np.exp(pair.log_p) * np.maximum(-np.expm1(epsilon - pair.losses), 0)))


def stick(masses, epsilon):
  return masses.infinite + float(
    np.sum(masses.p * np.maximum(-np.expm1(epsilon - masses.lattice.points()), 0))
  )


def check(pair, exact, lattice, slack=0.0):
  """Both measures' sticks are on their sides of the exact one; returns the largest distance between
  them.
  """
  above, below = discretise.upper(pair, lattice), discretise.lower(pair, lattice)
  assert np.all(below.p >= 0)
  assert np.all(above.p >= 0)
  widths = []
  for epsilon in EPSILONS:
    low, high = stick(below, epsilon), stick(above, epsilon)
    assert low <= exact(epsilon) + slack + 1e-15
    assert exact(epsilon) <= high + slack + 1e-15
    widths.append(high - low)
  return max(widths)


@pytest.mark.parametrize("removed", [True, False])
@pytest.mark.parametrize(("q", "z"), SAMPLED)
@pytest.mark.parametrize("spacing", [0.03, 0.002])
def test_sampled_gaussians(q, z, removed, spacing):
  pair = pairs.sampled_gaussian(q, z, removed=removed)
  for offset in (0.0, 0.37 * spacing):
    lattice = Lattice(offset, spacing, int(-6 / spacing), int(9 / spacing))
    width = check(pair, lambda epsilon: sampled_stick(q, z, epsilon, removed), lattice)
    # Of second order, but where the density changes within a cell: there of the first.
    assert width <= (20 * spacing**2 if spacing < q / 4 else spacing)


@pytest.mark.parametrize(
  ("q", "z", "share"),
  [
    *((q, z, 0.0) for q, z in SAMPLED[:-1]),
    *((0.01, 1.0, 1.0), (0.5, 3.0, 0.4), (1e-4, 0.8, 0.4), (0.9, 1.3, 1.0)),
  ],
)
def test_fixed_size_samples(q, z, share):
  """Those of which an opposite record is `share` as far from none as the record itself is."""
  pair, back = (
    fixed_size.fixed_size_gaussian(q, z / (1 + share), z, removed=side) for side in (True, False)
  )

  def stick(epsilon):
    return fixed_size_stick(q, z, epsilon, share / z)

  def reverse(epsilon):  # sup_A Q(A) - c P(A) = 1 - c + c sup_A (P(A) - Q(A) / c)
    return 1 - math.exp(epsilon) + math.exp(epsilon) * stick(-epsilon)

  lattice = Lattice(0.0, 0.002, -3000, 4500)
  check(pair, stick, lattice, slack=1e-8)
  check(back, reverse, lattice, slack=1e-8)
  # No edge is at the atom: cells are closed above.
  cells, other = pair.cells(np.linspace(-3, 3, 8)), back.cells(np.linspace(-3, 3, 8))
  np.testing.assert_allclose((cells.p.sum(), cells.q.sum()), 1.0, rtol=1e-12)
  np.testing.assert_allclose(cells.p, other.q[::-1], rtol=1e-9)
  if share == 0:
    np.testing.assert_allclose(cells.p, cells.q[::-1], rtol=1e-9)  # its own reverse


@pytest.mark.parametrize(("q", "z"), [(0.01, 1.0), (0.1, 0.6), (0.5, 3.0), (0.9, 1.3)])
def test_what_data_sets_attain_of_a_zeroed_record(q, z):
  """All others opposite to it: below its stick, and by little where losses are above 0."""
  pair = fixed_size.attained(q, z / 2, z, removed=True)
  lattice = Lattice(0.0, 0.002, -3000, 4500)
  found = discretise.lower(pair, lattice)
  x = np.linspace(-14 - 1 / z, 14 + 1 / z, 400_001)
  other, none, one = (stats.norm.pdf(x - centre / z) for centre in (-1, 0, 1))
  for epsilon in EPSILONS:
    exact = (1 - q) * other + q * one - math.exp(epsilon) * ((1 - q) * other + q * none)
    exact = integrate.trapezoid(np.maximum(exact, 0), x)
    shown = lattice.points() > epsilon
    below = np.sum(found.p[shown] * -np.expm1(epsilon - lattice.points()[shown]))
    assert below <= exact + 1e-9
    assert below >= 0.98 * exact - 1e-5 or epsilon < 0


@pytest.mark.parametrize("shift", [0.05, 0.7, 3.0])
def test_laplace(shift):
  for spacing, offset in ((shift / 7, -shift), (0.013, 0.001)):
    lattice = Lattice(offset, spacing, int((-6 - offset) / spacing), int((6 - offset) / spacing))
    width = check(pairs.laplace(shift), lambda epsilon: laplace_stick(shift, epsilon), lattice)
    assert width <= (spacing**2 if offset == -shift else 1.1 * spacing)


@pytest.mark.parametrize(
  "pair",
  [
    pairs.pure(0.3),
    pairs.pure(2.0),
    pairs.randomized_response(0.4, 5.0, math.log1p(5 * 0.6 / 0.4)),
  ],
)
def test_atoms(pair):
  for spacing, offset in ((pair.step / 8 if pair.step else 0.01, pair.losses[0]), (0.013, 0.001)):
    lattice = Lattice(offset, spacing, int((-6 - offset) / spacing), int((6 - offset) / spacing))
    width = check(pair, lambda epsilon: atoms_stick(pair, epsilon), lattice)
    assert width <= (1e-10 if pair.step and offset == pair.losses[0] else 1.1 * spacing)


@pytest.mark.parametrize("rho", [0.01, 0.5])
def test_a_pair_of_renyi_divergences(rho):
  """It is above the Gaussian that has these divergences, in both directions, and below the
  conversion of any order.
  """
  pair = pairs.renyi(lambda orders: rho * orders)
  z, orders = (2 * rho) ** -0.5, 1 + np.geomspace(1e-3, 1e4, 4000)
  for epsilon in EPSILONS:
    own = discretise.upper(pair, Lattice(0.0, 1e-3, -8000, 8000))
    assert stick(own, epsilon) >= sampled_stick(1.0, z, epsilon, True)
    if epsilon >= 0:
      conversion = (orders - 1) * (rho * orders - epsilon + np.log1p(-1 / orders)) - np.log(orders)
      assert stick(own, epsilon) <= 1.01 * math.exp(min(0.0, conversion.min())) + 1e-9


def test_the_cells_of_the_normal_distribution_err_by_less_than_stated():
  t = np.array([-30.0, -8.1, -2.0, -1e-3, 0.0, 0.5, 0.5000001, 3.0, 9.0, 20.0])
  masses, errors = pairs.normal_masses(t)
  with mpmath.workdps(60):
    ends = [mpmath.mpf(0), *(mpmath.ncdf(mpmath.mpf(v)) for v in t.tolist()), mpmath.mpf(1)]
    exact = [high - low for low, high in itertools.pairwise(ends)]
    wrong = [abs(mpmath.mpf(float(m)) - e) for m, e in zip(masses, exact, strict=True)]
  assert all(float(w) <= e + 1e-16 for w, e in zip(wrong, errors, strict=True))
