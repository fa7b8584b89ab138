"""Speed of the exact products that sum ghost-normed gradients, beside plain ones.

Run it as `python -m experiments.benchmarks.exact_products`. A chunk sums gradients of a dense layer
by one product of matrices. It is made in float64, so that a client moves the sum by no more
than its bound. The baseline is the same product in float32, which does not keep the bound. The
float64 product alone, of factors that are float64 already, is the limit.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

from experiments.benchmarks import harness
from jdp.numerics.compensated import product

ROWS = flags.DEFINE_multi_integer("rows", [64, 256, 640], "Examples of a chunk.", lower_bound=1)
_jax: Any = jax  # `enable_x64` moved between versions of JAX
_enable_x64 = _jax.enable_x64 if hasattr(jax, "enable_x64") else _jax.experimental.enable_x64
LAYER = flags.DEFINE_list("layer", ["784", "100"], "Inputs and outputs of the dense layer.")


def _cases(rows: int, inputs: int, outputs: int) -> dict[str, harness.Case]:
  """The products of one chunk; the work is counted in multiplications."""
  rng = np.random.default_rng(0)
  left, right = (rng.normal(size=(rows, n)).astype(np.float32) for n in (inputs, outputs))
  work = float(rows * inputs * outputs)

  def case(function: Callable[..., Any], *factors: jax.Array) -> harness.Case:
    compiled = jax.jit(function)
    return harness.Case(lambda: compiled(*factors), work)

  singles = jnp.asarray(left), jnp.asarray(right)
  with _enable_x64(True):
    doubles = jnp.asarray(left, jnp.float64), jnp.asarray(right, jnp.float64)
    limit = jax.jit(lambda x, y: y.T @ x).lower(*doubles).compile()
  return {
    "float32 product": case(lambda x, y: x.T @ y, *singles),
    "float64 product, the limit": harness.Case(lambda: limit(*doubles), work),
    "jdp, exact sum": case(product, *singles),
  }


def main(argv: Sequence[str]) -> None:
  """Prints a table for each number of rows; ratios refer to the float32 product."""
  del argv
  inputs, outputs = map(int, LAYER.value)
  for rows in ROWS.value:
    timings = harness.compare(
      _cases(rows, inputs, outputs), baseline="float32 product", rounds=harness.ROUNDS.value
    )
    title = f"{rows} rows, {inputs} x {outputs} weights"
    harness.report(title, timings, "products", json_path=harness.JSON.value)


if __name__ == "__main__":
  app.run(main)
