"""Ghost norms layer by layer, and the steps of a transformer with and without privacy.

    python -m experiments.benchmarks.ghost_norms --opacus_python=OPACUS/bin/python --json=FILE
    python -m experiments.benchmarks.ghost_norms --table=FILE   # the README's tables

A layer's rows say how exact ghost norms are, and what the clipped sum of a chunk of clients takes,
beside gradients that are made for each client (vmap). Opacus's fast gradient clipping of the same
layer stands beside them, if an environment with Opacus is named. These cases take turns, in an
order that changes. A ratio is the median over the turns.

A step's rows compare whole rounds, noise and the server's step included, with a step of SGD on the
same examples, whose loss is one mean over all tokens. The library's own loss goes by pieces, so a
second such step has that.

All run on one core, and times are of processors. Memory is what the compiled program needs beside
its arguments, by its own analysis. Opacus's is the peak that PyTorch's allocator tells.
"""

import os
import pathlib
import re
import statistics
import subprocess
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags
from jax.flatten_util import ravel_pytree

from experiments.benchmarks import checkouts, harness
from experiments.benchmarks.cohorts import PYTHONS, TABLE
from experiments.benchmarks.peers import jdp_layers
from jdp import federated, models, sampling
from jdp.data import Examples
from jdp.federated.engine.client import ClientKeys
from jdp.federated.engine.ghost_norms import ghost_client, gradient_forms
from jdp.models.language.word_losses import cross_entropies

CLIENTS = flags.DEFINE_integer("clients", 32, "Clients of a chunk, and of a step.", lower_bound=1)
TABLES = flags.DEFINE_multi_enum("tables", ["layers", "steps"], ["layers", "steps"], "What to run.")
ONLY = flags.DEFINE_string("only", "", "Run the cases whose names hold this.")
OPACUS = PYTHONS["opacus_ghost"]
_WORDS, _LENGTH = 1000, 32
_PLAIN = "not private"


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


def _layer_rows(names: Collection[str]) -> Iterator[dict[str, Any]]:
  """The rows of all these layers, whose cases take turns with Opacus's."""
  clients = str(CLIENTS.value)
  opacus = _opacus_memory()
  commands = {
    f"{name}: {case}": checkouts.Command(("jdp_layers.py", clients), case=f"{name}: {case}")
    for name in names
    for case in ("vmap", "ghost norms", "not private")
  }
  commands |= {
    f"{name}: Opacus": checkouts.Command(
      ("opacus_layers.py", clients), python=str(OPACUS.value), case=name
    )
    for name in names
    if name in opacus
  }
  turns = checkouts.take_turns(commands)
  for name in names:
    module, shape = jdp_layers.layers()[name]
    facts, memory = _facts(name, jdp_layers.layer_of(module, shape, CLIENTS.value))
    memory |= {"Opacus": opacus[name]} if name in opacus else {}
    for case, held in memory.items():
      own, base = (
        [_seconds(turn[f"{name}: {which}"]) for turn in turns] for which in (case, "vmap")
      )
      yield facts | {
        "case": case,
        "cpu_ms": 1e3 * statistics.median(own),
        "time": statistics.median(mine / other for mine, other in zip(own, base, strict=True)),
        "MiB": held / 2**20,
        "memory": held / memory["vmap"],
      }


def _seconds(turn: checkouts.Turn) -> float:
  """The processor time of one sum."""
  assert turn.cpu is not None
  return CLIENTS.value * turn.cpu / turn.work


def _opacus_memory() -> dict[str, int]:
  """The bytes that Opacus takes for each layer that it has, by its own account."""
  if OPACUS.value is None:
    return {}
  script = pathlib.Path(__file__).parent / "peers" / "opacus_layers.py"
  done = subprocess.run(
    [OPACUS.value, script, str(CLIENTS.value), "memory"], capture_output=True, text=True, check=True
  )
  found = re.findall(r"^memory (\d+) (.+)$", done.stdout, re.M)
  return {name: int(held) for held, name in found}


