"""Everything that accounting knows about a family of dominating pairs, in one value.

A dominating pair is a pair of output distributions that dominates what a round can do to
neighbours. A family holds such pairs by their parameters, for example "Gaussian sum of a Poisson
sample, (q, z)". Engines know families by this interface alone: `renyi` composes divergences, `pld`
composes privacy loss distributions.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from jdp.accounting.pld.losses.pairs import Pair
from jdp.guarantees import Relation

Row = tuple[float, ...]
FIXED_SIZE, KNOWN, POISSON = "a fixed-size sample", "a known sample", "a Poisson sample"


class Charge(NamedTuple):
  """The loss distributions that stand for one dominating pair in a composition.

  Attributes:
    pairs: the loss distributions.
    multiplier: the noise multiplier of a Gaussian release that is composed as well. 0: losses are
      too large for this accountant.
    margin: log of a bound on the factor by which the Gaussian's distribution is off.
  """

  pairs: tuple[Pair, ...] = ()
  multiplier: float = math.inf
  margin: float = 0.0


TOO_LARGE = Charge(multiplier=0.0)


def unbounded(parameters: np.ndarray) -> np.ndarray:
  """The epsilons of pairs that have no pure differential privacy."""
  return np.full(len(parameters), math.inf)


def starts_with_zero(row: Row) -> bool:
  """Whether the loss is always zero, for families whose first number is a distance or a share."""
  return row[0] == 0


def always_symmetric(row: Row, attained: bool) -> bool:
  """For families whose pairs have the same losses in both directions."""
  return True


@dataclasses.dataclass(frozen=True, eq=False)
class Family:
  """A family of dominating pairs, each given by P numbers, its row.

  A family with the first two attributes alone is composed by its divergences in every accountant.

  Attributes:
    name: as it is called in messages.
    rdp: (parameters [E, P], orders [A] > 1) -> divergences [E, A], float64. Each is the larger of
      both directions.
    max_loss: parameters [E, P] -> the epsilon [E] of pure differential privacy. It is infinite
      where there is none. Default: everywhere.
    severity: row -> a number or a tuple of numbers. A pair all of whose numbers are at least those
      of another pair dominates it, for every accountant. Other pairs are not compared. Nor are rows
      that have the same severity, or differ in more places than it has numbers. None: the family
      is not ordered.
    ordered: row -> a pair of an ordered family that dominates this pair, by divergences.
    loss: (row, removed, attained) -> the loss distribution in one direction. If `attained`, it is
      that of existing data sets; else it dominates those of all. None if losses are too large. The
      family has no `loss` if its pairs are known by their divergences alone.
    charge: (row, attained) -> what the pair is composed of, where that is not its `loss`; else
      None.
    merged: (parameters, counts, attained) -> fewer pairs that dominate all of them together; if
      `attained`, fewer pairs that they dominate.
    is_free: row -> whether the loss is always zero. Default: never.
    is_symmetric: (row, attained) -> whether both directions have the same losses. Default: never,
      so both are computed.
    exposed: row -> the probability that nothing about a record is hidden.
    hides_nothing: whether it has no protection at all, whatever is sampled.
    multiplier: row -> the noise multiplier, if the pair is exactly that of one Gaussian release of
      a record that takes part for certain, whatever other numbers the row has. It then stands for
      the whole pair in groups and in truncated samples.
    sampled: (how, q, row) -> the pair of such a release, if a sample that hides who is in it has
      released nothing else.
    in_bins: (row, rounds, taken) -> what a record is charged for each round that it is in, in an
      epoch of `rounds` such releases of which it is in `taken`.
    capped: (row, q, most, rounds) -> the pair of a run of `rounds` such releases. A record is in at
      most `most` of them, by coins of probability q until then.
    in_group: (row, size) -> the pair of a group of records, each in the sample by its own coin.
    is_sum: whether a null record contributes what an absent one does.
    may_hide: whether a sample can hide who is in it.
    is_published: whether the moments accountant takes it, as published.
    cut: row -> the mass that a neighbour cannot send because float noise is bounded.
    exported: (row, relation, the package dp_accounting) -> that package's event.
  """

  name: str
  rdp: Callable[[np.ndarray, np.ndarray], np.ndarray]
  max_loss: Callable[[np.ndarray], np.ndarray] = unbounded
  severity: Callable[[Row], float | Row] | None = None
  ordered: "Callable[[Row], DominatingPair] | None" = None
  loss: Callable[[Row, bool, bool], Pair | None] | None = None
  charge: Callable[[Row, bool], Charge | None] | None = None
  merged: Callable[[np.ndarray, np.ndarray, bool], tuple[np.ndarray, np.ndarray]] | None = None
  is_free: Callable[[Row], bool] = lambda row: False
  is_symmetric: Callable[[Row, bool], bool] = lambda row, attained: False
  exposed: Callable[[Row], float] = lambda row: 0.0
  hides_nothing: bool = False
  multiplier: Callable[[Row], float | None] = lambda row: None
  sampled: "Callable[[str, float, Row], DominatingPair] | None" = None
  in_bins: "Callable[[Row, float, float], DominatingPair] | None" = None
  capped: "Callable[[Row, float, int, int], DominatingPair] | None" = None
  in_group: "Callable[[Row, int], DominatingPair] | None" = None
  is_sum: bool = False
  may_hide: bool = False
  is_published: bool = False
  cut: Callable[[Row], float] = lambda row: 0.0
  exported: Callable[[Row, Relation, Any], Any] | None = None


class DominatingPair(NamedTuple):
  """One dominating pair: a family and its parameters."""

  family: Family
  parameters: Row


Pairs = tuple[DominatingPair, ...]
"""Pairs that are composed."""
CountedPairs = list[tuple[DominatingPair, int]]
"""Pairs that are composed, each as often as its count."""


@functools.lru_cache(maxsize=256)
def loss_of(pair: DominatingPair, removed: bool, attained: bool) -> Pair | None:
  """The loss distribution of a pair whose family has one; None if losses are too large."""
  assert pair.family.loss is not None
  return pair.family.loss(pair.parameters, removed, attained)


def charge_of(pair: DominatingPair, *, removed: bool, attained: bool) -> Charge | None:
  """The loss distributions that stand for a pair; None if only its divergences are known."""
  family, row = pair
  if family.charge is not None and (found := family.charge(row, attained)) is not None:
    return found
  if family.loss is None:
    return None
  if family.is_free(row):
    return Charge()
  loss = loss_of(pair, removed, attained)
  return TOO_LARGE if loss is None else Charge((loss,))
