"""A setting chosen from the grid of `--vary` by noised scores, and paid for: `--select=private`.

A repetition is one call of `jdp.federated.private_sweep`. Its epsilon is that of all its runs, its
scores and its choice. A user's score is e^-loss of its own examples: the geometric mean of the
probabilities that the model gives the labels.
"""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp

from experiments.dp_fedavg.options import DPFedAvgOptions, SelectionOptions
from experiments.runner import files, processes
from experiments.runner.federation import central_delta
from experiments.runner.files import Row
from experiments.runner.options import needed
from experiments.runner.problems.learning_problem import LearningProblem
from experiments.runner.reports import statements
from experiments.runner.reports.parts import Part, write_report
from experiments.runner.reports.statistics import mean_interval
from experiments.runner.reports.tables import by_column, epsilon, percent
from experiments.runner.runs.kept_rows import kept_rows
from experiments.runner.runs.sweep import Setting, public_key
from experiments.runner.runs.workdir import Workdir, noise_key
from jdp import accounting
from jdp.events import GaussianSum, PoissonSampling, Round
from jdp.federated import evaluate_users, private_sweep, train
from jdp.federated.runs.run_folder import RunFolder
from jdp.guarantees import Observer, rounded_up
from jdp.ledger import Ledger, subsampled_gaussian
from jdp.models import Loss
from jdp.queries.base import PyTree

_PAID, _DEFAULT, _UNPAID = "private choice", "one setting, no choice", "unpaid choice (NOT PRIVATE)"
_NOT_COVERED = f"""The choice of the grid, if these data were looked at for it, and whoever watches
the process: its duration tells of the number of runs.

{statements.FLOAT_NOISE}"""
_NOT_HEEDED = {
  "max_epsilon": None,
  "early_stop": None,
  "diagnostics": False,
  "noise_cohort_size": None,
}
"""Options that stop runs, show them or simulate others, and what they must be."""
COSTS = ("cohort_size", "noise_multiplier", "target_epsilon", "noise_cohort_size", "delta")
"""Options that may not be varied where noise is planned for the epsilon of a choice."""


def paid(options: DPFedAvgOptions, problem: LearningProblem) -> DPFedAvgOptions:
  """The options with the noise of one run of a choice that costs the target epsilon.

  Raises:
    ValueError: if an option is given that a choice does not heed, --vary is of what changes a run's
      cost, or the score alone costs too much.
  """
  for name, heeded in _NOT_HEEDED.items():
    if (given := getattr(options, name)) != heeded:
      raise ValueError(f"Expected --{name}={heeded} with --select, got {given}; leave it out.")
  if options.target_epsilon is None:
    return options
  if varied := [name for name in COSTS if any(name in text.split("=")[0] for text in options.vary)]:
    raise ValueError(
      f"Expected --vary of options that cost nothing with --select and --target_epsilon, got "
      f"{varied[0]}; give --noise_multiplier in the place of the target."
    )
  delta = central_delta(options, problem.num_users)
  score = Round(PoissonSampling(1.0), GaussianSum(1.0, needed(options.score_noise)))

  def plan(multiplier: float) -> Ledger:
    rate = options.cohort_size / problem.num_users
    run = subsampled_gaussian(rate, multiplier, options.num_rounds).append(score)
    return problem.prior.append(_best_of(options, run))

  multiplier = accounting.calibrate_noise(
    options.target_epsilon, delta, plan, accountant=options.accountant
  )
  return dataclasses.replace(options, target_epsilon=None, noise_multiplier=multiplier)


def _best_of(options: SelectionOptions, run: Ledger) -> Round:
  return accounting.best_of_runs(
    run, mean_runs=needed(options.select_mean_runs), shape=needed(options.select_shape)
  )


