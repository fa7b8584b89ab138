"""Exchange with the package dp_accounting: a ledger as a `DpEvent`, and a `DpEvent` as a ledger.

A `DpEvent` knows no relation: its noise multipliers are noise over sensitivity, for the relation
that its accountant is told. So a ledger is exported, and an event imported, for one relation. jdp's
relations are dp_accounting's ADD_OR_REMOVE_ONE, REPLACE_SPECIAL (zero-out) and REPLACE_ONE. Its
`PLDAccountant` alone doubles the sensitivity under REPLACE_ONE once more: what it says of an export
is an upper bound there.
"""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from scipy import special

from jdp.accounting import local_releases
from jdp.accounting.amplification import EPOCHS, amplified_pairs, is_central
from jdp.accounting.composition import Composition, compose_rounds, events_of_type, events_seen
from jdp.accounting.dominating_pairs import dominating_pair
from jdp.accounting.pair_families import (
  CONCENTRATED,
  GAUSSIAN,
  LAPLACE,
  NON_PRIVATE,
  RANDOMIZED_RESPONSE,
  SKELLAM,
  DominatingPair,
)
from jdp.events import (
  ConcentratedRelease,
  FixedSizeSampling,
  GaussianSum,
  GroupedSums,
  LaplaceSum,
  LocalRelease,
  NonPrivate,
  PoissonSampling,
  RandomizedResponse,
  Round,
  SumQueryEvent,
)
from jdp.guarantees import Observer, Relation, Unit
from jdp.ledger import Ledger

if TYPE_CHECKING:
  from dp_accounting import DpEvent


class Export(NamedTuple):
  """A ledger in dp_accounting's terms.

  Attributes:
    event: a `dp_accounting.ComposedDpEvent`.
    overflow_probability: what a `DpEvent` has no place for: the probabilities that samples outgrew
      their capacity, over all rounds. At epsilon, add `(1 + e^epsilon)` times it to the delta that
      dp_accounting computes.
  """

  event: "DpEvent"
  overflow_probability: float


def to_dp_event(
  ledger: Ledger, *, relation: str | None = None, observer: str | None = None
) -> Export:
  """What one observer saw, under one relation, as a `dp_accounting.DpEvent`.

  Rounds keep their order; equal ones in a row become a `SelfComposedDpEvent`. A release of grouped
  sums is exported as the one Gaussian (or other release) that it is analysed as, pure releases and
  local ones as the randomised response of two values that every epsilon-DP mechanism is a
  post-processing of. Rounds by epochs have no `DpEvent`: they are exported, last, as the unsampled
  releases that their epochs cost under the relation.

  Args:
    ledger: what was done.
    relation: add_remove, zero_out or replace_one; None: the only one that the events declare.
    observer: server, clients or model; None: the ledger's only one.

  Returns:
    The event, and the probability of overflows that belongs to it.

  Raises:
    ImportError: if dp_accounting is not installed.
    ValueError: if the ledger has no analysis under the relation (see `jdp.accounting.epsilon`); if
      a local release has a delta; or if there is a pure release, local release or randomised
      response and the relation is not replace_one, under which alone dp_accounting means by its
      event what jdp does.

  >>> from jdp import ledger
  >>> run = ledger.subsampled_gaussian(
  ...   sampling_probability=0.01, noise_multiplier=1.1, num_rounds=1000
  ... )
  >>> to_dp_event(run).event.events[0].count
  1000
  """
  dp = _dp_accounting()
  if not ledger.entries:
    return Export(dp.ComposedDpEvent([]), 0.0)
  seen, chosen = events_seen(ledger, relation, observer)
  releases = events_of_type(LocalRelease, seen)
  of_epochs = {
    e: n for e, n in events_of_type(Round, seen).items() if isinstance(e.sampling, EPOCHS)
  }
  parts = [
    (_round(event, chosen, bool(releases)), count)
    for event, count in ledger.entries
    if event in seen and isinstance(event, Round) and event not in of_epochs
  ]
  parts += _counted(compose_rounds(of_epochs, chosen), chosen)
  if releases:
    if (
      guarantee := local_releases.total_guarantee(releases)
    ).delta > 0 or guarantee.relation is not chosen:
      raise ValueError(
        f"Expected local releases of relation {chosen} without delta, got {guarantee}; leave them "
        "out."
      )
    parts += _counted(local_releases.compose_releases(releases), chosen)
  overflow = sum(
    n * getattr(e.sampling, "overflow_probability", 0.0)
    for e, n in events_of_type(Round, seen).items()
  )
  return Export(
    dp.ComposedDpEvent([dp.SelfComposedDpEvent(e, n) if n > 1 else e for e, n in parts]), overflow
  )


def from_dp_event(
  event: "DpEvent", *, relation: str, unit: str = Unit.USER, observer: str = Observer.MODEL
) -> Ledger:
  """The ledger of what a `dp_accounting.DpEvent` says, its noise multipliers taken for `relation`.

  An event that is not sampled becomes a Poisson sample of probability 1; several events of one
  sample become `GroupedSums`. `to_dp_event` of the result, for the same relation, gives back an
  equal event (up to rounding), but for compositions within compositions, which are flattened.

  Args:
    event: any but those named in the error below.
    relation: add_remove, zero_out or replace_one.
    unit: what one record is.
    observer: who sees the releases.

  Returns:
    The ledger. A sum's clip norm is 1, or 1/2 under replace_one, where a record moves the sum by
    twice that.

  Raises:
    ImportError: if dp_accounting is not installed.
    ValueError: if part of the event has no counterpart in `jdp.events`, by the name of its type.

  >>> import dp_accounting
  >>> event = dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(2.0), 10)
  >>> from_dp_event(event, relation="zero_out").entries[0][1]
  10
  """
  _dp_accounting()
  named = Relation(relation)
  return Ledger().extend(
    (Round(sampling, query, named, Unit(unit), Observer(observer)), count)
    for (sampling, query), count in _rounds(event, 1, named)
  )


