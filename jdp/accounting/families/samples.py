"""Dominating pairs of all that one sample released about a record that is in it by chance.

Let (P, Q) be the pair of all releases of one sample together, for a record that takes part for
certain, and q the probability of taking part. Q is also what a record that sits out shows. A
sampled record has the pairs of Statements 2.1, 2.3 and 2.8 in `docs/theory/amplification.md`:

* `POISSON`: (1 - q) Q + q P against Q for a removal, the reverse for an addition. For several
  releases it is not the composition of one such pair each, because they share one coin.
* `FIXED_SIZE`: its losses above 0 are those of the removal, below 0 those of the addition.
* `KNOWN`: the observer sees who takes part. A coin of probability q is shown, and with it what
  (P, Q) shows, or nothing.

The parameters are q, then those of each release. Divergences are exact at whole orders of `KNOWN`
and `POISSON`. In between, (a - 1) times the divergence of order a lies below its chord.
"""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jdp.accounting.families import base
from jdp.accounting.families.base import DominatingPair, Family, Pairs, Row
from jdp.accounting.pld.losses.pairs import Pair
from jdp.accounting.pld.losses.sampled import sampled
from jdp.accounting.renyi import closed_forms
from jdp.accounting.renyi.binomial_sums import CHUNK, log_binomial_sum, log_expm1
from jdp.accounting.renyi.conversions import below_chords
from jdp.accounting.renyi.poisson_gaussian import log_mixture
from jdp.guarantees import Relation

# Where a sum has too many terms, or too large ones, the cost without sampling is the bound.
_MAX_ORDER, _LARGEST = 2**10, 1e290


def sampled_pair(how: str, q: float, released: Sequence[DominatingPair]) -> DominatingPair:
  """The pair of a record that is in the sample with probability q.

  Args:
    how: `KNOWN`, `POISSON` or `FIXED_SIZE`.
    q: in [0, 1].
    released: what a record in the sample is charged.
  """
  released = sorted(released, key=lambda pair: (pair.family.name, pair.parameters))
  parts = tuple((pair.family, len(pair.parameters)) for pair in released)
  parameters = (parameter for pair in released for parameter in pair.parameters)
  return DominatingPair(_family(how, parts), (q, *parameters))


def is_bare(released: Sequence[DominatingPair]) -> bool:
  """Whether nothing about a record in the sample is hidden."""
  return any(family.hides_nothing for family, _ in released)


def one_multiplier(released: Sequence[DominatingPair]) -> float | None:
  """The noise multiplier of a release, if it is one Gaussian."""
  return released[0].family.multiplier(released[0].parameters) if len(released) == 1 else None


def hidden_pairs(how: str, q: float, released: Pairs, relation: Relation) -> Pairs:
  """The pairs of a record in a sample that hides who is in it; `released` if it cannot hide that.

  Args:
    how: `POISSON` or `FIXED_SIZE`.
    q: as for `sampled_pair`.
    released: what a record in the sample is charged.
    relation: under zero-out a null record may cost more than an absent one, except in a sum.
  """
  if len(released) == 1 and (sampled := released[0].family.sampled):
    return (sampled(how, q, released[0].parameters),)
  sums_alone = relation is Relation.ZERO_OUT
  if all(family.is_sum or (family.may_hide and not sums_alone) for family, _ in released):
    return (sampled_pair(how, q, released),)
  return released


