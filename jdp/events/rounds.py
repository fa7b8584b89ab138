"""Events of a ledger: rounds, and releases by local mechanisms."""

from typing import Annotated

from jdp.events.base import NO_NUMBER, EventBase, event, whole_if_given
from jdp.events.queries import QueryEvent
from jdp.events.sampling import SamplingEvent
from jdp.guarantees import AnyGuarantee, Observer, Relation, Unit


@event
class Round(EventBase):
  """One sample was drawn and its noised sum released.

  Attributes:
    sampling: How the records of the round were chosen.
    query: What was released about them.
    relation: The neighbouring relation that the run declares. On request, the accountant computes
      for another relation if an analysis is proved for it.
    unit: What one record is.
    observer: Who sees the release. For a noised sum, this is anyone who sees the models.

  >>> from jdp import accounting, ledger
  >>> from jdp.events import GaussianSum, PoissonSampling, Round
  >>> event = Round(PoissonSampling(0.01), GaussianSum(1.0, 2.0), unit="example", number=7)
  >>> round(accounting.epsilon(ledger.Ledger().append(event, count=1000), 1e-5), 2)
  0.62
  """

  sampling: Annotated[SamplingEvent, EventBase]  # at run time also a registered event
  query: QueryEvent
  relation: Relation = Relation.ADD_REMOVE
  unit: Unit = Unit.USER
  observer: Observer = Observer.MODEL

  def __post_init__(self):
    # The query's event has the number, as it is made where the sum is released. It is compared by
    # identity, because it may be a tracer.
    if self.number is NO_NUMBER:
      object.__setattr__(self, "number", self.query.number)


@event
class LocalRelease(EventBase):
  """Each unit that took part in a round released one value through a local mechanism.

  Attributes:
    guarantee: What one release costs, with its relation, unit and observer.
    max_releases: The most releases that one unit makes over the whole run. This is the
      participation cap times the releases that the unit makes in a round. None means as many as
      there are rounds.

  >>> from jdp import accounting, ledger
  >>> from jdp.events import LocalRelease
  >>> from jdp.guarantees import PureDP
  >>> event = LocalRelease(PureDP(0.5, unit="user"), max_releases=3)
  >>> accounting.epsilon(ledger.Ledger().append(event, count=10), delta=0.0)
  1.5
  """

  guarantee: AnyGuarantee
  max_releases: int | None = None

  def __post_init__(self):
    whole_if_given(max_releases=self.max_releases)

  @property
  def relation(self) -> Relation:
    """The relation of the release's guarantee."""
    return self.guarantee.relation

  @property
  def unit(self) -> Unit:
    """The unit of the release's guarantee."""
    return self.guarantee.unit

  @property
  def observer(self) -> Observer:
    """The observer of the release's guarantee."""
    return self.guarantee.observer


Event = Round | LocalRelease
"""What a ledger holds."""
