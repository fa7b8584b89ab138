"""Compositions by FFT against direct convolutions: rounding errors, tilts and what wraps around."""

import math

import numpy as np
import pytest

from jdp.accounting.pld import bounds
from jdp.accounting.pld.compose import compose
from jdp.accounting.pld.discretise import Lattice, Masses
from jdp.accounting.pld.plan import Window


def random_masses(rng, spacing, size, first, offset=0.0):
  p = rng.exponential(size=size) * np.exp(-0.5 * np.linspace(-4, 4, size) ** 2)
  return Masses(Lattice(offset, spacing, first, first + size - 1), p / p.sum(), 0.0)


def convolved(parts):
  """The composition's losses and masses, in extended precision."""
  total, first, offset = np.ones(1, np.longdouble), 0, 0.0
  for (lattice, p, _), count in parts:
    for _ in range(count):
      total = np.convolve(total, p.astype(np.longdouble))
    first, offset = first + count * lattice.first, offset + count * lattice.offset
  return offset + parts[0][0].lattice.spacing * (first + np.arange(len(total))), total


def stick(losses, p, epsilon):
  return float(np.sum(p * np.maximum(-np.expm1(epsilon - losses), 0)))


@pytest.mark.parametrize("tilt", [0.0, 2.0, 11.0])
def test_rounding_errors_are_bounded(tilt):
  rng = np.random.default_rng(1)
  parts = [(random_masses(rng, 0.01, 60, -25), 9), (random_masses(rng, 0.01, 33, -14, 0.004), 4)]
  losses, exact = convolved(parts)
  done = compose(parts, Window(tilt, float(losses[0]) - 0.1, float(losses[-1]) + 0.1, (1.0, 1.0)))
  tilted = exact * np.exp(tilt * losses.astype(np.longdouble) - done.log_scale)
  where = round((losses[0] - done.losses[0]) / 0.01)
  np.testing.assert_allclose(done.losses[where], losses[0], atol=1e-12)
  wrong = done.tilted.copy()
  wrong[where : where + len(tilted)] -= tilted.astype(float)
  assert math.sqrt(np.sum(wrong**2)) <= done.error < 1e-11


@pytest.mark.parametrize("tilt", [0.5, 3.0])
@pytest.mark.parametrize("width", [1.2, 2.0, 5.0])
def test_a_window_that_is_too_small_widens_the_bounds(tilt, width):
  rng = np.random.default_rng(2)
  parts = [(random_masses(rng, 0.02, 41, -17), 12)]
  losses, exact = convolved(parts)
  centre = float(
    np.sum(losses * exact * np.exp(tilt * losses)) / np.sum(exact * np.exp(tilt * losses))
  )
  done = compose(parts, Window(tilt, centre - width / 2, centre + width / 2, (4.0, 4.0)))
  above, below = bounds.upper(done), bounds.lower(done)
  highs, lows = above.at_points(), below.at_points()
  for i in range(0, len(done.losses), 7):
    true = stick(losses, exact, done.losses[i])
    assert lows[i] <= true <= highs[i]
  if width == 5.0:
    near = np.abs(done.losses - centre) < 0.3
    assert np.all(highs[near] - lows[near] < 0.02 * highs[near])


def test_the_epsilon_at_a_delta_inverts_the_stick():
  rng = np.random.default_rng(3)
  parts = [(random_masses(rng, 0.02, 41, -17), 12)]
  losses, exact = convolved(parts)
  # nothing is outside
  done = compose(parts, Window(2.0, float(losses[0]) - 20, float(losses[-1]) + 20, (3.0, 3.0)))
  for delta in (0.3, 1e-2, 1e-5):
    low, high = bounds.lower(done).epsilon(delta), bounds.upper(done).epsilon(delta)
    assert low <= high <= low + 1e-6
    np.testing.assert_allclose(stick(losses, exact, high), delta, rtol=1e-6)
    assert stick(losses, exact, high) <= delta <= stick(losses, exact, low)
    np.testing.assert_allclose(bounds.upper(done).delta(high), delta, rtol=1e-9)


def test_a_window_that_begins_beyond_the_epsilon_gives_no_lower_bound():
  """The stick is below delta in the whole window, and its epsilon before it: anywhere."""
  masses = random_masses(np.random.default_rng(3), 0.02, 41, -17)
  losses, exact = convolved([(masses, 12)])
  done = compose([(masses, 12)], Window(1.0, 1.0, 4.0, (4.0, 4.0)))
  delta = 1.5 * stick(losses, exact, 1.0)
  assert bounds.lower(done).epsilon(delta) == -math.inf


def test_an_infinite_loss_counts_as_often_as_it_may_happen():
  lattice, p, _ = random_masses(np.random.default_rng(4), 0.02, 41, -17)
  done = compose([(Masses(lattice, p, 1e-6), 10)], Window(1.0, -6.0, 6.0, (1.0, 1.0)))
  assert bounds.upper(done).delta(5.0) >= 1e-5
  assert bounds.upper(done).epsilon(9e-6) == math.inf


def test_an_infinite_loss_weighs_what_the_others_do():
  """Two measures of mass 1.1 and 1e-3: (1.101^2 - 1.1^2) is infinite, not twice 1e-3."""
  lattice, p, _ = random_masses(np.random.default_rng(4), 0.02, 41, -17)
  done = compose([(Masses(lattice, 1.1 * p, 1e-3), 2)], Window(1.0, -3.0, 3.0, (1.0, 1.0)))
  assert 1.101**2 - 1.1**2 <= done.infinite <= 2.5e-3
