"""What accounting knows of the event of a query, or of a sampling: all of it in one value.

An analysis is a value of functions that take the event first. Whatever is stated of a ledger is
found by the analyses of its events (`jdp.accounting.registration`), so that nothing asks what type
an event has.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from enum import IntEnum
from typing import Any, NamedTuple

from jdp.accounting.families.base import DominatingPair
from jdp.events import Round
from jdp.guarantees import Relation

Pairs = tuple[DominatingPair, ...]


class Attained(IntEnum):
  """Of which samples data sets attain the pair of a release; each includes those before it."""

  NEVER = 0
  UNSAMPLED = 1  # of all records
  SEEN = 2  # of samples that the observer sees
  POISSON = 3  # of Poisson samples
  ALWAYS = 4  # of samples of a fixed size, truncated ones, and epochs


class QueryAnalysis(NamedTuple):
  """What accounting knows of a query's event.

  With the defaults alone no sampling amplifies the release, and no lower bound counts it.

  Attributes:
    pair: (event, relation asked for, relation that its round declares) -> the `DominatingPair` of
      one release that the record takes part in. Its family is one of
      `jdp.accounting.families`. It raises ValueError for relations under which it is not
      proved.
    is_central: whether the noise is the same whoever takes part, and a null record (of weight 0)
      contributes what an absent one does. Only then does a sample hide who is in it.
    adds_up: whether k records move a release at most k times as far as one.
    attained: event -> of which samples data sets attain the pair.
    worst: event -> the event whose pair they attain, if it is not this one's.
    protects: whether it hides anything. If not, it costs the same under every relation.
    parts: event -> the events of several releases of one sample, with independent noise, which it
      is. All else is then known from them.
    composed: (counted rounds, relation, whether the sample is known) -> the counted pairs of rounds
      that are charged together, and not one by one.
    composes_groups: whether `composed` takes groups that hold such events, and charges all their
      parts. If not, groups that hold one are refused.
    composed_attained: as `composed`, of rounds that released nothing beside such an event: the
      pairs that data sets attain together. None: of none is that known.
    exported: (round, relation, whether the sample is known) -> the event of dp_accounting, of one
      that `composed` is for.
  """

  pair: Callable[[Any, Relation, Relation], DominatingPair] | None = None
  is_central: bool = False
  adds_up: bool = False
  attained: Callable[[Any], Attained] = lambda event: Attained.NEVER
  worst: Callable[[Any], Any] | None = None
  protects: bool = True
  parts: Callable[[Any], tuple[Any, ...]] | None = None
  composed: "Composed | None" = None
  composes_groups: bool = False
  composed_attained: "Composed | None" = None
  exported: Callable[[Round, Relation, bool], Any] | None = None


Composed = Callable[[Mapping[Round, int], Relation, bool], list[tuple[DominatingPair, int]]]


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

  Turns that are not of epochs are of an event that has `position` or `max_participations`, by which
  a sum of ledgers tells two runs apart.

  Attributes:
    sampler: what the events of all rounds of that sampler have in common, and those of another
      sampler have not. Events of two types are of two samplers.
    most: counted events of the sampler, in the order in which they first happened -> the most of
      these rounds that a record can be in. Where its events disagree, the largest counts.
    of_epochs: whether they are rounds of epochs. Their events have `starts_epoch`, by which slices
      of a ledger mark the start of one. Those whose pairs differ, and are not ordered
      (`Family.severity`), are refused. Else all of them count.
    by_coins: the probability of its own fresh coins by which a record takes part until it has had
      its turns (or a bound on it), if it does. Its rounds may then be charged as those of their
      samples as well, or as releases of a record that takes part for certain, with what `amplified`
      has beyond as many pairs.
    alone: the sampling as of which all rounds are charged where those of some release are fewer
      than the turns; None: as they are.
    whole: counted events -> of these turns, those of epochs that happened in full, at least.
  """

  sampler: Hashable
  most: Callable[[Iterable[tuple[Any, int]]], int]
  of_epochs: bool = False
  by_coins: float = 0.0
  alone: Any = None
  whole: Callable[[Iterable[tuple[Any, int]]], int] = lambda rounds: 0


