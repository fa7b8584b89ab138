"""In how many of a sampler's rounds a record can be (Statement 2.7)."""

import dataclasses
import functools
import operator
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from jdp.events import EventBase

_OF_ONE_ROUND = {
  *("clip_norm", "index", "position", "starts_epoch"),
  *(field.name for field in dataclasses.fields(EventBase)),
}
"""Fields of a run's events that differ between its rounds."""


def shared_fields(event: Any) -> tuple[Any, ...]:
  """What the events of all rounds of one run, or their samplings, have in common."""
  names = tuple(event.__dataclass_fields__)
  return type(event).__name__, *_values_shared(names)(event)


@functools.cache
def _values_shared(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
  """Reads those of an event's fields that do not differ between the rounds of a run."""
  shared = [name for name in names if name not in _OF_ONE_ROUND]
  if len(shared) > 1:
    return operator.attrgetter(*shared)
  return lambda event: tuple(getattr(event, name) for name in shared)


def most_apart(rounds: Iterable[tuple[Any, int]], separation: int, most: int) -> int:
  """The most of counted rounds that a record can be in: `most` of a run, any two so far apart.

  Rounds of one position are of as many runs. Rounds without a position are the successive ones of a
  run.
  """
  at, unnumbered = _by_position(rounds)
  runs = max(at.values(), default=0)
  of_one = min(most, _apart(sorted(at), separation))
  return runs * of_one + min(most, -(-unnumbered // separation))


def most_of_a_group(rounds: Iterable[tuple[Any, int]], num_groups: int) -> int:
  """The most of counted rounds that are of one group."""
  at, unnumbered = _by_position(rounds)
  of_group: Counter[int] = Counter()
  for position, count in at.items():
    of_group[position % num_groups] += count
  return max(of_group.values(), default=0) + -(-unnumbered // num_groups)


def _by_position(rounds: Iterable[tuple[Any, int]]) -> tuple[Counter[int], int]:
  """How many rounds there are at each position, and how many without one."""
  at, unnumbered = Counter[int](), 0
  for sampling, count in rounds:
    position = getattr(sampling, "position", None)
    if position is None:
      unnumbered += count
    else:
      at[int(position)] += count
  return at, unnumbered


def _apart(positions: list[int], separation: int) -> int:
  """How many of increasing positions can be chosen, any two so far apart."""
  chosen: list[int] = []
  for position in positions:
    if not chosen or position >= chosen[-1] + separation:
      chosen.append(position)
  return len(chosen)
