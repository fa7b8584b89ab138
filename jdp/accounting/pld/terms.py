"""The pairs of measures that are composed, in one direction."""

import math

import numpy as np

from jdp.accounting.composition import Composition
from jdp.accounting.families import GAUSSIAN, DominatingPair, charge_of, loss_of
from jdp.accounting.pld import pairs
from jdp.accounting.pld.plan import Term


def terms_of(composed: Composition, *, removed: bool, attained: bool = False) -> list[Term] | None:
  """The pairs of all losses, with their counts; None if one has losses too large for this
  accountant.

  Args:
    composed: the ledger's pairs. Unsampled Gaussians become one. Those that are known by their
      Renyi divergences alone become one pair, of their divergences' sum. Such are
      zero-concentrated releases, discrete sums that `integer_noise` has no pair for, and families
      of other packages.
    removed: the direction: runs with a record against runs without it, or the reverse.
    attained: whether the pairs must be those of data sets that exist, rather than pairs that
      dominate all.
  """
  result, precision, others, margin = [], 0.0, {}, 0.0
  for family, (parameters, counts) in composed.groups.items():
    if family.merged is not None:
      parameters, counts = family.merged(parameters, counts)
    unknown = np.zeros(len(counts), bool)
    for number, (row, count) in enumerate(zip(parameters.tolist(), counts.tolist(), strict=True)):
      pair = DominatingPair(family, tuple(row))
      charge = charge_of(pair, removed=removed, attained=attained)
      if charge is None:
        unknown[number] = True
        continue
      if charge.multiplier == 0:
        return None
      result += [Term(loss, int(count)) for loss in charge.pairs]
      precision += count / charge.multiplier / charge.multiplier
      margin += count * charge.margin
    if unknown.any():
      others[family] = parameters[unknown], counts[unknown]
  if precision:
    whole = loss_of(DominatingPair(GAUSSIAN, (1.0, precision**-0.5)), removed, attained)
    if whole is None:
      return None
    result.append(Term(whole, 1))
  if margin > 1:
    return None
  if margin:
    side = -1.0 if attained else 1.0
    loss = pairs.atoms(np.array([side * 2 * margin]), np.array([math.exp(side * margin)]))
    result.append(Term(loss, 1))
  if others and not attained:
    bound = pairs.renyi(lambda orders: Composition(others).rdp(tuple(orders.tolist())))
    if not len(bound.losses):
      return None
    result.append(Term(bound, 1))
  return result
