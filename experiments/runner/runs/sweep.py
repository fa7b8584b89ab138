"""A sweep: every setting, repeated. Each run is finished once, also if the process is killed."""

import pathlib
import zlib
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

import jax

from experiments.runner import processes
from experiments.runner.files import Row
from experiments.runner.problems.learning_problem import LearningProblem
from experiments.runner.runs.layouts import Make, fastest_layout, kept_layout
from experiments.runner.runs.merging import note_runs
from experiments.runner.runs.progress import Report, progress
from experiments.runner.runs.results import RESULT, check_finished, cost, read_result, write_result
from experiments.runner.runs.sweep_parts import own_runs
from experiments.runner.runs.training import Run, TrainingOptions, train_run
from experiments.runner.runs.workdir import Workdir, noise_key
from jdp.federated import FederatedAlgorithm
from jdp.federated.runs.training import STOPPED_EARLY, Evaluate
from jdp.ledger import Ledger
from jdp.queries.base import PyTree

Options = TypeVar("Options", bound=TrainingOptions)
Problem = TypeVar("Problem")


class Setting(NamedTuple):
  """A row of the results.

  Attributes:
    name: a folder's name.
    label: what readers see.
    algorithm: what is run.
    private: False for a baseline, which no privacy budget can stop.
    delta: of its central guarantee. None is the sweep's delta.
    public: what the central guarantee takes as public although it was computed from the protected
      data.
    part: the name of its clients, where the sweep's are a dict.
    make: makes the algorithm, given a layout's chunk_size, and ghost_norms if the experiment has
      them. None: it has no layout to choose.
  """

  name: str
  label: str
  algorithm: FederatedAlgorithm
  private: bool = True
  delta: float | None = None
  public: str = ""
  part: str | None = None
  make: Make | None = None


class Sweep(NamedTuple):
  """What all runs share.

  Attributes:
    settings: the rows.
    init: key -> parameters.
    evaluate: parameters -> name -> scalar.
    clients: the data of all clients, or a dict of such data (`Setting.part`): the runs of a sweep
      can be about different units.
    cohort_size: expected number of clients in a round.
    delta: of the central guarantees of settings without a delta of their own.
    shard: whether each device gets its share of the clients' data, and no copy of it.
    prior: what was released about the same users before any run. Every run's ledger begins with it.
    headline: the metric that an early stop looks at.
  """

  settings: Sequence[Setting]
  init: Callable[[jax.Array], PyTree]
  evaluate: Evaluate
  clients: PyTree
  cohort_size: float
  delta: float
  shard: bool = False
  prior: Ledger = Ledger()
  headline: str = "test_accuracy"


class Finished(NamedTuple, Generic[Options, Problem]):
  """A sweep that was run, as an experiment's report takes it.

  Attributes:
    workdir: has the files of the runs, and gets those of the report.
    options: the experiment's.
    problem: what was learnt.
    results: one for each run (`run_sweep`).
  """

  workdir: Workdir
  options: Options
  problem: Problem
  results: Sequence[Row]


def train_on(
  problem: LearningProblem,
  settings: Sequence[Setting],
  cohort_size: float,
  delta: float,
  options: Options,
  report: Callable[[Finished[Options, LearningProblem]], None],
  *,
  clients: Callable[[LearningProblem], PyTree] = lambda problem: problem.clients,
) -> Callable[[Workdir], None]:
  """The work of an experiment that runs its settings on a problem: `run_sweep` of all of them.

  The problem is completed before. What was released about its users counts in every run.

  Args:
    problem: what is learnt.
    settings: the rows.
    cohort_size: expected number of clients in a round.
    delta: of the central guarantees.
    options: the experiment's.
    report: of the completed problem.
    clients: the completed problem -> what the settings train on.
  """

  def work(workdir: Workdir) -> None:
    begun = problem.completed(workdir)
    sweep = Sweep(
      settings,
      begun.init,
      begun.evaluate,
      clients(begun),
      cohort_size,
      delta,
      getattr(options, "shard", False),
      begun.prior,
      begun.headline,
    )
    run_sweep(sweep, begun, workdir, options, report)

  return work


