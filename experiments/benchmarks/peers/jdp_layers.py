"""Sums of clipped gradients of single layers: `jdp_layers.py CLIENTS`."""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks.peers import serve
from jdp import federated, queries, sampling
from jdp.federated.engine.client import ClientFn, contribution
from jdp.federated.engine.cohort import unrounded_cohort_sum
from jdp.federated.engine.ghost_norms import ghost_client
from jdp.models import Loss
from jdp.numerics.compensated import rounded

PyTree = Any


class _Tied(nn.Module):
  """Words in, scores of words out, one table for both."""

  @nn.compact
  def __call__(self, words: jax.Array) -> jax.Array:
    table = nn.Embed(4096, 128)
    return table.attend(jnp.tanh(table(words)))


def layers() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
  """Layers by name, each with the shape of a client's input."""
  return {
    "dense 784 x 100, 1 row": (nn.Dense(100), (1, 784)),
    "dense 256 x 256, 32 rows": (nn.Dense(256), (32, 256)),
    "dense 256 x 256, 256 rows": (nn.Dense(256), (256, 256)),
    "dense 256 x 1024, 32 rows": (nn.Dense(1024), (32, 256)),
    "LayerNorm 256, 32 rows": (nn.LayerNorm(), (32, 256)),
    "RMSNorm 256, 32 rows": (nn.RMSNorm(), (32, 256)),
    "embedding 4096 x 128, 32 words": (nn.Embed(4096, 128), (32,)),
    "tied embedding 4096 x 128, 32 words": (_Tied(), (32,)),
    "attention 256, 4 heads, 32 rows": (nn.MultiHeadDotProductAttention(4), (1, 32, 256)),
    "convolution 3 x 3, 16 to 32, 14 x 14": (nn.Conv(32, (3, 3)), (1, 14, 14, 16)),
    "convolution 3 x 3, 256 to 256, 4 x 4": (nn.Conv(256, (3, 3)), (1, 4, 4, 256)),
    "LSTM 128, 32 steps": (nn.RNN(nn.OptimizedLSTMCell(128)), (1, 32, 128)),
  }


def inputs_of(clients: int, shape: tuple[int, ...]) -> jax.Array:
  """Clients' inputs: words if there is one axis, else normals."""
  rng = np.random.default_rng(0)
  if len(shape) == 1:
    return jnp.asarray(rng.integers(0, 4096, (clients, *shape)), jnp.int32)
  return jnp.asarray(rng.normal(size=(clients, *shape)), jnp.float32)


def clipped_sum(client_fn: ClientFn, clients: int) -> Callable[[PyTree, PyTree], PyTree]:
  """(parameters, clients' data) -> the sum of clipped updates, of one chunk."""
  query = queries.gaussian_sum(1e-3, 0.0)
  summand = contribution(client_fn, query, None, diagnose=False)
  sample = sampling.Sample(
    jnp.arange(clients, dtype=jnp.int32), jnp.ones(clients), jnp.int32(clients), clients
  )

  def total(params, data):
    keys, shared = (jax.random.key(0), jax.random.key(1)), ((params,), query.init(params))
    sums = unrounded_cohort_sum(summand, keys, shared, sample, data, chunk_size=clients)
    return rounded(sums[0])

  return total


class Layer(NamedTuple):
  """A layer with its clients' data, and what is timed of it.

  Attributes:
    loss: (parameters, a client's data) -> its loss.
    params: the parameters.
    data: of all clients.
    cases: functions of the parameters and the data by name. The first two are sums of clipped
      updates. The third is the gradient of the mean loss.
  """

  loss: Loss
  params: PyTree
  data: jax.Array
  cases: dict[str, Callable[[PyTree, PyTree], PyTree]]


def layer_of(module: nn.Module, shape: tuple[int, ...], clients: int) -> Layer:
  """The layer with so many clients."""
  data = inputs_of(clients, shape)
  params = jax.jit(module.init)(jax.random.key(1), data[0])["params"]

  def loss(params, inputs):
    outputs: PyTree = module.apply({"params": params}, inputs)
    return jnp.mean(jnp.sin(outputs))

  step = federated.gradient_step(loss, 1.0)

  def vmapped(keys, sent, client):
    return step(keys.data, sent[0], client), {}

  mean = jax.grad(lambda params, data: jnp.mean(jax.vmap(loss, (None, 0))(params, data)))
  cases = {
    "vmap": clipped_sum(vmapped, clients),
    "ghost norms": clipped_sum(ghost_client(loss, 1.0), clients),
    "not private": mean,
  }
  return Layer(loss, params, data, cases)


def main() -> None:
  """Serves all cases of all layers."""
  clients, cases = int(sys.argv[1]), {}
  for name, (module, shape) in layers().items():
    layer = layer_of(module, shape, clients)
    for case, function in layer.cases.items():
      compiled = partial(jax.jit(function), layer.params, layer.data)
      cases[f"{name}: {case}"] = serve.Case(partial(_wait, compiled), clients)
  serve.serve_cases(cases)


def _wait(function: Callable[[], PyTree]) -> None:
  """Runs a function until its result is there."""
  jax.block_until_ready(function())


if __name__ == "__main__":
  main()
