"""Chooses the learning problem: classification by user, or text by user."""

from experiments.runner.problems.images import image_problem, source_problem
from experiments.runner.problems.learning_problem import LearningProblem
from experiments.runner.problems.problem_options import LearningOptions
from experiments.runner.problems.text import text_problem
from experiments.runner.problems.text_options import TEXT


def load_problem(options: LearningOptions) -> LearningProblem:
  """The problem that `--dataset` names.

  Raises:
    ValueError: if the model does not fit the data or the data has no writers. Also if there is too
      little text or the clients' text would be public.
    FileNotFoundError: if a file is missing.
  """
  if options.dataset == options.public_text:
    raise ValueError(
      f"Expected --public_text=users with --dataset={options.dataset}, got {options.public_text}: "
      "the text of the clients themselves; leave it out."
    )
  if options.dataset in TEXT:
    return text_problem(options)
  if options.dataset == "source":
    return source_problem(options, precision=options.precision)
  return image_problem(options)
