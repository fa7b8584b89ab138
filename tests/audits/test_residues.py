"""Audits by residues: what they see, and that they see nothing where nothing is."""

import math

import jax
import numpy as np
import pytest

from jdp.audits.bounds import epsilon_bound
from jdp.audits.residues import audit_residues, float_residues, granularity, residues

COUNT = 40_000
BOUND = epsilon_bound(1 - 1e-6)


def draws(seed):
  return np.random.default_rng(seed).laplace(size=COUNT).astype(np.float32)


def test_granularity_of_floats_is_the_place_of_their_last_digit():
  floats = np.float32([1.0, 0.75, -3.0, 2.0**-30, 1 + 2.0**-23, 96.0])
  assert residues(floats)["granularity of 0"].tolist() == [0, -2, 0, -30, -23, 5]


@pytest.mark.sweep
@pytest.mark.parametrize(
  "number", [0.0, -0.0, 1.0, -0.75, 3e-5, 2.0**-120, 1e30, 1e-40, 2.0**-149, np.float32(1 / 3)]
)
def test_last_and_first_digits_of_floats(number):
  """Denormal numbers among them."""
  number = np.float32(number)
  found = {name: int(residue) for name, residue in jax.jit(float_residues)(number).items()}
  if number == 0:
    assert granularity(number) == found["granularity"] == 1000
  else:
    e = int(granularity(number))
    assert float(number) / 2.0**e % 2 in (1.0, -1.0)
    assert found["granularity and size"] == 4096 * e + math.frexp(number)[1]
  assert found["modulo 16"] == number.view(np.int32) % 16


@pytest.mark.parametrize("spacing", [0.25, 0.3])
def test_granularity_on_a_grid_is_the_coarsest_multiple_that_rounds_to_the_number(spacing):
  for e in (0, 2, 5):
    numbers = np.rint(2.0**e * np.arange(1, 2000, 2) / spacing).astype(np.int64)
    assert np.min(residues(numbers, spacing)["granularity of 0"]) >= e
  everything = residues(np.arange(1, 4096), spacing)["granularity of 0"]
  assert np.min(everything) == -2  # nothing finer than the grid


def test_integers_and_their_multiples_of_the_spacing_have_the_same_residues():
  numbers = np.random.default_rng(0).integers(-(2**20), 2**20, (500, 2))
  of_floats = residues((numbers.astype(np.float32) * np.float32(0.5)), 0.5)
  for name, column in residues(numbers, 0.5).items():
    np.testing.assert_array_equal(column, of_floats[name])


def test_floats_near_zero_are_told_from_floats_near_one_half():
  """No more than 1/2 is the loss of real numbers; a coarse grid, or no difference, leaves nothing
  to see.
  """
  zero, half = draws(0), np.float32(0.5) + draws(1)
  assert audit_residues(zero, half, BOUND).bound > 4.0
  assert audit_residues(half, zero, BOUND).bound > 4.0
  assert audit_residues(zero, draws(2), BOUND).bound == 0.0
  assert (
    audit_residues(
      np.rint(8 * zero).astype(int), np.rint(8 * half).astype(int), BOUND, spacing=0.125
    ).bound
    < 0.5
  )


def test_the_event_is_measured_on_numbers_that_did_not_choose_it():
  """100 audits of one distribution at 90 %: a bound above 0 in more than 25 of them has a
  probability below 1e-5.
  """
  rng = np.random.default_rng(5)
  refuted = sum(
    audit_residues(*rng.integers(0, 50, (2, 400)), epsilon_bound(0.9), spacing=1.0).bound > 0
    for _ in range(100)
  )
  assert refuted <= 25


def test_a_lattice_in_any_coordinate_and_an_equality_are_seen():
  rng = np.random.default_rng(1)
  first, second = rng.integers(0, 1000, (2, COUNT, 2))
  second[:, 1] -= second[:, 1] % 7
  found = audit_residues(first, second, BOUND, spacing=1.0)
  assert (found.column, found.upper, found.false_hits) == ("modulo 7 of 1", True, 0)
  first[::2, 0] = 13
  again = audit_residues(first[:, :1], rng.integers(0, 1000, (COUNT, 1)), BOUND, spacing=1.0)
  assert again.column == "value of 0"
  assert again.bound > math.log(100)  # of 500


def test_numbers_off_the_grid_are_seen():
  """Noise on a grid, around a value that was not brought onto it: a threshold sees 1/20 of 1."""
  rng = np.random.default_rng(2)
  places = np.rint(rng.laplace(scale=40, size=(2, COUNT)))
  on, off = 0.25 * places[0], 0.25 * places[1] + 0.05
  found = audit_residues(on, off, BOUND, spacing=0.25)
  assert (found.column, found.false_hits) == ("offset of 0", 0)
  assert found.bound > 6.0
  assert audit_residues(on, 0.25 * places[1], BOUND, spacing=0.25).bound == 0.0


@pytest.mark.parametrize("spacing", [None, 0.125])
def test_noise_that_two_numbers_share_is_seen(spacing):
  noise = np.rint(8 * draws(3)) / 8
  alone = np.rint(8 * draws(4)) / 8
  shared = np.stack([noise, noise], axis=1)
  moved = shared + np.float32([0.0, 0.5])
  found = audit_residues(shared, moved, BOUND, spacing=spacing)
  assert (found.column, found.false_hits) == ("difference of 0 and 1", 0)
  own = np.stack([noise, alone], axis=1), np.stack([alone, noise], axis=1)
  assert audit_residues(*own, BOUND, spacing=spacing).bound == 0.0


def test_refusals():
  with pytest.raises(ValueError, match="at least two numbers"):
    audit_residues(np.zeros(1), np.zeros(9), BOUND)
  with pytest.raises(ValueError, match="to be finite numbers"):
    residues(np.float32([0.0, np.nan]))
  with pytest.raises(ValueError, match="to be finite numbers"):
    residues(np.zeros((2, 2, 2), np.float32))
