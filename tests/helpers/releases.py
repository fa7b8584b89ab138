"""Many releases of one value, from one compiled program."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np


@functools.cache
def _compiled(function):
  return jax.jit(jax.vmap(function, (0, None)))


def draw(function, value, count, *, seed=0):
  """`count` results of function(key, value), a mechanism's encode or privatize: [count, ...].

  In blocks whose size the value's shape decides: a function is compiled once, however many values
  and counts follow.
  """
  value = jnp.asarray(value, jnp.float32)
  size = max(10, min(10_000, 10**6 // value.size))
  keys = jax.random.split(jax.random.key(seed), (math.ceil(count / size), size))
  return np.concatenate([_compiled(function)(block, value) for block in keys])[:count]
