"""Speed of jdp's draws beside JAX's.

Run it as `python -m experiments.benchmarks.randomness`. The baseline is `jax.random.normal` with
the default key.
"""

from collections.abc import Callable, Sequence

import jax
from absl import app, flags

import jdp.random
from experiments.benchmarks import harness

SIZES = flags.DEFINE_multi_integer(
  "size", [1_000, 100_000, 1_000_000, 10_000_000], "Values in one draw."
)


def _case(draw: Callable, key: jax.Array, size: int) -> harness.Case:
  run = jax.jit(lambda key: draw(key, (size,)))
  return harness.Case(lambda: run(key), size)


def _cases(size: int) -> dict[str, harness.Case]:
  default = jax.random.key(0)
  cases = {
    "jax.random.normal, default key": _case(jax.random.normal, default, size),
    "jax.random.bits, default key": _case(jax.random.bits, default, size),
    "bits, default key": _case(jdp.random.bits, default, size),
    "laplace, default key": _case(jdp.random.laplace, default, size),
    "normal, default key": _case(jdp.random.normal, default, size),
  }
  for name in jdp.random.IMPLS:
    cases[f"normal, {name}"] = _case(jdp.random.normal, jdp.random.secure_key(name), size)
  return cases


def main(argv: Sequence[str]) -> None:
  """Runs the comparison."""
  del argv
  for size in SIZES.value:
    timings = harness.compare(
      _cases(size), baseline="jax.random.normal, default key", rounds=harness.ROUNDS.value
    )
    harness.report(f"{size:,d} values", timings, "values", json_path=harness.JSON.value)


if __name__ == "__main__":
  app.run(main)
