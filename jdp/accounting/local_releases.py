"""The cost of a unit's local releases: by basic composition, and as dominating pairs."""

import dataclasses
from collections import Counter
from collections.abc import Mapping

from jdp._arguments import checked
from jdp.accounting.composition import (
  Composition,
  compose_pairs,
  most_severe_pairs,
)
from jdp.accounting.families import PURE
from jdp.accounting.seen import events_seen, split
from jdp.events import LocalRelease
from jdp.guarantees import AnyGuarantee, Guarantee, compose
from jdp.ledger import Ledger


@checked
def local_guarantee(ledger: Ledger, observer: str | None = None) -> AnyGuarantee:
  """The guarantee of all local releases that one observer saw of one unit.

  Epsilons add up (and deltas, and the parts of a separated guarantee). A unit makes at most
  `max_releases` releases, so only that many count. The most expensive ones count, part by part:
  which of the rounds the unit took part in must not matter. Rounds of central mechanisms are not
  counted.

  Args:
    ledger: holds at least one `LocalRelease`.
    observer: whose view. None: that of the only observer of local releases.

  Returns:
    A `SeparatedDP` if every release is separated, a `PureDP` if none has a delta, else an
    `ApproxDP`. It is for the releases' relation, unit and observer.

  Raises:
    ValueError: if there is no local release. Also if observers (None given), relations, units or
      caps differ.

  >>> from jdp.guarantees import SeparatedDP
  >>> event = LocalRelease(SeparatedDP(8.0, 2.0), max_releases=3)
  >>> print(local_guarantee(Ledger().append(event, count=1000)))
  (24, 6)-separated, 30-DP per value (replace one), against the server
  """
  entries = tuple(split(ledger.entries).releases)
  if not entries:
    raise ValueError(
      "Expected a ledger with local releases, got none; ask `epsilon` what rounds cost."
    )
  return total_guarantee(events_seen(Ledger(entries), None, observer).releases)


def compose_releases(releases: Mapping[LocalRelease, int]) -> Composition:
  """The pairs of the most expensive releases that a unit may make, apart from their deltas.

  An (epsilon, delta)-DP release is an epsilon-DP one but for an event of probability delta (arXiv
  1311.0776). So the releases together have these pairs, but for an event of the sum of the deltas,
  that of `total_guarantee`.
  """
  table: Counter[tuple[float, ...]] = Counter()
  for release, count in releases.items():
    table[(release.guarantee.epsilon,)] += count
  (cap,) = {release.max_releases for release in releases}
  return compose_pairs(most_severe_pairs(PURE, table, table.total() if cap is None else cap))


def total_guarantee(releases: Mapping[LocalRelease, int]) -> AnyGuarantee:
  """The guarantee of counted releases, of which a unit makes no more than their common cap."""
  caps = {release.max_releases for release in releases}
  if len(caps) > 1:
    raise ValueError(
      f"Expected local releases with one participation cap, got max_releases {caps}; record the "
      "cap over all of them."
    )
  everything = compose([release.guarantee.repeat(count) for release, count in releases.items()])
  cap = caps.pop()
  if cap is None:
    return everything
  # The cap holds for each part (epsilon, delta, ...) alone: the largest values of each add up.
  parts = {f.name for f in dataclasses.fields(everything)} - {
    f.name for f in dataclasses.fields(Guarantee)
  }
  counted = {
    part: min(getattr(everything, part), _sum_of_largest(part, releases, cap)) for part in parts
  }
  return dataclasses.replace(everything, **counted)


def _sum_of_largest(part: str, releases: Mapping[LocalRelease, int], cap: int) -> float:
  """What the `cap` largest values of a part add up to."""
  result = 0.0
  for value, count in sorted(
    ((getattr(release.guarantee, part), n) for release, n in releases.items()), reverse=True
  ):
    taken = min(count, cap)
    if taken:  # Zero times infinity is NaN.
      result += taken * value
    cap -= taken
  return result
