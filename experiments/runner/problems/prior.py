"""Releases about the users before the first round: an earlier run's parameters and their cost."""

import dataclasses
import math
import pathlib

from experiments.runner import files
from experiments.runner.federation import RoundOptions, central_delta
from experiments.runner.files import Row
from experiments.runner.problems.learning_problem import LearningProblem
from experiments.runner.problems.problem_options import USERS, ProblemOptions
from experiments.runner.problems.text_options import TEXT
from experiments.runner.reports.statements import exposed
from experiments.runner.runs.costs import central_epsilon
from experiments.runner.runs.finished_ledgers import finished_ledger
from experiments.runner.runs.training import TrainingOptions
from experiments.runner.runs.workdir import FLAGS, LEDGER
from jdp.events import NonPrivate, Round
from jdp.events.rounds import Event
from jdp.federated.runs.budget import why_no_central_epsilon
from jdp.guarantees import Observer, Relation, Unit, rounded_up
from jdp.ledger import Ledger
from jdp.models import load_params
from jdp.queries.base import PyTree


def load_start(
  path: str, like: PyTree, options: ProblemOptions, *, public: bool
) -> tuple[PyTree, Ledger]:
  """An earlier run's final parameters, and what was released about this run's users until then.

  The earlier run's ledger counts for this run's users if the two runs have the same users. They
  have if all options agree that decide who the users are (`USERS`). With `--warm_start_public`
  nothing is counted. This flag says that none of this run's users was among those of the earlier
  run.

  A run released everything in the clear in two cases: its flags gave its noise away
  (`statements.exposed`), or its ledger says that its key may be known (`Ledger.caveats`). A
  language model's words are identified by their position. So both runs must have the same words,
  whoever their users are.

  Args:
    path: the run's `params.npz`. Its ledger lies beside it. Its run's folder has `flags.json`.
    like: parameters of the same structure and shapes or their shapes.
    options: of this run.
    public: whether `--warm_start_public` is given.

  Raises:
    ValueError: in one of these cases:

      * The file holds other parameters or those of other words.
      * The parameters are said to be public and come from the same data.
      * They are not said to be public, but ledger or flags are missing, or the users are others.
      * The ledger is damaged, not closed, or not that of the run's result.

    FileNotFoundError: if there is no file.
  """
  params, file = load_params(path, like), pathlib.Path(path).resolve()
  # <workdir>/<setting>/<repetition>/params.npz
  flags = file.parent.parent.parent / FLAGS
  earlier = _read_flags(flags) if flags.exists() else {}
  if public:
    _check_others(path, earlier, options)
    return params, Ledger()
  for needed in (file.with_name(LEDGER), flags):
    if not needed.exists():
      raise ValueError(
        f"Expected {needed.name} of the run that made --warm_start={path}, to count what these "
        "parameters cost, got none; name a file in its run's folder, or add --warm_start_public if "
        "nobody of this run was among its users."
      )
  _check_same_users(path, earlier, options)
  spent = finished_ledger(file.parent)
  # Add the rounds in the clear: the ledger's own events state noise that is known.
  known = exposed(earlier["noise_seed"], diagnostics=earlier["diagnostics"])
  return params, spent.extend(_in_the_clear(spent)) if spent.caveats or known else spent


def _read_flags(path: pathlib.Path) -> Row:
  """The flags of a run, from its `flags.json`."""
  try:
    return dict(files.read_json(path)["flags"])
  except (ValueError, TypeError, KeyError, RecursionError):
    raise ValueError(
      f"Expected the flags of a run in {path}, got another or a damaged file; name another run."
    ) from None


def _check_same_users(path: str, earlier: Row, options: ProblemOptions) -> None:
  """Refuses an earlier run with other users, or with words counted privately.

  The same users' public text has the same words.
  """
  other = [name for name in (*USERS, "vocabulary") if earlier.get(name) != getattr(options, name)]
  if other:
    given, got = (
      ", ".join(f"--{name}={of(name)}" for name in other) for of in (vars(options).get, earlier.get)
    )
    raise ValueError(
      f"Expected an earlier run of the same users and words, {given}, got {got} in {path}: what "
      "its users were promised says nothing of this run's; begin with another model, or give the "
      "same flags."
    )