class Pattern(NamedTuple):
  """What a sampling promises of a record's rounds in a run.

  Attributes:
    separation: any two are at least so far apart.
    most: how many there are at most.
    epoch: the rounds of an epoch.
    per_epoch: how many there are at most in an epoch.
    skipped: how many rounds of its first epoch were before the run. Where the rounds' samplings
      have `starts_epoch`, accounting finds it.
    open_rounds: in each of so many first rounds some record may take part.
  """

  separation: int
  most: int
  epoch: int = 1
  per_epoch: int = 1
  skipped: int = 0
  open_rounds: int = 0

  def within(self, num_rounds: int) -> int:
    """How many there are at most in the first rounds of the run."""
    epochs = -(-(num_rounds + self.skipped) // self.epoch)
    return min(self.most, -(-num_rounds // self.separation), epochs * self.per_epoch)

  def meeting(self, turns: int, bands: int) -> int:
    """How many pairs there are at most, of so many, that are less than `bands` rounds apart.

    The m-th one after another is m separations later, and of another epoch than the next one if
    those between do not fit into two (Statement 4.2).
    """
    near = min(
      turns - 1,
      (bands - 1) // self.separation,
      self.per_epoch * ((bands - 2) // self.epoch + 2) - 1,
    )
    pairs = near * turns - near * (near + 1) // 2
    alone = self.per_epoch == 1 and 2 * (bands - 1) <= self.epoch
    return min(pairs, turns // 2) if alone else pairs


def _as_they_are(event: Any, released: Pairs, relation: Relation, release: Release) -> Pairs:
  return released


class SamplingAnalysis(NamedTuple):
  """What accounting knows of a sampling's event.

  With the defaults alone it amplifies nothing. That is true of every sampling which does not depend
  on the records' data, under zero-out and replace-one.

  An event's fields `overflow_probability`, `population` and `position` are read where it has them,
  and mean what those of `PoissonSampling` and `MinSeparationSampling` do. What is said of an event
  may depend on all its fields but `position`, `index` and `starts_epoch`, which `Turns.most`
  and `Turns.whole` alone read.

  Attributes:
    inclusion: event -> the probability that a record is in a round's sample, which its own data do
      not change. None: it is charged as if it were in all rounds that it can be in. So it is where
      neither `anew` nor `fresh_coins` says that rounds are independent.
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
      one probability. It says `anew` as well.
    anew: whether each round's sample is drawn anew, whatever the samples of other rounds were.
    run_probability: event -> the probability of such a coin in the rounds of `pattern`, by which a
      run with correlated noise is amplified; None: it is not.
    attained: (event, whether the sample is known) -> which releases' pairs, as they are
      charged, data sets attain in it; None: of none is that known.
    exported: (event, charged, inner, relation) -> the event of dp_accounting, where `inner` is that
      of a record that takes part for certain, and `charged` the pairs of this one. It is asked as
      `amplified` is. None: it is that of those pairs.
    not_covered: relation -> what a statement of it says that it does not cover; empty for nothing.
  """

  inclusion: Callable[[Any], float] | None = None
  amplified: Callable[[Any, Pairs, Relation, Release], Pairs] = _as_they_are
  stays: Callable[[Any], bool] = lambda event: False
  charged: Callable[[Any, Relation, Release], tuple[Relation, ...]] | None = None
  turns: Callable[[Any], Turns | None] = lambda event: None
  pattern: Callable[[Any, int], Pattern] = lambda event, num_rounds: Pattern(1, num_rounds)
  fresh_coins: bool = False
  anew: bool = False
  run_probability: Callable[[Any], float | None] = lambda event: None
  attained: Callable[[Any, bool], Attained | None] = lambda event, sample_known: None
  exported: Callable[[Any, Pairs, Any, Relation], Any] | None = None
  not_covered: Callable[[Relation], str] = lambda relation: ""

  def takes_all(self, event: Any) -> bool:
    """Whether every record is in the round's sample."""
    return self.inclusion is not None and self.inclusion(event) == 1
