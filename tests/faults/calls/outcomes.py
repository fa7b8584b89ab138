"""What became of hostile tries, which may take no longer than the patience."""

import collections
import contextlib
import itertools
import pathlib
import random
import signal
import tempfile
import time
from typing import NamedTuple

PATIENCE = 8.0  # seconds of the processor
_WAITING = 10  # times as long may a try wait for anything but a processor that others use


class Hang(BaseException):
  """A call took longer than the patience; no `except Exception` of the library swallows it."""


class Outcome(NamedTuple):
  """What became of one try: "result", "refused", or a fault and its description."""

  kind: str
  tried: str = ""
  detail: str = ""


def fuzz(act, things, number, seed, told):
  """Tries act(thing, rng) so often, the things in turn; a count of each kind, and the faults.

  Each fault is told at once.
  """
  rng, counts, faults = random.Random(seed), collections.Counter(), []
  for thing in itertools.islice(itertools.cycle(things), number):
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
      outcome = act(thing, rng)
    counts[outcome.kind] += 1
    if outcome.kind not in ("result", "refused"):
      faults.append(outcome)
      told(outcome)
  return counts, faults


def classified(tried, function, refusals, explains):
  """What becomes of function(), which returns what is wrong with its result, or nothing.

  Args:
    tried: a description of the try.
    function: without arguments.
    refusals: the types of errors that may refuse a value.
    explains: whether such an error says what a user needs to know.
  """
  start = time.process_time()
  try:
    with patience():
      unsound = function()
  except Hang:
    return Outcome("hang", tried)
  except refusals as error:
    return Outcome("refused" if explains(error) else "unexplained", tried, _said(error))
  except Exception as error:
    return Outcome("raised", tried, _said(error))
  if time.process_time() - start > PATIENCE:
    return Outcome("hang", tried)
  return Outcome("unsound", tried, unsound) if unsound else Outcome("result", tried)


def _said(error):
  return f"{type(error).__name__}: {str(error)[:200]}"


@contextlib.contextmanager
def patience():
  """Raises `Hang` in a call that takes longer than the patience."""
  start = time.monotonic() - _queued()

  def interrupt(number, frame):
    raise Hang

  def interrupt_unless_queued(number, frame):
    if time.monotonic() - _queued() - start > _WAITING * PATIENCE:
      raise Hang

  timers = {
    signal.ITIMER_PROF: (signal.SIGPROF, PATIENCE, interrupt),
    signal.ITIMER_REAL: (signal.SIGALRM, _WAITING * PATIENCE, interrupt_unless_queued),
  }
  before = {number: signal.signal(number, call) for number, _, call in timers.values()}
  for timer, (_, seconds, _) in timers.items():
    # Again and again: an interruption within a destructor or a collection of garbage is lost.
    signal.setitimer(timer, seconds, PATIENCE / 8)
  try:
    yield
  finally:
    for timer in timers:
      signal.setitimer(timer, 0)
    for number, handler in before.items():
      signal.signal(number, handler)


def _queued():
  """Seconds for which this process's threads were ready, and others had the processor."""
  seconds = 0.0
  for task in pathlib.Path("/proc/self/task").glob("*/schedstat"):
    with contextlib.suppress(OSError):  # a thread that has just ended
      seconds += int(task.read_text().split()[1]) / 1e9
  return seconds
