"""Exchange with the package dp_accounting: a ledger as a `DpEvent`, and a `DpEvent` as a ledger.

A `DpEvent` knows no relation. Its noise multipliers are noise over sensitivity, for the relation
that its accountant is told. So a ledger is exported, and an event imported, for one relation. The
relations add_remove, zero_out and replace_one are dp_accounting's ADD_OR_REMOVE_ONE,
REPLACE_SPECIAL and REPLACE_ONE. Under REPLACE_ONE, only its `PLDAccountant` doubles the sensitivity
once more, so its result for an export is an upper bound.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from jdp import events
from jdp._arguments import checked
from jdp.accounting.amplification import amplified_pairs
from jdp.accounting.composed_rounds import compose_rounds, stands_alone
from jdp.accounting.composition import Composition, compose_releases, total_guarantee
from jdp.accounting.dominating_pairs import is_central
from jdp.accounting.families.samples import exported_together
from jdp.accounting.registration import known_entries, query_analysis, sampling_analysis
from jdp.accounting.seen import events_seen, split
from jdp.events import Round
from jdp.events.queries import QueryEvent
from jdp.events.sampling import SamplingEvent
from jdp.events.whole_runs import overflow_probability
from jdp.guarantees import Observer, Relation, Unit
from jdp.ledger import Ledger

if TYPE_CHECKING:
  from dp_accounting import DpEvent


class Export(NamedTuple):
  """A ledger in dp_accounting's terms.

  Attributes:
    event: a `dp_accounting.ComposedDpEvent`.
    overflow_probability: the sum over all rounds of the probability that a sample outgrew its
      capacity. A `DpEvent` has no place for it. At epsilon, add `(1 + e^epsilon)` times it to the
      delta that dp_accounting computes.
    cut: what bounded float noise adds to delta (statement 5.5 of `docs/theory/float_noise.md`). A
      `DpEvent` has no place for it. It is 0 for noise of .19 of the sensitivity or more.
  """

  event: "DpEvent"
  overflow_probability: float
  cut: float


@checked
def to_dp_event(
  ledger: Ledger, *, relation: str | None = None, observer: str | None = None
) -> Export:
  """What one observer saw, under one relation, as a `dp_accounting.DpEvent`.

  Rounds keep their order, and equal ones in a row become a `SelfComposedDpEvent`. Grouped sums are
  exported in the form in which they are analysed: one Gaussian, or several releases. Pure and local
  releases are exported as randomised response of two values, since every epsilon-DP mechanism
  post-processes it. Rounds by epochs or in turns, and those with correlated noise, have no
  `DpEvent`. They come last, as the releases that their epochs, turns or runs cost under the
  relation. A sample that the observer sees has no `DpEvent` either: all records count as sampled.

  Args:
    ledger: what was done.
    relation: add_remove, zero_out or replace_one. None: the only one that the events declare.
    observer: server, clients or model. None: the ledger's only one.

  Returns:
    The event, and the parts of delta that belong to it.

  Raises:
    ImportError: if dp_accounting is not installed.
    ValueError: if the ledger has no analysis under the relation (see `jdp.accounting.epsilon`) or a
      local release has a delta. Also if the relation is not replace_one and there is a pure
      release, local release or randomised response (except one with a uniform answer of null
      records, under zero_out): dp_accounting's event then means something other than jdp's.

  >>> from jdp import ledger
  >>> run = ledger.subsampled_gaussian(
  ...   sampling_probability=0.01, noise_multiplier=1.1, num_rounds=1000
  ... )
  >>> to_dp_event(run).event.events[0].count
  1000
  """
  dp = dp_accounting_or_refuse()
  if not ledger.entries:
    return Export(dp.ComposedDpEvent([]), 0.0, 0.0)
  rounds, local, _, chosen, known = events_seen(ledger.entries, relation, observer)
  together = {
    event: count
    for event, count in rounds.items()
    if not (stands_alone(event) or query_analysis(event.query).exported)
  }
  parts = [
    (round_event(event, chosen, known), count)
    for event, count in split(known_entries(ledger.entries)).rounds
    if event in rounds and event not in together
  ]
  parts += _counted(compose_rounds(together, chosen, sample_known=known), chosen)
  if local:
    if (guarantee := total_guarantee(local)).delta > 0 or guarantee.relation is not chosen:
      raise ValueError(
        f"Expected local releases of relation {chosen} without delta, got {guarantee}; leave them "
        "out."
      )
    parts += _counted(compose_releases(local), chosen)
  overflow = sum(count * overflow_probability(event) for event, count in rounds.items())
  counted = [dp.SelfComposedDpEvent(e, n) if n > 1 else e for e, n in parts]
  cut = compose_rounds(rounds, chosen, sample_known=known).cut
  return Export(dp.ComposedDpEvent(counted), overflow, cut)


@checked
def from_dp_event(
  event: "DpEvent",
  *,
  relation: Relation | str,
  unit: Unit | str = Unit.USER,
  observer: Observer | str = Observer.MODEL,
) -> Ledger:
  """The ledger of a `dp_accounting.DpEvent`, its noise multipliers taken for `relation`.

  An event that is not sampled becomes a Poisson sample of probability 1. Several events of one
  sample become `GroupedSums`. `to_dp_event` of the result, for the same relation, gives back an
  equal event, except for rounding and for compositions within compositions, which are flattened.

  Args:
    event: any event except those named in the error below.
    relation: add_remove, zero_out or replace_one.
    unit: what one record is.
    observer: who sees the releases.

  Returns:
    The ledger. A sum's clip norm is 1, or 1/2 under replace_one, where a record moves the sum by
    twice that.

  Raises:
    ImportError: if dp_accounting is not installed.
    ValueError: if part of the event has no counterpart in `jdp.events`. The message names its type.

  >>> import dp_accounting
  >>> event = dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(2.0), 10)
  >>> from_dp_event(event, relation="zero_out").entries[0][1]
  10
  """
  dp_accounting_or_refuse()
  scope = Relation(relation), Unit(unit), Observer(observer)
  return Ledger().extend(_rounds(event, 1, scope))


def round_event(event: Round, relation: Relation, sample_known: bool) -> "DpEvent":
  """The event of a round whose sampling, if any, draws each sample anew."""
  if exported := query_analysis(event.query).exported:
    return exported(event, relation, sample_known)
  dp, analysis = dp_accounting_or_refuse(), sampling_analysis(event.sampling)
  charged = amplified_pairs(event, relation, sample_known=sample_known)
  whole = amplified_pairs(event, relation, sample_known=sample_known, certain=True)
  if sample_known or not is_central(event.query):
    return exported_together(whole, relation, dp)
  if analysis.exported is None:
    return exported_together(charged, relation, dp)
  inner = exported_together(whole, relation, dp)
  return analysis.exported(event.sampling, charged, inner, relation)


def _counted(total: Composition, relation: Relation) -> list[tuple["DpEvent", int]]:
  """The events of a composition's pairs, each with its count."""
  dp = dp_accounting_or_refuse()
  return [(exported_together([pair], relation, dp), int(count)) for pair, count in total.pairs()]


