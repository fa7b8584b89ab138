"""Training on public examples, without privacy, before the first round."""

import dataclasses
import io
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from experiments.runner import processes
from experiments.runner.options import option
from experiments.runner.problems.learning_problem import LearningProblem
from experiments.runner.runs.params import load_params, save_params
from jdp import _validate
from jdp.data import Examples
from jdp.federated import local_sgd

PyTree = Any
_FILE = "public_start.npz"
_BATCH = 8


@dataclasses.dataclass(frozen=True)
class PublicStartOptions:
  """The options of training on what is declared public."""

  SUBJECT = "Public start"

  public_passes: int = option(
    0,
    "Passes over the public text or images, without privacy, before the first round.",
    check=partial(_validate.integer, 0),
  )
  public_learning_rate: float | None = option(
    None,
    f"Learning rate of these passes, in batches of {_BATCH} images or sequences. Default: 0.1 for "
    "images, 6 for text.",
    check=_validate.positive,
  )


def with_public_start(
  problem: LearningProblem, options: Any, learning_rate: float, public: Callable[[], Examples]
) -> LearningProblem:
  """The problem whose runs all begin with parameters that were trained on public examples.

  Args:
    problem: what is learnt. Its initial parameters are where this training begins.
    options: `PublicStartOptions` and `TrainingOptions` in one.
    learning_rate: where the options have none.
    public: makes the examples.

  Returns:
    The problem itself, if the options ask for no pass.
  """
  if not options.public_passes:
    return problem

  def train() -> PyTree:
    update = local_sgd(
      problem.loss,
      options.public_learning_rate or learning_rate,
      num_epochs=options.public_passes,
      batch_size=_BATCH,
    )
    key, examples = jax.random.key(options.data_seed), jax.tree.map(jnp.asarray, public())
    return jax.tree.map(jnp.add, params, jax.jit(update)(key, params, examples))

  def complete(workdir):
    # Public training costs no privacy, but time: its result is kept for a resumed run.
    path = workdir.path / _FILE
    if not processes.told(path.exists):
      processes.by_first(lambda: save_params(path, train()))
    content = processes.told_bytes(path.read_bytes)
    start = load_params(path if processes.is_first() else io.BytesIO(content), params)
    return problem._replace(init=lambda key: start)

  params = problem.init(jax.random.key(options.init_seed))
  return problem._replace(complete=complete)
