"""Which strategy has the least error for a run and a privacy target."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from jdp import _validate
from jdp._arguments import checked
from jdp.accounting import calibrate_noise_multiplier, gaussian_noise_multiplier
from jdp.guarantees import Relation
from jdp.matrix_factorization.banded_matrices import banded
from jdp.matrix_factorization.buffered import buffered_toeplitz
from jdp.matrix_factorization.optimised_toeplitz import OBJECTIVES, banded_toeplitz
from jdp.matrix_factorization.participation import check_rounds
from jdp.matrix_factorization.strategies import Strategy
from jdp.matrix_factorization.toeplitz import banded_inverse_square_root, identity
from jdp.matrix_factorization.trees import tree

_MOST_BUFFERS = 4
_MOST_INVERSE_BANDS = 64
_MOST_OF_A_SEARCH = 4e4  # numbers inside the bands; with so many, a search takes seconds
_MOST_ROUNDS_OF_A_TREE = 4096  # a bound on its sensitivity takes matrices of [n, n]


class Candidate(NamedTuple):
  """A strategy, with the noise that meets the target.

  Attributes:
    name: the name of the factory that made it, with its size.
    strategy: C.
    sampler: "min_separation" or "cyclic_poisson" (`jdp.sampling`).
    num_groups: b, the groups that take turns: the separation of a user's rounds.
    probability: p, the probability that a member of the round's group takes part; 1 without
      amplification.
    noise_multiplier: z, the standard deviation of Z over the clip norm.
    mean_error: the error of a coordinate of what the server makes of the sums, root mean square
      over the rounds, at a clip norm of 1.
    max_error: the same in the worst round.
    memory: arrays of the model's size that the noise needs between rounds.
  """

  name: str
  strategy: Strategy
  sampler: str
  num_groups: int
  probability: float
  noise_multiplier: float
  mean_error: float
  max_error: float
  memory: int


class Choice(NamedTuple):
  """The best of some strategies.

  Attributes:
    best: the candidate with the least error.
    table: all candidates, best first.
  """

  best: Candidate
  table: tuple[Candidate, ...]


@checked
def choose_strategy(
  num_rounds: int,
  *,
  population: int,
  cohort_size: int,
  target_epsilon: float,
  delta: float,
  min_separation: int | None = None,
  memory: int = 8,
  relation: Relation | str = Relation.ADD_REMOVE,
  objective: str = "mean",
  workload: np.ndarray | None = None,
) -> Choice:
  """The strategy with the least error among those that fit a run, and the table of all candidates.

  Each strategy's noise is the least that meets the target. If whole groups take turns, it is found
  in closed form, as for one Gaussian release. If members are drawn by secret coins, which amplifies
  strategies of few bands (but not under replace_one), it is found by loss distributions. The
  candidates are independent noise, trees, banded and buffered strategies as large as the memory
  allows, and banded inverses. Takes seconds.

  Args:
    num_rounds: n.
    population: N, the number of users.
    cohort_size: m, the number of users in a round, or its expectation.
    target_epsilon: > 0.
    delta: in (0, 1).
    min_separation: the most groups that may take turns. Default: N / m rounded down, the most with
      which groups still fill cohorts.
    memory: the most arrays of the model's size that the noise may keep between rounds.
    relation: add_remove (groups by identity), zero_out or replace_one.
    objective: "mean" or "max" error over the rounds.
    workload: what the server makes of the sums. None: prefix sums. Strategies are optimised for
      prefix sums, and compared by the error of this workload.

  Raises:
    ValueError: if an argument is out of range, or cohorts are larger than groups.

  >>> choice = choose_strategy(
  ...   64, population=1000, cohort_size=50, target_epsilon=2.0, delta=1e-5, memory=4
  ... )
  >>> choice.best.mean_error < 0.5 * next(
  ...   c.mean_error for c in choice.table if (c.name, c.probability) == ("identity", 1)
  ... )
  True
  """
  check_rounds(num_rounds)
  _validate.integer(1, cohort_size=cohort_size)
  _validate.positive(target_epsilon=target_epsilon)
  _validate.in_range(1, 2**31 - 1, population=population)
  _validate.integer(0, memory=memory)
  _validate.one_of(OBJECTIVES, objective=objective)
  _validate.in_range(1, population, cohort_size=cohort_size)
  most = population // cohort_size
  groups = most if min_separation is None else min_separation
  _validate.integer(1, min_separation=groups)
  _validate.in_range(1, most, min_separation=groups)
  moved = 2 if Relation(relation) is Relation.REPLACE_ONE else 1
  whole = moved * gaussian_noise_multiplier(target_epsilon, delta)
  table: list[Candidate] = []

  def add(name: str, strategy: Strategy, num_groups: int, probability: float, noise: float) -> None:
    errors = strategy.squared_errors(workload)
    table.append(
      Candidate(
        name,
        strategy,
        "min_separation" if probability == 1 else "cyclic_poisson",
        num_groups,
        probability,
        noise,
        noise * math.sqrt(np.mean(errors)),
        noise * math.sqrt(np.max(errors)),
        strategy.memory,
      )
    )

  for name, strategy in _whole_groups(num_rounds, groups, memory, workload is None):
    add(name, strategy, groups, 1.0, whole * strategy.sensitivity(min_separation=groups))
  if moved == 1:
    for name, strategy, bands in _as_many_groups(num_rounds, min(groups, num_rounds, memory + 1)):
      probability = min(1.0, cohort_size / population * bands)
      turns = -(-num_rounds // bands)
      least = calibrate_noise_multiplier(target_epsilon, delta, probability, turns)
      add(name, strategy, bands, probability, strategy.sensitivity(max_participations=1) * least)
  table.sort(key=lambda c: c.mean_error if objective == "mean" else c.max_error)
  return Choice(table[0], tuple(table))


def _whole_groups(
  num_rounds: int, groups: int, memory: int, prefix_sums: bool
) -> Iterator[tuple[str, Strategy]]:
  """Strategies, by name, for whole groups that take turns."""
  yield "identity", identity(num_rounds)
  bands = min(groups, num_rounds, memory + 1)
  if bands > 1:
    yield f"banded_toeplitz, {bands} bands", banded_toeplitz(num_rounds, bands)
    if bands * num_rounds <= _MOST_OF_A_SEARCH:
      yield f"banded, {bands} bands", banded(num_rounds, bands)
  buffers = min(memory, _MOST_BUFFERS)
  if buffers and num_rounds > 2 * buffers:
    several: Any = {"min_separation": groups, "max_participations": None, "objective": "mean"}
    found = buffered_toeplitz(num_rounds, buffers=buffers, **several)
    yield f"buffered_toeplitz, {buffers} buffers", found
  if prefix_sums and num_rounds.bit_length() <= memory and num_rounds <= _MOST_ROUNDS_OF_A_TREE:
    yield "tree", tree(num_rounds)
  for bands in _powers(min(num_rounds, _MOST_INVERSE_BANDS)):
    name = f"banded_inverse_square_root, {bands} bands"
    yield name, banded_inverse_square_root(num_rounds, bands)


def _as_many_groups(num_rounds: int, most: int) -> Iterator[tuple[str, Strategy, int]]:
  """Strategies, by name, with their bands: one for each group. Members are drawn by coins."""
  yield "identity", identity(num_rounds), 1
  for bands in _powers(most):
    yield f"banded_toeplitz, {bands} bands", banded_toeplitz(num_rounds, bands), bands


def _powers(most: int) -> list[int]:
  """The powers 2, 4, 8, ... up to `most`."""
  return [2**exponent for exponent in range(1, most.bit_length())]
