"""Clients per second of the small CNN's local gradient and its parts, beside the machine's limits.

    python -m experiments.benchmarks.cnn_clients

A client has 10 images of 28 x 28. The baseline is one large float32 matrix product, counted as the
clients whose forward and backward products have as many operations. No implementation exceeds it.
The other limit is XLA's own convolution of many images at once, by weights that they share. A step
without privacy could use it, and no client's clipped gradient can.
"""

from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from absl import app

from experiments.benchmarks import harness
from experiments.benchmarks.harness import Case
from jdp import models
from jdp.data import Examples
from jdp.federated import gradient_step
from jdp.numerics import vectors

_IMAGES, _CLIENTS = 10, 50
_PRODUCT = 1024
_CLIP_NORM = 0.5
_LIMIT = "products at the machine's limit"

# Of an image: rows, inner size and columns of each layer's product.
_LAYERS = ((14 * 14, 8 * 8, 16), (5 * 5, 4 * 4 * 16, 32), (1, 4 * 4 * 32, 32), (1, 32, 10))


class _Plain(nn.Module):
  """The network of `small_cnn`, by XLA's convolutions and pooling windows."""

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    x = nn.relu(nn.Conv(16, (8, 8), 2, "SAME", name="Conv_0")(x))
    x = nn.relu(nn.Conv(32, (4, 4), 2, "VALID", name="Conv_1")(nn.max_pool(x, (2, 2))))
    x = nn.relu(nn.Dense(32)(nn.max_pool(x, (2, 2)).reshape(x.shape[0], -1)))
    return nn.Dense(10)(x)


def main(argv: Sequence[str]) -> None:
  """Prints a table, where ratios refer to the machine's limit."""
  del argv
  timings = harness.compare(_cases(), baseline=_LIMIT, rounds=harness.ROUNDS.value)
  harness.report("CNN clients", timings, "clients", json_path=harness.JSON.value)


def multiplications() -> int:
  """What the products of one client's gradient take: no derivative by the images is needed.

  >>> multiplications()
  10662080
  """
  forward = [rows * inner * columns for rows, inner, columns in _LAYERS]
  return _IMAGES * (3 * sum(forward) - forward[0])


def _cases() -> dict[str, Case]:
  keys = jax.random.split(jax.random.key(0), 3)
  model = models.small_cnn((28, 28), 10)
  params = model.init(keys[0])
  loss = models.cross_entropy(model)
  clients = _clients(keys[1], (_CLIENTS, _IMAGES))
  together = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), clients)
  update = gradient_step(loss, 0.1)

  def clipped(params, client):
    return update(keys[2], params, client, lambda tree: vectors.clip(tree, _CLIP_NORM))

  def plain(params, examples):
    logits: Any = _Plain().apply({"params": params}, examples.inputs[..., None])
    return jnp.sum(jax.nn.log_softmax(logits)[jnp.arange(len(logits)), examples.labels])

  return {
    _LIMIT: _case(jnp.matmul, *[jnp.ones((_PRODUCT, _PRODUCT))] * 2, work=_large()),
    "clients' clipped gradients": _case(_one_by_one(clipped), params, clients),
    "- gradients alone": _case(_one_by_one(jax.grad(loss)), params, clients),
    "-- losses alone": _case(_one_by_one(loss), params, clients),
    "-- products alone": _case(_one_by_one(_products), *_factors(keys[2])),
    "gradients by XLA's convolutions": _case(_one_by_one(jax.grad(plain)), params, clients),
    "one gradient of all images, the same": _case(jax.grad(plain), params, together),
  }


def _one_by_one(function: Callable[..., Any]) -> Callable[..., jax.Array]:
  """Calls a function of (what all share, a client) for each client, and uses all it returns."""

  def run(shared, clients):
    def step(used, client):
      results = jax.tree.leaves(jax.lax.optimization_barrier(function(shared, client)))
      return used + sum(x.ravel()[0] for x in results), None

    return jax.lax.scan(step, jnp.zeros(()), clients)[0]

  return run


def _case(function: Callable[..., Any], *args: Any, work: float = _CLIENTS) -> Case:
  compiled = jax.jit(function)
  return Case(lambda: compiled(*args), work)


def _large() -> float:
  """The clients whose products have as many multiplications as the large one."""
  return _PRODUCT**3 / multiplications()


def _products(weights: Any, client: Any) -> Any:
  """Each layer's product, and its derivatives by weights and (but of the images) by data."""
  data, by_results = client
  forward = [x @ w for x, w in zip(data, weights, strict=True)]
  by_weights = [x.T @ y for x, y in zip(data, by_results, strict=True)]
  by_data = [y @ w.T for y, w in zip(by_results[1:], weights[1:], strict=True)]
  return forward, by_weights, by_data


def _factors(key: jax.Array) -> tuple[Any, Any]:
  """The weights, and each client's data and derivatives by the products' results."""

  def matrices(*sizes):
    return [jax.random.normal(key, shape) for shape in zip(*sizes, strict=True)]

  rows, inner, columns = zip(*_LAYERS, strict=True)
  clients, all_rows = [_CLIENTS] * len(rows), [_IMAGES * n for n in rows]
  data, by_results = (matrices(clients, all_rows, sizes) for sizes in (inner, columns))
  return matrices(inner, columns), (data, by_results)


def _clients(key: jax.Array, shape: tuple[int, ...]) -> Examples:
  inputs = jax.random.normal(key, (*shape, 28, 28))
  return Examples(inputs, jax.random.randint(key, shape, 0, 10), jnp.ones(shape))


if __name__ == "__main__":
  app.run(main)
