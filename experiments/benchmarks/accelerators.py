"""An accelerator at hand: what holds on it, and what it takes there."""

import pathlib
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy import stats

import jdp.random
from experiments.benchmarks import harness
from experiments.benchmarks.harness import Case, Row, benchmark, compiled
from experiments.benchmarks.mechanisms import generators, stream_cases
from experiments.benchmarks.peers import jdp_rounds, serve
from experiments.benchmarks.peers.jdp_layers import clipped_sum
from experiments.benchmarks.training import MODELS, workload
from experiments.runner.reports.tables import table
from jdp import federated, models, sampling
from jdp.data import Examples
from jdp.federated.engine.cohort_layout import CohortLayout
from jdp.federated.engine.default_layout import asked_layout
from jdp.federated.engine.ghost_norms import ghost_client
from jdp.models import Model
from jdp.models.language.recurrent import LanguageModel
from jdp.queries.base import PyTree

_CLIP_NORM = 1e-3  # of `clipped_sum`
# Accelerators multiply float32 in fewer bits by default. A guarantee does not rest on that.
_SUM_ERROR = {"cpu": 1e-4}
_FIRST = {
  "draws": "writing",
  "PrivUnit": "drawing alone",
  "cohorts": "no ghost norms",
  "chunks": "the first",
  "peers": "pfl-research",
  "adapters": "a plain step",
  "published LSTM": "a plain step",
}
_PIECES, _FAULTS = "pieces", "faults"


def _device_table(rows: Sequence[Row]) -> str:
  if not rows:  # All pieces were finished before.
    return ""
  rows = list({(row["part"], row["case"]): row for row in rows}.values())  # of a piece the newest
  devices = sorted({kind for row in rows for kind in row["machine"]["devices"]})
  parts = [f"Measured on {', '.join(devices)}, jax {rows[-1]['machine']['jax']}."]
  if faults := [(row["case"], row["error"]) for row in _faults(rows)]:
    parts.append(table(("piece", "fault"), faults))
  checks = [
    (r["case"], f"{r['error']:.2g}", f"{r['most']:.2g}", "yes" if r["holds"] else "**no**")
    for r in rows
    if r["part"] == "checks"
  ]
  if checks:
    parts.append(table(("check", "error", "at most", "holds"), checks))
  for part, first in _FIRST.items():
    if own := [_line(row) for row in rows if row["part"] == part]:
      parts.append(table((part, "ms", "a second", f"over {first}"), own))
  return "\n\n".join(parts)


def _faults(rows: Sequence[Row]) -> list[Row]:
  """The pieces that failed, and were not finished since."""
  finished = {row["case"] for row in rows if row["part"] == _PIECES}
  return [row for row in rows if row["part"] == _FAULTS and row["case"] not in finished]


def _failed(rows: Sequence[Row]) -> list[Row]:
  checks = [row for row in rows if row["part"] == "checks" and not row["holds"]]
  return checks + _faults(rows)


def _line(row: Row) -> tuple[str, ...]:
  """A line of a table of times."""
  if "rate" not in row:
    return row["case"], row["unit"], "", ""
  ms, rate = 1e3 * row["seconds"], f"{row['rate']:,.0f} {row['unit']}"
  return row["case"], f"{ms:,.3g}", rate, f"{row['ratio']:.2f}"


@benchmark({"small": True}, table=_device_table, failed=_failed)
def accelerator(
  minutes: float = 8.0,
  done: str = "",
  only: str = "",
  small: bool = False,
  pfl_python: str = "",
  rounds: int = 7,
) -> Iterator[Row]:
  """Checks jdp on the device at hand, then measures it there, piece by piece.

  JAX must see the host's CPU too, so leave JAX_PLATFORMS unset, or name both.

  First come draws, sums and clipping by ghost norms, against the same on the host: in float64, or
  by its CPU. Then come times, the most important first: draws beside writing as many numbers,
  streams of PrivUnit beside drawing alone, rounds of DP-FedAvg by model, pfl-research on the same
  device, adapters of a transformer and the published LSTM at user level, each beside a plain step
  of SGD, then rounds of more clients. A failed check, or a piece that the device cannot run, ends
  the run with an error, after all was measured.

  No piece starts after so many `minutes`. The next run goes on: give the file of `--json` as
  `--done` too, whose finished pieces are left out. `--only` is a regular expression that a piece's
  name begins with.
  """
  end, finished = time.monotonic() + 60 * minutes, _finished(done)
  pieces = _pieces(small, pfl_python, rounds)
  left = {n: find for n, find in pieces if n not in finished and re.match(only, n)}
  for number, (name, find) in enumerate(left.items()):
    if time.monotonic() > end:
      print(f"{len(left) - number} of {len(left)} pieces are left, from {name!r} on.")
      return
    start = time.monotonic()
    try:
      yield from find()
    except RuntimeError as error:  # Memory, say. The other pieces need not wait for its repair.
      yield {"part": _FAULTS, "case": name, "error": str(error).partition("\n")[0]}
      continue
    yield {"part": _PIECES, "case": name, "seconds": time.monotonic() - start}


