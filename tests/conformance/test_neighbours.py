"""Two data sets that differ in one user, through a whole round: it moves by that user's part."""

import jax
import pytest

from tests.helpers.neighbours import (
  ALWAYS_SENT,
  CASES,
  CLIP,
  COINS_BY_ROW,
  KEYS,
  largest_movements,
  neighbours,
  packed,
)

ROUNDING = 1e-6  # of a sum's sensitivity, by `jdp.numerics.compensated`
# Types of keys in turn. All of them are tried by `python -m tests.helpers.neighbours`.
KEY_OF = {case: list(KEYS)[number % len(KEYS)] for number, case in enumerate(CASES)}


@pytest.mark.sweep
@pytest.mark.parametrize("case", CASES)
def test_a_user_moves_a_sum_by_its_own_contribution(case):
  """Whatever it holds. One that is gone moves nothing, though others move up a row."""
  place = 11
  gone = {} if case in COINS_BY_ROW else {"gone": packed(place, None)}
  with jax.numpy_dtype_promotion("standard"):  # parameters in 16 bits
    found = largest_movements(case, KEY_OF[case], place, neighbours(place) | gone)
  assert case in ALWAYS_SENT or found.get("gone", 0) == 0
  assert 0.2 * CLIP < max(found.values()) <= CLIP * (1 + ROUNDING), found
