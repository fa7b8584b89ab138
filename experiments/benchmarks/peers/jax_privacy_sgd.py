"""Steps of DP-SGD in jax_privacy.

Run it as `python jax_privacy_sgd.py example MODEL`. Of this repository it imports the files
beside it alone.
"""

import sys

import jax
import jax.numpy as jnp
import jax_privacy
import networks
import optax
import serve

_STEPS = 10
# The fastest sizes that we found for each model, on 2 cores.
_MICROBATCHES = {"logistic": 16, "mlp": 1, "cnn": 16}


def main() -> None:
  """Serves `_STEPS` steps on a batch."""
  network = networks.NETWORKS[sys.argv[2]]
  inputs, labels = map(jnp.asarray, serve.images(serve.BATCH))

  def loss(params, x, y):
    logits = network.apply({"params": params}, x)
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

  gradient = jax_privacy.clipped_grad(
    loss,
    l2_clip_norm=serve.CLIP_NORM,
    batch_argnums=(1, 2),
    microbatch_size=_MICROBATCHES[sys.argv[2]],
  )
  noise = jax_privacy.noise_addition.gaussian_privatizer(
    stddev=serve.CLIP_NORM * serve.NOISE_MULTIPLIER
  )

  @jax.jit
  def step(carry):
    params, state = carry
    total, state = noise.update(gradient(params, inputs, labels), state)
    return jax.tree.map(
      lambda p, g: p - serve.LEARNING_RATE / serve.BATCH * g, params, total
    ), state

  params = networks.init(network, jax.random.key(0))
  carry = (params, noise.init(params))

  def run():
    nonlocal carry
    for _ in range(_STEPS):
      carry = step(carry)
    jax.block_until_ready(carry)

  serve.serve(run, _STEPS * serve.BATCH)


if __name__ == "__main__":
  main()
