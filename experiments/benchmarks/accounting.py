"""Accounting beside dp_accounting and others: its speed, its epsilons, and what keeps a run's."""

import contextlib
import functools
import itertools
import math
import pathlib
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType

import jax.numpy as jnp
import numpy as np
import optax

from experiments.benchmarks import harness
from experiments.benchmarks.harness import Case, Row, benchmark, compared
from experiments.conformance import adapters
from experiments.runner.reports.tables import epsilon, table
from jdp import accounting
from jdp.conformance import Calibration
from jdp.conformance.protocol import Plan, add_remove_ledger
from jdp.events import BallsInBins, GaussianSum, PoissonSampling, Round, ShuffledBatches
from jdp.federated import add_updates, rounds, train
from jdp.federated.runs.budget import central_epsilon
from jdp.federated.runs.digest import digest
from jdp.ledger import DurableLedger, Ledger, load, subsampled_gaussian
from jdp.queries import average, gaussian_sum
from jdp.sampling import poisson

_DELTA = 1e-5
_PLAN: tuple[float, float, float, int] = (2.0, 1e-6, 0.001, 5000)  # epsilon, delta, q, rounds


@benchmark({"at_most": 1, "events": 20})
def epsilons(at_most: int = 10, events: int = 10_000) -> Iterator[Row]:
  """Times jdp's accountant beside dp_accounting's: seven tasks, `at_most` so many turns of each.

  jdp keeps what it computed. So every turn has events and targets that were never asked for.
  """
  rng = np.random.default_rng(0)
  few = _distinct(rng, max(10, events // 100))

  def near(value: float) -> float:
    return value * (1 + 1e-6 * rng.uniform())

  def run() -> Ledger:
    return subsampled_gaussian(0.01, near(1.0), 10_000)

  def many(count: int) -> Ledger:
    distinct = _distinct(rng, count)
    return Ledger().extend((Round(PoissonSampling(q), GaussianSum(1.0, z)), 1) for q, z in distinct)

  def calibrated(accountant: str) -> float:
    target, delta, q, num_rounds = _PLAN
    return accounting.calibrate_noise_multiplier(
      near(target), delta, q, num_rounds, accountant=accountant
    )

  thousand = events // 10
  one = functools.partial(_their_epsilon, [(0.01, 1.0)], 10_000)
  # title, turns, how much of the task dp_accounting does, jdp's function, dp_accounting's
  tasks: tuple[tuple[str, int, float, Callable[[], object], Callable[[], object]], ...] = (
    (
      "epsilon (q=.01, z=1, T=1e4)", 10, 1.0,
      lambda: accounting.epsilon(run(), _DELTA), one,
    ),
    (
      "calibrate (eps=2, delta=1e-6, q=.001, T=5000)", 5, 1.0,
      lambda: calibrated("rdp"), _their_calibration,
    ),
    (
      f"{events:,} distinct events (dp_accounting: {len(few)} of them)", 3, len(few) / events,
      lambda: accounting.epsilon(many(events), _DELTA), lambda: _their_epsilon(few, 1),
    ),
    (
      "epsilon by loss distributions (q=.01, z=1, T=1e4)", 5, 1.0,
      lambda: accounting.epsilon(run(), _DELTA, accountant="pld"), lambda: one("pld"),
    ),
    (
      "both ends of the interval (dp_accounting: its upper one)", 5, 1.0,
      lambda: accounting.epsilon_interval(run(), _DELTA), lambda: one("pld"),
    ),
    (
      "calibrate by loss distributions (eps=2, delta=1e-6, q=.001, T=5000)", 3, 1.0,
      lambda: calibrated("pld"), lambda: _their_calibration("pld"),
    ),
    (
      f"{thousand:,} distinct events by loss distributions (dp_accounting: 10 of them)", 1,
      10 / thousand,
      lambda: accounting.epsilon(many(thousand), _DELTA, accountant="pld"),
      lambda: _their_epsilon(few[:10], 1, "pld"),
    ),
  )  # fmt: skip
  for title, turns, share, ours, theirs in tasks:
    cases = {"dp_accounting": Case(theirs, share), "jdp": Case(ours, 1.0)}
    yield compared(title, "tasks", cases, min(turns, at_most))


def _distinct(rng: np.random.Generator, count: int) -> list[tuple[float, float]]:
  """Events (q, z), of which no accountant can group any."""
  q, z = rng.uniform(1e-3, 0.1, count), rng.uniform(0.5, 5.0, count)
  return list(zip(q.tolist(), z.tolist(), strict=True))


def _peer() -> ModuleType:
  """dp_accounting. `loading` states the memory of a process that does not import it."""
  import dp_accounting.pld
  import dp_accounting.rdp

  return dp_accounting


def _their_accountant(kind: str) -> type:
  return {"rdp": _peer().rdp.RdpAccountant, "pld": _peer().pld.PLDAccountant}[kind]


def _sampled_gaussian(q: float, z: float) -> object:
  """The event that dp_accounting composes."""
  dp_accounting = _peer()
  return dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(z))


def _their_epsilon(
  events: list[tuple[float, float]], count: int, kind: str = "rdp", delta: float = _DELTA
) -> float:
  """Epsilon by an accountant of dp_accounting of the events (q, z), each composed `count` times."""
  accountant = _their_accountant(kind)()
  for event in events:
    accountant.compose(_sampled_gaussian(*event), count)
  return float(accountant.get_epsilon(delta))


def _their_calibration(kind: str = "rdp") -> float:
  """The noise multiplier that dp_accounting finds."""
  dp_accounting, (target, delta, q, num_rounds) = _peer(), _PLAN
  return dp_accounting.calibrate_dp_mechanism(
    _their_accountant(kind),
    lambda z: dp_accounting.SelfComposedDpEvent(_sampled_gaussian(q, z), num_rounds),
    target,
    delta,
    dp_accounting.LowerEndpointAndGuess(0, 1),
  )


def _spread(names: Sequence[str], ratios: Sequence[float]) -> str:
  """The table of each name's ratios."""
  lines = []
  for name in dict.fromkeys(names):
    pairs = zip(names, ratios, strict=True)
    own = sorted(ratio for other, ratio in pairs if other == name and math.isfinite(ratio))
    lines.append([name, str(len(own)), *(f"{own[at]:.4g}" for at in (0, len(own) // 2, -1))])
  return table(["", "runs", "least", "median", "most"], lines)


@benchmark(
  {"stride": 100, "runs": 2},
  table=lambda rows: _spread([r["what"] for r in rows], [r["ratio"] for r in rows]),
  failed=lambda rows: [row for row in rows if not row["holds"]],
)
def agreement(stride: int = 1, runs: int = 300, step: float = 1e-3) -> Iterator[Row]:
  """Compares jdp's epsilons with dp_accounting's, of Poisson-sampled Gaussian sums, for minutes.

  * Over every `stride`-th run of a large grid, jdp's epsilon by Renyi divergences is never above
    dp_accounting's by more than 0.1 % (and 1e-6): it is tight.
  * Over random runs it is never below dp_accounting's optimistic estimate by privacy loss
    distributions on a grid of `step`: it is valid.
  * There jdp's interval meets that between dp_accounting's estimates, and is no wider than a
    thousandth of its upper end, or 1e-4.
  """
  for run in itertools.islice(_grid(), 0, None, stride):
    q, z, num_rounds, delta = run
    ours = accounting.epsilon(subsampled_gaussian(q, z, num_rounds), delta)
    theirs = _their_epsilon([(q, z)], num_rounds, delta=delta)
    holds = ours <= 1.001 * theirs + 1e-6
    yield _compared("epsilon, Renyi divergences", run, ours, theirs, holds=holds)
  for run in itertools.islice(_random_runs(), runs):
    ledger, delta = subsampled_gaussian(*run[:3]), run[3]
    optimistic, pessimistic = _their_interval(run, step)
    ours = accounting.epsilon(ledger, delta)
    holds = ours >= optimistic
    yield _compared("epsilon, their loss distributions", run, ours, optimistic, holds=holds)
    lower, upper = accounting.epsilon_interval(ledger, delta)
    meets = lower <= pessimistic and optimistic <= upper
    holds = meets and upper - lower <= max(1e-3 * upper, 1e-4)
    yield _compared("upper end of the interval", run, upper, pessimistic, holds=holds)


def _compared(what: str, run: tuple, ours: float, theirs: float, *, holds: bool) -> Row:
  ratio = ours / theirs if 0 < theirs < math.inf else math.nan
  return {"what": what, "run": run, "jdp": ours, "other": theirs, "ratio": ratio, "holds": holds}


def _grid() -> Iterator[tuple]:
  """Runs (q, z, rounds, delta)."""
  probabilities = (1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.1, 0.5, 0.9, 1.0)
  multipliers = (0.3, 0.5, 0.7, 1.0, 1.5, 3.0, 10.0, 50.0, 200.0)
  return itertools.product(probabilities, multipliers, (10**n for n in range(7)), (1e-5, 1e-9))


def _random_runs() -> Iterator[tuple]:
  """Runs, uniform on logarithmic scales, whose epsilon a grid of dp_accounting's can hold."""
  rng, (low, high) = np.random.default_rng(0), np.log([[1e-4, 0.5, 1, 1e-9], [1, 20, 1e4, 1e-3]])
  while True:
    q, z, num_rounds, delta = np.exp(rng.uniform(low, high)).tolist()
    if 0.02 < accounting.epsilon(subsampled_gaussian(q, z, int(num_rounds)), delta) < 15:
      yield q, z, int(num_rounds), delta


def _their_interval(run: tuple, step: float) -> tuple[float, float]:
  """dp_accounting's estimates, the optimistic first."""
  q, z, num_rounds, delta = run

  def estimate(pessimistic: bool) -> float:
    once = _peer().pld.privacy_loss_distribution.from_gaussian_mechanism(
      z,
      sampling_prob=q,
      value_discretization_interval=step,
      pessimistic_estimate=pessimistic,
      use_connect_dots=pessimistic,
    )
    return float(once.self_compose(num_rounds).get_epsilon_for_delta(delta))

  return estimate(False), estimate(True)


@benchmark()
def balls_in_bins() -> Iterator[Row]:
  """Epsilons of balls in bins against Poisson samples of equal expected size, for a minute.

  In each epoch of t rounds every record is in one round, or in each with probability 1/t. Both are
  by privacy loss distributions, at delta = 1e-5, add/remove. The third is what bins cost if they
  were seen.
  """
  for in_epoch, epochs, z in (
    (10, 1, 0.7), (10, 10, 1.0), (100, 1, 0.7), (100, 1, 1.0), (100, 10, 1.0), (1000, 10, 0.7),
  ):  # fmt: skip
    first, later = (
      Round(BallsInBins(in_epoch, starts), GaussianSum(1.0, z)) for starts in (True, False)
    )
    bins = Ledger().extend([(first, 1), (later, in_epoch - 1)] * epochs)
    poisson_samples = subsampled_gaussian(1 / in_epoch, z, in_epoch * epochs)
    yield {
      "rounds of an epoch": in_epoch,
      "epochs": epochs,
      "z": z,
      "balls in bins": epsilon(accounting.epsilon(bins, _DELTA, accountant="pld")),
      "Poisson": epsilon(accounting.epsilon(poisson_samples, _DELTA, accountant="pld")),
      "bins seen": epsilon(accounting.gaussian_epsilon(z * epochs**-0.5, _DELTA)),
    }


def _over_ours(rows: Sequence[Row]) -> str:
  """The table of what each planner plans, over jdp's noise for the same request."""
  ours = {row["asked"]: row["noise"] for row in rows if row["planner"] == "jdp"}
  ratios = [row["noise"] / ours[row["asked"]] for row in rows]
  return _spread([row["planner"] for row in rows], ratios)


def _needs_more(rows: Sequence[Row]) -> list[Row]:
  """Where jdp plans .2 % more noise than is needed, or spends less than .995 of the request."""
  least: dict[float, float] = {}
  for row in rows:
    if row["lower"] <= (asked := row["asked"]):
      least[asked] = min(row["noise"], least.get(asked, math.inf))
  return [
    row
    for row in rows
    if row["planner"] == "jdp"
    and not (row["noise"] <= 1.002 * least[row["asked"]] and row["upper"] >= 0.995 * row["asked"])
  ]


@benchmark({"requests": 1}, table=_over_ours, failed=_needs_more)
def planned_noise(requests: int = 20) -> Iterator[Row]:
  """The noise that libraries plan for one request, and what each plan then costs.

  Every request is an epsilon at a delta, of a Poisson-sampled Gaussian sum over many rounds. jdp's
  default answers it, and so do those that are installed of dp_accounting (which TF Privacy plans
  by), Opacus and jax_privacy. jdp's certified interval then says what each multiplier costs: if its
  lower end is above the request, so little noise does not keep it.

  It fails if jdp needs .2 % more noise than the least that may keep the request, or spends less
  than .995 of it.
  """
  rng, planners = np.random.default_rng(0), dict(_planners())
  for asked in np.geomspace(0.3, 12.0, requests).tolist():
    plan = _random_plan(rng)
    for name, noise in planners.items():
      try:
        z = float(noise(plan, asked))
      except Exception as error:
        print(f"{name} refuses {plan}: {error}", file=sys.stderr)
        continue
      lower, upper = accounting.epsilon_interval(add_remove_ledger(plan, z), plan.delta)
      row = {"planner": name, **plan._asdict(), "asked": asked, "noise": z}
      yield row | {"lower": lower, "upper": upper}


def _random_plan(rng: np.random.Generator) -> Plan:
  """A run of 1e4 to 1e7 records in batches, of 1 to 300 passes, delta of 1 / records^1.1."""
  records, batch = 10 ** rng.uniform(4, 7), 10 ** rng.uniform(1.5, 3.5)
  q, passes = round(batch) / round(records), 10 ** rng.uniform(0, 2.5)
  return Plan(q, max(1, round(passes / q)), round(records) ** -1.1)


def _planners() -> Iterator[tuple[str, Callable[[Plan, float], float]]]:
  """What plans noise, by name."""

  def by_default(plan: Plan, asked: float) -> float:
    q, num_rounds = plan.sampling_probability, plan.num_rounds
    return accounting.calibrate_noise_multiplier(asked, plan.delta, q, num_rounds)

  yield "jdp", by_default
  for library in filter(adapters.is_installed, ("dp_accounting", "opacus", "jax_privacy")):
    for part in adapters.implementation(library).parts:
      if isinstance(part, Calibration):
        yield part.call, part.noise_multiplier


_BLOCK = 10
_RUNS: dict[str, Callable[[int], Round]] = {
  "equal rounds": lambda number: Round(PoissonSampling(0.01), GaussianSum(1.0, 1.1)),
  "epochs of 100 rounds": lambda number: Round(
    ShuffledBatches(100, number % 100 == 0), GaussianSum(1.0, 1.1)
  ),
  "distinct rounds": lambda number: Round(
    PoissonSampling(0.01), GaussianSum(1.0, 1.1 + number * 1e-6)
  ),
}


def _ledgers_table(rows: Sequence[Row]) -> str:
  """Of equal titles the last one."""
  lines = []
  for title, row in {row["title"]: row for row in rows}.items():
    seconds = row["cpu_seconds"]
    taken = f"{seconds:.2g} s" if seconds >= 0.1 else f"{1e3 * seconds:.2g} ms"
    lines.append((title, taken, f"{row['gigabytes']:.2f} GB" if "gigabytes" in row else ""))
  return table(("what is timed", "processor", "memory"), lines)


@benchmark({"events": 100, "done": (10,)}, table=_ledgers_table)
def ledgers(events: int = 1_000_000, done: tuple[int, ...] = (1000, 40_000)) -> Iterator[Row]:
  """Times what keeps a run's accounts: ledgers, their epsilons, digests and checkpoints.

  `events` distinct ones are loaded, and blocks are recorded after so many rounds were `done`.
  """
  with tempfile.TemporaryDirectory() as name:
    folder, distinct = pathlib.Path(name), _RUNS["distinct rounds"]
    Ledger().extend((distinct(n), 1) for n in range(events)).save(folder / "saved")
    # In a process whose memory holds nothing else.
    taken = harness.apart(loading, str(folder / "saved"))
    yield {"title": f"loading {events:,} distinct events", **taken}
    for title, make in _RUNS.items():
      (folder / title).mkdir()
      for rounds_done in done:
        seconds = _block(folder / title / str(rounds_done), make, rounds_done)
        what = f"a block of {_BLOCK} with its epsilon, after {rounds_done:,} {title}"
        yield {"title": what, "cpu_seconds": seconds}
    data = np.zeros(2**26, np.uint8)
    yield {"title": "a digest of 64 MiB", **_taken(lambda: digest(data))}
    seconds = _evaluated_round(folder / "run") - _evaluated_round(None)
    yield {"title": "files and checkpoint of a block of one round", "cpu_seconds": seconds}


def _taken(function: Callable[[], object]) -> dict[str, float]:
  """What a call takes."""
  before, start = time.process_time(), time.perf_counter()
  function()
  seconds, used = time.perf_counter() - start, time.process_time() - before
  return {"seconds": seconds, "cpu_seconds": used}


def loading(path: str) -> dict[str, float]:
  """What it takes to load a ledger, and the most memory that the process has had."""
  taken = _taken(lambda: load(pathlib.Path(path)))
  return {**taken, "gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6}


def _block(path: pathlib.Path, make: Callable[[int], Round], done: int) -> float:
  """Processor seconds of recording a block after `done` rounds, with the epsilon after it."""
  with contextlib.closing(DurableLedger(path, "run")) as durable:

    def record(first: int, last: int) -> None:
      durable.append(first, *([make(number)] for number in range(first, last)))
      central_epsilon(durable.ledger, _DELTA)

    record(0, done)
    firsts = range(done, done + 5 * _BLOCK, _BLOCK)
    times = [_taken(functools.partial(record, first, first + _BLOCK)) for first in firsts]
  return min(time["cpu_seconds"] for time in times)


def _evaluated_round(workdir: pathlib.Path | None) -> float:
  """Processor seconds of a small round with an evaluation: the median over many."""
  sampler, ends = poisson(100, 0.5), []
  algorithm = rounds(
    lambda keys, value, own: (own - value, {}),
    average(gaussian_sum(clip_norm=1.0, stddev=4.0), sampler.expected_size),
    sampler,
    add_updates(optax.sgd(0.5)),
    relation="add_remove",
  )
  train(
    algorithm,
    jnp.float32(0),
    jnp.full(100, 0.7),
    num_rounds=50,
    evaluate_every=1,
    workdir=workdir,
    callbacks=[lambda progress: ends.append(time.process_time())],
  )
  return float(np.median(np.diff(ends)[2:]))  # those before compile
