"""Strategies of correlated noise: what a round costs with them, and the searches for them."""

import resource
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks import harness
from experiments.benchmarks.harness import Case, Row, benchmark, compiled
from experiments.benchmarks.training import workload
from experiments.runner.options import needed
from experiments.runner.reports.tables import table
from jdp import matrix_factorization as mf
from jdp import queries, random, sampling
from jdp.data import Examples
from jdp.federated import dp_fedavg
from jdp.federated.engine.local_training import local_sgd
from jdp.federated.engine.rounds import block
from jdp.matrix_factorization.banded_matrices import BandedStrategy
from jdp.matrix_factorization.toeplitz import from_coefficients
from jdp.models import Loss
from jdp.queries.base import PyTree

_ROUNDS, _SEPARATION, _BANDS = 2000, 16, 16
_DRAWS, _INVERSE = f"{_BANDS} rows drawn, nothing else", "banded_inverse, 16 bands"
_MEBI = 2**20
_STRATEGIES: dict[str, Callable[[], mf.Strategy]] = {
  "identity": lambda: mf.identity(_ROUNDS),
  "tree": lambda: mf.tree(_ROUNDS),
  "banded_toeplitz, 16 bands": lambda: mf.banded_toeplitz(_ROUNDS, _BANDS),
  "buffered, 3 buffers": lambda: mf.buffered_toeplitz(_ROUNDS, buffers=3),
  _INVERSE: lambda: mf.banded_inverse_square_root(_ROUNDS, _BANDS),
}


class Model(NamedTuple):
  """A model, and the rounds that it is trained by.

  Attributes:
    workload: its name.
    cohort: clients of a round.
    batch: examples of a local step.
    rounds: of a block.
    described: a client's work, in words.
  """

  workload: str
  cohort: int
  batch: int
  rounds: int
  described: str


_MODELS = {
  "logistic": Model("logistic", 50, 10, 20, "of 10 images, one step"),
  "CNN": Model("CNN", 20, 10, 8, "of 10 images, one step"),
  "language model": Model("LSTM", 4, 8, 2, "of 160 tokens, two steps"),
}


def _noise_table(rows: Sequence[Row]) -> str:
  """A row for each model and strategy, and what limits a banded inverse."""
  lines, limits = [], []
  for row in rows:
    releases, rounds = row["releases"], row["rounds"]
    for name, own in rounds.items():
      lines.append(
        [
          f"{row['model']}, {row['parameters']:,d}",
          name,
          f"{own['cpu_ms']:.3g}",
          f"{own['cpu_ms'] / rounds['identity']['cpu_ms']:.2f}",
          f"{releases[name]['cpu_ms']:.3g}",
          _size(row["kept_bytes"][name]),
        ]
      )
    share = releases[_DRAWS]["cpu_ms"] / releases[_INVERSE]["cpu_ms"]
    limits.append(f"{share:.0%} ({row['model']})")
  clients = ", ".join(f"{row['clients']} ({row['model']})" for row in rows)
  header = ["model", "noise", "ms a round", "over identity", "ms of its noise", "kept"]
  return (
    f"{table(header, lines)}\n\nA round has {clients}. Drawing {_BANDS} rows and nothing else "
    f"takes {', '.join(limits)} of the time of a banded inverse's noise."
  )


def _size(count: int) -> str:
  return f"{count / _MEBI:.2f} MiB" if count >= _MEBI / 100 else f"{count:,d} bytes"


@benchmark({"model": ("logistic",)}, table=_noise_table)
def correlated_noise(model: tuple[str, ...] = tuple(_MODELS), rounds: int = 7) -> Iterator[Row]:
  """What correlated noise costs a round, and what it keeps.

  There are two kinds of cases, for three models and five strategies of 2,000 rounds. A round of
  DP-FedAvg has clients who train. A release is the noise of a round alone: drawn by ChaCha20, added
  to a sum and rounded. Both are compiled as blocks of rounds, as `train` compiles them, and go on
  from round to round. The first case is independent noise. A banded inverse draws as many rows as
  it has bands, so its limit stands beside it: the time to draw them and do nothing else.
  """
  made = {name: _query(name) for name in _STRATEGIES}
  for name in model:
    own = _MODELS[name]
    trained = workload(own.workload, own.cohort * _SEPARATION, sentences=(16, 10))
    dim = sum(x.size for x in jax.tree.leaves(trained[1]))
    total = jnp.zeros(dim)
    releases = {name: _releases(query, total, own.rounds) for name, query in made.items()}
    rounds_of = {name: _training(own, make(), *trained) for name, make in _STRATEGIES.items()}
    yield {
      "model": name,
      "parameters": dim,
      "clients": f"{own.cohort} clients {own.described}",
      "kept_bytes": {
        name: sum(x.nbytes for x in jax.tree.leaves(query.init(total).kept))
        for name, query in made.items()
      },
      "releases": _per_round(harness.compare({**releases, _DRAWS: _draws(dim)}, rounds), own),
      "rounds": _per_round(harness.compare(rounds_of, rounds), own),
    }


