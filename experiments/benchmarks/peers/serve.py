"""A process that times its work once for every request, so that processes can take turns."""

import sys
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

SHAPE, CLASSES, BATCH = (28, 28), 10, 256
_TURN = 0.2
LEARNING_RATE, CLIP_NORM, NOISE_MULTIPLIER = 0.1, 1.0, 1.0


class Cohort(NamedTuple):
  """The users of federated averaging.

  Attributes:
    shape: of an image.
    users: how many there are.
    examples: of each user, who trains on all of them once.
    size: users of a round.
    batch: examples of a local step.
    clip_norm: of a user's update.
  """

  shape: tuple[int, ...] = SHAPE
  users: int = 1000
  examples: int = 10
  size: int = 500
  batch: int = 10
  clip_norm: float = CLIP_NORM


USUAL = Cohort()


def cohort_of(model: str) -> Cohort:
  """The users who train a model; of `cifar10` those of pfl-research's own benchmark.

  These are the sizes of its `benchmarks/image_classification/configs/baseline.yaml`.
  """
  return Cohort((32, 32, 3), 1000, 50, 50, 10, 0.4) if model == "cifar10" else USUAL


def images(count: int, shape: tuple[int, ...] = SHAPE) -> tuple[np.ndarray, np.ndarray]:
  """The same random images and labels for every library."""
  rng = np.random.default_rng(0)
  return rng.random((count, *shape), np.float32), rng.integers(0, CLASSES, count)


class Case(NamedTuple):
  """Something to time: `run` does `work` units of work."""

  run: Callable[[], None]
  work: float


def serve(run: Callable[[], None], work: float) -> None:
  """`serve_cases` of one case."""
  serve_cases({"": Case(run, work)})


def serve_cases(cases: Mapping[str, Case]) -> None:
  """Warms all up, prints the work of the first, and times one case for every line, which names it.

  A short run is repeated to fill `_TURN` seconds of processor time. The units of work
  that were done come before the time of all the process's threads on a core, and that comes before
  the time that passed.
  """
  repeats = {name: _repeats(case) for name, case in cases.items()}
  print("work", next(iter(cases.values())).work, flush=True)
  for line in sys.stdin:
    name = line.rstrip("\n")
    start, cpu = time.perf_counter(), time.process_time()
    for _ in range(repeats[name]):
      cases[name].run()
    seconds = time.perf_counter() - start
    print("work", cases[name].work * repeats[name])
    print("cpu", time.process_time() - cpu)
    print("seconds", seconds, flush=True)


def _repeats(case: Case) -> int:
  case.run()
  start = time.process_time()
  case.run()
  return max(1, round(_TURN / (time.process_time() - start)))