def run_selection(
  workdir: Workdir,
  options: DPFedAvgOptions,
  problem: LearningProblem,
  grid: Sequence[Setting],
  alone: Sequence[Setting],
) -> None:
  """Makes the choice in every repetition, with what stands beside it, and writes the report.

  Args:
    workdir: gets the files.
    options: of the experiment.
    problem: what is learnt.
    grid: the settings, with the noise of a run of a choice.
    alone: with the noise of a single run, the setting without --vary, and then those of the grid.
      Empty: nothing stands beside.
  """
  score = partial(_score, problem.loss)
  key = noise_key(workdir, options.noise_seed)
  rounds = options.num_rounds
  settings = {one.label: one.algorithm._replace(num_rounds=rounds) for one in grid}
  cases = [(_PAID, seed) for seed in range(options.seeds)]
  cases += [(one.label, seed) for one in alone for seed in range(options.seeds)]

  def compute(case: tuple[str, int]) -> Row:
    label, seed = case
    params = problem.init(public_key("initial model", options.init_seed, seed))
    noise = jax.random.fold_in(key, cases.index(case))
    data_key = public_key("local training", options.data_seed, seed)
    own: Row
    delta = central_delta(options, problem.num_users)
    if label == _PAID:
      chosen = private_sweep(
        settings,
        params,
        problem.clients,
        score,
        score_noise=needed(options.score_noise),
        mean_runs=needed(options.select_mean_runs),
        shape=needed(options.select_shape),
        prior=problem.prior,
        workdir=_folder(workdir, seed),
        noise_key=noise,
        data_key=data_key,
      )
      params, ledger, own = chosen.params, chosen.ledger, {"chosen": chosen.setting}
    else:
      algorithm = next(one.algorithm for one in alone if one.label == label)
      trained = train(
        algorithm,
        params,
        problem.clients,
        num_rounds=rounds,
        prior=problem.prior,
        noise_key=noise,
        data_key=data_key,
      )
      params, ledger = trained.params, trained.ledger
      own = {"score": float(evaluate_users(score, params, problem.clients)["score"])}
    spent = accounting.epsilon(
      ledger, delta, accountant=options.accountant, observer=Observer.MODEL
    )
    value = float(problem.evaluate(params)[problem.headline])
    return {"label": label, "seed": seed, "value": value, "epsilon": spent, **own}

  # Scores of what stands beside are exact means over protected users.
  rows = list(kept_rows(cases, compute, workdir.secret / "selection.jsonl"))
  processes.by_first(lambda: _report(workdir, options, problem, grid, alone, rows))


def _score(loss: Loss, params: PyTree, user: PyTree) -> dict[str, jax.Array]:
  return {"score": jnp.exp(-loss(params, user))}


def _folder(workdir: Workdir, seed: int) -> RunFolder:
  name = f"selected/{seed}"
  return RunFolder(workdir.path / name, workdir.secret / name, name)


def _report(
  workdir: Workdir,
  options: DPFedAvgOptions,
  problem: LearningProblem,
  grid: Sequence[Setting],
  alone: Sequence[Setting],
  rows: Sequence[Row],
) -> None:
  """Writes results.json and report.md."""
  by_label = {
    label: [r for r in rows if r["label"] == label] for label in {r["label"] for r in rows}
  }
  summary = [_summed(_PAID, by_label[_PAID], [row["chosen"] for row in by_label[_PAID]])]
  excluded = statements.not_private(options)
  if alone:
    first, *others = [by_label[one.label] for one in alone]
    best = [max(runs, key=lambda row: row["score"]) for runs in zip(*others, strict=True)]
    summary.append(_summed(_DEFAULT, first, []))
    summary.append(_summed(_UNPAID, best, [row["label"] for row in best]))
    excluded.append(
      f"the row {_UNPAID!r} takes the best of {len(others)} runs by a score without noise; its "
      "epsilon is that of each run alone, and of no choice"
    )
  runs = [{name: row[name] for name in row if name != "score"} for row in rows]
  content = {"not_private": excluded, "flags": vars(options), "summary": summary, "runs": runs}
  files.write_json(workdir.path / "results.json", content)
  delta = central_delta(options, problem.num_users)
  cells = [
    {
      "run": row["choice"],
      "ε": f"{epsilon(row['epsilon'])} (δ = {rounded_up(delta, 3)})",
      problem.headline.replace("_", " "): percent(mean_interval(row["values"])),
      "chosen (times)": ", ".join(f"{name} ({count})" for name, count in row["chosen"].items()),
    }
    for row in summary
  ]
  text = (
    f"{by_column(cells)}\n\nRepetitions: {options.seeds}. A repetition's ε is that of all its "
    f"runs and of the choice among {len(grid)} settings, {options.select_mean_runs:g} runs on "
    f"average (shape {options.select_shape:g}), scores with noise multiplier "
    f"{options.score_noise:g}; it holds per user, to whoever sees the chosen setting and its model "
    "but not the process. Several repetitions about the same users add up."
  )
  title = "A setting chosen by private selection (arXiv 2110.03620)"
  part = Part("The choice", text)
  write_report(
    workdir,
    "dp_fedavg",
    title,
    [part, Part("Not covered", _NOT_COVERED, printed=False)],
    notice=statements.warnings(excluded),
    remark=statements.randomness(options),
  )


def _summed(choice: str, rows: Sequence[Row], chosen: Sequence[str]) -> Row:
  return {
    "choice": choice,
    "epsilon": max(row["epsilon"] for row in rows),
    "values": [row["value"] for row in rows],
    "chosen": dict(Counter(chosen).most_common()),
  }
