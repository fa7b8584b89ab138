"""What is composed: the pairs of measures in one direction, and those that data sets attain.

Lower bounds count only rounds whose pairs data sets attain. The others are left out, as if they had
released nothing. One pair of neighbouring data sets attains all counted pairs together, in each
direction: the record contributes the most, the others nothing (or, to a sample of fixed size, the
opposite).

* Attained: Gaussian sums, and groups of them, under Poisson sampling, fixed-size sampling or none
  (if it is truncated, not the pair itself: `families.gaussian`); Laplace sums, and groups of both,
  under Poisson sampling; these and randomised response of a sample that the observer sees; these,
  Gaussian sums with noise by their owners, and releases without protection, where nothing is
  sampled. Discrete sums of integers, by records that move up to four coordinates
  (`integer_noise`), where nothing is sampled; before any reduction modulo a number.
* Randomised response of a null or absent record: whatever is released for it, some value differs
  from that by no less than from a uniform answer. The reason is that a uniform answer is the mean,
  over all permutations of the values, of any other answer, and hockey sticks are jointly convex.
* Gaussian sums of epochs in which records are in some rounds at random (balls in bins, random
  allocation), if who is in them stays hidden: not the pair, but one that is dominated by it
  (`allocated_lower`). Only epochs count that happened in full and whose rounds all released such
  sums. Each round counts as the least severe one, since any sum may be released with more noise.
* Not known to be attained: pure and concentrated releases (which state a bound), weighted averages
  (whose sensitivity is a bound), discrete sums of rounded numbers (whose bound few roundings
  reach), other epochs, samples that pass over records that took part often, and whatever a sample
  does not amplify. Nor is any round of a ledger with local releases: what records contribute to its
  sums may be random.
* Whole runs with correlated noise (Statement 4.5): for samples of all records, the release of a
  record in the rounds of the plan's worst pattern, where the plan has it exactly; else, and for
  groups in turns, that of a record in the round of the longest column.
"""

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Hashable

import numpy as np

from jdp.accounting.analysis import Attained, Composed, Rounds
from jdp.accounting.composed_rounds import compose_rounds, turns_key
from jdp.accounting.composition import Composition, compose_both, compose_pairs
from jdp.accounting.families.base import DominatingPair, charge_of, loss_of
from jdp.accounting.families.gaussian import GAUSSIAN
from jdp.accounting.pld.aims import Term
from jdp.accounting.pld.losses import pairs
from jdp.accounting.registration import parts_of, query_analysis, sampling_analysis
from jdp.events import Round
from jdp.events.queries import QueryEvent
from jdp.guarantees import Relation


def terms_of(composed: Composition, *, removed: bool, attained: bool = False) -> list[Term] | None:
  """The pairs of all losses, with their counts; None if one has losses too large for this
  accountant.

  Args:
    composed: the ledger's pairs. Unsampled Gaussians become one pair. Pairs known by their Renyi
      divergences alone become one pair, for the sum of their divergences. These are
      zero-concentrated releases, discrete sums that `integer_noise` has no pair for, and families
      of other packages.
    removed: the direction: runs with a record against runs without it, or the reverse.
    attained: whether the pairs must be those of data sets that exist, rather than pairs that
      dominate all.
  """
  result, precision, others, margin = [], 0.0, {}, 0.0
  for family, (parameters, counts) in composed.groups.items():
    if family.merged is not None:
      parameters, counts = family.merged(parameters, counts, attained)
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
    # Both directions have the same losses, and a removal's are the more precise.
    whole = loss_of(DominatingPair(GAUSSIAN, (1.0, precision**-0.5)), True, attained)
    if whole is None:
      return None
    result.append(Term(whole, 1))
  if margin > 1:
    return None
  if margin:
    # A factor of e^+-margin moves losses by at most 2 margin, and masses by e^margin.
    side = -1.0 if attained else 1.0
    loss = pairs.atoms(np.array([side * 2 * margin]), np.array([math.exp(side * margin)]))
    result.append(Term(loss, 1))
  if others and not attained:
    bound = pairs.renyi(lambda orders: Composition(others).rdp(tuple(orders.tolist())))
    if not len(bound.losses):
      return None
    result.append(Term(bound, 1))
  return result


def attained_losses(rounds: Rounds, relation: Relation, *, sample_known: bool) -> Composition:
  """The losses that data sets attain in counted rounds, all those of a ledger without local
  releases. Arguments are those of `jdp.accounting.composed_rounds.compose_rounds`.
  """
  kept: Counter[Round] = Counter()
  together: defaultdict[Composed, dict[Round, int]] = defaultdict(dict)
  unknown: set[Hashable] = set()
  for event, count in rounds.items():
    sampler = turns_key(event)
    if composed := query_analysis(event.query).composed_attained:
      together[composed][event] = count
      unknown.add(sampler)
      continue
    needed = sampling_analysis(event.sampling).attained(event.sampling, sample_known)
    if sampler and relation is Relation.REPLACE_ONE:  # a replacement, which epochs do not hide
      needed = None
    if needed is not None and _attained(event.query) >= needed:
      kept[_worst(event)] += count
    else:
      unknown.add(sampler)
  in_full = {
    event: count
    for event, count in kept.items()
    if (sampler := turns_key(event)) is None or sampler not in unknown
  }
  items = (
    item
    for composed, several in together.items()
    for item in composed(several, relation, sample_known)
  )
  return compose_both(
    compose_rounds(in_full, relation, sample_known=sample_known, attained=True),
    compose_pairs(items),
  )


def _attained(query: QueryEvent) -> Attained:
  """The samples from which data sets attain a query's pair: those of all its parts together."""
  parts = [*parts_of(query)]
  if query_analysis(query).parts and any(analysis.worst for _, analysis in parts):
    return Attained.NEVER
  return min(analysis.attained(part) for part, analysis in parts)


def _worst(event: Round) -> Round:
  """The round, as if as little as possible were released for null records."""
  worst = query_analysis(event.query).worst
  return dataclasses.replace(event, query=worst(event.query)) if worst else event
