"""A process that times its work once for every request, so that processes can take turns."""

import sys
import time
from collections.abc import Callable

import numpy as np

SHAPE, CLASSES, USERS, EXAMPLES, COHORT, BATCH = (28, 28), 10, 1000, 10, 500, 256
LEARNING_RATE, CLIP_NORM, NOISE_MULTIPLIER = 0.1, 1.0, 1.0


def images(count: int) -> tuple[np.ndarray, np.ndarray]:
  """The same random images and labels for every library."""
  rng = np.random.default_rng(0)
  return rng.random((count, *SHAPE), np.float32), rng.integers(0, CLASSES, count)


def serve(run: Callable[[], None], work: float) -> None:
  """Warms up, prints the units of work of one run, and then times one run for every line read.

  The time of all the process's threads on a core comes before the time that passed.
  """
  run()
  print("work", work, flush=True)
  for _ in sys.stdin:
    start, cpu = time.perf_counter(), time.process_time()
    run()
    seconds = time.perf_counter() - start
    print("cpu", time.process_time() - cpu)
    print("seconds", seconds, flush=True)
