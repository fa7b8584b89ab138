"""What correlated noise costs a round, and what it keeps.

    python -m experiments.benchmarks.correlated_noise

A case is one release: the noise of a round, drawn by ChaCha20, added to a sum and rounded. Its
strategy is for 2,000 rounds, and the round is the 34th: a tree draws two nodes there, which is its
mean. The baseline is independent noise.

`--whole_run=NAME` makes the noise of all rounds for a model of 1.36 million parameters instead, and
reports two kinds of memory: that of the compiled program, and the process's peak.
"""

import functools
import resource
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from absl import app, flags

from experiments.benchmarks import harness
from jdp import matrix_factorization as mf
from jdp import queries, random

_ROUNDS, _SEPARATION, _PAST = 2000, 16, 33
STRATEGIES: dict[str, Callable[[], mf.Strategy]] = {
  "identity": lambda: mf.identity(_ROUNDS),
  "tree": lambda: mf.tree(_ROUNDS),
  "banded_toeplitz, 16 bands": lambda: mf.banded_toeplitz(_ROUNDS, 16),
  "buffered, 3 buffers": lambda: mf.buffered_toeplitz(_ROUNDS, buffers=3),
  "banded_inverse, 16 bands": lambda: mf.banded_inverse_square_root(_ROUNDS, 16),
}
MODELS = {"logistic": 7_850, "CNN": 26_010, "language model": 1_360_000}
_WHOLE_RUN = flags.DEFINE_enum(
  "whole_run", None, list(STRATEGIES), "Noise of a run of 2,000 rounds."
)
_LARGEST = flags.DEFINE_integer("largest", 1_360_000, "Models with more parameters are left out.")
_MEBI = 2**20


def _query(name: str) -> queries.SumQuery:
  return queries.correlated_gaussian_sum(1.0, 4.0, STRATEGIES[name](), min_separation=_SEPARATION)


def _case(query: queries.SumQuery, dim: int) -> tuple[harness.Case, int]:
  """A release after some rounds, and the bytes of the state that it keeps."""
  total = jnp.zeros(dim)
  release = jax.jit(lambda key, state: query.finalize(key, state, total))
  # What is kept does not matter for the time, but how many rounds there were does.
  state = query.init(total)._replace(step=jnp.int32(_PAST))
  kept = sum(x.nbytes for x in jax.tree.leaves(state.kept))
  return harness.Case(functools.partial(release, random.seeded_key(0), state), 1), kept


def _peak() -> float:
  """Peak memory of the process in MiB; Linux counts it in KiB."""
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _report_whole_run(name: str) -> None:
  """The noise of a run on the largest model, all rounds in one program."""
  query, total = _query(name), jnp.zeros(MODELS["language model"])

  def run(key: jax.Array, state: Any) -> Any:
    def one_round(so_far: Any, number: jax.Array) -> Any:
      result, _, state = query.finalize(jax.random.fold_in(key, number), so_far[0], total)
      return (state, so_far[1] + result), None

    return jax.lax.scan(one_round, (state, total), jnp.arange(_ROUNDS))[0]

  arguments = (random.seeded_key(0), query.init(total))
  before = _peak()
  compiled = jax.jit(run).lower(*arguments).compile()
  memory: Any = compiled.memory_analysis()  # None on a back end without this analysis.
  jax.block_until_ready(compiled(*arguments))
  used = memory.temp_size_in_bytes + memory.argument_size_in_bytes + memory.output_size_in_bytes
  print(
    f"{name}: the noise of {_ROUNDS} rounds of {total.size:,d} parameters. The program has buffers "
    f"of {used / _MEBI:.0f} MiB. Peak of the process: {_peak():.0f} MiB, {before:.0f} before."
  )


def main(argv: Sequence[str]) -> None:
  """Prints a table for each model, and what strategies keep; or the memory of a whole run."""
  del argv
  if _WHOLE_RUN.value:
    _report_whole_run(_WHOLE_RUN.value)
    return
  made = {name: _query(name) for name in STRATEGIES}
  for model, dim in MODELS.items():
    if dim > _LARGEST.value:
      continue
    cases = {name: _case(query, dim) for name, query in made.items()}
    timings = harness.compare(
      {name: case for name, (case, _) in cases.items()},
      baseline="identity",
      rounds=harness.ROUNDS.value,
    )
    title = f"{model}, {dim:,d} parameters"
    harness.report(title, timings, "rounds", json_path=harness.JSON.value)
    for name, (_, kept) in cases.items():
      print(f"{name}: a state of {kept / _MEBI:.2f} MiB")


if __name__ == "__main__":
  app.run(main)