def _finished(path: str) -> set[str]:
  """The names of the pieces that a file has all rows of."""
  rows = harness.read(path) if path and pathlib.Path(path).exists() else []
  return {row["case"] for row in rows if row["part"] == _PIECES}


def _pieces(
  small: bool, pfl_python: str, rounds: int
) -> Iterator[tuple[str, Callable[[], Iterator[Row]]]]:
  """(name, what finds its rows), the most important first."""
  yield "checks", partial(_checks, small)
  for name in ("MLP",) if small else MODELS:
    yield f"ghost norms, {name}", partial(_checked_ghost_norms, name, 4, small)
  fewest, *more = (32,) if small else (1_000, 50_000, 10_000, 3_000)
  for part, unit, make in _comparisons(small, fewest):
    name = f"{part}, {', '.join(map(str, make.args))}"
    yield name, partial(_comparison, part, unit, make, rounds)
  for name in ("logistic", "MLP", "CNN", "CIFAR10") if pfl_python else ():
    yield f"peers, {name}", partial(_beside_pfl, name, pfl_python, rounds)
  for part, large in (("adapters", _adapters), ("published LSTM", _published_lstm)):
    yield part, partial(_comparison, part, "clients", partial(large, small), rounds)
  for clients in more:
    for name in MODELS:
      make = partial(_rounds, name, clients)
      yield f"cohorts, {name}, {clients}", partial(_comparison, "cohorts", "clients", make, rounds)


def _comparison(
  part: str, unit: str, make: Callable[[], dict[str, Case]], rounds: int
) -> Iterator[Row]:
  """The rows of cases side by side."""
  yield from (_timed(part, unit, timing) for timing in harness.compare(make(), rounds))


def _timed(part: str, unit: str, timing: harness.Timing) -> Row:
  """A row of a case."""
  figures = timing._asdict()
  return {"part": part, "case": figures.pop("name"), "unit": unit} | figures


def _checks(small: bool) -> Iterator[Row]:
  """What must hold on the device, each with its error and the most that it may be."""
  for name, key in generators().items():
    if name == "default key" or not small:
      yield from _checked_draws(name, key, 10_000 if small else 1_000_000)
  yield _checked_sum(100 if small else 10_000)


def _check(name: str, error: float, most: float) -> Row:
  """A row of a check."""
  return {"part": "checks", "case": name, "error": error, "most": most, "holds": error <= most}


