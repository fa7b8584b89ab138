"""From the ledger's events to the privacy losses that an accountant composes.

`select` finds the events that one epsilon is about: those that one observer
saw. `losses` replaces each round by the pair of distributions that dominates
it under one relation; a table says which. At present every pair is that of a
Poisson-subsampled Gaussian, (q, z).
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np

from jdp import _validate
from jdp.events import Event, GaussianSum, NonPrivate, PoissonSampling, Round
from jdp.guarantees import Observer, Relation
from jdp.ledger import Ledger

E = TypeVar("E", bound=Event)


class Losses(NamedTuple):
  """Rounds with independent randomness, equal ones counted together.

  Attributes:
    sampling_probability: q of each distinct round, float64 [E].
    noise_multiplier: z of each, float64 [E]; zero where nothing is private.
    num_rounds: how many there were of each, float64 [E].
    overflow: sum over all rounds of the probability that a sample outgrew its capacity.
  """

  sampling_probability: np.ndarray
  noise_multiplier: np.ndarray
  num_rounds: np.ndarray
  overflow: float


def _poisson_gaussian(sampling: PoissonSampling, query: GaussianSum, relation: Relation) -> tuple[float, float]:
  multiplier = float(query.stddev) / float(query.clip_norm)
  if relation is not Relation.REPLACE_ONE:
    return sampling.probability, multiplier
  if sampling.probability < 1:
    raise ValueError(
      "Expected relation add_remove or zero_out for a Poisson-sampled Gaussian sum, got replace_one: Poisson sampling "
      "is analysed under add_remove or zero_out; pass one of them as relation."
    )
  return 1.0, multiplier / 2  # A replaced record moves the sum by twice the clip norm.


def _non_private(sampling: PoissonSampling, query: NonPrivate, relation: Relation) -> tuple[float, float]:
  return 1.0, 0.0


_ANALYSES: dict[tuple[type, type], Callable[[Any, Any, Relation], tuple[float, float]]] = {
  (PoissonSampling, GaussianSum): _poisson_gaussian,
  (PoissonSampling, NonPrivate): _non_private,
}


def losses(rounds: Mapping[Round, int], relation: Relation) -> Losses:
  """The losses of counted rounds under one relation. Counts enter here, whatever the analysis.

  Raises:
    ValueError: if a round has no analysis under the relation.
  """
  counts: Counter[tuple[float, float]] = Counter()
  for event, count in rounds.items():
    kind = type(event.sampling), type(event.query)
    if kind not in _ANALYSES:
      raise ValueError(f"Expected rounds that have an analysis, got {kind[0].__name__} with {kind[1].__name__}.")
    counts[_ANALYSES[kind](event.sampling, event.query, relation)] += count
  q, z = np.array(list(counts), float).T
  overflow = sum(count * event.sampling.overflow_probability for event, count in rounds.items())
  return Losses(q, z, np.array(list(counts.values()), float), overflow)


def select(ledger: Ledger, relation: str | None, observer: str | None) -> tuple[Mapping[Event, int], Relation]:
  """The events that one observer saw, each with its count, and the relation to analyse them under.

  Args:
    ledger: holds at least one event.
    relation: the relation asked for, or None: the only one that those events declare.
    observer: the observer asked for, or None: the only one there is.

  Raises:
    ValueError: if None leaves a choice, if the observer saw nothing, or if the events protect different units.
  """
  counts: Counter[Event] = Counter()
  for event, count in ledger.entries:
    counts[event] += count
  observers = {event.observer for event in counts}
  chosen = _choose("observer", Observer, observer, observers)
  if chosen not in observers:
    raise ValueError(f"Expected observer to be one of the ledger's, {_names(observers)}, got {chosen}.")
  seen = {event: count for event, count in counts.items() if event.observer == chosen}
  if len(units := {event.unit for event in seen}) > 1:
    raise ValueError(f"Expected events that protect one unit, got {_names(units)}; keep a ledger for each.")
  return seen, Relation(_choose("relation", Relation, relation, {event.relation for event in seen}))


def of_type(kind: type[E], events: Mapping[Event, int]) -> dict[E, int]:
  """The counted events of one type."""
  return {event: count for event, count in events.items() if isinstance(event, kind)}


def _choose(name, kind, requested, present):
  """What was asked for; if nothing was, the only one present."""
  if requested is not None:
    _validate.one_of(list(kind), **{name: requested})
    return requested
  if len(present) > 1:
    raise ValueError(f"Expected {name} to be given, as the ledger has {_names(present)}; pass one of them.")
  return next(iter(present))


def _names(members):
  return ", ".join(sorted(members))
