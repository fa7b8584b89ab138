"""Secure keys, and the one place that noise and coins are drawn from."""

import hashlib
import math
import os
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jdp import _validate
from jdp.random.chacha import IMPLS


def secure_key(impl="chacha20"):
  """A key of 256 bits from the operating system."""
  return _wrap(os.urandom(32), impl)


def seeded_key(seed, impl="chacha20"):
  """A key made from a number by hashing: reproducible, NOT private."""
  _validate.integer(0, seed=seed)
  return _wrap(hashlib.sha256(str(seed).encode()).digest(), impl)


def _wrap(data, impl):
  _validate.one_of(IMPLS, impl=impl)
  return jax.random.wrap_key_data(jnp.asarray(np.frombuffer(data, "<u4").astype(np.uint32)), impl=IMPLS[impl])


def bits(key, shape=()):
  """Uniform uint32."""
  return jax.random.bits(key, shape, np.uint32)


@partial(jax.jit, static_argnames=("shape",))
def log_uniforms(key, shape=()):
  """float32 (log U, log(1 - U)) of one uniform U = (w + 1/2) / 2^64, w of 64 random bits."""
  return _log_uniforms(*bits(key, (2, *shape)))


def _log_uniforms(high, low):
  above = high >= np.uint32(1 << 31)  # U >= 1/2
  high, low = (jnp.where(above, ~w, w).astype(np.float32) for w in (high, low))
  small = (high + (low + np.float32(0.5)) * np.float32(2.0**-32)) * np.float32(2.0**-32)
  log_small, log_large = jnp.log(small), jnp.log1p(-small)
  return jnp.where(above, log_large, log_small), jnp.where(above, log_small, log_large)


def exponential(key, shape=(), dtype=np.float32):
  """Exponential of mean 1."""
  return -log_uniforms(key, shape)[0].astype(dtype)


def laplace(key, shape=(), dtype=np.float32):
  """Laplace of scale 1."""
  log_u, log_1mu = log_uniforms(key, shape)
  x = jnp.where(log_u < log_1mu, log_u, -log_1mu) + np.float32(math.log(2.0)) * jnp.where(
    log_u < log_1mu, np.float32(1), np.float32(-1)
  )
  return x.astype(dtype)


def normal(key, shape=(), dtype=np.float32):
  """Standard normal."""
  return jax.random.normal(key, shape, dtype)


def _threshold(p):
  _validate.probability(p=p)
  numerator, denominator = float(p).as_integer_ratio()
  return numerator * 2**64 // denominator


def realised_probability(p):
  """The probability that `bernoulli` realises."""
  return _threshold(p) / 2**64


@partial(jax.jit, static_argnames=("p", "shape"))
def bernoulli(key, p, shape=()):
  """True with probability `p`, a host float."""
  threshold = _threshold(p)
  high, low = bits(key, (2, *shape))
  if threshold == 2**64:
    return jnp.ones(shape, bool)
  t_high, t_low = np.uint32(threshold >> 32), np.uint32(threshold & 0xFFFFFFFF)
  return (high < t_high) | ((high == t_high) & (low < t_low))
