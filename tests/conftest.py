"""A strict environment for every test: four simulated devices, no silent promotion, no key used twice."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"

import jax
import pytest

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_legacy_prng_key", "error")
jax.config.update("jax_debug_key_reuse", True)


@pytest.fixture
def key():
  """A fixed key: a stochastic test that passes today passes tomorrow."""
  return jax.random.key(20181204)
