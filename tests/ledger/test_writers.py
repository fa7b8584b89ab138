"""Appends that returned are on file, whichever process or thread asked for them."""

import concurrent.futures
import contextlib
import functools
import os
import time
import warnings

import pytest

from jdp.events import GaussianSum, PoissonSampling, Round
from jdp.ledger import DurableLedger, load

_WRITERS, _EACH = 10, 100


def started(act):
  """Starts a child process that runs `act` and exits with 0, or with 7 if it was refused."""
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # JAX and Python warn of threads, of which `act` needs none.
    child = os.fork()
  if child:
    return child
  try:
    act()
    os._exit(0)
  except OSError as error:
    os._exit(7 if "got a child of it" in str(error) else 1)
  finally:
    os._exit(1)


def status(child):
  return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def event(number):
  return Round(PoissonSampling(0.1), GaussianSum(1.0, float(1 + number)))


@pytest.mark.parametrize("finishes", [False, True])
def test_children_of_the_opener_write_nothing(tmp_path, finishes):
  ledger = DurableLedger(tmp_path / "ledger", "run")
  ledger.append(0, [event(0)])
  act = ledger.finish if finishes else lambda: ledger.append(1, [event(2)])
  assert [status(child) for child in [started(act) for _ in range(_WRITERS)]] == [7] * _WRITERS
  ledger.append(1, [event(1)])  # The opener goes on.
  ledger.close()
  assert list(load(tmp_path / "ledger")) == [event(0), event(1)]


def test_ten_threads_lose_none_of_a_thousand_appends(tmp_path, monkeypatch):
  monkeypatch.setattr(os, "fsync", lambda descriptor: None)
  ledger = DurableLedger(tmp_path / "ledger", "run")

  def write(writer):
    """Appends each of its events as the next round, whatever the others do."""
    for number in range(writer * _EACH, (writer + 1) * _EACH):
      while True:
        with contextlib.suppress(ValueError):  # Another thread's event has become this round.
          ledger.append(ledger.last_round + 1, [event(number)])
          break

  with concurrent.futures.ThreadPoolExecutor(_WRITERS) as pool:
    list(pool.map(write, range(_WRITERS)))
  ledger.close()
  assert list(load(tmp_path / "ledger")) == list(ledger.ledger)
  assert {*ledger.ledger} == set(map(event, range(_WRITERS * _EACH)))


@pytest.mark.slow
def test_ten_processes_in_turn_lose_none_of_a_thousand_appends(path, monkeypatch):
  monkeypatch.setattr(os, "fsync", lambda descriptor: None)

  def write(writer):
    while True:
      with contextlib.suppress(BlockingIOError):  # Another process has it.
        ledger = DurableLedger(path, "run")
        break
      time.sleep(0.001)
    for number in range(writer * _EACH, (writer + 1) * _EACH):
      ledger.append(ledger.last_round + 1, [event(number)])
    ledger.close()

  children = [started(functools.partial(write, writer)) for writer in range(_WRITERS)]
  assert list(map(status, children)) == [0] * _WRITERS
  assert {*load(path)} == set(map(event, range(_WRITERS * _EACH)))
