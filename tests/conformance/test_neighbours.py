"""Two data sets that differ in one user, through a whole round: it moves by that user's part."""

import jax
import pytest

from tests.helpers.neighbours import CASES, KEYS, ROUNDING, largest_movements

# Types of keys in turn. All of them are tried by `python -m tests.helpers.neighbours`.
KEY_OF = {name: list(KEYS)[number % len(KEYS)] for number, name in enumerate(CASES)}


@pytest.mark.sweep
@pytest.mark.parametrize("name", CASES)
def test_a_user_moves_a_sum_by_its_own_contribution(name):
  """Whatever it holds. One that is gone moves nothing, though others move up a row."""
  case = CASES[name]
  with jax.numpy_dtype_promotion("standard"):  # parameters in 16 bits
    found = largest_movements(case, KEY_OF[name], place=11)
  assert found.get("gone", 0) <= ROUNDING * case.most
  assert 0.2 * case.most < max(found.values()) <= case.most * (1 + ROUNDING), found
