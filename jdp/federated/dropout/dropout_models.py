"""Models of client dropout, for simulations: who vanishes from a round.

A round has stages: the report, then each calibration. Whoever is lost at one stage is lost for the
later ones.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jdp import _validate
from jdp._arguments import checked

_MOST_CLIENTS = 10**8  # as each is drawn by itself


class DropoutModel(NamedTuple):
  """Who answers, as pure functions.

  Attributes:
    init: key -> the state before the first round.
    sample: (key, state) -> (present, state). `present` is bool [stages, n]. It says who of the n
      announced clients answers at each stage.
  """

  init: Callable[[jax.Array], Any]
  sample: Callable[[jax.Array, Any], tuple[jax.Array, Any]]


def stage_counts(present: jax.Array) -> jax.Array:
  """The numbers of clients that `jdp.queries.distributed.float_sums` works with.

  They are the clients announced, and those who answer at each stage.

  >>> stage_counts(jnp.array([[True, True, False], [True, False, False]])).tolist()
  [3, 2, 1]
  """
  announced = jnp.full(1, present.shape[1], jnp.int32)
  return jnp.concatenate([announced, jnp.sum(present, axis=1, dtype=jnp.int32)])


@checked
def independent(num_clients: int, rate: float) -> DropoutModel:
  """Each client of each round is lost before its report with probability `rate`, independently.

  Raises:
    ValueError: if num_clients is not >= 1 or the rate is not a probability.

  >>> model = independent(1000, 0.3)
  >>> present, _ = model.sample(jax.random.key(0), model.init(jax.random.key(1)))
  >>> present.shape, 600 < int(present.sum()) < 800
  ((1, 1000), True)
  """
  _validate.in_range(1, _MOST_CLIENTS, num_clients=num_clients)
  _validate.probability(rate=rate)
  return _independent(np.full(num_clients, rate))


@checked
def by_size(sizes: Sequence[int], rate: float, *, strength: float = 1.0) -> DropoutModel:
  """Clients with more data are lost more often.

  The probability of losing a client is proportional to size^strength, and `rate` on average. Losing
  a client then tells about its data, which noise on the sum does not hide.

  Raises:
    ValueError: if a size is not positive, or a client would have to be lost with a probability
      above 1.

  >>> model = by_size([10] * 500 + [30] * 500, 0.4, strength=1.0)  # lost at 0.2 and 0.6
  >>> present, _ = model.sample(jax.random.key(0), model.init(jax.random.key(1)))
  >>> 350 < int(present[0, :500].sum()) < 450, 150 < int(present[0, 500:].sum()) < 250
  (True, True)
  """
  _validate.probability(rate=rate)
  weights = np.asarray(sizes, float)
  if not (weights.ndim == 1 and weights.size and np.all((weights > 0) & np.isfinite(weights))):
    raise ValueError(f"Expected sizes > 0, one for each client, got shape {weights.shape}.")
  weights = weights**strength
  rates = rate * weights / weights.mean()
  if not rates.max() <= 1:
    raise ValueError(
      f"Expected rates of at most 1, got {rates.max():.3g} for the largest client; lower the "
      "strength."
    )
  return _independent(rates)


@checked
def bursty(
  num_clients: int, rate: float, mean_rounds: float, *, group_size: int = 1
) -> DropoutModel:
  """Groups of clients are away for a geometric number of rounds, `mean_rounds` on average.

  A group is away in a fraction `rate` of all rounds. Each follows a stationary Markov chain,
  independently of the others. With mean_rounds = 1 / (1 - rate) and groups of one it is
  `independent`.

  Args:
    num_clients: n.
    rate: the fraction of rounds in which a group is away.
    mean_rounds: the mean number of rounds for which a group is away.
    group_size: the clients that leave and return together. They are consecutive, and the last group
      may be smaller. The number of survivors then has group_size times the variance.

  Raises:
    ValueError: if the rate is negative or not below 1, or mean_rounds is below 1 or too short for
      the rate. Also if group_size is not a whole number >= 1.

  >>> model = bursty(6, 0.5, 3.0, group_size=3)
  >>> present, _ = model.sample(jax.random.key(0), model.init(jax.random.key(1)))
  >>> len({bool(x) for x in present[0, :3]}), len({bool(x) for x in present[0, 3:]})
  (1, 1)
  """
  _validate.in_range(1, _MOST_CLIENTS, num_clients=num_clients)
  _validate.in_range(1, 1e9, mean_rounds=mean_rounds)
  _validate.integer(1, group_size=group_size)
  # In the long run as many leave as return: (1 - rate) * leave = rate / mean_rounds.
  leave = rate / (1 - rate) / mean_rounds if 0 <= rate < 1 else np.inf
  if not leave <= 1:
    raise ValueError(
      f"Expected a rate in [0, mean_rounds / (1 + mean_rounds)], got {rate} with {mean_rounds} "
      "rounds."
    )
  num_groups = -(-num_clients // group_size)

  def init(key):
    return jax.random.bernoulli(key, rate, (num_groups,))

  def sample(key, away):
    away = jax.random.bernoulli(
      key, jnp.where(away, jnp.float32(1 - 1 / mean_rounds), jnp.float32(leave))
    )
    return ~jnp.repeat(away, group_size)[None, :num_clients], away

  return DropoutModel(init, sample)


@checked
def with_calibrations(model: DropoutModel, rates: Sequence[float]) -> DropoutModel:
  """The model's rounds, with further losses before each calibration.

  These losses happen between the announcement of who is left and the calibration.

  Args:
    model: who reports.
    rates: for each calibration, the probability of losing a client that answered the stage before.
      Losses are independent.

  Raises:
    ValueError: if a rate is not a probability.

  >>> model = with_calibrations(independent(1000, 0.3), [0.1])
  >>> stage_counts(model.sample(jax.random.key(0), model.init(jax.random.key(1)))[0]).shape
  (3,)
  """
  for rate in rates:
    _validate.probability(rate=rate)

  def sample(key, state):
    report_key, key = jax.random.split(key)
    present, state = model.sample(report_key, state)
    kept = jax.random.bernoulli(
      key, 1 - jnp.asarray(rates, jnp.float32)[:, None], (len(rates), present.shape[1])
    )
    # Whoever was lost at one calibration stays lost at the next.
    later = present[-1:] & (jnp.cumsum(~kept, axis=0) == 0)
    return jnp.concatenate([present, later]), state

  return model._replace(sample=sample)


def _independent(rates: np.ndarray) -> DropoutModel:
  """Losses before the report only, with a probability for each client."""

  def sample(key, state):
    return ~jax.random.bernoulli(key, jnp.asarray(rates, jnp.float32))[None], state

  return DropoutModel(lambda key: (), sample)
