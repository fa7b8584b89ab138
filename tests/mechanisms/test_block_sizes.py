"""A release is the same, whatever clients are computed beside it, for hostile values too."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jdp.mechanisms import priv_unit_l2, priv_unit_linf, registry, scalar_dp, separated

DIM = 80  # enough for the fast paths of sums
TURNS = 4
HOSTILE = [
  [np.nan], [np.inf], [-np.inf], [0.0, np.nan, 3.0], [1.0, np.inf, np.nan], [0.0], [-0.0, 1e-42],
  [3e38, -3e38], [1e30, np.nan], [1e-30, 1.0], [2.0, -0.5, 0.25],
]  # fmt: skip


def separated_linf(setting):
  return separated(priv_unit_linf(setting.dim, 2.0), scalar_dp(2.0, 1.0))


MECHANISMS = {
  **{name: entry.make for name, entry in registry.registered().items()},
  "separated_linf": separated_linf,
}


def rows(shape):
  """A value of each hostile filling, which repeats, with ones after it."""
  size = int(np.prod(shape))
  whole = np.ones((len(HOSTILE), max(size, 3)), np.float32)
  for row, filling in zip(whole, HOSTILE, strict=True):
    row[: len(filling)] = filling
  return jnp.asarray(whole[:, :size].reshape(len(HOSTILE), *shape))


@pytest.mark.sweep
@pytest.mark.parametrize("name", MECHANISMS)
def test_a_release_does_not_depend_on_the_size_of_its_block(name):
  """Draw by draw from the same keys, which is more than equal laws. Sums of floats are rounded by
  their order, and of 1,000 numbers a few then fall into the next cell of a grid.
  """
  mechanism = MECHANISMS[name](registry.Setting(DIM, 4.0, num_projections=16, delta=1e-5))
  values = rows(mechanism.shape)
  keys = jax.random.split(jax.random.key(47), (TURNS, len(values)))
  alone = jax.jit(lambda key, value: mechanism.privatize(key, value))
  expected = np.stack(
    [[alone(key, value) for key, value in zip(own, values, strict=True)] for own in keys]
  )
  assert np.all(np.isfinite(expected))
  closeness = {"rtol": 1e-4, "atol": 1e-4 * np.std(expected)}
  for size in (2, 11):
    several = jax.jit(jax.vmap(mechanism.privatize))
    for first in range(0, len(values) - size + 1, size):
      block = slice(first, first + size)
      found = np.stack([several(own[block], values[block]) for own in jax.random.clone(keys)])
      for row in range(size):
        close = np.isclose(found[:, row], expected[:, first + row], **closeness)
        assert np.mean(close) > 0.7, (size, first + row)
  if mechanism.privatize_sum is not None:
    total = jax.jit(mechanism.privatize_sum)
    for row in range(len(values)):
      weights = jnp.zeros(len(values)).at[row].set(1.0)
      found = np.stack([total(own, values, weights) for own in jax.random.clone(keys)])
      assert np.mean(np.isclose(found, expected[:, row], **closeness)) > 0.7, row


def test_a_norm_does_not_depend_on_the_size_of_its_block():
  values = rows((3,))
  for mechanism in (priv_unit_linf(3, 2.0), priv_unit_l2.priv_unit(3, 2.0)):
    alone = [float(mechanism.norm(value)) for value in values]
    np.testing.assert_array_equal(jax.jit(jax.vmap(mechanism.norm))(values), alone)
    assert np.all(np.array(alone[:5]) == 0)
