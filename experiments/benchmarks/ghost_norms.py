"""Ghost norms layer by layer, and the steps of a transformer with and without privacy.

    python -m experiments.benchmarks.ghost_norms --json=FILE

A layer's rows say how exact ghost norms are, and what the clipped sum of a chunk of clients takes,
beside gradients that are made for each client (vmap). A step's rows compare whole rounds, noise and
the server's step included, with a step of SGD on the same examples. Memory is what the compiled
program needs beside its arguments, by its own analysis. Times are those of all cores together, and
their ratios are of medians.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags
from jax.flatten_util import ravel_pytree

from experiments.benchmarks import harness
from jdp import federated, models, queries, sampling
from jdp.data import Examples
from jdp.federated.engine.client import ClientKeys, contribution
from jdp.federated.engine.cohort import unrounded_cohort_sum
from jdp.federated.engine.ghost_norms import ghost_client, gradient_forms
from jdp.numerics.compensated import rounded

CLIENTS = flags.DEFINE_integer("clients", 32, "Clients of a chunk, and of a step.", lower_bound=1)
TABLES = flags.DEFINE_multi_enum("tables", ["layers", "steps"], ["layers", "steps"], "What to run.")
ONLY = flags.DEFINE_string("only", "", "Run the cases whose names hold this.")
PyTree = Any
_WORDS, _LENGTH = 1000, 32


class _Tied(nn.Module):
  """Words in, scores of words out, one table for both."""

  @nn.compact
  def __call__(self, words: jax.Array) -> jax.Array:
    table = nn.Embed(4096, 128)
    return table.attend(jnp.tanh(table(words)))


def _layers() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
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


def _inputs(clients: int, shape: tuple[int, ...]) -> jax.Array:
  """Clients' inputs: words if there is one axis, else normals."""
  rng = np.random.default_rng(0)
  if len(shape) == 1:
    return jnp.asarray(rng.integers(0, 4096, (clients, *shape)), jnp.int32)
  return jnp.asarray(rng.normal(size=(clients, *shape)), jnp.float32)


def clipped_sum(client_fn: Any, clients: int) -> Callable[[PyTree, PyTree], PyTree]:
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


def _measured(
  cases: Mapping[str, tuple[Callable[..., Any], tuple[Any, ...]]], baseline: str, clients: int
) -> Iterator[dict[str, Any]]:
  """A row for each case: its time and memory, and their ratios to the baseline's."""
  timed, memory = {}, {}
  for name, (run, args) in cases.items():
    compiled: Any = jax.jit(run).lower(*args).compile()
    memory[name] = compiled.memory_analysis().temp_size_in_bytes
    timed[name] = harness.Case(partial(compiled, *args), clients)
  timings: Any = harness.compare(timed, baseline=baseline, rounds=harness.ROUNDS.value)
  base = next(timing for timing in timings if timing.name == baseline)
  for timing in timings:
    yield {
      "case": timing.name,
      "ms": 1e3 * timing.seconds,
      "cpu_ms": 1e3 * timing.cpu_seconds,
      "time": timing.cpu_seconds / base.cpu_seconds,
      "MiB": memory[timing.name] / 2**20,
      "memory": memory[timing.name] / memory[baseline],
    }


def _layer_rows(name: str, module: nn.Module, shape: tuple[int, ...]) -> Iterator[dict[str, Any]]:
  """The rows of one layer."""
  clients = CLIENTS.value
  data = _inputs(clients, shape)
  params = jax.jit(module.init)(jax.random.key(1), data[0])["params"]

  def loss(params, inputs):
    outputs: Any = module.apply({"params": params}, inputs)
    return jnp.mean(jnp.sin(outputs))

  step = federated.gradient_step(loss, 1.0)
  ghost = ghost_client(loss, 1.0)

  def vmapped(keys, sent, client):
    return step(keys.data, sent[0], client), {}

  def norms(params, data):
    keys = ClientKeys(jax.random.key(0), jax.random.key(1))
    return jax.vmap(lambda client: ghost(keys, (params,), client)[0].norm)(data)

  gradients = jax.jit(jax.vmap(jax.grad(loss), (None, 0)))(params, data)
  exact = [np.asarray(x, np.float64).reshape(clients, -1) for x in jax.tree.leaves(gradients)]
  lengths = np.linalg.norm(np.concatenate(exact, axis=1), axis=1)
  totals = [clipped_sum(client_fn, clients) for client_fn in (vmapped, ghost)]
  by_vmap, by_ghost = (
    np.asarray(ravel_pytree(jax.jit(total)(params, data))[0], np.float64) for total in totals
  )
  facts = {
    "layer": name,
    "factors": {
      form.path: form.rows for form in gradient_forms(loss, params, data[0]) if form.rows
    },
    "norm_above_exact": float(np.max(np.asarray(jax.jit(norms)(params, data)) / lengths - 1)),
    "norm_below_exact": float(np.min(np.asarray(jax.jit(norms)(params, data)) / lengths - 1)),
    "sum_error": float(np.linalg.norm(by_ghost - by_vmap) / np.linalg.norm(by_vmap)),
  }
  cases = {
    "vmap": (totals[0], (params, data)),
    "ghost norms": (totals[1], (params, data)),
    "not private": (
      jax.grad(lambda params, data: jnp.mean(jax.vmap(loss, (None, 0))(params, data))),
      (params, data),
    ),
  }
  for row in _measured(cases, "vmap", clients):
    yield facts | row


