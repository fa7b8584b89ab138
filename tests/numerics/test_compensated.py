"""Pairs keep float64 where JAX narrows it: in constants, and under vmap, before version 0.8."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jdp.numerics.compensated import divide, sum_rows


def exact(pair):
  return np.asarray(pair.value, np.float64) + np.asarray(pair.remainder, np.float64)


@pytest.mark.parametrize("shape", [(2,), (2, 3)])
def test_sums_side_by_side_are_those_of_one_after_the_other(shape):
  rows = np.ones(shape, np.float32)
  rows[1:] = 2.0**-40
  alone, several = sum_rows(jnp.asarray(rows)), jax.vmap(sum_rows)(jnp.stack([rows, 3 * rows]))
  np.testing.assert_array_equal(exact(alone), np.full(shape[1:], 1 + 2.0**-40))
  np.testing.assert_array_equal(exact(several), [exact(alone), 3 * exact(alone)])


@pytest.mark.parametrize("wrap", [jax.jit, lambda call: call])
def test_a_sum_is_divided_by_a_constant(wrap):
  quotient = wrap(lambda x: divide(x, jnp.float32(3)))(jnp.float32(1))
  assert exact(quotient) == pytest.approx(1 / 3, rel=2.0**-47)
