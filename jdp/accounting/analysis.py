"""Everything that accounting knows about the event of a query or a sampling, in one value.

An analysis is a tuple of functions that take the event as their first argument. Statements about a
ledger follow from the analyses of its events (`jdp.accounting.registration`), so no code asks for
the type of an event.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from enum import IntEnum
from typing import Any, NamedTuple

from jdp.accounting.families.base import CountedPairs, DominatingPair, Pairs
from jdp.events import Round
from jdp.guarantees import Relation

Rounds = Mapping[Round, int]
"""Rounds with their counts."""


class Attained(IntEnum):
  """The samples from which some data sets attain a release's pair; each includes those before."""

  NEVER = 0
  UNSAMPLED = 1  # samples of all records
  SEEN = 2  # samples that the observer sees
  POISSON = 3  # Poisson samples
  ALWAYS = 4  # samples of a fixed size, truncated samples, and epochs


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
    attained: event -> the samples from which some data sets attain the pair.
    worst: event -> the event whose pair these data sets attain, if it is not `event`.
    protects: whether it hides anything. If not, it costs the same under every relation.
    parts: event -> the events that it consists of: several releases of one sample, with independent
      noise. Everything else then follows from them.
    composed: (counted rounds, relation, whether the sample is known) -> the counted pairs of rounds
      that are charged together, rather than one by one.
    composes_groups: whether `composed` takes groups that hold such events, and charges all their
      parts. If not, groups that hold one are refused.
    composed_attained: as `composed`, for rounds that released nothing besides such an event: the
      pairs that data sets attain together. None: no such pairs are known.
    exported: (round, relation, whether the sample is known) -> the event of dp_accounting for a
      round that `composed` charges.
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


Composed = Callable[[Rounds, Relation, bool], CountedPairs]


class Release(NamedTuple):
  """What a query released about a record in the sample.

  Attributes:
    under: relation -> the dominating pairs for a record that takes part for certain. It raises
      ValueError for relations under which there is no analysis.
    is_central: whether the noise is the same whoever takes part (`QueryAnalysis`).
    sample_known: whether the observer sees who takes part.
    name: the name of the query's event, for messages.
  """

  under: Callable[[Relation], Pairs]
  is_central: bool
  sample_known: bool
  name: str


class Turns(NamedTuple):
  """Rounds of one sampler, of which a record can be in only some, whatever its coins are.

  Outside epochs, the event has `position` or `max_participations`, by which a sum of ledgers tells
  two runs apart.

  Attributes:
    sampler: a value that the events of all rounds of that sampler share, and those of another
      sampler do not. Events of two types belong to two samplers.
    most: counted events of the sampler, in the order in which they first happened -> the most of
      these rounds that a record can be in. Where its events disagree, the largest counts.
    of_epochs: whether they are rounds of epochs. Their events have `starts_epoch`, by which slices
      of a ledger mark the start of an epoch. Epochs whose pairs differ, and are not ordered
      (`Family.severity`), are refused. Outside epochs, all such pairs count.
    by_coins: the probability of a record's own fresh coins (or a bound on it), if it takes part by
      them until it has had its turns. Its rounds may then also be charged as those of their
      samples, or as releases of a record that takes part for certain, together with the pairs of
      `amplified` if these are more.
    alone: the sampling by which all rounds are charged if some release has fewer rounds than a
      record has turns. None: they are charged as they are.
    whole: counted events -> a lower bound on these turns in epochs that happened in full.
  """

  sampler: Hashable
  most: Callable[[Iterable[tuple[Any, int]]], int]
  of_epochs: bool = False
  by_coins: float = 0.0
  alone: Any = None
  whole: Callable[[Iterable[tuple[Any, int]]], int] = lambda rounds: 0


class Pattern(NamedTuple):
  """What a sampling promises about the rounds of a run that a record takes part in.

  Attributes:
    separation: any two of a record's rounds are at least this many rounds apart.
    most: the largest number of its rounds.
    epoch: the number of rounds in an epoch.
    per_epoch: the largest number of its rounds in an epoch.
    skipped: how many rounds of the first epoch were before the run. Where the rounds' samplings
      have `starts_epoch`, accounting finds it.
    open_rounds: in each of the first `open_rounds` rounds some record may take part.
  """

  separation: int
  most: int
  epoch: int = 1
  per_epoch: int = 1
  skipped: int = 0
  open_rounds: int = 0

  def within(self, num_rounds: int) -> int:
    """The largest number of a record's rounds among the first `num_rounds` of the run."""
    epochs = -(-(num_rounds + self.skipped) // self.epoch)
    return min(self.most, -(-num_rounds // self.separation), epochs * self.per_epoch)

  def meeting(self, turns: int, bands: int) -> int:
    """The most pairs, among `turns` of a record's rounds, that are less than `bands` rounds apart.

    The m-th round after a given one is at least m separations later. And `bands` rounds in a row
    touch at most (bands - 2) // epoch + 2 epochs (Statement 4.2).
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

  With the defaults alone it amplifies nothing. That holds for every sampling that does not depend
  on the records' data, under zero-out and replace-one.

  An event's fields `overflow_probability`, `population` and `position` are read where it has them.
  They mean the same as in `PoissonSampling` and `MinSeparationSampling`. An analysis may depend on
  all fields of an event except `position`, `index` and `starts_epoch`, which only `Turns.most` and
  `Turns.whole` read.

  Attributes:
    inclusion: event -> the probability that a record is in a round's sample, which its own data do
      not change. None: it is charged as if it were in all rounds that it can be in. The same holds
      where neither `anew` nor `fresh_coins` says that rounds are independent.
    amplified: (event, released, relation, release) -> the pairs of a record that is in the sample
      by chance, where `released` are the pairs of a record in it for certain. It is called only for
      samples that hide who is in them, and for releases that protect something.
    stays: event -> whether a record that leaves changes the rounds of nobody else, because each
      record's rounds follow from its own identity or coins. If not, add/remove is refused.
    charged: (event, relation, release) -> the relations under which a record's releases are
      charged, instead of what `stays` decides. It raises ValueError for relations under which the
      sampling has no analysis.
    turns: event -> how many of its sampler's rounds a record can be in. None: all.
    pattern: (event, number of rounds) -> what it promises about a record's rounds in that run.
    fresh_coins: whether each record is in each round's sample by a fresh coin of its own, all of
      one probability. It implies `anew`.
    anew: whether each round's sample is drawn anew, whatever the samples of other rounds were.
    run_probability: event -> the probability of such a coin in the rounds of `pattern`, by which a
      run with correlated noise is amplified. None: it is not amplified.
    attained: (event, whether the sample is known) -> the releases whose pairs, as charged, some
      data sets attain in it. None: none is known.
    exported: (event, charged, inner, relation) -> the event of dp_accounting, where `inner` is the
      event of a record that takes part for certain, and `charged` the pairs of a sampled one. It is
      called where `amplified` is. None: it is the event of the pairs `charged`.
    not_covered: relation -> what a statement of it lists as not covered. Empty: nothing.
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
