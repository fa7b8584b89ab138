"""The records of a ledger file, between its header and its end, as writers make them."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from jdp.events.rounds import Event
from jdp.ledger.json_form import to_forms

END_RECORD = {"end": True}
"""The last record of a closed file."""


def entry_records(entries: Sequence[tuple[Event, int]]) -> Iterator[dict[str, Any]]:
  """Records of counted events that belong to no round."""
  start = 0
  for size, forms in to_forms((event,) for event, _ in entries):
    yield {"counts": [count for _, count in entries[start : start + size]], "events": forms}
    start += size


def round_records(first_round: int, rounds: Iterable[Sequence[Event]]) -> Iterator[dict[str, Any]]:
  """Records of rounds that follow each other. Rounds that differ only in numbers share a record."""
  for size, forms in to_forms(rounds):
    yield {"round": first_round, "size": size, "events": forms}
    first_round += size