@functools.lru_cache(maxsize=1024)
def _family(how: str, parts: tuple[tuple[Family, int], ...]) -> Family:
  """The family of samples whose releases have pairs of these families, with these row lengths."""
  starts = np.cumsum([1, *(number for _, number in parts)])
  columns = [slice(*ends) for ends in itertools.pairwise(starts.tolist())]

  def total(parameters: np.ndarray, shape: tuple[int, ...], cost: Callable) -> np.ndarray:
    costs = (cost(part, parameters[:, at]) for (part, _), at in zip(parts, columns, strict=True))
    return sum(costs, start=np.zeros((len(parameters), *shape)))

  def whole_rdp(parameters: np.ndarray, orders: np.ndarray) -> np.ndarray:
    return total(parameters, orders.shape, lambda part, own: part.rdp(own, orders))

  def max_loss(parameters: np.ndarray) -> np.ndarray:
    q, whole = parameters[:, 0], total(parameters, (), lambda part, own: part.max_loss(own))
    return np.where(q > 0, whole if how == base.KNOWN else _log_mixture(q, whole), 0.0)

  def rdp(parameters: np.ndarray, orders: np.ndarray) -> np.ndarray:
    q, whole = parameters[:, 0], whole_rdp(parameters, orders)
    if how == base.KNOWN:
      found = _log_mixture(q[:, None], (orders - 1) * whole) / (orders - 1)
    else:
      hidden = _hidden_rdp(parameters, whole_rdp, orders, 2.0 if how == base.FIXED_SIZE else 1.0)
      found = np.minimum(whole, hidden)
      found = np.minimum(found, closed_forms.pure(max_loss(parameters), orders))
    free = (q[:, None] == 0) | (whole == 0)
    # What is not free must not underflow to 0. NaN stays.
    return np.where(free, 0.0, np.maximum(found, np.finfo(float).tiny))

  severity = None
  if len(parts) == 1 and (of_part := parts[0][0].severity):

    def severity(parameters: Row) -> Row:
      return parameters[0], *np.ravel(of_part(parameters[1:])).tolist()

  def releases(row: Row) -> list[DominatingPair]:
    """The pairs of what was released about a record in the sample."""
    return [
      DominatingPair(part, tuple(row[at])) for (part, _), at in zip(parts, columns, strict=True)
    ]

  def is_free(row: Row) -> bool:
    return row[0] == 0 or all(part.is_free(own) for part, own in releases(row))

  def loss(row: Row, removed: bool, attained: bool) -> Pair | None:
    charged = [pair for pair in releases(row) if not pair.family.is_free(pair.parameters)]
    found = [[base.loss_of(pair, side, attained) for pair in charged] for side in (True, False)]
    shown = [[loss for loss in side if loss is not None] for side in found]
    if row[0] < 1e-300 or any(len(side) < len(charged) for side in shown):
      return None
    return sampled(how, row[0], shown, removed=removed, below=attained)

  def is_symmetric(row: Row, attained: bool) -> bool:
    return how == base.KNOWN and all(
      part.is_symmetric(own, attained) for part, own in releases(row)
    )

  def exported(row: Row, relation: Relation, dp: Any) -> Any:
    inner = exported_together(releases(row), relation, dp)
    # A sample that is seen has no event there: it is exported as if all records took part.
    return dp.PoissonSampledDpEvent(float(row[0]), inner) if how == base.POISSON else inner

  families = [part for part, _ in parts]
  return Family(
    f"{' and '.join(part.name for part in families)} of {how}",
    rdp,
    max_loss,
    severity,
    loss=loss if all(part.loss for part in families) else None,
    is_free=is_free,
    is_symmetric=is_symmetric,
    exposed=lambda row: row[0] if any(part.exposed(own) for part, own in releases(row)) else 0.0,
    is_published=how == base.KNOWN and all(part.is_published for part in families),
    cut=lambda row: sum(part.cut(own) for part, own in releases(row)),
    exported=exported,
  )


def exported_together(pairs: Sequence[DominatingPair], relation: Relation, dp: Any) -> Any:
  """The dp_accounting event of everything that one sample released."""
  events = []
  for family, row in pairs:
    if family.exported is None:
      raise ValueError(
        f"Expected releases that dp_accounting has an event for, got {family.name}; leave that "
        "event out."
      )
    events.append(family.exported(tuple(map(float, row)), relation, dp))
  return events[0] if len(events) == 1 else dp.ComposedDpEvent(events)


def _hidden_rdp(
  parameters: np.ndarray,
  whole_rdp: Callable[[np.ndarray, np.ndarray], np.ndarray],
  orders: np.ndarray,
  factor: float,
) -> np.ndarray:
  """The divergences [E, A] of samples that hide who is in them.

  Args:
    parameters: [E, P].
    whole_rdp: (parameters, orders [A]) -> the divergences [E, A] of what was released.
    orders: [A].
    factor: the factor of the sum over k in Statement 2.10: 1, or 2 for samples of fixed size.
  """

  def log_moments(whole: np.ndarray) -> np.ndarray:
    found = np.full((len(parameters), len(whole)), math.inf)
    summed = whole <= _MAX_ORDER
    if summed.any():
      k = np.arange(2.0, whole[summed][-1] + 1)
      size = max(1, CHUNK // len(k))
      for rows in (slice(start, start + size) for start in range(0, len(parameters), size)):
        excess = _log_excess(parameters[rows], whole_rdp, k, whole[summed])
        found[rows, summed] = np.logaddexp(0.0, math.log(factor) + excess)
    return found

  return below_chords(log_moments, orders)


def _log_excess(
  parameters: np.ndarray,
  whole_rdp: Callable[[np.ndarray, np.ndarray], np.ndarray],
  k: np.ndarray,
  orders: np.ndarray,
) -> np.ndarray:
  """log of the sum over k in Statement 2.10, [E, A]; infinity where it is not known.

  Args:
    parameters: [E, P].
    whole_rdp: as for `_hidden_rdp`.
    k: 2, 3, ... up to the largest order.
    orders: whole, >= 2.
  """
  q, gains = parameters[:, 0], log_expm1((k - 1) * whole_rdp(parameters, k))
  result = np.full((len(parameters), len(orders)), math.inf)
  known = np.flatnonzero((q > 0) & (q < 1) & (gains.max(axis=1) < _LARGEST))
  result[known] = log_binomial_sum(
    np.log(q[known]),
    np.log1p(-q[known]),
    lambda some, terms: gains[known[some], : len(terms)],
    orders,
  )
  return result


def _log_mixture(q: np.ndarray, u: np.ndarray) -> np.ndarray:
  """log(1 - q + q e^u), with the right values at q = 0 and q = 1 too."""
  with np.errstate(all="ignore"):
    return np.where(q == 0, 0.0, np.where(q == 1, u, log_mixture(q, u)))
