"""What all benchmarks share: a command line, cases that take turns, files of rows, and tables.

    python -m experiments.benchmarks SUBJECT                    # lists a module's benchmarks
    python -m experiments.benchmarks SUBJECT NAME --json=FILE   # measures; FILE gets the rows
    python -m experiments.benchmarks SUBJECT NAME --table=FILE  # prints a file's rows as tables
    python -m experiments.benchmarks SUBJECT NAME --smallest    # small sizes, to try the program

A benchmark is a generator of rows, and its arguments are the options of its command. Each row is
written as it is found, with the machine's facts.

A machine's speed drifts with its load, but ratios within one run hold. So cases take turns, in an
order that changes, and each is reported beside the first. Cases of other libraries, or of another
checkout of jdp, run in processes of their own.
"""

import argparse
import contextlib
import importlib
import inspect
import json
import os
import pathlib
import platform
import random
import resource
import statistics
import subprocess
import sys
import time
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import absl.logging
import jax
import jaxlib

from experiments.runner.reports.tables import table

HERE = pathlib.Path(__file__).resolve().parents[2]
PEERS = pathlib.Path("experiments", "benchmarks", "peers")
Row = dict[str, Any]
_OWN = ("subject", "name", "smallest")  # what the command line holds beside options


class Case(NamedTuple):
  """A case to time: `run` does `work` units of work (vectors, clients, values) in one call."""

  run: Callable[[], object]
  work: float


class Command(NamedTuple):
  """A case that a process of its own runs.

  Attributes:
    script: a file of `peers` with its arguments. It answers as `peers.serve` does.
    devices: how many it simulates. None: as many as it makes itself.
    checkout: the checkout whose packages it imports, and whose script it runs. Without such a
      script there, it runs this checkout's.
    python: its interpreter.
    case: the name of what is timed, if the process serves several. Commands that differ in nothing
      else share a process.
  """

  script: tuple[str, ...]
  devices: int | None = 1
  checkout: pathlib.Path = HERE
  python: str = sys.executable
  case: str = ""


class Turn(NamedTuple):
  """One run of a case.

  Attributes:
    work: units of work that were done.
    seconds: that passed.
    cpu: the time of all threads on a core. None if it is not known.
  """

  work: float
  seconds: float
  cpu: float | None

  @property
  def rate(self) -> float:
    """Units of work per second."""
    return self.work / self.seconds


class Timing(NamedTuple):
  """The time that one case took.

  Attributes:
    name: of the case.
    seconds: median time of one run.
    rate: median units of work per second.
    ratio: median over the rounds of the rate over the first case's in the same round.
    cpu_seconds: median time of one run on all cores together. None where it was not measured.
  """

  name: str
  seconds: float
  rate: float
  ratio: float
  cpu_seconds: float | None = None


def compiled(function: Callable[..., object], *args: object, work: float) -> Case:
  """The case that calls a function, compiled, with these arguments."""
  return Case(partial(jax.jit(function), *args), work)


def take_turns(cases: Mapping[str, Case | Command], rounds: int) -> list[dict[str, Turn]]:
  """Runs every case once in each turn, after a first run that compiles it."""
  shuffled = random.Random(0).sample
  with contextlib.ExitStack() as stack:
    runs = _started(cases, stack)
    return [{name: runs[name]() for name in shuffled(list(runs), len(runs))} for _ in range(rounds)]


def _started(
  cases: Mapping[str, Case | Command], stack: contextlib.ExitStack
) -> dict[str, Callable[[], Turn]]:
  """Functions that run a case once. All cases are warm."""
  commands = {name: case for name, case in cases.items() if isinstance(case, Command)}
  processes = {command._replace(case="") for command in commands.values()}
  workers = {process: _Worker(stack, process) for process in processes}
  for worker in workers.values():
    worker.wait()
  for case in cases.values():
    if isinstance(case, Case):
      jax.block_until_ready(case.run())
  return {
    name: partial(workers[case._replace(case="")].run, case.case)
    if isinstance(case, Command)
    else partial(_timed, case)
    for name, case in cases.items()
  }


