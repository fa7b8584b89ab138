"""The strategies that the options choose, and who takes part with them."""

from typing import NamedTuple

from experiments.correlated_noise.options import STRATEGIES, CorrelatedNoiseOptions
from experiments.runner.federation import FederationOptions
from experiments.runner.runs.sweep import Setting
from jdp import sampling
from jdp.matrix_factorization import Strategy

AMPLIFIED = ("identity", "banded_toeplitz", "banded")
"""Strategies with few bands: the only ones that sampling is known to amplify."""


class Variant(NamedTuple):
  """A row of the table; without privacy it has no strategy."""

  setting: Setting
  strategy: Strategy | None


def separation(options: FederationOptions, num_users: int) -> int:
  """How far apart a user's rounds are if cohorts of that size take turns."""
  return max(1, num_users // options.cohort_size)


def make_strategy(name: str, options: CorrelatedNoiseOptions, num_users: int) -> Strategy:
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


def make_sampler(
  strategy: Strategy, options: CorrelatedNoiseOptions, num_users: int
) -> sampling.Sampler:
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
