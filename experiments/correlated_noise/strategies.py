"""The strategies that the options choose, and who takes part with them."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

from experiments.runner.options import option
from jdp import _validate, sampling
from jdp import matrix_factorization as mf
from jdp.matrix_factorization import Strategy

_count = partial(_validate.integer, 1)
AMPLIFIED = ("identity", "banded_toeplitz", "banded")
"""Strategies with few bands: the only ones that sampling is known to amplify."""


@dataclasses.dataclass(frozen=True)
class StrategyOptions:
  """The options of correlated noise."""

  participation: str = option(
    "turns",
    "Who takes part: groups in turns, each whole; or of as many groups as C has bands, each member "
    "of the one whose turn it is by its own coin.",
    choices=("turns", "coins"),
  )
  bands: int = option(8, "Diagonals of banded strategies, of C or of its inverse.", check=_count)
  buffers: int = option(3, "Buffers of the buffered strategy.", check=_count, most=20)


STRATEGIES: dict[str, Callable[[Any, int], Strategy]] = {
  "identity": lambda options, separation: mf.identity(options.num_rounds),
  "tree": lambda options, separation: mf.tree(options.num_rounds),
  "square_root": lambda options, separation: mf.square_root_toeplitz(
    options.num_rounds, bands=options.bands
  ),
  "banded_toeplitz": lambda options, separation: mf.banded_toeplitz(
    options.num_rounds, options.bands
  ),
  "banded": lambda options, separation: mf.banded(options.num_rounds, options.bands),
  "buffered": lambda options, separation: mf.buffered_toeplitz(
    options.num_rounds,
    buffers=options.buffers,
    min_separation=separation,
    max_participations=options.participation_cap,
    objective="mean",
  ),
  "banded_inverse": lambda options, separation: mf.banded_inverse_square_root(
    options.num_rounds, options.bands
  ),
}


def separation(options: Any, num_users: int) -> int:
  """How far apart a user's rounds are if cohorts of that size take turns."""
  return max(1, num_users // options.cohort_size)


def make_strategy(name: str, options: Any, num_users: int) -> Strategy:
  """The strategy of that name for the run's rounds.

  Raises:
    ValueError: if it is not amplified by coins, and these are asked for.
  """
  if options.participation == "coins" and name not in AMPLIFIED:
    raise ValueError(
      f"Expected --runs of none, {', '.join(AMPLIFIED)} with --participation=coins, got {name}: "
      "only strategies of few bands are amplified by sampling; leave it out."
    )
  return STRATEGIES[name](options, separation(options, num_users))


def make_sampler(strategy: Strategy, options: Any, num_users: int) -> sampling.Sampler:
  """Who takes part: users whose rounds are as far apart as the strategy is best for.

  Raises:
    ValueError: if a group of a strategy of so many bands is smaller than a cohort.
  """
  if options.participation == "turns":
    apart = separation(options, num_users)
    most = options.participation_cap or -(-options.num_rounds // apart)
    return sampling.min_separation(num_users, apart, most)
  if options.participation_cap is not None:
    raise ValueError(
      "Expected no --participation_cap with --participation=coins, got "
      f"{options.participation_cap}; leave it out."
    )
  probability = options.cohort_size * strategy.bands / num_users
  if probability > 1:
    raise ValueError(
      f"Expected --bands of at most {num_users // options.cohort_size} with cohorts of "
      f"{options.cohort_size} of {num_users} users, got {strategy.bands}: a group would be smaller "
      "than a cohort; lower it."
    )
  # Slots for a whole group: unused ones cost almost nothing, and no sample can outgrow them.
  return sampling.cyclic_poisson(num_users, strategy.bands, probability, capacity=num_users)
