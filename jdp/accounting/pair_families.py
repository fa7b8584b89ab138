"""Families of dominating pairs that accountants compose, with their divergences.

A dominating pair is a pair of output distributions that dominates what a round can do to
neighbours. A family holds such pairs by their parameters, for example "Gaussian sum of a Poisson
sample, (q, z)". Pairs compose by their Renyi divergences, which each family has.
`jdp.accounting.pld` makes privacy loss distributions of them.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from jdp.accounting.renyi import closed_forms
from jdp.accounting.renyi.discrete_noise import discrete_gaussian_rho, skellam_rdp
from jdp.accounting.renyi.fixed_size_gaussian import rdp_fixed_size_gaussian
from jdp.accounting.renyi.poisson_gaussian import rdp_of_pairs
from jdp.accounting.renyi.truncated_gaussian import rdp_truncated_gaussian


class PairFamily(NamedTuple):
  """A family of dominating pairs, each given by P numbers.

  Attributes:
    name: as it is called in messages.
    rdp: (parameters [E, P], orders [A] > 1) -> divergences [E, A], float64. Each is the larger of
      both directions.
    max_loss: parameters [E, P] -> the epsilon [E] of pure differential privacy. It is infinite
      where there is none.
    severity: parameters -> a number. Of two pairs, that with the larger number dominates the other
      (for every accountant). None: the family is not ordered.
    sample: what was sampled, and how, if its pairs are those of `jdp.accounting.sampled_pairs`.
  """

  name: str
  rdp: Callable[[np.ndarray, np.ndarray], np.ndarray]
  max_loss: Callable[[np.ndarray], np.ndarray]
  severity: Callable[[tuple[float, ...]], float] | None
  sample: "SampleOf | None" = None


class SampleOf(NamedTuple):
  """What a sample released of a record in it.

  Attributes:
    how: how the record came into the sample, and who knows.
    parts: the families of the releases, each with the number of its parameters.
  """

  how: str
  parts: tuple[tuple[PairFamily, int], ...]


class DominatingPair(NamedTuple):
  """One dominating pair: a family and its parameters."""

  family: PairFamily
  parameters: tuple[float, ...]


def unbounded(parameters: np.ndarray) -> np.ndarray:
  """The epsilons of pairs that have no pure differential privacy."""
  return np.full(len(parameters), math.inf)


GAUSSIAN = PairFamily(
  "Poisson-sampled Gaussian",  # (q, z); q = 1: not sampled
  lambda parameters, orders: rdp_of_pairs(parameters[:, 0], parameters[:, 1], orders),
  unbounded,
  lambda parameters: -parameters[1],  # asked only at one q
)
TRUNCATED_GAUSSIAN = PairFamily(
  # (q, z, probability that the others fill the sample; then: share, z of a replacement, whether the
  # record becomes null, 1, or leaves, 0)
  "Gaussian of a truncated Poisson sample",
  rdp_truncated_gaussian,
  unbounded,
  None,
)
FIXED_SIZE_GAUSSIAN = PairFamily(
  "Gaussian sum of a fixed-size sample",  # (share of the population, z)
  lambda parameters, orders: rdp_fixed_size_gaussian(parameters[:, 0], parameters[:, 1], orders),
  unbounded,
  None,
)
ALLOCATED_GAUSSIAN = PairFamily(
  "Gaussian sums of an epoch's bins",  # (rounds of the epoch, z of each): a record is in one
  # By divergences they cost what one round does: these are jointly quasi-convex.
  lambda parameters, orders: rdp_of_pairs(np.ones(len(parameters)), parameters[:, 1], orders),
  unbounded,
  lambda parameters: -parameters[1],  # asked only at one number of rounds
)
GROUP_GAUSSIAN = PairFamily(
  "Poisson-sampled Gaussian of a group",  # (q, z, size); by loss distributions only
  lambda parameters, orders: np.full((len(parameters), len(orders)), math.inf),
  unbounded,
  None,
)
LAPLACE = PairFamily(
  "Laplace",  # (sensitivity / scale,)
  lambda parameters, orders: closed_forms.laplace(parameters[:, 0], orders),
  lambda parameters: parameters[:, 0],
  lambda parameters: parameters[0],
)
RANDOMIZED_RESPONSE = PairFamily(
  "randomized response",  # (noise, number of values)
  lambda parameters, orders: closed_forms.randomized_response(
    parameters[:, 0], parameters[:, 1], orders
  ),
  lambda parameters: closed_forms.response_epsilon(parameters[:, 0], parameters[:, 1]),
  None,
)
NULL_RESPONSE = PairFamily(
  "randomized response of a null record",  # as RANDOMIZED_RESPONSE: against a uniform answer
  # A uniform answer mixes those of all values, so two values have no smaller divergence.
  lambda parameters, orders: closed_forms.randomized_response(
    parameters[:, 0], parameters[:, 1], orders
  ),
  lambda parameters: closed_forms.null_response_epsilon(parameters[:, 0], parameters[:, 1]),
  None,
)
PURE = PairFamily(
  "pure differential privacy",  # (epsilon,)
  lambda parameters, orders: closed_forms.pure(parameters[:, 0], orders),
  lambda parameters: parameters[:, 0],
  lambda parameters: parameters[0],
)
CONCENTRATED = PairFamily(
  "zero-concentrated differential privacy",  # (rho,)
  lambda parameters, orders: closed_forms.concentrated(parameters[:, 0], orders),
  unbounded,
  lambda parameters: parameters[0],
)
DISCRETE_GAUSSIAN = PairFamily(
  "discrete Gaussian",  # (L2 distance, L1 distance, stddev of a share, shares, dimensions, units)
  lambda parameters, orders: closed_forms.concentrated(
    np.array([concentrated_rho(row) for row in parameters.tolist()]), orders
  ),
  unbounded,
  None,
)
SKELLAM = PairFamily(
  "Skellam",  # (L2 distance, L1 distance, variance, units): of a record, in a distance
  lambda parameters, orders: skellam_rdp(
    parameters[:, 0], parameters[:, 1], parameters[:, 2], orders
  ),
  unbounded,
  None,
)
NON_PRIVATE = PairFamily(
  "no privacy",  # ()
  lambda parameters, orders: np.full((len(parameters), len(orders)), math.inf),
  unbounded,
  lambda parameters: 0.0,
)


def concentrated_rho(parameters: Sequence[float]) -> float:
  """The rho of zero-concentrated differential privacy of a `DISCRETE_GAUSSIAN` pair."""
  l2, l1, stddev, shares, dim, _ = parameters
  most = 2.0**60  # beyond 2^53 rho is infinite
  return discrete_gaussian_rho(l2, l1, stddev, int(min(shares, most)), int(min(dim, most)))
