"""The fast transform is the product with scipy's Hadamard matrix."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import hadamard

from jdp.numerics.hadamard import hadamard_transform, transform_rows

transform = jax.jit(hadamard_transform)


@pytest.mark.sweep
# with and without loop, odd step and product
@pytest.mark.parametrize("levels", [0, 1, 2, 5, 6, 7, 9, 12])
def test_transform_is_the_product_with_the_matrix(levels):
  dim = 2**levels
  x = np.random.default_rng(levels).standard_normal((3, dim))
  transformed = transform(jnp.asarray(x, jnp.float32))
  assert transformed.dtype == jnp.float32
  np.testing.assert_allclose(transformed, x @ hadamard(dim) / np.sqrt(dim), atol=2e-5)


def test_transform_is_its_own_inverse():
  x = jnp.asarray(np.random.default_rng(0).standard_normal((2, 3, 2**14)), jnp.float32)
  np.testing.assert_allclose(transform(transform(x)), x, atol=5e-6)


def test_rows_are_combined_by_the_matrix():
  x = np.random.default_rng(1).standard_normal((2, 8, 3))
  combined = jax.jit(transform_rows)(jnp.asarray(x, jnp.float32))
  np.testing.assert_allclose(combined, hadamard(8) @ x / np.sqrt(8), atol=2e-6)
  with pytest.raises(ValueError, match="power of two"):
    transform_rows(jnp.ones((6, 4)))


@pytest.mark.parametrize("dim", [0, 3, 96])
def test_other_lengths_are_refused(dim):
  with pytest.raises(ValueError, match="power of two"):
    hadamard_transform(jnp.ones(dim))