def _checked_draws(generator: str, key: jax.Array, size: int) -> Iterator[Row]:
  """Draws are those of the host's CPU, and normals follow their law."""
  draws: dict[str, Callable[[jax.Array], jax.Array]] = {
    "bits": lambda key: jdp.random.bits(key, (size,)),
    "discrete Gaussian": lambda key: jdp.random.discrete_gaussian(key, 3.0, (size // 10,)),
    "normals": lambda key: jdp.random.normal(key, (size,)),
  }
  for name, draw in draws.items():
    here, there = (_drawn(key, draw, device) for device in (None, jax.devices("cpu")[0]))
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
  key: jax.Array, draw: Callable[[jax.Array], jax.Array], device: jax.Device | None
) -> np.ndarray:
  """What is drawn on a device, as float64."""
  with jax.default_device(device):
    return np.asarray(jax.jit(draw)(jax.device_put(key, device)), np.float64)


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


def _checked_ghost_norms(name: str, clients: int, small: bool) -> Iterator[Row]:
  """No clipped update is longer than the clip norm, and their sum is that of explicit gradients."""
  loss, params, users = workload(name, clients, small=small)
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


def _comparisons(small: bool, clients: int) -> Iterator[tuple[str, str, partial[dict[str, Case]]]]:
  """(part, unit, what makes the cases). The first case is what the others' ratios refer to."""
  for size in (10_000,) if small else (1_000_000, 100_000_000):
    yield "draws", "numbers", partial(_draws, size)
  for dim in (1_000,) if small else (10_000, 100_000, 1_000_000):
    yield "PrivUnit", "vectors", partial(_streams, dim, 10_000 if small else 40_000_000)
  for name in ("MLP",) if small else MODELS:
    yield "cohorts", "clients", partial(_rounds, name, clients, small=small)
  for name in ("MLP",) if small else ("logistic", "MLP", "CNN"):
    yield "chunks", "clients", partial(_chunks, name, 32 if small else 10_000, small=small)


def _draws(size: int) -> dict[str, Case]:
  """Draws of so many numbers, beside writing as many."""

  def normals(key):
    return jdp.random.normal(key, (size,))

  written = compiled(lambda x: jnp.full(size, x), jnp.float32(1), work=size)
  return {f"{size:,d} numbers written": written} | {
    f"{size:,d} normals, {name}": compiled(normals, key, work=size)
    for name, key in generators().items()
  }


def _streams(dim: int, values: int) -> dict[str, Case]:
  """The sum of releases of PrivUnit, beside drawing as many normals."""
  by_default, by_chacha = (
    stream_cases(dim, key, values, 16.0) for key in (jax.random.key(0), jdp.random.seeded_key(0))
  )
  return {
    f"normals of {dim:,d} alone, default key": by_default["normals alone"],
    f"PrivUnit of {dim:,d}, default key": by_default["priv_unit"],
    f"PrivUnit of {dim:,d}, ChaCha20": by_chacha["priv_unit"],
  }


def _rounds(name: str, clients: int, *, small: bool = False) -> dict[str, Case]:
  """Rounds of DP-FedSGD by a model, without and with ghost norms."""
  title = f"{name}, {clients:,d} clients, "
  layouts = {
    f"{title}{kind}chunks by the rule": asked_layout(None, ghost_norms=ghost_norms)
    for kind, ghost_norms in {"": False, "ghost norms, ": True}.items()
  }
  return _laid_out(name, clients, layouts, small)


def _chunks(name: str, clients: int, *, small: bool) -> dict[str, Case]:
  """The same rounds, by chunks of one size. On a GPU the rule takes 1,024 at most."""
  layouts = {
    f"{name}, {clients:,d} clients, {kind}chunks of {size:,d}": CohortLayout(size, ghost_norms)
    for size in ((8,) if small else (256, 1024, 4096))
    for kind, ghost_norms in {"": False, "ghost norms, ": True}.items()
  }
  return _laid_out(name, clients, layouts, small)


def _laid_out(
  name: str, clients: int, layouts: Mapping[str, CohortLayout], small: bool
) -> dict[str, Case]:
  """Rounds of DP-FedSGD of all users by each layout."""
  loss, params, users = workload(name, clients, small=small)
  keys, cases = (jdp.random.seeded_key(0), jax.random.key(1)), {}
  for title, layout in layouts.items():
    options = layout._asdict()
    made = jdp_rounds.algorithm("federated", loss, options, size=clients, population=clients)
    cases[title] = compiled(
      lambda *args, made=made: made.round(*args)[0], *keys, made.init(params), users, work=clients
    )
  return cases


def _beside_pfl(name: str, python: str, rounds: int) -> Iterator[Row]:
  """Rounds of DP-FedAvg by pfl-research in a process of its own, and by jdp in this one.

  They do not take turns, as both may take all of the device's memory.
  """
  command = harness.Command(("pfl_research.py", "federated", name.lower()), python=python)
  (pfl,) = harness.compare({"pfl-research": command}, rounds)
  for timing in harness.compare({f"{name}, jdp": _beside(name.lower())}, rounds):
    yield _timed("peers", "clients", timing._replace(ratio=timing.rate / pfl.rate))
  yield _timed("peers", "clients", pfl._replace(name=f"{name}, pfl-research"))


def _beside(name: str) -> Case:
  """A round as pfl-research's, by the layout that the rule chooses."""
  cohort, model = serve.cohort_of(name), jdp_rounds.model_of(name)
  made = jdp_rounds.algorithm(
    "federated",
    models.cross_entropy(model),
    {},
    size=cohort.size,
    population=cohort.users,
    cohort=cohort,
  )
  users = jax.tree.map(jnp.asarray, jdp_rounds.clients_of("federated", cohort.users, cohort))
  return _round(made, model, users, cohort.size)


def _round(
  made: federated.FederatedAlgorithm, model: Model | LanguageModel, users: Examples, clients: int
) -> Case:
  """A round of so many clients, from a model's first parameters."""
  keys = jdp.random.seeded_key(0), jax.random.key(1)
  state = made.init(jax.jit(model.init)(jax.random.key(2)))
  return compiled(lambda *args: made.round(*args)[0], *keys, state, users, work=clients)


class _Text(NamedTuple):
  """Users of a language model: so many, of so many sentences of so many words."""

  words: int
  users: int
  sentences: int
  length: int

  def made(self) -> Examples:
    """Random ones."""
    shape = (2, self.users, self.sentences, self.length)
    inputs, labels = np.random.default_rng(0).integers(3, self.words, shape, np.int32)
    return Examples(jnp.asarray(inputs), jnp.asarray(labels), jnp.ones(shape[1:3]))


def _adapters(small: bool) -> dict[str, Case]:
  """User-level DP-FedSGD of the adapters of a transformer of 92 million weights."""
  text = _Text(50, 4, 2, 8) if small else _Text(10_003, 64, 4, 128)
  sizes = {"width": 16, "num_layers": 1} if small else {"width": 768, "num_layers": 12}
  plain, adapted = (
    models.transformer(text.words, max_length=text.length, adapter_rank=rank, **sizes)
    for rank in (None, 8)
  )
  model = models.train_adapters(adapted, jax.jit(plain.init)(jax.random.key(0)), jax.random.key(1))
  users, loss = text.made(), models.next_word_loss(model)
  made = jdp_rounds.algorithm("federated", loss, {}, size=text.users, population=text.users)
  return {
    "adapters, a plain step": _plain_step(loss, model, users, at_once=text.users),
    "adapters, a round at user level": _round(made, model, users, text.users),
  }


def _published_lstm(small: bool) -> dict[str, Case]:
  """Rounds of DP-FedAvg of the published LSTM, whose users hold 1,600 words (arXiv 1710.06963).

  Table 2 has rounds of 5,000 users and more. Their time is that of these, by the rate.
  """
  text = _Text(50, 4, 4, 10) if small else _Text(10_003, 512, 160, 10)
  sizes = {"embedding": 8, "hidden": 8} if small else {}
  model = models.language_model(text.words, **sizes)
  users, loss = text.made(), models.next_word_loss(model)
  made = federated.dp_fedavg(
    loss,
    users,
    cohort_size=text.users,
    clip_norm=15.0,
    num_rounds=1,
    noise_multiplier=1.0,
    sampler=sampling.fixed_size(text.users, text.users),
    relation="replace_one",
    local_update=lambda loss: federated.local_sgd(loss, 6.0, batch_size=8),
  )
  return {
    "published LSTM, a plain step": _plain_step(loss, model, users, at_once=text.users // 32 or 1),
    "published LSTM, a round at user level": _round(made, model, users, text.users),
  }


def _plain_step(
  loss: models.Loss, model: Model | LanguageModel, users: Examples, *, at_once: int
) -> Case:
  """A step of SGD without privacy, by the sentences of all users, of so many users at once."""
  clients = len(users.mask)
  parts = jax.tree.map(lambda x: x.reshape(clients // at_once, -1, *x.shape[2:]), users)

  def step(params, parts):
    def add(sums, batch):
      return jax.tree.map(jnp.add, sums, jax.grad(loss)(params, batch)), None

    sums, _ = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), parts)
    return jax.tree.map(lambda p, g: p - 0.1 * g / len(parts.mask), params, sums)

  return compiled(step, jax.jit(model.init)(jax.random.key(2)), parts, work=clients)
