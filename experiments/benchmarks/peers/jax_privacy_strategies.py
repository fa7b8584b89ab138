"""One strategy by jax_privacy's search.

Run it as `python jax_privacy_strategies.py KIND N SIZE OBJECTIVE SEPARATION PARTICIPATIONS FILE`,
in an environment that needs jax_privacy alone. It prints the seconds that the search took,
compilation included, and writes the strategy's numbers to FILE.
"""

import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax_privacy.matrix_factorization import banded, buffered_toeplitz, toeplitz

_REDUCTIONS = {"mean": jnp.mean, "max": jnp.max}


def _coefficients(n: int, size: int, objective: str, separation: int, most: int) -> np.ndarray:
  """Of a banded Toeplitz strategy."""
  return toeplitz.optimize_banded_toeplitz(n, size, reduction_fn=_REDUCTIONS[objective])


def _diagonals(n: int, size: int, objective: str, separation: int, most: int) -> np.ndarray:
  """Of a banded strategy, [bands, n]."""
  found = banded.optimize(n, bands=size, reduction_fn=_REDUCTIONS[objective])
  return found.params.T


def _buffers(n: int, size: int, objective: str, separation: int, most: int) -> np.ndarray:
  """Decays and scales of a buffered strategy, [2, buffers]."""
  found = buffered_toeplitz.optimize(
    n=n,
    min_sep=separation,
    max_participations=most,
    error=objective,
    min_buffers=size,
    max_buffers=size,
  )
  return np.stack([found.buf_decay, found.output_scale])


_SEARCHES = {"banded_toeplitz": _coefficients, "banded": _diagonals, "buffered": _buffers}


def main() -> None:
  """Searches once."""
  kind, n, size, objective, separation, most, path = sys.argv[1:]
  jax.block_until_ready(jnp.zeros(1) + 1)
  start = time.perf_counter()
  found = np.asarray(_SEARCHES[kind](int(n), int(size), objective, int(separation), int(most)))
  print("seconds", time.perf_counter() - start, flush=True)
  np.save(path, found.astype(np.float64))


if __name__ == "__main__":
  main()