def _timed(case: Case) -> Turn:
  start, cpu = time.perf_counter(), _cpu_seconds()
  jax.block_until_ready(case.run())
  seconds = time.perf_counter() - start
  return Turn(case.work, seconds, _cpu_seconds() - cpu)


def _cpu_seconds() -> float:
  """The time that this process and those that it waited for took on all cores."""
  used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
  return sum(own.ru_utime + own.ru_stime for own in used)


class _Worker:
  """A process that runs a case once for every request."""

  def __init__(self, stack: contextlib.ExitStack, command: Command):
    name, *arguments = command.script
    own = command.checkout / PEERS / name
    script = own if own.exists() else HERE / PEERS / name
    self._process = stack.enter_context(
      _process([command.python, script, *arguments], command.devices, command.checkout)
    )
    assert self._process.stdin is not None
    assert self._process.stdout is not None
    self._requests, self._answers = self._process.stdin, self._process.stdout
    stack.callback(self._requests.close)

  def wait(self) -> None:
    """Waits until all is warm."""
    self._work = self._read("work")["work"]

  def run(self, case: str) -> Turn:
    """Runs a case."""
    self._requests.write(f"{case}\n")
    self._requests.flush()
    said = self._read("seconds")
    return Turn(said.get("work", self._work), said["seconds"], said.get("cpu"))

  def _read(self, last: str) -> dict[str, float]:
    """What the worker says, by name, until it says `last`."""
    said: dict[str, float] = {}
    for line in self._answers:
      name, _, value = line.partition(" ")
      if name in ("work", "cpu", "seconds"):  # Libraries print to stdout too.
        said[name] = float(value)
      if last in said:
        return said
    raise RuntimeError(f"Expected a worker that answers, got exit status {self._process.wait()}.")


def _process(
  command: Sequence[str | pathlib.Path], devices: int | None, checkout: pathlib.Path = HERE
) -> subprocess.Popen[str]:
  """A process on the CPU that imports a checkout's packages, and simulates so many devices."""
  environment = os.environ | {
    "PYTHONPATH": str(checkout),
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}" if devices else "",
  }
  pipe = subprocess.PIPE
  return subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment, text=True)


def apart(function: Callable[..., Any], *args: object, devices: int | None = None) -> Any:
  """What a module's function returns, as JSON data, called in a process that imports no other."""
  (found,) = together(function, [args], devices=devices)
  return found


def together(
  function: Callable[..., Any], calls: Sequence[Sequence[object]], *, devices: int | None = None
) -> list[Any]:
  """`apart` for several calls at once, each in a process of its own."""
  program = (
    f"import json; from {function.__module__} import {function.__name__} as function; "
    "print(json.dumps(function(*{!r})), flush=True)"
  )
  commands = [[sys.executable, "-c", program.format(tuple(args))] for args in calls]
  processes = [_process(command, devices) for command in commands]
  said = [process.communicate()[0] for process in processes]
  if failed := [process.args for process in processes if process.returncode]:
    raise RuntimeError(f"Expected a process that ends well, got an error from {failed[0]!r}.")
  return [json.loads(text.splitlines()[-1]) for text in said]


def peer_says(script: str, *arguments: str, python: str, limit: float | None = None) -> Any:
  """The JSON that a file of `peers` prints last; None if no Python is named.

  Raises:
    subprocess.SubprocessError: if it fails, or takes more seconds than the limit.
  """
  if not python:
    return None
  # By its path: as a module it would import `experiments`, which needs more than a peer has.
  command = [python, str(HERE / PEERS / script), *arguments]
  done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=True)
  return json.loads(done.stdout.splitlines()[-1])


def summary(turns: Sequence[Mapping[str, Turn]], names: Iterable[str]) -> list[Timing]:
  """Medians over the turns, in the order of the names; ratios refer to the first."""
  names = list(names)
  timings = []
  for name in names:
    own = [turn[name] for turn in turns]
    cpu = [turn.cpu for turn in own if turn.cpu is not None]
    timings.append(
      Timing(
        name,
        statistics.median(turn.seconds for turn in own),
        statistics.median(turn.rate for turn in own),
        # Ratios are taken within one turn: the machine's drift is the same for both.
        statistics.median(turn[name].rate / turn[names[0]].rate for turn in turns),
        statistics.median(cpu) if cpu else None,
      )
    )
  return timings