def _rounds(
  event: Any, count: int, scope: tuple[Relation, Unit, Observer]
) -> Iterator[tuple[Round, int]]:
  """The rounds of an event that happened `count` times, each with its count."""
  dp = dp_accounting_or_refuse()
  if isinstance(event, dp.ComposedDpEvent):
    for part in event.events:
      yield from _rounds(part, count, scope)
  elif isinstance(event, dp.SelfComposedDpEvent):
    yield from _rounds(event.event, count * event.count, scope)
  elif isinstance(event, dp.dp_event.RepeatAndSelectDpEvent):
    run = tuple(_rounds(event.event, 1, scope))
    inner, counts = tuple(one for one, _ in run), tuple(number for _, number in run)
    best = events.BestOfRuns(inner, counts, event.mean, event.shape)
    yield Round(events.PoissonSampling(1.0), best, *scope), count
  elif not isinstance(event, dp.NoOpDpEvent):
    sampling, released = _sampling(event, dp)
    yield Round(sampling, _query(released, scope[0]), *scope), count


def _sampling(event: Any, dp: Any) -> tuple[SamplingEvent, Any]:
  """How an event was sampled, and the event that its sample goes through."""
  if isinstance(event, dp.PoissonSampledDpEvent):
    return events.PoissonSampling(event.sampling_probability), event.event
  if isinstance(event, dp.SampledWithoutReplacementDpEvent):
    return events.FixedSizeSampling(event.sample_size, event.source_dataset_size), event.event
  if isinstance(event, dp.TruncatedSubsampledGaussianDpEvent):
    sampling = events.TruncatedPoissonSampling(
      event.sampling_probability, event.truncated_batch_size, event.dataset_size
    )
    return sampling, dp.GaussianDpEvent(event.noise_multiplier)
  return events.PoissonSampling(1.0), event


def _query(event: Any, relation: Relation) -> QueryEvent:
  """The query of an event that one sample goes through."""
  dp = dp_accounting_or_refuse()
  clip_norm = 0.5 if relation is Relation.REPLACE_ONE else 1.0
  if isinstance(event, dp.GaussianDpEvent):
    return events.GaussianSum(clip_norm, event.noise_multiplier)
  if isinstance(event, dp.SingleEpochTreeAggregationDpEvent):
    steps = event.step_counts
    several = (steps,) if isinstance(steps, int) else tuple(steps)
    return events.TreeAggregation(clip_norm, event.noise_multiplier, several)
  if isinstance(event, dp.LaplaceDpEvent):
    return events.LaplaceSum(clip_norm, event.noise_multiplier)
  if isinstance(event, dp.RandomizedResponseDpEvent):
    to_null = relation is Relation.ZERO_OUT
    return events.RandomizedResponse(event.noise_parameter, event.num_buckets, to_null)
  if isinstance(event, dp.ZCDpEvent) and event.xi == 0:
    return events.ConcentratedRelease(event.rho)
  if isinstance(event, dp.NonPrivateDpEvent):
    return events.NonPrivate()
  if isinstance(event, dp.ComposedDpEvent | dp.SelfComposedDpEvent):
    alike = isinstance(event, dp.SelfComposedDpEvent)
    members = [event.event] * event.count if alike else event.events
    parts = tuple(_query(member, relation) for member in members)
    return events.GroupedSums(parts, tuple(map(str, range(len(members)))))
  raise ValueError(
    f"Expected event to be a DpEvent with a counterpart in jdp.events, got {type(event).__name__}; "
    "leave it out."
  )


def dp_accounting_or_refuse() -> Any:
  """The package, or an error that says how to install it."""
  try:
    import dp_accounting  # Here, as it takes a second to import.
  except ImportError as error:
    raise ImportError(
      "Expected the package dp_accounting for DpEvents; pip install dp-accounting."
    ) from error
  return dp_accounting
