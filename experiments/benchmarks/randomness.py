"""Speed of jdp's draws beside JAX's default ones: `python -m experiments.benchmarks.randomness`.

Rates in million values a second, and in brackets the ratio to
`jax.random.normal` (for bits: `jax.random.bits`) with the default key, as
medians of interleaved runs: rates drift with the machine, ratios less.
"""

import time
from collections.abc import Callable

import jax
import numpy as np

import jdp.random

_SIZES = (1_000, 100_000, 1_000_000, 10_000_000)
_REPEATS = 21


def _cases() -> dict[str, tuple[Callable, jax.Array]]:
  default = jax.random.key(0)
  cases = {
    "jax.random.normal, default key": (jax.random.normal, default),
    "jax.random.bits, default key": (jax.random.bits, default),
    "bits, default key": (jdp.random.bits, default),
    "laplace, default key": (jdp.random.laplace, default),
    "normal, default key": (jdp.random.normal, default),
  }
  for name in jdp.random.IMPLS:
    cases[f"normal, {name}"] = (jdp.random.normal, jdp.random.secure_key(name))
  return cases


def _medians(size: int) -> dict[str, float]:
  """Median seconds of each case, the cases taking turns."""
  runs = {name: (jax.jit(lambda key, draw=draw: draw(key, (size,))), key) for name, (draw, key) in _cases().items()}
  seconds: dict[str, list[float]] = {name: [] for name in runs}
  for repeat in range(_REPEATS + 1):
    for name, (run, key) in runs.items():
      start = time.perf_counter()
      jax.block_until_ready(run(key))
      if repeat > 0:  # the first compiles
        seconds[name].append(time.perf_counter() - start)
  return {name: float(np.median(values)) for name, values in seconds.items()}


def main() -> None:
  """Prints the table."""
  columns = {size: _medians(size) for size in _SIZES}
  print(f"{'million values/s (ratio to JAX)':32s}" + "".join(f"{size:>16,d}" for size in _SIZES))
  for name in next(iter(columns.values())):
    baseline = "jax.random.bits, default key" if "bits" in name else "jax.random.normal, default key"
    cells = (f"{size / 1e6 / t[name]:8.0f} ({t[baseline] / t[name]:4.2f})" for size, t in columns.items())
    print(f"{name:32s}" + "".join(f"{cell:>16s}" for cell in cells))


if __name__ == "__main__":
  main()
