"""What accounting knows of a sampling's event, and the registry of that.

An analysis is a value of functions that take the event first. All that is stated of a ledger is
found by it, so that nothing else asks what type an event has. jdp's own events are registered by
the same call as a stranger's, in `jdp.accounting.samplings`.
"""

from collections.abc import Callable, Hashable, Iterable
from typing import Any, NamedTuple

from jdp._arguments import checked
from jdp.accounting.pair_families import DominatingPair
from jdp.events import SamplingEvent, sampling_event_types
from jdp.guarantees import Relation

Pairs = tuple[DominatingPair, ...]


class Release(NamedTuple):
  """What a query released of a record in the sample.

  Attributes:
    under: relation -> its dominating pairs, of a record that takes part for certain. It raises
      ValueError for relations under which there is no analysis.
    is_central: whether the noise is the same whoever takes part (`QueryAnalysis`).
    sample_known: whether the observer sees who takes part.
    name: of the query's event, for messages.
  """

  under: Callable[[Relation], Pairs]
  is_central: bool
  sample_known: bool
  name: str


class Turns(NamedTuple):
  """Rounds of one sampler, of which a record can be in some only, whatever its coins are.

  Attributes:
    sampler: what the events of all rounds of that sampler have in common.
    most: counted events of the sampler, in the order in which they first happened -> the most of
      these rounds that a record can be in.
    of_epochs: whether they are rounds of epochs. Those whose pairs differ, and are not ordered, are
      refused. Else all of them count.
    by_coins: whether a record takes part by its own coins until it has had its turns. Its rounds
      may then be charged as those of their samples as well.
  """

  sampler: Hashable
  most: Callable[[Iterable[tuple[Any, int]]], int]
  of_epochs: bool = False
  by_coins: bool = False


class Pattern(NamedTuple):
  """What a sampling promises of a record's rounds in a run.

  Attributes:
    separation: any two are at least so far apart.
    most: how many there are at most.
  """

  separation: int
  most: int

  def within(self, num_rounds: int) -> int:
    """How many there are at most in so many successive rounds."""
    return min(self.most, -(-num_rounds // self.separation))


def _as_they_are(event: Any, released: Pairs, relation: Relation, release: Release) -> Pairs:
  return released


class SamplingAnalysis(NamedTuple):
  """What accounting knows of a sampling's event.

  With the defaults alone it amplifies nothing. That is true of every sampling which does not depend
  on the records' data, under zero-out and replace-one.

  An event's fields `overflow_probability`, `population` and `position` are read where it has them,
  and mean what those of `PoissonSampling` and `MinSeparationSampling` do.

  Attributes:
    inclusion: event -> the probability that a record is in a round's sample, which its own data do
      not change. None: it is charged as if it were in all rounds that it can be in.
    amplified: (event, released, relation, release) -> the pairs of a record that is in the sample
      by chance, where `released` are those of one in it for certain. It is asked only of samples
      that hide who is in them, and of releases that protect something.
    stays: event -> whether a record that leaves changes the rounds of nobody else, as each record's
      follow from its own identity or coins. If not, add/remove is refused.
    charged: (event, relation, release) -> the relations under which a record's releases are
      charged, in the place of what `stays` decides. It raises ValueError for relations under which
      the sampling has no analysis.
    turns: event -> in how many of its sampler's rounds a record can be; None: in all.
    pattern: (event, number of rounds) -> what it promises of a record's rounds in that run.
    fresh_coins: whether each record is in each round's sample by a fresh coin of its own, all of
      one probability.
    run_probability: event -> the probability of such a coin in the rounds of `pattern`, by which a
      run with correlated noise is amplified; None: it is not.
    exported: (event, charged, inner) -> the event of dp_accounting, where `inner` is that of a
      release of all records, and `charged` the pairs of this one. It is asked as `amplified` is.
  """

  inclusion: Callable[[Any], float] | None = None
  amplified: Callable[[Any, Pairs, Relation, Release], Pairs] = _as_they_are
  stays: Callable[[Any], bool] = lambda event: False
  charged: Callable[[Any, Relation, Release], tuple[Relation, ...]] | None = None
  turns: Callable[[Any], Turns | None] = lambda event: None
  pattern: Callable[[Any, int], Pattern] = lambda event, num_rounds: Pattern(1, num_rounds)
  fresh_coins: bool = False
  run_probability: Callable[[Any], float | None] = lambda event: None
  exported: Callable[[Any, Pairs, Any], Any] = lambda event, charged, inner: inner

  def takes_all(self, event: Any) -> bool:
    """Whether every record is in the round's sample."""
    return self.inclusion is not None and self.inclusion(event) == 1


_SAMPLINGS: dict[type, SamplingAnalysis] = {}


@checked
def register_sampling(event_type: type, analysis: SamplingAnalysis) -> None:
  """Makes ledgers that hold a sampling's event accountable, by mathematics of its own.

  This is the public call for code outside the package. Where the event amplifies what a known one
  does, `jdp.accounting.charge_as` says so in a line.

  Args:
    event_type: of a sampling's event. It was made by `jdp.events.register_sampling`.
    analysis: what the sampling does to a release.

  Raises:
    ValueError: if the type is no sampling event, or has an analysis or a rule.

  >>> from jdp.events import PoissonSampling
  >>> register_sampling(PoissonSampling, SamplingAnalysis())
  Traceback (most recent call last):
  ...
  ValueError: Expected a sampling event without an analysis, got PoissonSampling; make it a new \
event.
  """
  from jdp.accounting.charged_as import has_rule

  if event_type not in sampling_event_types():
    raise ValueError(
      f"Expected the type of a sampling's event, got {event_type.__name__}; make it one by "
      "jdp.events.register_sampling."
    )
  if event_type in _SAMPLINGS or has_rule(event_type):
    raise ValueError(
      f"Expected a sampling event without an analysis, got {event_type.__name__}; make it a new "
      "event."
    )
  _SAMPLINGS[event_type] = analysis


def has_sampling_analysis(event_type: type) -> bool:
  """Whether samplings' events of this type have an analysis of their own."""
  return event_type in _SAMPLINGS


def sampling_analysis(sampling: SamplingEvent) -> SamplingAnalysis:
  """The analysis of a sampling's event.

  Raises:
    ValueError: if it has none.
  """
  if (found := _SAMPLINGS.get(type(sampling))) is None:
    raise ValueError(
      f"Expected a sampling that has an analysis, got {type(sampling).__name__}; record the round "
      "as a PoissonSampling of probability 1, which amplifies nothing."
    )
  return found