def compare(cases: Mapping[str, Case | Command], rounds: int) -> list[Timing]:
  """Times cases that take turns; ratios refer to the first."""
  return summary(take_turns(cases, rounds), cases)


def comparison(title: str, unit: str, timings: Sequence[Timing]) -> Row:
  """The row of timings side by side."""
  return {"title": title, "unit": unit, "timings": [timing._asdict() for timing in timings]}


def compared(title: str, unit: str, cases: Mapping[str, Case | Command], rounds: int) -> Row:
  """The row of cases that are timed side by side."""
  return comparison(title, unit, compare(cases, rounds))


def before_and_after(
  title: str, unit: str, commands: Mapping[str, Command], baseline: str, rounds: int
) -> Iterator[Row]:
  """A row for each command, which compares the checkout `baseline` with this one."""
  before = pathlib.Path(baseline).resolve()
  if not (before / "jdp").is_dir():
    raise ValueError(f"Expected --baseline to be a checkout of jdp, got {before}.")
  for name, command in commands.items():
    cases = {"before": command._replace(checkout=before), "after": command}
    yield compared(f"{title}, {name}", unit, cases, rounds)


def tables(rows: Sequence[Row]) -> str:
  """The Markdown of rows: a table for each comparison, and one of all others."""
  parts = [f"{row['title']}\n\n{_timings(row)}" for row in rows if "timings" in row]
  if others := [_flat(row) for row in rows if "timings" not in row]:
    names = list(dict.fromkeys(name for row in others for name in row))
    parts.append(table(names, [[row.get(name, "") for name in names] for row in others]))
  return "\n\n".join(parts)


def _timings(row: Row) -> str:
  head = ("case", "ms", "CPU ms", f"{row['unit']}/s", "ratio")
  lines = []
  for timing in (Timing(**timing) for timing in row["timings"]):
    cpu = "" if timing.cpu_seconds is None else f"{1e3 * timing.cpu_seconds:,.3f}"
    ms, rate = f"{1e3 * timing.seconds:,.3f}", f"{timing.rate:,.0f}"
    lines.append((timing.name, ms, cpu, rate, f"{timing.ratio:.2f}"))
  return table(head, lines)


def _flat(row: Row, prefix: str = "") -> dict[str, str]:
  """A row's cells by name, with those of what it holds, and without the machine's facts."""
  cells: dict[str, str] = {}
  for name, value in row.items():
    if isinstance(value, dict):
      cells |= _flat(value, f"{prefix}{name} ") if name != "machine" else {}
    else:
      cells[prefix + name] = f"{value:.4g}" if isinstance(value, float) else str(value)
  return cells


def machine() -> Row:
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


class Benchmark(NamedTuple):
  """A benchmark; see `benchmark`."""

  rows: Callable[..., Iterator[Row]]
  smallest: Mapping[str, object]
  table: Callable[[Sequence[Row]], str]
  plot: Callable[[Sequence[Row], str], None] | None
  failed: Callable[[Sequence[Row]], list[Row]]


def benchmark(
  smallest: Mapping[str, object] | None = None,
  *,
  table: Callable[[Sequence[Row]], str] = tables,
  plot: Callable[[Sequence[Row], str], None] | None = None,
  failed: Callable[[Sequence[Row]], list[Row]] = lambda rows: [],
) -> Callable[[Callable[..., Iterator[Row]]], Benchmark]:
  """Makes a generator of rows a command.

  Its arguments are the options: numbers, texts, and tuples of them, which are given as 1,2,3. A
  tuple of texts may have those of its default alone. An argument whose name ends in `_python` names
  the environment of a peer, which is left out without it.

  Args:
    smallest: the options of the smallest run, beside one round.
    table: rows -> Markdown.
    plot: draws rows into a file.
    failed: rows -> those that show a fault. If there are any, the command ends with a status of 1.
  """

  def made(rows: Callable[..., Iterator[Row]]) -> Benchmark:
    once = {"rounds": 1} if "rounds" in inspect.signature(rows).parameters else {}
    return Benchmark(rows, once | dict(smallest or {}), table, plot, failed)

  return made


