"""Norms, directions and clipping are total, and the bound holds in exact arithmetic."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jdp.numerics import vectors

BORDERS = [
  0.0,
  1e-45,
  1e-38,
  9.9e-31,
  1e-30,
  1.1e-30,
  1e-20,
  9e-13,
  1e-6,
  1.0,
  1e6,
  1.1e12,
  1e30,
  3e38,
]
NOT_FINITE = [np.nan, np.inf, -np.inf]
BOUNDS = [0.0, np.nan, -1.0, 1e-12, 0.1, 1.0, 1e12, 3e38, np.inf]

entries = st.one_of(
  st.sampled_from(BORDERS).flatmap(lambda x: st.sampled_from([x, -x])),
  st.floats(width=32, allow_nan=False, allow_infinity=False),
  st.floats(-2, 2, width=32),
)
vectors6 = st.lists(entries, min_size=6, max_size=6)
hypothesis = functools.partial(settings, derandomize=True, deadline=None, database=None)

clip, l2_norm, unit = map(jax.jit, (vectors.clip, vectors.l2_norm, vectors.unit))


def tree(values, dtype=np.float32):
  """Six numbers as a pytree with a vector, a scalar, a matrix and an empty leaf."""
  with np.errstate(over="ignore", invalid="ignore"):
    x = np.asarray(values, np.float64).astype(dtype)
  return {"w": x[:2], "b": x[2], "m": (x[None, 3:], np.zeros((0, 2), dtype))}


def flat(vector):
  """All entries in float64."""
  return np.concatenate([np.asarray(x, np.float64).ravel() for x in jax.tree.leaves(vector)])


def exact_norm(vector):
  """The L2 norm in float64."""
  return np.linalg.norm(flat(vector))


def is_zero_by_definition(x):
  """Whether the entries, as float32, hold no vector to speak of."""
  return not np.all(np.isfinite(x)) or np.max(np.abs(x)) < np.float32(1e-30)


def expected_clip(x, bound):
  """The definition of clipping in float64."""
  bound = min(bound, np.finfo(np.float32).max) if bound > 0 else 0.0
  if is_zero_by_definition(x) or bound == 0:
    return np.zeros_like(x)
  return x * min(1.0, bound / np.linalg.norm(x))


@pytest.mark.slow
@pytest.mark.parametrize(
  "dtype", [jnp.float16, jnp.bfloat16, np.float32, np.float64], ids=lambda d: d.__name__
)
@hypothesis(max_examples=150)
@given(values=vectors6, bound=st.sampled_from(BOUNDS))
def test_clip_is_the_definition_and_its_exact_norm_is_within_the_bound(dtype, values, bound):
  record = tree(values, dtype)
  clipped = clip(record, bound)
  expected = expected_clip(flat(jax.tree.map(lambda x: x.astype(np.float32), record)), bound)
  assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(clipped))
  # 4e-6: the margin of 2e-6 and rounding. Entries may be flushed to zero: below float32's normal
  # numbers, or 1e-20 times smaller than the vector.
  atol = 1.2e-38 + 1e-20 * np.linalg.norm(expected)
  np.testing.assert_allclose(flat(clipped), expected, rtol=4e-6, atol=atol)
  allowed = bound if bound > 0 else 0.0
  assert exact_norm(clipped) <= allowed
  assert float(l2_norm(clipped)) <= allowed


@hypothesis(max_examples=50)
@given(
  values=vectors6,
  poison=st.sampled_from(NOT_FINITE),
  place=st.integers(0, 5),
  bound=st.sampled_from(BOUNDS),
)
def test_one_entry_that_is_not_finite_makes_a_vector_zero(values, poison, place, bound):
  record = tree([*values[:place], poison, *values[place + 1 :]])
  assert not np.any(flat(clip(record, bound)))
  assert float(l2_norm(record)) == 0
  assert unit(jnp.asarray(flat(record), jnp.float32)).tolist() == [1, 0, 0, 0, 0, 0]


@hypothesis(max_examples=150)
@given(values=vectors6)
def test_l2_norm_and_unit_are_the_definition(values):
  x = jnp.asarray(np.asarray(values, np.float32))
  exact = 0.0 if is_zero_by_definition(np.asarray(x)) else np.linalg.norm(np.asarray(x, np.float64))
  exact = np.inf if exact > np.finfo(np.float32).max else exact
  np.testing.assert_allclose(float(l2_norm(x)), exact, rtol=1e-6)
  direction = np.asarray(unit(x), np.float64)
  assert abs(np.linalg.norm(direction) - 1) < 1e-6
  if exact:
    expected = np.asarray(x, np.float64) / np.linalg.norm(np.asarray(x, np.float64))
    # Entries below float32's normal numbers may be flushed to zero on the way.
    np.testing.assert_allclose(direction, expected, rtol=1e-6, atol=1e-20 + 1.2e-38 / exact)


@pytest.mark.sweep
@pytest.mark.parametrize("size", [1, 31, 1000, 1025, 10**5, 10**7])
def test_bound_holds_exactly_however_many_entries(size):
  rng = np.random.default_rng(size)
  # Equal entries: the rounding errors of a running sum all have one sign; several, as that sign
  # depends on the entry.
  constants = [np.full(size, c, np.float32) for c in rng.uniform(1, 2, 1 if size > 1e6 else 20)]
  mixture = (rng.normal(size=size) * 10.0 ** rng.integers(-20, 20, size)).astype(np.float32)
  for x in [*constants, mixture, rng.normal(size=size).astype(np.float32)]:
    norm = np.linalg.norm(x.astype(np.float64))
    np.testing.assert_allclose(float(l2_norm(x)), norm, rtol=1e-6)
    for bound in (1.0, norm, norm * (1 - 1e-6)):  # far below the norm, and where rounding decides
      assert exact_norm(clip(x, bound)) <= bound


def test_bound_holds_exactly_however_many_leaves():
  """Squares below half a unit in the last place of the first: added to it one by one, none would
  count.
  """
  tree = [np.ones(1, np.float32)] + [np.full(1, np.sqrt(5.9e-8), np.float32)] * 300
  assert exact_norm(vectors.clip(tree, 1.000003)) <= 1.000003
  assert exact_norm(tree) > 1.000008  # so that it must be clipped


@pytest.mark.slow
def test_half_precision_is_squared_in_float32():
  x = jnp.full(300, 60_000, jnp.float16)  # squares overflow float16; their float16 sum even sooner
  np.testing.assert_allclose(float(vectors.l2_norm(x)), exact_norm(x), rtol=1e-6)
  np.testing.assert_allclose(exact_norm(clip(x, 1.0)), 1.0, rtol=4e-6)


def test_entries_beyond_float32_count_as_infinite():
  with np.errstate(over="ignore"):
    assert vectors.clip(np.array([1e300, 1.0]), 1.0).tolist() == [0, 0]


def test_a_tree_without_entries_has_norm_zero():
  assert float(vectors.l2_norm({"empty": jnp.zeros((0, 3))})) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
  "function", [vectors.l2_norm, vectors.unit, lambda x: vectors.clip(x, 1.0)]
)
def test_eager_jit_and_vmap_agree_on_every_row(function):
  rows = np.array(
    [[0, 0, 0], [3, 4, 0], [3e38, 3e38, 0], [1e-30, 0, 0], [np.nan, 1, 1], [1e-3, 1, np.inf]],
    np.float32,
  )
  eager = [function(row) for row in jnp.asarray(rows)]
  # A relative 2e-7: the compiler may fuse a product into a sum, which saves one rounding.
  np.testing.assert_allclose([jax.jit(function)(row) for row in rows], eager, rtol=2e-7)
  np.testing.assert_allclose(jax.vmap(function)(rows), eager, rtol=2e-7)


@pytest.mark.sweep
@pytest.mark.parametrize("filling", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("length", [1, 7, 300, 1024])
def test_one_unusable_entry_anywhere_makes_a_row_of_a_batch_zero(length, filling):
  """Reductions of batches are compiled otherwise than those of one vector."""
  places = np.unique(np.linspace(0, length - 1, 24).astype(int))
  rows = np.ones((len(places) + 1, length), np.float32)
  rows[np.arange(len(places)), places] = filling
  norms = jax.jit(jax.vmap(vectors.l2_norm))(rows)
  np.testing.assert_array_equal(norms[:-1], 0)
  assert norms[-1] > 0
  clipped = jax.jit(jax.vmap(vectors.clip, (0, None)))(rows, 1.0)
  np.testing.assert_array_equal(clipped[:-1], 0)
  np.testing.assert_array_equal(
    jax.jit(jax.vmap(vectors.unit))(rows)[:-1], np.eye(length)[:1].repeat(len(places), 0)
  )
