"""Workloads: what a server's optimiser makes of the rounds' sums."""

from collections.abc import Callable

import numpy as np
import scipy

from jdp import _validate
from jdp._arguments import checked
from jdp.matrix_factorization.participation import check_rounds

_MOST_ROUNDS = 20_000  # for more, a matrix of [n, n] takes gigabytes


@checked
def optimizer_workload(
  num_rounds: int,
  *,
  learning_rate: float | Callable[[int], float] = 1.0,
  momentum: float = 0.0,
  weight_decay: float = 0.0,
) -> np.ndarray:
  """The workload A of a server with heavy-ball momentum, a learning-rate schedule and decoupled
  weight decay.

  With rates eta, momentum mu and decay lambda, round t computes from the sum G_t

      v_t = mu v_(t-1) + G_t,    x_t = (1 - eta_t lambda) x_(t-1) + eta_t v_t,

  and row t of A G is x_t. It is optax's chain of trace, add_decayed_weights and
  scale_by_learning_rate, up to the sign.

  Args:
    num_rounds: n.
    learning_rate: eta, or a function of the round, from 0, such as an optax schedule.
    momentum: mu in [0, 1).
    weight_decay: lambda >= 0, with eta lambda <= 1.

  Returns:
    Float64 [n], the first column of a Toeplitz matrix, if the learning rate is a number; else
    float64 [n, n].

  Raises:
    ValueError: if a number is out of range.

  >>> optimizer_workload(4, momentum=0.5).tolist()
  [1.0, 1.5, 1.75, 1.875]
  """
  check_rounds(num_rounds)
  _validate.in_range(0, 1 - 2**-53, momentum=momentum)
  _validate.non_negative(weight_decay=weight_decay)
  if not callable(learning_rate):
    _check_rates(np.array([learning_rate]), weight_decay)
    impulse = np.zeros(num_rounds)
    impulse[0] = learning_rate
    decayed = scipy.signal.lfilter([1.0], [1.0, -(1 - learning_rate * weight_decay)], impulse)
    return scipy.signal.lfilter([1.0], [1.0, -momentum], decayed)
  check_rounds(num_rounds, _MOST_ROUNDS)
  rates = np.array([float(learning_rate(t)) for t in range(num_rounds)])
  _check_rates(rates, weight_decay)
  rows = np.zeros((num_rounds, num_rounds))
  row, velocity = np.zeros(num_rounds), np.zeros(num_rounds)
  for t, rate in enumerate(rates):
    velocity *= momentum
    velocity[t] = 1.0
    row = rows[t] = (1 - rate * weight_decay) * row + rate * velocity
  return rows


def _check_rates(rates: np.ndarray, weight_decay: float) -> None:
  """Refuses learning rates that are not numbers >= 0, or that shrink weights past 0."""
  if not np.all((rates >= 0) & (rates * weight_decay <= 1)):
    raise ValueError(
      "Expected learning_rate to be numbers >= 0 with learning_rate times weight_decay of at most "
      f"1, got others, such as {rates[np.argmax(~((rates >= 0) & (rates * weight_decay <= 1)))]}; "
      "lower one of the two."
    )