def _networks() -> dict[str, models.LanguageModel]:
  """The transformer, all of it and its adapters alone."""
  plain, adapted = (
    models.transformer(_WORDS, max_length=_LENGTH, width=128, adapter_rank=rank)
    for rank in (None, 4)
  )
  params = jax.jit(plain.init)(jax.random.key(1))
  return {
    "transformer": plain,
    "its adapters": models.train_adapters(adapted, params, jax.random.key(2)),
  }


def _step_rows(
  name: str, model: models.LanguageModel, examples: int | None
) -> Iterator[dict[str, Any]]:
  """The rows of one step: of users with so many examples, or of examples (None)."""
  clients, loss = CLIENTS.value, models.next_word_loss(model)
  words = np.random.default_rng(0).integers(3, _WORDS, (clients, examples or 1, _LENGTH + 1))
  inputs, labels = (jnp.asarray(words[..., own], jnp.int32) for own in (slice(-1), slice(1, None)))
  users = Examples(inputs, labels, jnp.ones(inputs.shape[:2]))
  batch = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), users)
  params = jax.jit(model.init)(jax.random.key(1))
  query = federated.fixed_denominator(federated.flat_clipping(1.0), 1.0, float(clients))

  def made(layout: federated.CohortLayout) -> Any:
    options = layout._asdict()
    sampler, server = sampling.poisson(clients, 1.0), optax.sgd(0.1)
    if examples is None:
      return federated.dp_sgd(loss, query, sampler, server, **options)
    step = federated.gradient_step(loss, 1.0)
    return federated.federated_averaging(step, query, sampler, server, project=False, **options)

  def round_of(layout: federated.CohortLayout) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    algorithm = made(layout)
    keys = jax.random.key(3), jax.random.key(4)
    data = batch if examples is None else users
    return lambda *args: algorithm.round(*args)[0], (*keys, algorithm.init(params), data)

  def descend(params, batch):
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params, batch))

  layouts = {
    "one by one": federated.CohortLayout(1),
    f"chunks of {clients}": federated.CohortLayout(clients),
    f"ghost norms, chunks of {clients}": federated.CohortLayout(clients, ghost_norms=True),
    "ghost norms, chunks of 8": federated.CohortLayout(8, ghost_norms=True),
  }
  cases = {"not private": (descend, (params, batch))}
  cases |= {layout: round_of(own) for layout, own in layouts.items()}
  for row in _measured(cases, "not private", clients):
    yield {"step": f"{name}, {examples or 'single'} examples of a client"} | row


def _rows() -> Iterator[dict[str, Any]]:
  """All rows that are asked for."""
  if "layers" in TABLES.value:
    for name, (module, shape) in _layers().items():
      if ONLY.value in name:
        yield from _layer_rows(name, module, shape)
  if "steps" in TABLES.value:
    for name, model in _networks().items():
      for examples in (None, 4):
        if ONLY.value in name:
          yield from _step_rows(name, model, examples)


def main(argv: Sequence[str]) -> None:
  """Prints the rows as they are measured, and appends them to a file if one is named."""
  del argv
  print(f"{'':<40} {'case':<30} {'CPU ms':>9} {'time':>6} {'MiB':>8} {'memory':>6} {'norm':>8}")
  for row in _rows():
    above = f"{row['norm_above_exact']:.1e}" if "norm_above_exact" in row else ""
    print(
      f"{row.get('layer', row.get('step')):<40} {row['case']:<30} {row['cpu_ms']:>9.3f} "
      f"{row['time']:>6.2f} {row['MiB']:>8.2f} {row['memory']:>6.2f} {above:>8}",
      flush=True,
    )
    harness.append(
      row | {"clients": CLIENTS.value, "machine": harness.machine()}, harness.JSON.value
    )


if __name__ == "__main__":
  app.run(main)