def _per_round(timings: Sequence[harness.Timing], model: Model) -> Row:
  """Processor time of one round, and the ratio, by name."""

  def milliseconds(timing: harness.Timing) -> float:
    assert timing.cpu_seconds is not None
    return 1e3 * timing.cpu_seconds / (1 if timing.name == _DRAWS else model.rounds)

  return {t.name: {"cpu_ms": milliseconds(t), "ratio": t.ratio} for t in timings}


def _query(name: str) -> queries.SumQuery:
  return queries.correlated_gaussian_sum(1.0, 4.0, _STRATEGIES[name](), min_separation=_SEPARATION)


def _training(
  model: Model, strategy: mf.Strategy, loss: Loss, params: PyTree, clients: Examples
) -> Case:
  """Rounds with clients, whose groups take turns."""
  users = model.cohort * _SEPARATION
  algorithm = dp_fedavg(
    loss,
    clients,
    cohort_size=model.cohort,
    clip_norm=1.0,
    num_rounds=_ROUNDS,
    noise_multiplier=1.0,
    local_update=lambda loss: local_sgd(loss, 0.1, batch_size=model.batch),
    sampler=sampling.min_separation(users, _SEPARATION, -(-_ROUNDS // _SEPARATION)),
    strategy=strategy,
    relation="zero_out",
  )
  advance = jax.jit(block(algorithm, model.rounds), donate_argnums=2)
  keys = random.seeded_key(2), random.seeded_key(3)
  return _going_on(
    lambda state: advance(*keys, state, clients)[0], algorithm.init(params), model.rounds
  )


def _releases(query: queries.SumQuery, total: PyTree, rounds: int) -> Case:
  """Rounds without clients: their noise, on a sum of zeros."""

  def release(carried: PyTree, _number: None) -> tuple[PyTree, None]:
    state, so_far = carried
    key = jax.random.fold_in(random.seeded_key(0), state.step)
    result, _, state = query.finalize(key, state, total)
    return (state, so_far + result), None  # as a model does; all of the result is needed

  advance = jax.jit(
    lambda carried: jax.lax.scan(release, carried, length=rounds)[0], donate_argnums=0
  )
  return _going_on(advance, (query.init(total), total), rounds)


def _draws(dim: int) -> Case:
  """As many rows as a banded inverse draws in a round."""

  def draw(key: jax.Array) -> jax.Array:
    row = lambda n, _: random.normal(jax.random.fold_in(key, n), (dim,))  # noqa: E731
    return jax.lax.fori_loop(0, _BANDS, row, jnp.zeros(dim))

  return compiled(draw, random.seeded_key(0), work=1)


def _going_on(advance: Callable[[PyTree], PyTree], state: PyTree, rounds: int) -> Case:
  """Each call does the next rounds, in place of the state before them.

  The first calls are made here: in its first rounds a banded inverse draws fewer rows than bands.
  """
  state = jax.tree.map(jnp.array, state)  # a copy, as its buffers are given away
  for _ in range(0, _BANDS, rounds):
    state = advance(state)

  def run() -> PyTree:
    nonlocal state
    state = advance(state)
    return state

  return Case(run, rounds)


@benchmark({"parameters": 100})
def whole_run(parameters: int = 1_360_000) -> Iterator[Row]:
  """The noise of all 2,000 rounds of a large model in one program: time, and memory of two kinds.

  They are that of the compiled program, and the process's peak. `deviation_ratio` is that of the
  sum of all noise, over the one by theory.
  """
  for noise in ("buffered, 3 buffers", "banded_toeplitz, 16 bands"):
    yield harness.apart(all_noise, noise, parameters)


def all_noise(noise: str, parameters: int) -> Row:
  """The row of one strategy, in a process whose peak is its own."""
  query, total = _query(noise), jnp.zeros(parameters)

  def run(key: jax.Array, state: PyTree) -> PyTree:
    def one_round(so_far: PyTree, number: jax.Array) -> tuple[PyTree, None]:
      result, _, state = query.finalize(jax.random.fold_in(key, number), so_far[0], total)
      return (state, so_far[1] + result), None

    return jax.lax.scan(one_round, (state, total), jnp.arange(_ROUNDS))[0]

  arguments = (random.seeded_key(0), query.init(total))
  before = _peak()
  program = jax.jit(run).lower(*arguments).compile()
  memory = needed(program.memory_analysis())  # None on a back end without this analysis.
  begun = time.process_time()
  _, drawn = jax.block_until_ready(program(*arguments))
  used = memory.temp_size_in_bytes + memory.argument_size_in_bytes + memory.output_size_in_bytes
  by_theory = 4.0 * _STRATEGIES[noise]().squared_errors()[-1] ** 0.5
  return {
    "noise": noise,
    "rounds": _ROUNDS,
    "parameters": parameters,
    "cpu_seconds": time.process_time() - begun,
    "program_mebibytes": used / _MEBI,
    "peak_mebibytes": _peak(),
    "peak_before_mebibytes": before,
    "deviation_ratio": float(jnp.std(drawn)) / by_theory,
  }


def _peak() -> float:
  """Peak memory of the process in MiB; Linux counts it in KiB."""
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


class Setting(NamedTuple):
  """What to search for.

  Attributes:
    kind: banded_toeplitz, banded or buffered.
    num_rounds: n.
    size: bands, or buffers.
    objective: "mean" or "max".
    separation: least distance of one user's rounds.
    most: the most participations.
  """

  kind: str
  num_rounds: int
  size: int
  objective: str
  separation: int
  most: int


_SETTINGS = (
  Setting("banded_toeplitz", 100, 8, "mean", 8, 1),
  Setting("banded_toeplitz", 1000, 16, "mean", 16, 1),
  Setting("banded_toeplitz", 1000, 64, "max", 64, 1),
  Setting("banded_toeplitz", 10_000, 32, "mean", 32, 1),
  Setting("banded", 64, 8, "mean", 8, 1),
  Setting("banded", 200, 16, "mean", 16, 1),
  Setting("banded", 400, 8, "mean", 8, 1),
  Setting("banded", 10_000, 32, "mean", 32, 1),
  Setting("buffered", 100, 2, "max", 1, 1),
  Setting("buffered", 1000, 3, "max", 1, 1),
  Setting("buffered", 10_000, 3, "max", 1, 1),
  Setting("buffered", 1000, 2, "mean", 100, 10),
  Setting("buffered", 2000, 3, "max", 342, 6),
)


def _worse(rows: Sequence[Row]) -> list[Row]:
  """Where the peer's error is less than jdp's by more than rounding."""
  found = [row for row in rows if (row["jax_privacy"] or {}).get("error")]
  return [row for row in found if row["jdp"]["error"] > row["jax_privacy"]["error"] * (1 + 1e-6)]


@benchmark({"settings": (0, 4)}, failed=_worse)
def searches(
  settings: tuple[int, ...] = tuple(range(len(_SETTINGS))),
  limit: float = 600.0,
  jax_privacy_python: str = "",
) -> Iterator[Row]:
  """The searches for strategies, of these `settings` by number, beside jax_privacy's.

  jax_privacy lives in an environment of its own (`pip install jax_privacy flax optax`). Each of its
  searches is a process, which is stopped after `limit` seconds. Its time does not count imports,
  but what it compiles, as a user waits for that. Both strategies' errors are computed here, by the
  same code, as errors times sensitivity for the participation that the setting is for.
  """
  mf.banded(2, 2)  # so that what searches import does not count
  for setting in (_SETTINGS[number] for number in settings):
    start = time.perf_counter()
    strategy = _search(setting)
    ours = {"seconds": time.perf_counter() - start, "error": _error(strategy, setting)}
    theirs = _theirs(setting, jax_privacy_python, limit)
    yield {"setting": setting._asdict(), "jdp": ours, "jax_privacy": theirs}


def _search(setting: Setting) -> mf.Strategy:
  """The strategy by jdp."""
  n, size, objective = setting.num_rounds, setting.size, setting.objective
  if setting.kind == "buffered":
    return mf.buffered_toeplitz(
      n,
      buffers=size,
      objective=objective,
      min_separation=setting.separation,
      max_participations=setting.most,
    )
  make = mf.banded if setting.kind == "banded" else mf.banded_toeplitz
  return make(n, size, objective=objective)


def _error(strategy: mf.Strategy, setting: Setting) -> float:
  """The objective: the error of the setting's participation, at a noise multiplier of 1."""
  measure = strategy.root_mean_squared_error if setting.objective == "mean" else strategy.max_error
  return measure(min_separation=setting.separation, max_participations=setting.most)


def _theirs(setting: Setting, python: str, limit: float) -> Row | None:
  """Seconds and error of the peer, or why there are none."""
  try:
    found = harness.peer_says("with_jax_privacy.py", *map(str, setting), python=python, limit=limit)
  except subprocess.TimeoutExpired:
    return {"seconds": limit, "error": None, "note": "stopped"}
  except subprocess.CalledProcessError as failed:
    # The first of what it says repeats itself.
    return {"seconds": None, "error": None, "note": failed.stderr.strip()[-60:]}
  if found is None:
    return None
  strategy = _strategy(setting, np.array(found["numbers"]))
  return {"seconds": found["seconds"], "error": _error(strategy, setting)}


def _strategy(setting: Setting, numbers: np.ndarray) -> mf.Strategy:
  """The peer's strategy of its numbers."""
  n = setting.num_rounds
  if setting.kind == "banded":
    inside = np.arange(setting.size)[:, None] + np.arange(n) < n
    diagonals = np.where(inside, numbers, 0.0)
    return BandedStrategy(diagonals / np.linalg.norm(diagonals, axis=0))
  if setting.kind == "buffered":
    decay, scale = numbers
    numbers = np.append(1.0, decay ** np.arange(n - 1)[:, None] @ scale)
  return from_coefficients(numbers, n, 0)
