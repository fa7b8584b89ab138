"""Training on public examples, without privacy, before the first round."""

import dataclasses
import io
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import optax

from experiments.runner import checks, processes
from experiments.runner.options import option
from experiments.runner.problems.learning_problem import LearningProblem
from jdp import _validate
from jdp._files import read_bytes
from jdp.data import Examples
from jdp.federated import local_sgd
from jdp.models import Loss, load_params, save_params
from jdp.models.base import keyed
from jdp.queries.base import PyTree

_FILE = "public_start.npz"
_BATCH = 8
_ADAM_RATE = 0.01
_WARM_UP = 0.1  # share of Adam's steps in which its rate rises


@dataclasses.dataclass(frozen=True)
class PublicStartOptions:
  """The options of training on what is declared public."""

  SUBJECT = "Public start"

  public_passes: int = option(
    0,
    "Passes over the public text or images, without privacy, before the first round.",
    check=checks.count_or_zero,
  )
  public_optimizer: str | None = option(
    None,
    "How these passes learn: by SGD, or by Adam, whose rate rises in the first tenth of the steps. "
    "Default: adam for the transformer, sgd for all else.",
    choices=("sgd", "adam"),
  )
  public_learning_rate: float | None = option(
    None,
    f"Learning rate of these passes, in batches of {_BATCH} images or sequences. Default: "
    f"{_ADAM_RATE:g} by Adam; by SGD 0.1 for images, 6 for the LSTM and 0.5 for the transformer.",
    check=_validate.positive,
  )


def with_public_start(
  problem: LearningProblem,
  options: PublicStartOptions,
  public: Callable[[], Examples],
  *,
  init_seed: int,
  data_seed: int,
  sgd_rate: float,
  optimizer: str = "sgd",
) -> LearningProblem:
  """The problem whose runs all begin with parameters that were trained on public examples.

  Args:
    problem: what is learnt. Its initial parameters are where this training begins.
    options: how long and by what it learns.
    public: makes the examples.
    init_seed: of the parameters where this training begins.
    data_seed: of its order.
    sgd_rate: learning rate of SGD, where the options have none.
    optimizer: where the options have none.

  Returns:
    The problem itself, if the options ask for no pass.
  """
  if not options.public_passes:
    return problem

  def train() -> PyTree:
    key, examples = jax.random.key(data_seed), jax.tree.map(jnp.asarray, public())
    rate, passes = options.public_learning_rate, options.public_passes
    if (options.public_optimizer or optimizer) == "adam":
      learn = partial(_by_adam, problem.loss, rate or _ADAM_RATE, passes)
      # Strict promotion refuses Optax's adam, which raises its decay to the power of an integer.
      with jax.numpy_dtype_promotion("standard"):
        return jax.jit(learn)(key, params, examples)
    update = local_sgd(problem.loss, rate or sgd_rate, num_epochs=passes, batch_size=_BATCH)
    return jax.tree.map(jnp.add, params, jax.jit(update)(key, params, examples))

  def complete(workdir):
    # Public training costs no privacy, but time: its result is kept for a resumed run.
    path = workdir.path / _FILE
    if not processes.told(path.exists):
      processes.by_first(lambda: save_params(path, train()))
    content = processes.told_bytes(lambda: read_bytes(path))
    start = load_params(path if processes.is_first() else io.BytesIO(content), params)
    return problem._replace(init=lambda key: start)

  params = problem.init(jax.random.key(init_seed))
  return problem._replace(complete=complete)


def _by_adam(
  loss: Loss,
  learning_rate: float,
  num_passes: int,
  key: jax.Array,
  params: PyTree,
  examples: Examples,
) -> PyTree:
  """The parameters after so many passes of Adam over the examples, in random whole batches."""
  order_key, loss_key = jax.random.split(key)
  number = len(examples.mask)
  size = min(_BATCH, number)
  orders = jax.vmap(partial(jax.random.permutation, x=number))(
    jax.random.split(order_key, num_passes)
  )
  batches = orders[:, : number // size * size].reshape(-1, size)
  rising = max(1.0, _WARM_UP * len(batches))
  optimizer = optax.adam(lambda done: learning_rate * jnp.minimum(1.0, (done + 1) / rising))
  gradient_of = jax.grad(keyed(loss))

  def step(state, batch):
    current, moments = state
    own_key = jax.random.fold_in(loss_key, batch[0])
    gradient = gradient_of(current, jax.tree.map(lambda x: x[batch], examples), own_key)
    change, moments = optimizer.update(gradient, moments)
    return (optax.apply_updates(current, change), moments), None

  return jax.lax.scan(step, (params, optimizer.init(params)), batches)[0][0]
