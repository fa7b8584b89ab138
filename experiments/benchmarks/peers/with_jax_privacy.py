"""jax_privacy, in an environment of its own.

    python with_jax_privacy.py example MODEL    # serves steps of DP-SGD on a batch
    python with_jax_privacy.py KIND N SIZE OBJECTIVE SEPARATION PARTICIPATIONS

The second searches for a strategy. It prints the seconds that the search took, compilation
included, and the strategy's numbers. Of this repository it imports the files beside it alone.
"""

import json
import sys
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import serve

_STEPS = 10
# The fastest sizes that we found for each model, on 2 cores.
_MICROBATCHES = {"logistic": 16, "mlp": 1, "cnn": 16}
_REDUCTIONS = {"mean": jnp.mean, "max": jnp.max}


def _steps(name: str) -> Callable[[], None]:
  """A function that takes `_STEPS` steps on a batch."""
  import jax_privacy
  import networks
  import optax

  network = networks.NETWORKS[name]
  inputs, labels = map(jnp.asarray, serve.images(serve.BATCH))

  def loss(params, x, y):
    logits = network.apply({"params": params}, x)
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

  gradient = jax_privacy.clipped_grad(
    loss, l2_clip_norm=serve.CLIP_NORM, batch_argnums=(1, 2), microbatch_size=_MICROBATCHES[name]
  )
  noise = jax_privacy.noise_addition.gaussian_privatizer(
    stddev=serve.CLIP_NORM * serve.NOISE_MULTIPLIER
  )
  rate = serve.LEARNING_RATE / serve.BATCH

  @jax.jit
  def step(carry):
    params, state = carry
    total, state = noise.update(gradient(params, inputs, labels), state)
    return jax.tree.map(lambda p, g: p - rate * g, params, total), state

  params = networks.init(network, jax.random.key(0))
  carry = (params, noise.init(params))

  def run():
    nonlocal carry
    for _ in range(_STEPS):
      carry = step(carry)
    jax.block_until_ready(carry)

  return run


def _strategy(kind: str, n: int, size: int, objective: str, separation: int, most: int) -> object:
  """The numbers of a strategy.

  They are coefficients if it is banded Toeplitz, diagonals [bands, n] if it is banded, and decays
  and scales [2, buffers] if it is buffered.
  """
  from jax_privacy.matrix_factorization import banded, buffered_toeplitz, toeplitz

  jax.block_until_ready(jnp.zeros(1) + 1)
  start, reduction = time.perf_counter(), _REDUCTIONS[objective]
  if kind == "banded_toeplitz":
    found = toeplitz.optimize_banded_toeplitz(n, size, reduction_fn=reduction)
  elif kind == "banded":
    found = banded.optimize(n, bands=size, reduction_fn=reduction).params.T
  else:
    buffers = buffered_toeplitz.optimize(
      n=n,
      min_sep=separation,
      max_participations=most,
      error=objective,
      min_buffers=size,
      max_buffers=size,
    )
    found = np.stack([buffers.buf_decay, buffers.output_scale])
  numbers = np.asarray(found, np.float64)
  return {"seconds": time.perf_counter() - start, "numbers": numbers.tolist()}


def main() -> None:
  """Serves steps, or searches once."""
  kind, argument, *others = sys.argv[1:]
  if kind == "example":
    serve.serve(_steps(argument), _STEPS * serve.BATCH)
  else:
    size, objective, separation, most = others
    found = _strategy(kind, int(argument), int(size), objective, int(separation), int(most))
    print(json.dumps(found))


if __name__ == "__main__":
  main()
