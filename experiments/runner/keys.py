"""Keys of an experiment's single measurements."""

import zlib

import jax
import numpy as np


def case_number(case: object) -> int:
  """A number below 2^32 that depends on the case's `repr` alone."""
  return zlib.crc32(repr(case).encode())


def case_key(seed: int, case: object) -> jax.Array:
  """The key of one case: it keeps its bits whatever other cases an experiment has."""
  return jax.random.fold_in(jax.random.key(seed), np.uint32(case_number(case)))
