"""Which rounds have data sets that attain the pair of distributions that they are charged as.

Lower bounds are for these alone: the others are left out, as if they had released nothing. One pair
of neighbouring data sets attains all of them together, in each direction: the record contributes
the most, the others nothing (or, to a sample of fixed size, the opposite).

* Attained: Gaussian sums, and groups of them, under Poisson sampling, fixed-size sampling or none
  (if it is truncated, not the pair itself: `families.gaussian`); Laplace sums, and groups of both,
  under Poisson sampling; these and randomised response of a sample that the observer sees; these,
  Gaussian sums with noise by their owners, and releases without protection, where nothing is
  sampled. Discrete sums of integers, by records that move up to four coordinates
  (`integer_noise`), where nothing is sampled; before any reduction modulo a number.
* Randomised response of a null or absent record: whatever is released of it, some value differs
  from that by no less than from a uniform answer. For a uniform answer is the mean, over all
  permutations of the values, of any other, and hockey sticks are jointly convex.
* Not known to be: pure and concentrated releases (which state a bound), weighted averages (whose
  sensitivity is a bound), discrete sums of rounded numbers (whose bound few roundings reach),
  batches of epochs, samples that pass over records that took part often, runs with correlated noise
  (whose sensitivity is a bound), and whatever a sample does not amplify. Nor is any round of a
  ledger with local releases: what records contribute to its sums may be random.
"""

import dataclasses
from collections import Counter
from collections.abc import Mapping

from jdp.accounting.analysis import Attained
from jdp.accounting.composed_rounds import compose_rounds
from jdp.accounting.composition import Composition
from jdp.accounting.registration import parts_of, query_analysis, sampling_analysis
from jdp.events import QueryEvent, Round
from jdp.guarantees import Relation


def attained_losses(
  rounds: Mapping[Round, int], relation: Relation, *, sample_known: bool
) -> Composition:
  """The losses of counted rounds that data sets attain, all rounds of a ledger without local
  releases; arguments as for `jdp.accounting.composed_rounds.compose_rounds`.
  """
  kept: Counter[Round] = Counter()
  for event, count in rounds.items():
    needed = sampling_analysis(event.sampling).attained(event.sampling, sample_known)
    if needed is not None and _attained(event.query) >= needed:
      kept[_worst(event)] += count
  return compose_rounds(kept, relation, sample_known=sample_known)


def _attained(query: QueryEvent) -> Attained:
  """Of which samples data sets attain a query's pair: all its parts' together."""
  parts = [*parts_of(query)]
  if query_analysis(query).parts and any(analysis.worst for _, analysis in parts):
    return Attained.NEVER
  return min(analysis.attained(part) for part, analysis in parts)


def _worst(event: Round) -> Round:
  """The round as if the least was released of null records."""
  worst = query_analysis(event.query).worst
  return dataclasses.replace(event, query=worst(event.query)) if worst else event
