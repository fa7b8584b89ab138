"""What one round's average gets wrong: by the clients who are lost, and by the noise.

The first is measured on clients' own updates, which no observer of a deployment could do: no
guarantee covers it. The second is measured on made-up updates, and tells nothing about anybody.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from matplotlib.figure import Figure

from experiments.client_dropout.options import ClientDropoutOptions, DropoutOptions
from experiments.client_dropout.settings import (
  LOST,
  NoisePlan,
  dropout_of,
  lines,
  num_calibrations,
  query_of,
  updates_of,
)
from experiments.runner.problems.learning_problem import LearningProblem
from experiments.runner.reports import plots, style
from experiments.runner.reports.summary import Row
from experiments.runner.reports.tables import by_column, epsilon, percent
from jdp.federated.dropout.dropout_models import DropoutModel, stage_counts
from jdp.federated.engine.shared_programs import shared
from jdp.queries.base import PyTree
from jdp.queries.distributed.calibrated_integers import IntegerSum
from jdp.queries.distributed.float_sums import DistributedSum

DRAWS = 1000  # rounds of which losses are averaged
NOISES = 3  # rounds of which the noise is measured


class Losses(NamedTuple):
  """What losing clients does to the average update of one round.

  Attributes:
    survivors: [rounds]. The number of clients that reported.
    bias: the length of the mean error over rounds, by that of everybody's average. What chance
      alone would leave of so many rounds is taken off its square.
    error: root mean square of one round's error, by the same.
  """

  survivors: np.ndarray
  bias: float
  error: float


def draws(model: DropoutModel, key: jax.Array, num_rounds: int) -> jax.Array:
  """Who reports in so many rounds, bool [rounds, n], independently of each other."""

  def one(key):
    begin, key = jax.random.split(key)
    present, _ = model.sample(key, model.init(begin))
    return present[0]

  return jax.lax.map(one, jax.random.split(key, num_rounds))


def losses(updates: jax.Array, present: jax.Array) -> Losses:
  """Compares survivors' averages with everybody's.

  Args:
    updates: [n, d], of all clients.
    present: bool [rounds, n], rounds that are independent of each other. Rounds without anybody are
      left out.

  >>> # The first of two clients is lost in half of the rounds.
  >>> present = jnp.array([[True, True], [False, True]] * 50)
  >>> found = losses(jnp.array([[1.0, 0.0], [0.0, 1.0]]), present)
  >>> print(
  ...   f"{found.bias:.2f} {found.error:.2f}"
  ... )  # half of (-1, 1) / 2 to (1, 1) / 2, or all of it
  0.50 0.71
  """
  survivors = np.asarray(jnp.sum(present, axis=1))
  weights = jnp.asarray(present, jnp.float32)[survivors > 0]
  average = jnp.mean(updates, axis=0)
  off = weights @ updates / jnp.sum(weights, axis=1, keepdims=True) - average[None]
  rounds = len(off)
  squared = float(jnp.mean(jnp.sum(off**2, axis=1)))
  mean = float(jnp.sum(jnp.mean(off, axis=0) ** 2))
  by_chance = (squared - mean) / max(1, rounds - 1)
  scale = float(jnp.linalg.norm(average))
  return Losses(survivors, max(0.0, mean - by_chance) ** 0.5 / scale, squared**0.5 / scale)


def noise_of(
  query: DistributedSum | IntegerSum, key: jax.Array, updates: PyTree, present: jax.Array
) -> float:
  """The standard deviation of what noise, and rounding to integers, add to one round's sum.

  Args:
    query: the sum.
    key: of rounding and noise. The result is not a release, so any key does.
    updates: clipped updates of all clients, [n, ...].
    present: bool [stages, n].
  """
  weights = present[0].astype(jnp.float32)
  exact = jax.tree.map(lambda x: jnp.tensordot(weights, x, 1), updates)
  noised = shared(partial(released, query))(key, updates, present)
  off = jax.tree.map(jnp.subtract, noised, exact)
  return float(jnp.sqrt(jnp.mean(ravel_pytree(off)[0] ** 2)))


def released(
  query: DistributedSum | IntegerSum, key: jax.Array, updates: PyTree, present: jax.Array
) -> PyTree:
  """The noised sum of the updates of those who report, as the server gets it."""
  weights, counts = present[0].astype(jnp.float32), stage_counts(present)
  noise_key, key = jax.random.split(key)
  if isinstance(query, DistributedSum):
    exact = jax.tree.map(lambda x: jnp.tensordot(weights, x, 1), updates)
    noise = query.noise(noise_key, exact, counts)
    return query.finalize(key, jax.tree.map(jnp.add, exact, noise), counts)[0]
  state = query.init(updates)
  encoded = jax.lax.map(
    lambda one: query.encode(one[0], state, one[1], one[2]),
    (jax.random.split(key, len(weights)), updates, weights),
    batch_size=50,
  )
  return query.finalize(noise_key, state, jnp.sum(encoded, axis=0), counts)[0]


def losses_table(options: ClientDropoutOptions, problem: LearningProblem, params: PyTree) -> str:
  """The survivors of each dropout model and rate, and what their average gets wrong."""
  made = updates_of(options, problem, problem.num_users)
  updates = jax.vmap(lambda update: ravel_pytree(update)[0])(
    made(jax.random.key(options.data_seed), params)
  )
  rows = []
  for model, rate in itertools.product(options.dropout_models, options.dropouts):
    lost = dropout_of(options, problem, model, rate, 0)
    found = losses(updates, draws(lost, jax.random.key(options.data_seed), DRAWS))
    rows.append(
      {
        "who is lost": LOST[model],
        "clients lost": percent(rate, 0),
        "survivors, mean ± stddev": f"{found.survivors.mean():.0f} ± {found.survivors.std():.0f}",
        "least and most": f"{found.survivors.min()} to {found.survivors.max()}",
        "bias of the average": percent(found.bias),
        "error of one round's average": percent(found.error),
      }
    )
  return by_column(rows)


def survivors_figure(options: ClientDropoutOptions, problem: LearningProblem) -> Figure:
  """The numbers of survivors over the rounds of a run, of each dropout model, and the floor."""
  rate = max(options.dropouts)
  made, axes = plots.figure("rounds", "survivors", f"{percent(rate, 0)} of the clients lost")
  looks = style.distinct([LOST[model] for model in options.dropout_models])
  rounds = range(1, options.num_rounds + 1)
  for model in options.dropout_models:
    lost = dropout_of(options, problem, model, rate, 0)
    begin, key = jax.random.split(jax.random.key(options.data_seed))
    counts = _survivors(lost, begin, jax.random.split(key, options.num_rounds))
    axes.plot(rounds, np.asarray(counts), label=LOST[model], **looks[LOST[model]])
  axes.axhline(options.min_clients, color="grey", linestyle=":", label="floor")
  return made


def _survivors(lost: DropoutModel, begin: jax.Array, keys: jax.Array) -> jax.Array:
  """How many report in each round of one run."""

  def one(state, key):
    present, state = lost.sample(key, state)
    return state, jnp.sum(present[0])

  return jax.lax.scan(one, lost.init(begin), keys)[1]


def noise_table(
  options: ClientDropoutOptions, problem: LearningProblem, plan: NoisePlan, rows: Sequence[Row]
) -> str:
  """The error that noise makes in each setting, measured, beside its guarantee and accuracy."""
  updates = _made_up(options, problem)
  by_setting = {row["setting"]: row for row in rows}
  never_abandoned = dataclasses.replace(options, min_clients=1)
  cells = []
  for line, rate in itertools.product(lines(options), options.dropouts):
    query = query_of(never_abandoned, problem, plan, line.scheme)
    lost = dropout_of(options, problem, line.dropout_model, rate, num_calibrations(query))
    row = by_setting[f"{line.name}_{rate:g}"]
    error = _measured_noise(query, lost, updates) / options.clip_norm
    cells.append(
      {
        "run": row["label"],
        "error of a round's sum / C": f"{error:.3f}",
        "ε against the server": epsilon(row["server"]),
        "abandoned": f"{row['abandoned']} of {row['rounds'].mean * row['seeds']:.0f}",
        "accuracy": percent(row["test_accuracy"]),
      }
    )
  return by_column(cells)


def _measured_noise(
  query: DistributedSum | IntegerSum, lost: DropoutModel, updates: PyTree
) -> float:
  squares = []
  for number in range(NOISES):
    begin, lost_key, key = jax.random.split(jax.random.fold_in(jax.random.key(0), number), 3)
    present, _ = lost.sample(lost_key, lost.init(begin))
    squares.append(noise_of(query, key, updates, present) ** 2)
  return float(np.mean(squares)) ** 0.5


def _made_up(options: DropoutOptions, problem: LearningProblem) -> PyTree:
  """Random updates of all clients, each as long as the bound, [n, ...]."""
  flat, unravel = ravel_pytree(problem.init(jax.random.key(0)))

  def one(key):
    direction = jax.random.normal(key, flat.shape)
    return unravel(options.clip_norm * direction / jnp.linalg.norm(direction))

  return jax.vmap(one)(jax.random.split(jax.random.key(1), problem.num_users))
