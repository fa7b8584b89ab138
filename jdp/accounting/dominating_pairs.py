"""The dominating pair of a query's release that a record takes part in for certain.

It depends on the query and on the neighbouring relation. S bounds a record's contribution. A record
that is added, removed or zeroed moves a sum by S, a replaced one by 2S.

The statements are numbered and proved in `docs/theory/dominating_pairs.md`:

| query | pair | statement |
|---|---|---|
| Gaussian sum | a Gaussian of multiplier sigma / S, or sigma / (2S) | 1.1 |
| Laplace sum (L1 bound) | Laplace distributions S / scale, or 2S / scale, apart | 1.2 |
| weighted average | a Gaussian of sensitivity 2S/W, or max(S/W, 2S/(W+1)) | 1.3 |
| tree aggregation | one Gaussian of all nodes above a leaf | 1.4 |
| randomised response | two values; a value and a uniform answer | 1.5 |
| noise by the records' owners | as such sums, but for add/remove, which is refused | 1.6 |
| pure and concentrated releases | what they state, for their relation | 1.7 |
| grouped sums of one sample | all their pairs; one Gaussian for the Gaussian sums | 1.8 |

A correlated Gaussian sum has the pair of its whole run, if the sampling keeps the plan's pattern.
Ledgers are charged by `jdp.accounting.queries.correlated`. Discrete noise:
`jdp.accounting.renyi.discrete_noise`, `jdp.accounting.pld.losses.integer_noise`.
"""

import math
from collections.abc import Sequence
from typing import Any

from jdp._arguments import checked
from jdp.accounting.families.base import DominatingPair, Pairs
from jdp.accounting.families.gaussian import GAUSSIAN
from jdp.accounting.families.releases import NON_PRIVATE
from jdp.accounting.families.samples import is_bare
from jdp.accounting.registration import direct_parts, known_event, parts_of, query_analysis
from jdp.events.queries import QueryEvent
from jdp.guarantees import Relation

_TINY, _LARGEST_MULTIPLIER = math.ulp(0.0), 1e100  # `_TINY` replaces a sensitivity of 0


def dominating_pair(query: QueryEvent, relation: Relation, declared: Relation) -> DominatingPair:
  """The dominating pair of one release that the record takes part in.

  Args:
    query: what was released.
    relation: what is asked for.
    declared: the relation of the round. Pure and concentrated releases are stated for it.

  Raises:
    ValueError: if the query has no analysis under the relation, or consists of several releases
      that do not join into one.
  """
  pairs = release_pairs(query, relation, declared)
  if len(pairs) > 1:
    raise ValueError(
      "Expected one release, or sums that are all Gaussian, got "
      f"{', '.join(pair.family.name for pair in pairs)}; ask for each part."
    )
  return pairs[0]


def release_pairs(query: QueryEvent, relation: Relation, declared: Relation) -> Pairs:
  """The pairs, to be composed, of all that a query released about a record that takes part.

  A group has the pairs of all its parts; its Gaussian sums share one pair. Arguments and errors are
  those of `dominating_pair`.
  """
  query = known_event(query)
  analysis = query_analysis(query)
  if analysis.parts is not None:
    parts = [
      pair
      for part in direct_parts(query, analysis)
      for pair in release_pairs(part, relation, declared)
    ]
    return _joined(parts)
  if analysis.pair is None:
    raise ValueError(
      f"Expected a release that has a pair of its own, got {type(query).__name__}; ask for the "
      "epsilon of its round."
    )
  return (analysis.pair(query, relation, declared),)


def _joined(parts: Sequence[DominatingPair]) -> Pairs:
  """The pairs of several releases of one sample (Statement 1.8)."""
  if is_bare(parts):
    return (DominatingPair(NON_PRIVATE, ()),)
  multipliers = [part.family.multiplier(part.parameters) for part in parts]
  others = [part for part, z in zip(parts, multipliers, strict=True) if z is None]
  if len(others) < len(parts):
    # 1/z^2 = sum_g 1/z_g^2, by `hypot`, which does not overflow on the way.
    precision = math.hypot(*(inverse(z) for z in multipliers if z is not None))
    others.insert(0, DominatingPair(GAUSSIAN, (1.0, inverse(precision))))
  return tuple(others)


@checked
def noise_multiplier(query: QueryEvent, relation: Relation | str) -> float:
  """The noise multiplier of a Gaussian release: its standard deviation over its sensitivity.

  Args:
    query: what is released or is to be.
    relation: the neighbouring relation. The sensitivity depends on it.

  Raises:
    ValueError: if the release is not Gaussian, or has no analysis under the relation.

  >>> from jdp.events import GaussianSum
  >>> noise_multiplier(GaussianSum(clip_norm=2.0, stddev=1.0), "add_remove")
  0.5
  >>> noise_multiplier(GaussianSum(clip_norm=2.0, stddev=1.0), "replace_one")
  0.25
  """
  relation = Relation(relation)
  pair = dominating_pair(query, relation, relation)
  if (multiplier := pair.family.multiplier(pair.parameters)) is None:
    raise ValueError(
      f"Expected a release with Gaussian noise, got {type(query).__name__}; ask for its epsilon."
    )
  return multiplier


def sum_sensitivity(clip_norm: Any, relation: Relation) -> float:
  """How far one record moves a sum."""
  return float(clip_norm) * (2 if relation is Relation.REPLACE_ONE else 1)


def gaussian_pair(stddev: float, sensitivity: float) -> DominatingPair:
  """The pair of Gaussian noise in a release that the record takes part in for certain.

  A multiplier beyond 1e100 counts as 1e100: its divergences would round to zero.
  """
  # Sampling probability 1: what sampling does comes later.
  return DominatingPair(GAUSSIAN, (1.0, min(stddev / max(sensitivity, _TINY), _LARGEST_MULTIPLIER)))


def inverse(multiplier: float) -> float:
  """1 / multiplier, infinity at 0."""
  return 1 / multiplier if multiplier else math.inf


def real(number: int) -> float:
  """A whole number as float64, infinity where it is too large for one."""
  return float(number) if number < 2**1000 else math.inf


def is_central(query: QueryEvent) -> bool:
  """Whether a query's noise is the same whoever takes part, so that a sample may hide who did."""
  return all(analysis.is_central for _, analysis in parts_of(known_event(query)))