def main(argv: Sequence[str]) -> None:
  """Runs the command `SUBJECT NAME --option=value`."""
  absl.logging.set_verbosity(absl.logging.ERROR)  # Messages take time, too.
  subjects = sorted(path.stem for path in pathlib.Path(__file__).parent.glob("[a-z]*.py"))
  subjects.remove("harness")
  parser = argparse.ArgumentParser("experiments.benchmarks", description=__doc__.splitlines()[0])
  parser.add_argument("subject", choices=subjects)
  found = vars(importlib.import_module(f"{__package__}.{parser.parse_args(argv[:1]).subject}"))
  own = {name: value for name, value in found.items() if isinstance(value, Benchmark)}
  names = parser.add_subparsers(dest="name", required=True, metavar="NAME")
  for name, made in own.items():
    _add_options(names, name, made)
  chosen = parser.parse_args(argv)
  made = own[chosen.name]
  if chosen.smallest:
    names.choices[chosen.name].set_defaults(**made.smallest)
  options = vars(parser.parse_args(argv))
  _run(made, **{name: options[name] for name in options if name not in _OWN})


def _add_options(names: Any, name: str, made: Benchmark) -> None:
  """Adds a benchmark to a command line."""
  text = inspect.cleandoc(made.rows.__doc__ or "")
  form = argparse.RawDescriptionHelpFormatter
  own = names.add_parser(name, help=text.splitlines()[0], description=text, formatter_class=form)
  own.add_argument("--json", help="a file that the rows are appended to")
  own.add_argument("--table", help="print this file's rows, and measure nothing")
  own.add_argument("--smallest", action="store_true", help="a small run, to try the program")
  if made.plot:
    own.add_argument("--plot", help="a picture to draw of the rows")
  for option in inspect.signature(made.rows, eval_str=True).parameters.values():
    own.add_argument(f"--{option.name}", help=f"default: {option.default}", **_typed(option))


def _typed(option: inspect.Parameter) -> dict[str, Any]:
  """How argparse reads an option, by its annotation and its default."""
  default, kind = option.default, option.annotation
  if kind is bool:
    return {"action": "store_true"}
  if typing.get_origin(kind) is not tuple:
    return {"type": kind, "default": default}
  (element, _) = typing.get_args(kind)

  def read(text: str) -> tuple[object, ...]:
    values = tuple(map(element, filter(None, text.split(","))))
    if element is str and not set(values) <= set(default):
      raise argparse.ArgumentTypeError(f"expected some of {','.join(default)}, got {text}")
    return values

  return {"type": read, "default": default}


def _run(
  made: Benchmark,
  *,
  json: str | None,
  table: str | None,
  plot: str | None = None,
  **options: object,
) -> None:
  """Measures, or reads, and prints."""
  if table:
    rows = read(table)
  else:
    for name, value in options.items():
      if name.endswith("_python") and not value:
        print(f"{name.removesuffix('_python')} is left out: name its Python by --{name}.")
    rows = [_kept(row, json) for row in made.rows(**options)]
  print(made.table(rows))
  if plot and made.plot:
    made.plot(rows, plot)
  if failed := made.failed(rows):
    sys.exit(f"Expected all rows to hold, got {len(failed)} that fail: {failed}.")


def _kept(row: Row, path: str | None) -> Row:
  """A row with the machine's facts, which is shown, and appended to a file if one is named."""
  print(json.dumps(row), file=sys.stderr, flush=True)
  row = row | {"machine": machine()}
  if path:
    with pathlib.Path(path).open("a") as file:
      file.write(json.dumps(row) + "\n")
  return row


def read(path: str | pathlib.Path) -> list[Row]:
  """The rows of a file."""
  return [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]
