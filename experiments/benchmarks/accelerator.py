"""Checks jdp on the device at hand, then measures it there, in at most 20 minutes.

    python -m experiments.benchmarks.accelerator --json=FILE --pfl_python=PFL/bin/python
    python -m experiments.benchmarks.accelerator --table=FILE

JAX must see the host's CPU too, so leave JAX_PLATFORMS unset, or name both.

First come draws, sums and clipping by ghost norms, against the same on the host: in float64, or by
its CPU. A failed check ends the run with an error, after all was measured. Then come times: draws
beside writing as many numbers, streams of PrivUnit beside drawing alone, rounds of DP-FedSGD by
cohort and model, and DP-FedAvg beside pfl-research on the same device, if its Python is named.

`--json` gets a row for each figure as it is found, and `--table` prints such a file in Markdown.
`--smallest` runs a few small cases, to try the program itself. What does not start within
`--minutes` is left out, and is named.
"""

import itertools
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags
from jax.flatten_util import ravel_pytree
from scipy import stats

import jdp.random
from experiments.benchmarks import checkouts, harness
from experiments.benchmarks.cohorts import PYTHONS, TABLE
from experiments.benchmarks.peers import networks, serve
from experiments.benchmarks.peers.jdp_layers import clipped_sum
from jdp import federated, mechanisms, models, sampling
from jdp.data import Examples
from jdp.federated.engine.default_layout import asked_layout
from jdp.federated.engine.ghost_norms import ghost_client

SMALLEST = flags.DEFINE_bool("smallest", False, "Run a few small cases.")
MINUTES = flags.DEFINE_float("minutes", 20.0, "No case starts later.", lower_bound=0.0)

PyTree = Any
Row = dict[str, Any]
_CLIP_NORM = 1e-3  # of `clipped_sum`
_LENGTH = 16
MODELS = ("logistic", "MLP", "CNN", "LSTM", "transformer")
# Accelerators multiply float32 in fewer bits by default. A guarantee does not rest on that.
_SUM_ERROR = {"cpu": 1e-4}


def _checks() -> Iterator[Row]:
  """What must hold on the device, each with its error and the most that it may be."""
  size = 10_000 if SMALLEST.value else 1_000_000
  for name in ("default key",) if SMALLEST.value else ("default key", *jdp.random.IMPLS):
    yield from _checked_draws(name, size)
  yield _checked_sum(100 if SMALLEST.value else 10_000)
  for name in ("LSTM",) if SMALLEST.value else MODELS:
    yield from _checked_ghost_norms(name, *workload(name, 4, small=SMALLEST.value))


def _check(name: str, error: float, most: float) -> Row:
  """A row of a check."""
  return {"part": "checks", "case": name, "error": error, "most": most, "holds": error <= most}