def _check_others(path: str, earlier: Row, options: ProblemOptions) -> None:
  """Refuses an earlier run that may have the same users, or that has other words.

  Other users' text has other words, so both runs must take theirs from Python's docstrings.
  """
  if earlier and all(
    earlier.get(name) == getattr(options, name) for name in ("dataset", "data_dir", "data_file")
  ):
    raise ValueError(
      f"Expected --warm_start_public with a model of other users' data, got {path}, of a run on "
      f"{options.dataset} too; leave it out, and what it cost is counted."
    )
  words = (options.public_text, earlier.get("public_text"), earlier.get("vocabulary"))
  if options.dataset in TEXT and words != ("modules", "modules", "public"):
    raise ValueError(
      f"Expected words of Python's docstrings here and in the run that made --warm_start={path}, "
      "as those of two data sets differ, got others; give --public_text=modules to both, and "
      "--vocabulary=public."
    )


def _in_the_clear(spent: Ledger) -> list[tuple[Event, int]]:
  """The same rounds without privacy, for a run whose noise is known."""
  return [
    (dataclasses.replace(event, query=NonPrivate()), n)
    for event, n in spent.entries
    if isinstance(event, Round)
  ]


def check_prior(prior: Ledger, unit: Unit, delta: float, options: TrainingOptions) -> None:
  """Refuses earlier releases that a coming run could not count, or cannot afford.

  Args:
    prior: the earlier releases.
    unit: what the run protects, under add/remove, against an observer of the models.
    delta: of the run.
    options: the budget, if there is one, and its accountant.

  Raises:
    ValueError: if a release is about another unit, relation or observer. Also if the releases cost
      more than the budget.
  """
  for event, _ in prior.entries:
    # A release in the clear costs infinity under every relation, so its relation may differ.
    in_the_clear = isinstance(event, Round) and isinstance(event.query, NonPrivate)
    relation = Relation.ADD_REMOVE if in_the_clear else event.relation
    if (event.unit, relation, event.observer) != (unit, Relation.ADD_REMOVE, Observer.MODEL):
      raise ValueError(
        f"Expected earlier releases per {unit} (add/remove) to whoever sees the models, as those "
        f"of the runs to come, got {type(event).__name__} per {event.unit} "
        f"({event.relation.label}) to the {event.observer}; begin with another model, or leave out "
        "the runs about another unit."
      )
  asked, budget = (prior, delta, options.accountant), options.max_epsilon
  if budget is not None and (spent := central_epsilon(*asked)) > budget:
    why = why_no_central_epsilon(*asked)
    raise ValueError(
      f"Expected --max_epsilon of at least the {rounded_up(spent)} that was spent before the first "
      f"round, got {budget}.{why and f' {why}'}"
    )


def describe_start(
  path: str, problem: LearningProblem, options: RoundOptions, *, public: bool
) -> str:
  """What a report says about the parameters, or the words, that its runs start from."""
  if public:
    return (
      f"Not counted: what {path} was trained on, said to be public or of other users "
      "(`--warm_start_public`)."
    )
  records = max(
    (problem.num_records(event.unit) for event, _ in problem.prior.entries),
    default=problem.num_users,
  )
  asked = problem.prior, central_delta(options, records), options.accountant
  cost = central_epsilon(*asked)
  if math.isinf(cost):
    return (
      f"**{path} was trained on these users without privacy: no run that begins with it has a "
      f"guarantee.** {why_no_central_epsilon(*asked)}"
    )
  return (
    f"Every run begins with {path}, and its ledger and ε with what that cost: alone "
    f"ε = {rounded_up(cost)}."
  )
