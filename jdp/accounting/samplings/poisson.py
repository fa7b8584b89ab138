"""Records that take part by their own coins, or in turns.

Poisson samples (Statement 2.1), those with a cap on a record's rounds, and groups in turns:
min-separation and cyclic Poisson sampling (Statement 2.7).
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from jdp.accounting.analysis import Attained, Pairs, Pattern, Release, SamplingAnalysis, Turns
from jdp.accounting.families.base import POISSON, DominatingPair
from jdp.accounting.families.gaussian import REPLACED_GAUSSIAN
from jdp.accounting.families.samples import hidden_pairs, one_multiplier
from jdp.accounting.registration import register_sampling
from jdp.events import CyclicPoissonSampling, MinSeparationSampling, PoissonSampling
from jdp.events.base import shared_fields
from jdp.guarantees import Relation


def _amplified(event: Any, released: Pairs, relation: Relation, release: Release) -> Pairs:
  """The pairs of a record that takes part by a fresh coin of its own."""
  if event.probability == 1:
    return released
  if relation is Relation.REPLACE_ONE:
    return _replaced(event, released, release)
  return hidden_pairs(POISSON, event.probability, released, relation)


def _replaced(event: Any, released: Pairs, release: Release) -> Pairs:
  """The pair of a Gaussian release about a replaced record (Statement 2.11)."""
  gaussian = one_multiplier(released) is not None
  zeroed = one_multiplier(release.under(Relation.ZERO_OUT)) if gaussian else None
  if zeroed is None:
    raise ValueError(
      f"Expected relation add_remove or zero_out for {type(event).__name__} with {release.name}, "
      "got replace_one: of Poisson samples, it is analysed for Gaussian releases alone; pass one "
      "of them as relation, or sample by FixedSizeSampling, ShuffledBatches or BallsInBins."
    )
  if getattr(event, "max_participations", None) is not None:
    return released  # how likely the record still takes part may depend on its data
  return (DominatingPair(REPLACED_GAUSSIAN, (event.probability, zeroed / 2)),)


def _exported(event: PoissonSampling, charged: Pairs, inner: Any, relation: Relation) -> Any:
  import dp_accounting

  if event.probability == 1:
    return inner
  if relation is Relation.REPLACE_ONE:
    raise ValueError(
      "Expected relation add_remove or zero_out for PoissonSampling, got replace_one, for which "
      "dp_accounting has no event; pass one of them as relation."
    )
  return dp_accounting.PoissonSampledDpEvent(event.probability, inner)


def _attained(event: PoissonSampling, sample_known: bool) -> Attained | None:
  if event.max_participations is not None:
    return None
  if event.probability == 1:
    return Attained.UNSAMPLED
  return Attained.SEEN if sample_known else Attained.POISSON


def _apart(event: Any, separation: int, *, by_coins: float = 0.0) -> Turns | None:
  """The turns of a record with a cap on its rounds in a run, any two at least `separation` apart.

  Several rounds at one position belong to as many runs. Rounds without a position are successive
  rounds of one run.
  """
  most = event.max_participations
  if most is None:
    return None

  def most_of(rounds: Iterable[tuple[Any, int]]) -> int:
    at, unnumbered = _by_position(rounds)
    chosen: list[int] = []
    for position in sorted(at):
      if not chosen or position >= chosen[-1] + separation:
        chosen.append(position)
    runs = max(at.values(), default=0)
    return runs * min(most, len(chosen)) + min(most, -(-unnumbered // separation))

  return Turns(shared_fields(event), most_of, by_coins=by_coins)


def _of_a_group(event: CyclicPoissonSampling) -> Turns:
  """The turns of a record, which is in the rounds of its group alone."""

  def most_of(rounds: Iterable[tuple[Any, int]]) -> int:
    at, unnumbered = _by_position(rounds)
    of_group: Counter[int] = Counter()
    for position, count in at.items():
      of_group[position % event.num_groups] += count
    return max(of_group.values(), default=0) + -(-unnumbered // event.num_groups)

  return Turns(shared_fields(event), most_of)


def _by_position(rounds: Iterable[tuple[Any, int]]) -> tuple[Counter[int], int]:
  """How many rounds there are at each position, and how many without one."""
  at, unnumbered = Counter[int](), 0
  for sampling, count in rounds:
    position = getattr(sampling, "position", None)
    if position is None:
      unnumbered += count
    else:
      at[int(position)] += count
  return at, unnumbered


register_sampling(
  PoissonSampling,
  SamplingAnalysis(
    inclusion=lambda event: event.probability,
    amplified=_amplified,
    stays=lambda event: True,
    turns=lambda event: _apart(event, 1, by_coins=event.probability % 1),  # probability 1: no coin
    fresh_coins=True,
    attained=_attained,
    exported=_exported,
  ),
)
register_sampling(
  MinSeparationSampling,
  SamplingAnalysis(
    stays=lambda event: event.by_identity,
    turns=lambda event: _apart(event, event.min_separation),
    pattern=lambda event, num_rounds: Pattern(
      event.min_separation,
      event.max_participations,
      open_rounds=event.min_separation * event.max_participations,  # each group's, in turn
    ),
  ),
)
register_sampling(
  CyclicPoissonSampling,
  SamplingAnalysis(
    inclusion=lambda event: event.probability,
    anew=True,
    amplified=_amplified,
    stays=lambda event: event.by_identity,
    turns=_of_a_group,
    pattern=lambda event, num_rounds: Pattern(event.num_groups, num_rounds),
    run_probability=lambda event: event.probability,
  ),
)