def _checked_draws(generator: str, size: int) -> Iterator[Row]:
  """Draws are those of the host's CPU, and normals follow their law."""
  draws: dict[str, Callable[[jax.Array], jax.Array]] = {
    "bits": lambda key: jdp.random.bits(key, (size,)),
    "discrete Gaussian": lambda key: jdp.random.discrete_gaussian(key, 3.0, (size // 10,)),
    "normals": lambda key: jdp.random.normal(key, (size,)),
  }
  for name, draw in draws.items():
    here, there = (_drawn(generator, draw, device) for device in (None, jax.devices("cpu")[0]))
    apart = np.abs(here - there)
    title = f"{name}, {generator}"
    if name != "normals":
      yield _check(f"{title}: numbers that differ from the host's", float(np.sum(apart > 0)), 0.0)
      continue
    yield _check(
      f"{title}: distance from the host's", float(np.max(apart / (1 + np.abs(there)))), 1e-5
    )
    distance = stats.kstest(here, "norm").statistic * np.sqrt(size)
    # A sound generator fails with a probability of 1e-6.
    yield _check(f"{title}: Kolmogorov's distance, times sqrt(n)", float(distance), 2.7)


def _drawn(
  generator: str, draw: Callable[[jax.Array], jax.Array], device: jax.Device | None
) -> np.ndarray:
  """What a generator draws on a device, as float64."""
  with jax.default_device(device):
    key = jax.random.key(0) if generator == "default key" else jdp.random.seeded_key(0, generator)
    return np.asarray(jax.jit(draw)(key), np.float64)


def _checked_sum(clients: int) -> Row:
  """The sum of a cohort is the exact one, rounded once, though its numbers cancel."""
  rng = np.random.default_rng(0)
  values = rng.normal(size=(clients, 100)) * 10.0 ** rng.uniform(-3, 3, (clients, 1))
  values = np.concatenate([values, rng.normal(size=values.shape) - values]).astype(np.float32)
  count = len(values)
  sample = sampling.Sample(
    jnp.arange(count, dtype=jnp.int32), jnp.ones(count), jnp.int32(count), count
  )

  def add(keys, shared, client, weight):
    del keys, shared
    return weight * client

  total = jax.jit(lambda data: federated.cohort_sum(add, jax.random.key(0), (), sample, data))
  exact = np.sum(values.astype(np.float64), axis=0)
  apart = np.abs(np.asarray(total(values), np.float64) - exact) - 2.0**-24 * np.abs(exact)
  error = np.max(apart / np.sum(np.abs(values), axis=0, dtype=np.float64))
  return _check(f"sum of {count:,d} clients: error over that of one rounding", float(error), 1e-12)


def _checked_ghost_norms(
  name: str, loss: models.Loss, params: PyTree, users: Examples
) -> Iterator[Row]:
  """No clipped update is longer than the clip norm, and their sum is that of explicit gradients."""
  step = federated.gradient_step(loss, 1.0)

  def explicit(keys, sent, client):
    return step(keys.data, sent[0], client), {}

  by_ghost, by_vmap = (
    _exact(jax.jit(clipped_sum(client_fn, len(users.mask)))(params, users))
    for client_fn in (ghost_client(loss, 1.0), explicit)
  )
  alone = jax.jit(clipped_sum(ghost_client(loss, 1.0), 1))
  lengths = [
    float(np.linalg.norm(_exact(alone(params, jax.tree.map(lambda x, i=i: x[i : i + 1], users)))))
    for i in range(len(users.mask))
  ]
  yield _check(f"{name}: a clipped update beyond the clip norm", max(lengths) / _CLIP_NORM - 1, 0.0)
  yield _check(f"{name}: a clipped update below it", 1 - min(lengths) / _CLIP_NORM, 1e-4)
  error = float(np.linalg.norm(by_ghost - by_vmap) / np.linalg.norm(by_vmap))
  most = _SUM_ERROR.get(jax.default_backend(), 1e-2)
  yield _check(f"{name}: sum by ghost norms beside explicit gradients", error, most)


def _exact(tree: PyTree) -> np.ndarray:
  """All numbers of a pytree, as float64."""
  return np.asarray(ravel_pytree(tree)[0], np.float64)


def workload(name: str, clients: int, *, small: bool) -> tuple[models.Loss, PyTree, Examples]:
  """A model's loss, its parameters and so many clients. Language models may be small."""
  words, sizes = (50, {"embedding": 8, "hidden": 8}) if small else (10_003, {})
  classifiers: dict[str, Callable[[], models.Model]] = {
    "logistic": lambda: models.logistic_regression(serve.SHAPE, serve.CLASSES),
    "MLP": lambda: models.from_flax(networks.NETWORKS["mlp"], serve.SHAPE),
    "CNN": lambda: models.small_cnn(serve.SHAPE, serve.CLASSES),
  }
  language: dict[str, Callable[[], models.LanguageModel]] = {
    "LSTM": lambda: models.language_model(words, **sizes),
    "transformer": lambda: models.transformer(words, max_length=_LENGTH, width=128),
  }
  own = min(clients, 1000)
  if name in classifiers:
    inputs, labels = serve.images(own * serve.EXAMPLES)
    users = _users(inputs.reshape(own, serve.EXAMPLES, *serve.SHAPE), labels, clients)
    model: Any = classifiers[name]()
    loss = models.cross_entropy(model)
  else:
    inputs, labels = np.random.default_rng(0).integers(3, words, (2, own, 4, _LENGTH), np.int32)
    users, model = _users(inputs, labels, clients), language[name]()
    loss = models.next_word_loss(model)
  return loss, jax.jit(model.init)(jax.random.key(0)), users


def _users(inputs: np.ndarray, labels: np.ndarray, clients: int) -> Examples:
  """So many clients, of which the first thousand are repeated."""
  own = np.arange(clients) % len(inputs)
  labels = labels.reshape(*inputs.shape[:2], *labels.shape[2:]).astype(np.int32)
  mask = jnp.ones((clients, inputs.shape[1]))
  return Examples(jnp.asarray(inputs[own]), jnp.asarray(labels[own]), mask)


def _comparisons() -> Iterator[tuple[str, str, partial[dict[str, harness.Case]]]]:
  """(part, unit, what makes the cases). The first case is what the others' ratios refer to."""
  small = SMALLEST.value
  for size in (10_000,) if small else (1_000_000, 100_000_000):
    yield "draws", "numbers", partial(_draws, size)
  for dim in (1_000,) if small else (10_000, 100_000, 1_000_000):
    yield "PrivUnit", "vectors", partial(_streams, dim)
  for name in ("MLP",) if small else MODELS:
    for clients in (32,) if small else (1_000, 3_000, 10_000, 50_000):
      yield "cohorts", "clients", partial(_rounds, name, clients)


def _case(function: Callable[..., Any], *args: Any, work: float) -> harness.Case:
  return harness.Case(partial(jax.jit(function), *args), work)


def _draws(size: int) -> dict[str, harness.Case]:
  """Draws of so many numbers, beside writing as many."""
  keys = {"default key": jax.random.key(0)}
  keys |= {name: jdp.random.seeded_key(0, name) for name in jdp.random.IMPLS}

  def normals(key):
    return jdp.random.normal(key, (size,))

  cases = {
    f"{size:,d} numbers written": _case(lambda x: jnp.full(size, x), jnp.float32(1), work=size)
  }
  return cases | {
    f"{size:,d} normals, {name}": _case(normals, key, work=size) for name, key in keys.items()
  }


def _streams(dim: int) -> dict[str, harness.Case]:
  """The sum of releases of PrivUnit, beside drawing as many normals."""
  count = max(8, (10_000 if SMALLEST.value else 40_000_000) // dim)
  mechanism, key = mechanisms.priv_unit(dim, 16.0), jax.random.key(0)

  def draw(key):
    return jnp.sum(jdp.random.normal(key, (count, dim)), axis=0)

  def stream(keys):
    return mechanisms.stream_sum(mechanism, keys, lambda i: jnp.ones(dim) + i.astype(jnp.float32))

  cases = {f"normals of {dim:,d} alone, default key": _case(draw, key, work=count)}
  for name, own in {"default key": key, "ChaCha20": jdp.random.seeded_key(0)}.items():
    keys = jax.random.split(own, count)
    cases[f"PrivUnit of {dim:,d}, {name}"] = _case(stream, keys, work=count)
  return cases


def _rounds(name: str, clients: int) -> dict[str, harness.Case]:
  """Rounds of DP-FedSGD of a model, without and with ghost norms."""
  loss, params, users = workload(name, clients, small=SMALLEST.value)
  cases = {}
  for kind, ghost_norms in {"": False, "ghost norms, ": True}.items():
    layout = asked_layout(None, ghost_norms=ghost_norms)
    title = f"{name}, {clients:,d} clients, {kind}chunks by the rule"
    cases[title] = _round(loss, params, users, layout, clients)
  return cases


def _round(
  loss: models.Loss, params: PyTree, users: Examples, layout: federated.CohortLayout, clients: int
) -> harness.Case:
  """A round of all users, noise and server included."""
  average = federated.fixed_denominator(
    federated.flat_clipping(serve.CLIP_NORM), serve.NOISE_MULTIPLIER, clients
  )
  made = federated.federated_averaging(
    federated.gradient_step(loss, serve.LEARNING_RATE),
    average,
    sampling.poisson(clients, 1.0),
    optax.sgd(1.0),
    project=False,
    **layout._asdict(),
  )
  keys = jdp.random.seeded_key(0), jax.random.key(1)
  return _case(lambda *args: made.round(*args)[0], *keys, made.init(params), users, work=clients)


def _beside_pfl(name: str, python: str) -> Iterator[Row]:
  """DP-FedAvg as in `cohorts`, by pfl-research in a process of its own and by jdp in this one."""
  command = checkouts.Command(("pfl_research.py", "federated", name.lower()), python=python)
  (pfl,) = checkouts.compare({"pfl-research": command})
  own = _rounds(name, serve.COHORT)
  for timing in harness.compare(own, baseline=next(iter(own)), rounds=harness.ROUNDS.value):
    yield _timed("peers", "clients", timing._replace(ratio=timing.rate / pfl.rate))
  yield _timed("peers", "clients", pfl._replace(name=f"{name}, pfl-research"))


def _timed(part: str, unit: str, timing: harness.Timing) -> Row:
  """A row of a case."""
  return {"part": part, "case": timing.name, "unit": unit} | {
    name: value for name, value in timing._asdict().items() if name != "name"
  }


def _measured() -> Iterator[Row]:
  """The rows of all cases. Those that the time does not suffice for have no figures."""
  end = time.monotonic() + 60 * MINUTES.value
  for part, unit, make in _comparisons():
    if time.monotonic() > end:
      yield {"part": part, "case": f"{make.func.__name__[1:]} {make.args}", "unit": "left out"}
      continue
    cases = make()
    timings = harness.compare(cases, baseline=next(iter(cases)), rounds=harness.ROUNDS.value)
    yield from (_timed(part, unit, timing) for timing in timings)
  if python := PYTHONS["pfl_research"].value:
    for name in ("logistic", "MLP", "CNN"):
      yield from _beside_pfl(name, python)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
  """The Markdown of a file's rows."""
  devices = sorted({kind for row in rows for kind in row["machine"]["devices"]})
  parts = [f"Measured on {', '.join(devices)}, jax {rows[-1]['machine']['jax']}."]
  own = [row for row in rows if row["part"] == "checks"]
  if own:
    lines = [("check", "error", "at most", "holds"), ("---",) * 4]
    lines += [
      (r["case"], f"{r['error']:.2g}", f"{r['most']:.2g}", "yes" if r["holds"] else "**no**")
      for r in own
    ]
    parts.append(_markdown(lines))
  for part, first in _FIRST.items():
    own = [row for row in rows if row["part"] == part]
    if own:
      head = (part, "ms", "a second", f"over {first}")
      parts.append(_markdown([head, ("---",) * 4, *map(_line, own)]))
  return "\n\n".join(parts)


_FIRST = {
  "draws": "writing",
  "PrivUnit": "drawing alone",
  "cohorts": "no ghost norms",
  "peers": "pfl-research",
}


def _line(row: Mapping[str, Any]) -> tuple[str, ...]:
  """A line of a table of times."""
  if "rate" not in row:
    return row["case"], row["unit"], "", ""
  ms, rate = 1e3 * row["seconds"], f"{row['rate']:,.0f} {row['unit']}"
  return row["case"], f"{ms:,.3g}", rate, f"{row['ratio']:.2f}"


def _markdown(lines: Sequence[Sequence[str]]) -> str:
  return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main(argv: Sequence[str]) -> None:
  """Checks and measures, or prints a table."""
  del argv
  if TABLE.value:
    print(table(harness.read(TABLE.value)))
    return
  rows = []
  for row in itertools.chain(_checks(), _measured()):
    rows.append(row | {"machine": harness.machine()})
    harness.append(rows[-1], harness.JSON.value)
    print(row, flush=True)
  print(table(rows))
  if failed := [row["case"] for row in rows if not row.get("holds", True)]:
    sys.exit(f"Expected all checks to hold on {jax.devices()[0].device_kind}, got {failed}.")


if __name__ == "__main__":
  app.run(main)
