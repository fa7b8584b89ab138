r"""What correlated noise costs a round, and what it keeps.

    python -m experiments.benchmarks.correlated_noise --json=FILE   # measures, prints the tables
    python -m experiments.benchmarks.correlated_noise --table=FILE  # prints those of the file

There are two kinds of cases, for three models and five strategies of 2,000 rounds. A round of
DP-FedAvg has clients who train. A release is the noise of a round alone: drawn by ChaCha20, added
to a sum and rounded. Both are compiled as blocks of rounds, as `train` compiles them, and go on
from round to round. The baseline is independent noise. A banded inverse draws as many rows as it
has bands, so its limit stands beside it: the time to draw them and do nothing else.

`--whole_run=NAME` makes the noise of all rounds for a model of 1.36 million parameters instead, and
reports two kinds of memory: that of the compiled program, and the process's peak.
"""

import functools
import json
import resource
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from absl import app, flags

from experiments.benchmarks import harness
from experiments.runner.reports.tables import table
from jdp import matrix_factorization as mf
from jdp import models, queries, random, sampling
from jdp.data import Examples
from jdp.federated import dp_fedavg
from jdp.federated.engine.local_training import local_sgd
from jdp.federated.engine.rounds import block

_ROUNDS, _SEPARATION, _BANDS, _STEPS = 2000, 16, 16, 10
STRATEGIES: dict[str, Callable[[], mf.Strategy]] = {
  "identity": lambda: mf.identity(_ROUNDS),
  "tree": lambda: mf.tree(_ROUNDS),
  "banded_toeplitz, 16 bands": lambda: mf.banded_toeplitz(_ROUNDS, _BANDS),
  "buffered, 3 buffers": lambda: mf.buffered_toeplitz(_ROUNDS, buffers=3),
  "banded_inverse, 16 bands": lambda: mf.banded_inverse_square_root(_ROUNDS, _BANDS),
}
_DRAWS, _INVERSE = f"{_BANDS} rows drawn, nothing else", "banded_inverse, 16 bands"
_WHOLE_RUN = flags.DEFINE_enum(
  "whole_run", None, list(STRATEGIES), "Noise of a run of 2,000 rounds."
)
_TABLE = flags.DEFINE_string("table", None, "Print the tables of this file, and time nothing.")
_NAMES = ["logistic", "CNN", "language model"]
_MODELS = flags.DEFINE_multi_enum("model", _NAMES, _NAMES, "A model to time; may be repeated.")
_MEBI = 2**20


class Model(NamedTuple):
  """A model, and the rounds that it is trained by.

  Attributes:
    init: key -> parameters.
    loss: of the parameters and a client's examples.
    clients: users -> their data.
    cohort: clients of a round.
    batch: examples of a local step.
    rounds: of a block.
    described: a client's work, in words.
  """

  init: Callable[[jax.Array], Any]
  loss: Any
  clients: Callable[[int], Examples]
  cohort: int
  batch: int
  rounds: int
  described: str


def _images(users: int) -> Examples:
  inputs = jax.random.uniform(jax.random.key(1), (users, 10, 28, 28))
  return Examples(inputs, jnp.zeros((users, 10), jnp.int32), jnp.ones((users, 10)))


def _tokens(users: int) -> Examples:
  words = jax.random.randint(jax.random.key(1), (2, users, 16, _STEPS), 3, 10_003)
  return Examples(words[0], words[1], jnp.ones((users, 16)))


def _models() -> dict[str, Model]:
  """Models by name, the smallest first."""
  logistic, cnn = models.logistic_regression((28, 28), 10), models.small_cnn((28, 28), 10)
  language, ten = models.language_model(10_003), "of 10 images, one step"
  return {
    "logistic": Model(logistic.init, models.cross_entropy(logistic), _images, 50, 10, 20, ten),
    "CNN": Model(cnn.init, models.cross_entropy(cnn), _images, 20, 10, 8, ten),
    "language model": Model(
      language.init, models.next_word_loss(language), _tokens, 4, 8, 2,
      "of 160 tokens, two steps",
    ),
  }  # fmt: skip


