"""Whole runs of DP-FedAvg with correlated noise, as subjects of audits.

A linear model is trained by least squares, for twelve rounds. Groups of two users take turns. One
is a canary in the group whose turns tell most: a label far beyond the model's reach, so that its
update has the clip norm in each of its rounds, and one direction. It is there or not. The others
train on data of their own, and answer to the models that the canary moved.
"""

from collections.abc import Callable
from functools import partial

import jax.numpy as jnp
import numpy as np

from jdp import conformance, models, sampling
from jdp import matrix_factorization as mf
from jdp.data import Examples
from jdp.federated import dp_fedavg, gradient_step
from jdp.guarantees import Relation
from jdp.matrix_factorization import Strategy
from jdp.matrix_factorization.banded_matrices import BandedStrategy

ROUNDS, SEPARATION = 12, 3
_USERS, _FEATURES = 2 * SEPARATION, 2
_OUT_OF_REACH = 1e4  # the canary's label; the models' predictions stay below 100
DELTA = 0.1  # large, so that a sample contains many events of this probability
_TARGET = 2.0  # by moments; the ledger states less


class RowsForColumns(BandedStrategy):
  """A strategy that takes the norms of its rows for those of its columns."""

  def squared_sensitivity(self, min_separation: int, most: int) -> float:
    """The squared norm of the longest row, for each participation."""
    del min_separation
    return most * float(np.max(np.sum(self.matrix() ** 2, axis=1)))


def rows_for_columns(num_rounds: int, bands: int) -> RowsForColumns:
  """The optimal C^T C factored as L L^T, with L in the place of C; all rows of L have norm 1."""
  right = mf.banded(num_rounds, bands).matrix()
  wrong = np.linalg.cholesky(right.T @ right)
  return RowsForColumns(
    np.stack([np.append(np.diagonal(wrong, -i), np.zeros(i)) for i in range(bands)])
  )


SOUND: dict[str, Callable[[], Strategy]] = {
  "identity": lambda: mf.identity(ROUNDS),
  "tree": lambda: mf.tree(ROUNDS),
  "banded_toeplitz": lambda: mf.banded_toeplitz(ROUNDS, SEPARATION),
  "banded": lambda: mf.banded(ROUNDS, SEPARATION),
  "buffered": lambda: mf.buffered_toeplitz(
    ROUNDS, buffers=2, min_separation=SEPARATION, max_participations=None
  ),
  "banded_inverse": lambda: mf.banded_inverse_square_root(ROUNDS, SEPARATION),
}
BROKEN = {"banded, rows for columns": lambda: rows_for_columns(ROUNDS, SEPARATION)}


def subject(strategy: Strategy) -> conformance.Subject:
  """The run with the strategy: a canary's presence against its absence, by the worst turns."""
  columns = strategy.matrix()
  told = [np.sum(np.sum(columns[:, group::SEPARATION], 1) ** 2) for group in range(SEPARATION)]
  clients = {"present": _clients(int(np.argmax(told)), 1.0)}
  clients["absent"] = _clients(int(np.argmax(told)), 0.0)
  model = models.Model(
    lambda key: jnp.zeros((_FEATURES, 1)), lambda params, inputs: inputs @ params
  )
  algorithm = dp_fedavg(
    models.squared_error(model),
    clients["present"],
    cohort_size=_USERS // SEPARATION,
    clip_norm=1.0,
    num_rounds=ROUNDS,
    target_epsilon=_TARGET,
    delta=DELTA,
    local_update=partial(gradient_step, learning_rate=0.1),
    sampler=sampling.min_separation(_USERS, SEPARATION, ROUNDS // SEPARATION),
    strategy=strategy,
    relation=Relation.ZERO_OUT,
  )
  return conformance.run_subject(
    algorithm, jnp.zeros((_FEATURES, 1)), clients, relation=Relation.ZERO_OUT, delta=DELTA
  )


def _clients(canary: int, weight: float) -> Examples:
  """Three examples of each user; those of the canary, user number `canary`, may not count."""
  rng = np.random.default_rng(0)
  inputs = rng.uniform(-0.5, 0.5, (_USERS, 3, _FEATURES))
  labels, mask = rng.uniform(-1, 1, (_USERS, 3)), np.ones((_USERS, 3))
  inputs[canary], labels[canary], mask[canary] = (1.0, 0.0), _OUT_OF_REACH, weight
  return Examples(*(jnp.asarray(x, jnp.float32) for x in (inputs, labels, mask)))
