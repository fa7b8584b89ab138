"""No client adds more to a sum than the clip norm: in float64, of the very numbers added."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jdp.federated.engine.client import ClientKeys, Factored, _bounded
from jdp.federated.engine.ghost_norms import _norm, ghost_client
from jdp.numerics.compensated import Product, as_float64, multiplied
from jdp.queries import gaussian_sum
from tests.helpers.longest_contributions import DTYPES, longest, search, start

S = 0.3
QUERY = gaussian_sum(S, 1.0)


@pytest.mark.sweep
@pytest.mark.parametrize(
  ("layer", "beginning"), [("dense, narrow", 3), ("dense, bias", 4), ("embedding", 4)]
)
def test_examples_that_cancel_to_the_last_digit_of_a_label_are_no_longer(layer, beginning):
  """Factors rounded to float32 after their scaling add up to 1.2 S and more."""
  found = search(layer, "float32")
  params = jax.tree.map(jnp.zeros_like, found.params)
  keys = jax.random.split(jax.random.key(0), 400)
  shares = 10.0 ** jax.random.uniform(jax.random.key(1), (400,), minval=-4.0, maxval=0.0)

  @jax.jit
  @functools.partial(jax.vmap, in_axes=(0, 0))
  def excess(key, share):
    return found.excess(params, start(key, params, found.apply, beginning), share)

  assert np.max(excess(keys, shares)) <= 0


@pytest.mark.slow
@pytest.mark.parametrize(
  ("layer", "dtype"), [("dense, narrow", "float32"), ("dense, bias", "bfloat16")]
)
def test_a_search_finds_no_longer_contribution(layer, dtype):
  """A slice of `python -m tests.helpers.longest_contributions`: it found 1.66 S and 1.01 S."""
  assert np.max(longest(layer, dtype, jax.random.key(0), 300)) <= 0


def added(record):
  """The length of what a client adds."""
  parts = multiplied(_bounded(QUERY, jax.random.key(0), QUERY.init(None), record, jnp.float32(1)))
  leaves = jax.tree.leaves(parts, is_leaf=lambda x: hasattr(x, "remainder"))
  return float(np.linalg.norm(np.concatenate([np.ravel(as_float64(x)) for x in leaves])))


@pytest.mark.parametrize("right", [np.nan, np.inf, 1e38, 1e30, 1e-38, 1e-42])
@pytest.mark.parametrize("left", [1.0, 2.0**59, 2.0**61, np.nan])
def test_hostile_factors_add_no_more(left, right):
  """Products beyond float32, below it, and of numbers that are none."""
  rows = np.float32([[left], [-left]]), np.float32([[right], [np.nextafter(np.float32(right), 0)]])
  product = Product(*(jnp.tile(jnp.asarray(x), (1, 3)) for x in rows), (3, 3))
  gradient = {"w": product, "b": jnp.float32([1.0, right])}
  length = added(Factored(_norm(gradient), -1.0, gradient))
  assert length <= S
  assert length > 0 or not np.isfinite(left * right) or right >= 1e30 or left > 2.0**60


@pytest.mark.parametrize(("dtype", "tail"), [("bfloat16", 1.0), ("float16", 1.7e-4)])
def test_norms_of_half_precision_are_float32(dtype, tail):
  """In the parameters' own type, a sum is off by 2^-9, and squares of a tail are lost."""
  params = {"b": jnp.zeros(302_000, DTYPES[dtype])}

  def loss(params, slopes):
    return jnp.sum(params["b"] * slopes)

  slopes = jnp.full_like(params["b"], tail).at[0].set(1.0)
  keys = ClientKeys(jax.random.key(0), jax.random.key(1))
  with jax.numpy_dtype_promotion("standard"):
    record, _ = jax.jit(lambda slopes: ghost_client(loss, 1.0)(keys, (params,), slopes))(slopes)
    assert 0.999 * S < added(record) <= S
