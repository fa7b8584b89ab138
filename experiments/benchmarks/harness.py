"""A harness for benchmarks: times cases side by side, and reports medians and ratios.

Absolute times drift with the machine's load, but ratios within one run hold. So all cases take
turns, round by round, and each is reported beside a baseline. Results can be appended to a file as
JSON, with the machine's facts.
"""

import json
import os
import pathlib
import platform
import resource
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jaxlib
from absl import flags

ROUNDS = flags.DEFINE_integer("rounds", 7, "How often each case is timed.", lower_bound=1)
JSON = flags.DEFINE_string("json", None, "A JSON Lines file to append the results to.")


class Case(NamedTuple):
  """A case to time: `run` does `work` units of work (vectors, clients, values) in one call."""

  run: Callable[[], Any]
  work: float


class Timing(NamedTuple):
  """The time that one case took.

  Attributes:
    name: of the case.
    seconds: median time of one run.
    rate: median units of work per second.
    ratio: median over the rounds of the rate over the baseline's in the same round.
    cpu_seconds: median time of one run on all cores together. None where it was not measured.
  """

  name: str
  seconds: float
  rate: float
  ratio: float
  cpu_seconds: float | None = None


def compare(cases: Mapping[str, Case], *, baseline: str, rounds: int = 7) -> list[Timing]:
  """Times all cases in turn, after one warm-up of each (which compiles).

  Args:
    cases: by name.
    baseline: the name of the case that ratios refer to.
    rounds: how often each case is timed.

  Returns:
    A `Timing` for each case, in order. A ratio above 1 is faster than the baseline.
  """
  for case in cases.values():
    jax.block_until_ready(case.run())
  seconds: dict[str, list[float]] = {name: [] for name in cases}
  cpu_seconds: dict[str, list[float]] = {name: [] for name in cases}
  for _ in range(rounds):
    for name, case in cases.items():
      start, cpu = time.perf_counter(), _cpu_seconds()
      jax.block_until_ready(case.run())
      seconds[name].append(time.perf_counter() - start)
      cpu_seconds[name].append(_cpu_seconds() - cpu)
  base = [cases[baseline].work / s for s in seconds[baseline]]
  timings = []
  for name, case in cases.items():
    rates = [case.work / s for s in seconds[name]]
    ratio = statistics.median(r / b for r, b in zip(rates, base, strict=True))
    timings.append(
      Timing(
        name,
        statistics.median(seconds[name]),
        statistics.median(rates),
        ratio,
        statistics.median(cpu_seconds[name]),
      )
    )
  return timings


def _cpu_seconds() -> float:
  """The time that this process and those that it waited for took on all cores."""
  used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
  return sum(own.ru_utime + own.ru_stime for own in used)


def report(
  title: str,
  timings: list[Timing],
  unit: str,
  *,
  shares: Mapping[str, Any] | None = None,
  json_path: str | None = None,
) -> None:
  """Prints a table, and appends it to a JSON Lines file if one is named.

  The file's rows hold the machine's facts too, and shares of the best if there are any.
  """
  print(f"\n{title}\n{'case':<44} {'median ms':>10} {'CPU ms':>10} {unit + '/s':>16} {'ratio':>7}")
  for timing in timings:
    cpu = "" if timing.cpu_seconds is None else f"{1e3 * timing.cpu_seconds:.3f}"
    print(
      f"{timing.name:<44} {1e3 * timing.seconds:>10.3f} {cpu:>10} {timing.rate:>16,.0f} "
      f"{timing.ratio:>7.2f}"
    )
  for name, share in (shares or {}).items():
    print(f"{name}, share of the best: {json.dumps(share)}")
  append(
    {
      "title": title,
      "unit": unit,
      "machine": machine(),
      "timings": [t._asdict() for t in timings],
    }
    | ({"shares": shares} if shares else {}),
    json_path,
  )


def append(row: Mapping[str, Any], json_path: str | None) -> None:
  """Appends a row to a JSON Lines file, if one is named."""
  if json_path:
    with pathlib.Path(json_path).open("a") as file:
      file.write(json.dumps(row) + "\n")


def read(json_path: str) -> list[dict[str, Any]]:
  """The rows of a file that `append` wrote."""
  return [json.loads(line) for line in pathlib.Path(json_path).read_text().splitlines()]


def machine() -> dict[str, Any]:
  """What the figures depend on: versions, devices, cores, and the load of the last minute."""
  return {
    "python": platform.python_version(),
    "jax": jax.__version__,
    "jaxlib": jaxlib.__version__,
    "platform": platform.platform(),
    "cores": os.cpu_count(),
    "load": os.getloadavg()[0],
    "devices": [device.device_kind for device in jax.devices()],
  }
