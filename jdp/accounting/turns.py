"""In how many of a sampling's rounds a record can be (Statement 2.7)."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from jdp.events import (
  CyclicPoissonSampling,
  MinSeparationSampling,
  PoissonSampling,
  SamplingEvent,
)


def is_capped(sampling: Any) -> bool:
  """Whether records take part by their own coins until a cap."""
  return isinstance(sampling, PoissonSampling) and sampling.max_participations is not None


def takes_turns(sampling: SamplingEvent) -> bool:
  """Whether a record can be in some rounds of a run only, whatever its coins are."""
  return isinstance(sampling, MinSeparationSampling | CyclicPoissonSampling) or is_capped(sampling)


def most_turns(rounds: Iterable[tuple[SamplingEvent, int]]) -> int:
  """The most of counted rounds, which are sampled alike, that a record can be in.

  Rounds of one position are of as many runs. Rounds without a position are the successive ones of a
  run.
  """
  at, unnumbered, sampling = Counter[int](), 0, None
  for sampling, count in rounds:
    position = getattr(sampling, "position", None)
    if position is None:
      unnumbered += count
    else:
      at[int(position)] += count
  if isinstance(sampling, CyclicPoissonSampling):
    of_group: Counter[int] = Counter()
    for position, count in at.items():
      of_group[position % sampling.num_groups] += count
    return max(of_group.values(), default=0) + -(-unnumbered // sampling.num_groups)
  assert isinstance(sampling, MinSeparationSampling | PoissonSampling)
  separation = getattr(sampling, "min_separation", 1)
  most = sampling.max_participations
  assert most is not None
  runs = max(at.values(), default=0)
  of_one = min(most, _apart(sorted(at), separation))
  return runs * of_one + min(most, -(-unnumbered // separation))


def _apart(positions: list[int], separation: int) -> int:
  """How many of increasing positions can be chosen, any two so far apart."""
  chosen: list[int] = []
  for position in positions:
    if not chosen or position >= chosen[-1] + separation:
      chosen.append(position)
  return len(chosen)