def _round(event: Round, relation: Relation, sample_known: bool) -> "DpEvent":
  """A round whose sampling, if any, is drawn anew."""
  dp = _dp_accounting()
  # refuses pairings that have no analysis
  amplified_pairs(event, relation, sample_known=sample_known)
  inner = _release(dominating_pair(event.query, relation, event.relation), relation)
  sampling: Any = event.sampling
  if sample_known or not is_central(event.query):
    return inner
  if isinstance(sampling, FixedSizeSampling):
    whole = sampling.sample_size == sampling.population
    return (
      inner
      if whole
      else dp.SampledWithoutReplacementDpEvent(sampling.population, sampling.sample_size, inner)
    )
  return (
    inner if sampling.probability == 1 else dp.PoissonSampledDpEvent(sampling.probability, inner)
  )


def _counted(total: Composition, relation: Relation) -> list[tuple["DpEvent", int]]:
  return [
    (_release(DominatingPair(kind, tuple(parameters)), relation), int(count))
    for kind, group in total.groups.items()
    for parameters, count in zip(*group, strict=True)
  ]


def _release(loss: DominatingPair, relation: Relation) -> "DpEvent":
  """The event of a release that the record takes part in for certain."""
  dp = _dp_accounting()
  parameters = tuple(map(float, loss.parameters))
  if loss.family is NON_PRIVATE or math.inf in parameters:
    return dp.NonPrivateDpEvent()
  if loss.family is GAUSSIAN:
    return dp.GaussianDpEvent(parameters[1]) if parameters[1] else dp.NonPrivateDpEvent()
  if loss.family is LAPLACE:
    return dp.LaplaceDpEvent(1 / parameters[0])
  if loss.family is CONCENTRATED:
    return dp.ZCDpEvent(*parameters)
  if loss.family is SKELLAM:
    raise ValueError(
      "Expected releases that dp_accounting has an event for, got a Skellam sum; leave that event "
      "out."
    )
  if relation is not Relation.REPLACE_ONE:
    raise ValueError(
      f"Expected relation replace_one to export {loss.family.name}, got {relation}; leave that "
      "event out."
    )
  noise, num_values = (
    parameters if loss.family is RANDOMIZED_RESPONSE else (2 * special.expit(-parameters[0]), 2)
  )
  return dp.RandomizedResponseDpEvent(float(noise), int(num_values))


def _rounds(event: Any, count: int, relation: Relation) -> Iterator[tuple[tuple[Any, Any], int]]:
  """((sampling, query), count) of each round of an event that happened `count` times."""
  dp = _dp_accounting()
  if isinstance(event, dp.ComposedDpEvent):
    for part in event.events:
      yield from _rounds(part, count, relation)
  elif isinstance(event, dp.SelfComposedDpEvent):
    yield from _rounds(event.event, count * event.count, relation)
  elif isinstance(event, dp.PoissonSampledDpEvent):
    yield (PoissonSampling(event.sampling_probability), _query(event.event, relation)), count
  elif isinstance(event, dp.SampledWithoutReplacementDpEvent):
    sampling = FixedSizeSampling(event.sample_size, event.source_dataset_size)
    yield (sampling, _query(event.event, relation)), count
  elif not isinstance(event, dp.NoOpDpEvent):
    yield (PoissonSampling(1.0), _query(event, relation)), count


def _query(event: Any, relation: Relation) -> SumQueryEvent:
  dp = _dp_accounting()
  clip_norm = 0.5 if relation is Relation.REPLACE_ONE else 1.0
  if isinstance(event, dp.GaussianDpEvent):
    return GaussianSum(clip_norm, event.noise_multiplier)
  if isinstance(event, dp.LaplaceDpEvent):
    return LaplaceSum(clip_norm, event.noise_multiplier)
  if isinstance(event, dp.RandomizedResponseDpEvent):
    return RandomizedResponse(event.noise_parameter, event.num_buckets)
  if isinstance(event, dp.ZCDpEvent) and event.xi == 0:
    return ConcentratedRelease(event.rho)
  if isinstance(event, dp.NonPrivateDpEvent):
    return NonPrivate()
  if isinstance(event, dp.ComposedDpEvent | dp.SelfComposedDpEvent):
    members = (
      [event.event] * event.count if isinstance(event, dp.SelfComposedDpEvent) else event.events
    )
    return GroupedSums(
      tuple(_query(e, relation) for e in members), tuple(map(str, range(len(members))))
    )
  raise ValueError(
    f"Expected a DpEvent with a counterpart in jdp.events, got {type(event).__name__}; leave it "
    "out."
  )


def _dp_accounting() -> Any:
  try:
    import dp_accounting  # lazily: it takes a second
  except ImportError as error:
    raise ImportError(
      "Expected the package dp_accounting for DpEvents; pip install 'jdp[pld]'."
    ) from error
  return dp_accounting
