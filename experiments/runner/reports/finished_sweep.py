"""A sweep that was run, as the reports of training experiments take it."""

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from experiments.runner.problems.learning_problem import LearningProblem
from experiments.runner.reports.summary import Row
from experiments.runner.runs.workdir import Workdir

Options = TypeVar("Options")
Variant = TypeVar("Variant")


class FinishedSweep(NamedTuple, Generic[Options, Variant]):
  """What an experiment's report is made of.

  Attributes:
    workdir: gets the files.
    options: the experiment's.
    problem: what was learnt.
    variants: what was run: `setting`, and what else the experiment's report needs of each.
    results: of `run_sweep`.
  """

  workdir: Workdir
  options: Options
  problem: LearningProblem
  variants: Sequence[Variant]
  results: Sequence[Row]
