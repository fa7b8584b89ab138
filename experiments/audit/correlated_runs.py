"""Whole runs of DP-FedAvg with correlated noise, as subjects of audits.

One number is trained, for twelve rounds. Groups take turns, and the user of the group whose turns
tell most sends the clip norm each time. All others send nothing.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from jdp import conformance, sampling
from jdp import matrix_factorization as mf
from jdp.federated import dp_fedavg
from jdp.guarantees import Relation
from jdp.matrix_factorization import Strategy
from jdp.matrix_factorization.banded_matrices import BandedStrategy

ROUNDS, SEPARATION = 12, 3
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
  """The run with the strategy: a user's presence against its absence, by the worst turns."""
  columns = strategy.matrix()
  told = [np.sum(np.sum(columns[:, group::SEPARATION], 1) ** 2) for group in range(SEPARATION)]
  victim = np.arange(SEPARATION) == np.argmax(told)
  algorithm = dp_fedavg(
    lambda params, examples: jnp.float32(0),
    victim,
    cohort_size=1,
    clip_norm=1.0,
    num_rounds=ROUNDS,
    target_epsilon=_TARGET,
    delta=DELTA,
    local_update=lambda loss: _send,
    sampler=sampling.min_separation(SEPARATION, SEPARATION, ROUNDS // SEPARATION),
    strategy=strategy,
    relation=Relation.ZERO_OUT,
  )
  present = jnp.asarray(victim[:, None], jnp.float32)
  clients = {"present": present, "absent": jnp.zeros_like(present)}
  return conformance.run_subject(
    algorithm, jnp.zeros(1), clients, relation=Relation.ZERO_OUT, delta=DELTA
  )


def _send(key: Any, params: Any, client: Any, project: Any = None) -> Any:
  """A client's update is its own number."""
  del key, params, project
  return client
