"""All that one observer saw of a ledger, as dominating pairs and what comes on top of them."""

from typing import NamedTuple

from jdp.accounting import local_releases
from jdp.accounting.composition import (
  Composition,
  compose_both,
  compose_rounds,
  events_of_type,
  events_seen,
)
from jdp.events import LocalRelease, Round
from jdp.guarantees import AnyGuarantee, Relation
from jdp.ledger import Ledger


class Observed(NamedTuple):
  """What one observer saw.

  Attributes:
    rounds: the pairs of all rounds.
    relation: under which they are.
    guarantee: of a unit's local releases together, by basic composition. None without any.
    releases: the pairs of a unit's local releases, apart from their deltas. None without any.
  """

  rounds: Composition
  relation: Relation
  guarantee: AnyGuarantee | None
  releases: Composition | None

  @property
  def joint(self) -> Composition:
    """The pairs of rounds and local releases, composed."""
    return self.rounds if self.releases is None else compose_both(self.rounds, self.releases)

  @property
  def delta(self) -> float:
    """The probability of the event apart from which local releases have their pairs."""
    return 0.0 if self.guarantee is None else self.guarantee.delta


def observed(
  ledger: Ledger, relation: str | None, observer: str | None, *, adaptive: bool = False
) -> Observed:
  """What an observer saw; arguments and errors as for `composition.events_seen`.

  Raises:
    ValueError: also if an event has no analysis under the relation.
  """
  events, chosen = events_seen(ledger, relation, observer, adaptive=adaptive)
  rounds, releases = events_of_type(Round, events), events_of_type(LocalRelease, events)
  # An observer of a user's reports knows that the user is in the sample. Sampling then hides
  # nobody.
  composed = compose_rounds(rounds, chosen, sample_known=bool(releases))
  if not releases:
    return Observed(composed, chosen, None, None)
  guarantee = local_releases.total_guarantee(releases)
  _check_local_relation(guarantee.relation, chosen, bool(rounds))
  return Observed(composed, chosen, guarantee, local_releases.compose_releases(releases))


def _check_local_relation(stated: Relation, chosen: Relation, with_rounds: bool) -> None:
  """Refuses a relation that local releases do not cover.

  The null record is a value, so replace-one covers zero-out.
  """
  if chosen not in {stated, Relation.ZERO_OUT if stated is Relation.REPLACE_ONE else stated}:
    raise ValueError(
      f"Expected relation {stated}, which the local releases state, got {chosen}; pass that "
      "relation."
    )
  if with_rounds and chosen is Relation.ADD_REMOVE:
    raise ValueError(
      "Expected relation replace_one or zero_out for rounds and local releases of one observer, "
      "got add_remove: who reports is seen; pass one of them, or account for each observer."
    )