def _facts(name: str, layer: jdp_layers.Layer) -> tuple[dict[str, Any], dict[str, int]]:
  """What a layer's rows have in common, and the bytes that each of its programs needs."""
  loss, params, data, cases = layer
  clients = CLIENTS.value
  ghost = ghost_client(loss, 1.0)

  def norms(params, data):
    keys = ClientKeys(jax.random.key(0), jax.random.key(1))
    return jax.vmap(lambda client: ghost(keys, (params,), client)[0].norm)(data)

  compiled: dict[str, Any] = {
    case: jax.jit(run).lower(params, data).compile() for case, run in cases.items()
  }
  gradients = jax.jit(jax.vmap(jax.grad(loss), (None, 0)))(params, data)
  exact = [np.asarray(x, np.float64).reshape(clients, -1) for x in jax.tree.leaves(gradients)]
  lengths = np.linalg.norm(np.concatenate(exact, axis=1), axis=1)
  ratios = np.asarray(jax.jit(norms)(params, data)) / lengths - 1
  by_vmap, by_ghost = (
    np.asarray(ravel_pytree(compiled[case](params, data))[0], np.float64)
    for case in ("vmap", "ghost norms")
  )
  facts = {
    "layer": name,
    "factors": {
      form.path: form.rows for form in gradient_forms(loss, params, data[0]) if form.rows
    },
    "norm_above_exact": float(np.max(ratios)),
    "norm_below_exact": float(np.min(ratios)),
    "sum_error": float(np.linalg.norm(by_ghost - by_vmap) / np.linalg.norm(by_vmap)),
  }
  return facts, {
    case: program.memory_analysis().temp_size_in_bytes for case, program in compiled.items()
  }


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

  def made(layout: federated.CohortLayout | None) -> Any:
    options = layout._asdict() if layout else {}
    sampler, server = sampling.poisson(clients, 1.0), optax.sgd(0.1)
    if examples is None:
      step, unit = federated.example_gradient(loss), "example"
    else:
      step, unit = federated.gradient_step(loss, 1.0), "user"
    return federated.federated_averaging(step, query, sampler, server, unit=unit, **options)

  def round_of(layout: federated.CohortLayout | None) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    algorithm = made(layout)
    keys = jax.random.key(3), jax.random.key(4)
    data = batch if examples is None else users
    return lambda *args: algorithm.round(*args)[0], (*keys, algorithm.init(params), data)

  def at_once(params, batch):
    losses = cross_entropies(
      model.apply(params, batch.inputs).reshape(-1, _WORDS), batch.labels.reshape(-1)
    )
    return jnp.mean(losses)

  def descent(loss):
    def descend(params, batch):
      return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params, batch))

    return descend, (params, batch)

  layouts = {
    "one by one": federated.CohortLayout(1),
    f"chunks of {clients}": federated.CohortLayout(clients),
    f"ghost norms, chunks of {clients}": federated.CohortLayout(clients, ghost_norms=True),
    "ghost norms, chunks of 8": federated.CohortLayout(8, ghost_norms=True),
    "by the rule": None,
  }
  cases = {_PLAIN: descent(at_once), "not private, by pieces": descent(loss)}
  cases |= {layout: round_of(own) for layout, own in layouts.items()}
  for row in _measured(cases, _PLAIN, clients):
    yield {"step": f"{name}, {examples or 'single'} examples of a client"} | row


def _rows() -> Iterator[dict[str, Any]]:
  """All rows that are asked for."""
  if "layers" in TABLES.value:
    yield from _layer_rows([name for name in jdp_layers.layers() if ONLY.value in name])
  if "steps" in TABLES.value:
    for name, model in _networks().items():
      for examples in (None, 4):
        if ONLY.value in name:
          yield from _step_rows(name, model, examples)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
  """The Markdown of a file's rows: its layers, and its steps."""
  layers: dict[str, dict[str, Mapping[str, Any]]] = {}
  for row in rows:
    if "layer" in row:
      layers.setdefault(row["layer"], {})[row["case"]] = row
  head = (
    "layer", "norm", "sum", "time over vmap", "memory over vmap", "time over a plain gradient",
    "rate over Opacus's", "memory over Opacus's",
  )  # fmt: skip
  lines = [head, ["---"] * len(head)]
  for name, cases in layers.items():
    ghost, plain, opacus = cases["ghost norms"], cases["not private"], cases.get("Opacus")
    lines.append(
      (
        name,
        f"{ghost['norm_above_exact']:.1e}",
        f"{ghost['sum_error']:.1e}",
        f"{ghost['time']:.2f}",
        f"{ghost['memory']:.2f}",
        f"{ghost['cpu_ms'] / plain['cpu_ms']:.1f}",
        f"{opacus['cpu_ms'] / ghost['cpu_ms']:.1f}" if opacus else "it has none",
        f"{ghost['MiB'] / opacus['MiB']:.2f}" if opacus else "",
      )
    )
  steps = [("round", "layout", "time", "memory"), ["---"] * 4]
  steps += [
    (row["step"], row["case"], f"{row['time']:.2f}", f"{row['memory']:.2f}")
    for row in rows
    if "step" in row and row["case"] != _PLAIN
  ]
  return "\n\n".join(
    "\n".join(f"| {' | '.join(line)} |" for line in part) for part in (lines, steps)
  )


def main(argv: Sequence[str]) -> None:
  """Prints the rows as they are measured, and appends them to a file if one is named."""
  del argv
  if TABLE.value:
    print(table(harness.read(TABLE.value)))
    return
  os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # Before JAX counts the cores.
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