def _training(model: Model, strategy: mf.Strategy, params: Any) -> harness.Case:
  """Rounds with clients, whose groups take turns."""
  users = model.cohort * _SEPARATION
  clients = model.clients(users)
  algorithm = dp_fedavg(
    model.loss,
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


def _releases(query: queries.SumQuery, total: Any, rounds: int) -> harness.Case:
  """Rounds without clients: their noise, on a sum of zeros."""

  def release(carried: Any, _: Any) -> tuple[Any, None]:
    state, so_far = carried
    key = jax.random.fold_in(random.seeded_key(0), state.step)
    result, _, state = query.finalize(key, state, total)
    return (state, so_far + result), None  # as a model does; all of the result is needed

  advance = jax.jit(
    lambda carried: jax.lax.scan(release, carried, length=rounds)[0], donate_argnums=0
  )
  return _going_on(advance, (query.init(total), total), rounds)


def _draws(dim: int) -> harness.Case:
  """As many rows as a banded inverse draws in a round."""

  @jax.jit
  def draw(key: jax.Array) -> jax.Array:
    return jax.lax.fori_loop(
      0,
      _BANDS,
      lambda number, _: random.normal(jax.random.fold_in(key, number), (dim,)),
      jnp.zeros(dim),
    )

  return harness.Case(functools.partial(draw, random.seeded_key(0)), 1)


def _going_on(advance: Callable[[Any], Any], state: Any, rounds: int) -> harness.Case:
  """Each call does the next rounds, in place of the state before them.

  The first calls are made here: in its first rounds a banded inverse draws fewer rows than bands.
  """
  state = jax.tree.map(jnp.array, state)  # a copy, as its buffers are given away
  for _ in range(0, _BANDS, rounds):
    state = advance(state)

  def run() -> Any:
    nonlocal state
    state = advance(state)
    return state

  return harness.Case(run, rounds)


def _query(name: str) -> queries.SumQuery:
  return queries.correlated_gaussian_sum(1.0, 4.0, STRATEGIES[name](), min_separation=_SEPARATION)


def measure(name: str, model: Model, turns: int) -> dict[str, Any]:
  """What a model's rounds and releases take with each strategy, and what is kept between them."""
  params = model.init(jax.random.key(0))
  dim = sum(x.size for x in jax.tree.leaves(params))
  total = jnp.zeros(dim)
  made = {own: _query(own) for own in STRATEGIES}
  kept = {
    own: sum(x.nbytes for x in jax.tree.leaves(query.init(total).kept))
    for own, query in made.items()
  }
  releases = {own: _releases(query, total, model.rounds) for own, query in made.items()}
  timed = {
    kind: harness.compare(cases, baseline="identity", rounds=turns)
    for kind, cases in {
      "releases": {**releases, _DRAWS: _draws(dim)},
      "rounds": {own: _training(model, make(), params) for own, make in STRATEGIES.items()},
    }.items()
  }
  return {
    "model": name,
    "parameters": dim,
    "clients": f"{model.cohort} clients {model.described}",
    "machine": harness.machine(),
    "kept_bytes": kept,
    **{
      kind: {
        t.name: {"cpu_ms": _milliseconds(t, model), "ratio": t.ratio} for t in found
      }
      for kind, found in timed.items()
    },
  }  # fmt: skip


def _milliseconds(timing: harness.Timing, model: Model) -> float:
  """Processor time of one round."""
  assert timing.cpu_seconds is not None
  return 1e3 * timing.cpu_seconds / (1 if timing.name == _DRAWS else model.rounds)


def tables(rows: Iterable[Mapping[str, Any]]) -> str:
  """Markdown: a row for each model and strategy, and what limits a banded inverse."""
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
    clients = ", ".join(f"{r['clients']} ({r['model']})" for r in rows)
  header = ["model", "noise", "ms a round", "over identity", "ms of its noise", "kept"]
  return (
    f"{table(header, lines)}\n\nA round has {clients}. Drawing {_BANDS} rows and nothing else "
    f"takes {', '.join(limits)} of the time of a banded inverse's noise."
  )


def _size(count: int) -> str:
  return f"{count / _MEBI:.2f} MiB" if count >= _MEBI / 100 else f"{count:,d} bytes"


def _peak() -> float:
  """Peak memory of the process in MiB; Linux counts it in KiB."""
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def whole_run(name: str, dim: int) -> dict[str, Any]:
  """The noise of a run on a large model, all rounds in one program, and its memory."""
  query, total = _query(name), jnp.zeros(dim)

  def run(key: jax.Array, state: Any) -> Any:
    def one_round(so_far: Any, number: jax.Array) -> Any:
      result, _, state = query.finalize(jax.random.fold_in(key, number), so_far[0], total)
      return (state, so_far[1] + result), None

    return jax.lax.scan(one_round, (state, total), jnp.arange(_ROUNDS))[0]

  arguments = (random.seeded_key(0), query.init(total))
  before = _peak()
  compiled = jax.jit(run).lower(*arguments).compile()
  memory: Any = compiled.memory_analysis()  # None on a back end without this analysis.
  begun = time.process_time()
  _, noise = jax.block_until_ready(compiled(*arguments))
  used = memory.temp_size_in_bytes + memory.argument_size_in_bytes + memory.output_size_in_bytes
  return {
    "noise": name,
    "rounds": _ROUNDS,
    "parameters": dim,
    "cpu_seconds": time.process_time() - begun,
    "program_mebibytes": used / _MEBI,
    "peak_mebibytes": _peak(),
    "peak_before_mebibytes": before,
    # Of the sum of all rounds' noise, over that of the theory.
    "deviation_ratio": float(jnp.std(noise)) / 4.0 / STRATEGIES[name]().squared_errors()[-1] ** 0.5,
    "machine": harness.machine(),
  }


def main(argv: Sequence[str]) -> None:
  """Prints the tables of what it measured or of a file, or the memory of a whole run."""
  del argv
  if _TABLE.value:
    print(tables(harness.read(_TABLE.value)))
    return
  if _WHOLE_RUN.value:
    row = whole_run(_WHOLE_RUN.value, 1_360_000)
    harness.append(row, harness.JSON.value)
    print(json.dumps(row, indent=2))
    return
  rows = []
  models_by_name = _models()
  for name in _MODELS.value:
    rows.append(measure(name, models_by_name[name], harness.ROUNDS.value))
    harness.append(rows[-1], harness.JSON.value)
  print(tables(rows))


if __name__ == "__main__":
  app.run(main)