def run_sweep(
  sweep: Sweep,
  problem: Problem,
  workdir: Workdir,
  options: Options,
  report: Callable[[Finished[Options, Problem]], None],
) -> None:
  """Runs what is not finished yet, and reports. With `options.part` it runs that part alone.

  Every run gets a folder `<setting>/<repetition>` with its ledger, metrics, `params.npz` and
  `result.json`. No two runs share noise: each has a key of its own. Of a run that an earlier
  process finished, the files are compared with what was written, and the cost is computed again
  from the ledger. Several processes train together, and the first one writes.

  Args:
    sweep: what is run.
    problem: what is learnt, for the report.
    workdir: gets the files.
    options: of the experiment.
    report: called on the first process with a result for each run. A part makes no report.

  A result holds:

    * "setting", "label", "public", "seed" and "rounds"
    * "stopped" (whether its budget stopped it)
    * "stopped_early" (whether its metric did; its cost is that of all planned rounds)
    * "ledger_link" (its ledger's last link, which stands for all of it)
    * "metrics" (the last ones)
    * "not_private" (its ledger's caveats)
    * the guarantees "central", "release" and "local" (`Costs`) as JSON data or null
    * "beside" (the central epsilon by another accountant)

  Raises:
    ValueError: if a run that an earlier process finished is not as it left it.
  """
  runs = [(setting, seed) for setting in sweep.settings for seed in range(options.seeds)]
  own = own_runs(options.part, len(runs))

  def unfinished() -> list[int]:
    pending = []
    for number in own:
      setting, seed = runs[number]
      folder = _folder(workdir, setting, seed)
      if (folder / RESULT).exists():
        check_finished(folder, _delta(sweep, setting), options.accountant)
      else:
        pending.append(number)
    return pending

  if options.part:
    names = [f"{setting.name}/{seed}" for setting, seed in runs]
    processes.by_first(lambda: note_runs(workdir, names))
  if pending := processes.told(unfinished):
    key = noise_key(workdir, options.noise_seed)
    unfinished_settings = {runs[number][0].name: runs[number][0] for number in pending}
    laid_out = {
      name: _laid_out(sweep, setting, workdir, options)
      for name, setting in unfinished_settings.items()
    }
    with progress(options.num_rounds * len(pending), sweep.cohort_size) as told_of:
      for number in pending:
        setting, seed = runs[number]
        # The number counts all runs, finished ones too: a resumed run gets the same key again.
        run = _make_run(
          sweep, laid_out[setting.name], seed, jax.random.fold_in(key, number), options
        )
        told = _numbered(told_of, number + 1, len(runs))
        _finish(run, setting, seed, workdir, options, told)
  if options.part:
    processes.by_first(
      lambda: print(f"Part {options.part} is finished: {len(own)} of {len(runs)} runs.", flush=True)
    )
  else:

    def report_all() -> None:
      results = [read_result(_folder(workdir, *run)) for run in runs]
      report(Finished(workdir, options, problem, results))

    processes.by_first(report_all)


def _numbered(report: Report, number: int, count: int) -> Report:
  """The report whose messages say which run of how many it is."""
  return lambda rounds, message: report(rounds, f"run {number} of {count}, {message}")


def public_key(purpose: str, seed: int, repetition: int) -> jax.Array:
  """A key for randomness that no guarantee rests on, independent for each purpose of a seed."""
  return jax.random.fold_in(
    jax.random.fold_in(jax.random.key(seed), zlib.crc32(purpose.encode())), repetition
  )


def _folder(workdir: Workdir, setting: Setting, seed: int) -> pathlib.Path:
  return workdir.path / setting.name / str(seed)


def _delta(sweep: Sweep, setting: Setting) -> float:
  return sweep.delta if setting.delta is None else setting.delta


def _laid_out(
  sweep: Sweep, setting: Setting, workdir: Workdir, options: TrainingOptions
) -> Setting:
  """The setting with the layout that its folder keeps, or the fastest, if that is asked for."""
  make = setting.make
  if make is None or getattr(options, "layout", None) != "fastest":
    return setting
  layout = kept_layout(
    setting.name,
    workdir,
    lambda: fastest_layout(
      make,
      sweep.init(jax.random.key(0)),
      _clients(sweep, setting),
      ghost_norms=hasattr(options, "ghost_norms"),
      shard=sweep.shard,
    ),
  )
  return setting._replace(algorithm=make(**layout))


def _clients(sweep: Sweep, setting: Setting) -> PyTree:
  return sweep.clients if setting.part is None else sweep.clients[setting.part]


def _make_run(
  sweep: Sweep, setting: Setting, seed: int, key: jax.Array, options: TrainingOptions
) -> Run:
  return Run(
    name=f"{setting.name}/{seed}",
    algorithm=setting.algorithm,
    params=sweep.init(public_key("initial model", options.init_seed, seed)),
    clients=_clients(sweep, setting),
    noise_key=key,
    data_key=public_key("local training", options.data_seed, seed),
    evaluate=sweep.evaluate,
    delta=_delta(sweep, setting),
    max_epsilon=options.max_epsilon if setting.private else None,
    prior=sweep.prior,
    headline=sweep.headline,
    shard=sweep.shard,
  )


def _finish(
  run: Run,
  setting: Setting,
  seed: int,
  workdir: Workdir,
  options: TrainingOptions,
  report: Report,
) -> None:
  """Trains, and writes what the run leaves.

  The result is written last, as it marks the run as finished.
  """
  folder = _folder(workdir, setting, seed)
  outcome = train_run(run, folder, workdir.secret / run.name, options, report)
  metrics = {name: value for name, value in outcome.metrics[-1].items() if name != STOPPED_EARLY}
  content = {
    "setting": setting.name,
    "label": setting.label,
    "public": setting.public,
    "seed": seed,
    "rounds": metrics["round"],
    "stopped": outcome.stopped,
    "stopped_early": outcome.stopped_early,
    "metrics": metrics,
    **cost(outcome.ledger, run.delta, options.accountant),
  }

  processes.by_first(lambda: write_result(folder, content))
