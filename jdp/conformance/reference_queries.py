"""A query for each event that none of jdp's queries releases, so that its accounting is audited."""

import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from jdp import random
from jdp.accounting.float_noise import FINEST_SHARE
from jdp.events import ConcentratedRelease, LaplaceSum, PureRelease, RandomizedResponse
from jdp.events.queries import SumQueryEvent
from jdp.numerics.dither import dithered
from jdp.queries import SumQuery, gaussian_sum
from jdp.queries.registry import RegisteredQuery, registered

_ONE_NUMBER = np.full(1, 1e3, np.float32)  # moves a release by at most 1, or 2 if replaced


def audited() -> dict[str, RegisteredQuery]:
  """All registered queries by name, and those of this module.

  >>> audited()["randomized_response"].victim.shape
  (1,)
  """
  laplace = partial(_noised_sum, random.laplace, 2.0, 2.0 * math.sqrt(2))
  rho = ConcentratedRelease((2 / 1.5) ** 2 / 2)
  made: dict[str, Callable[[], SumQuery]] = {
    "laplace_sum": partial(laplace, LaplaceSum(1.0, 2.0)),
    "pure_release": partial(laplace, PureRelease(1.0)),
    "concentrated_release": partial(_noised_sum, random.normal, 1.5, 1.5, rho),
    "randomized_response": partial(_sign_response, 0.5),
  }
  found = registered()
  own = {name: make for name, make in made.items() if name not in found}
  return found | {name: RegisteredQuery(make, make, _ONE_NUMBER, ()) for name, make in own.items()}


def _noised_sum(
  draw: Callable[[jax.Array, tuple[int, ...]], jax.Array],
  scale: float,
  stddev: float,
  event: SumQueryEvent,
) -> SumQuery:
  """The sum with noise of this scale and standard deviation, dithered."""

  def release(key: jax.Array, total: jax.Array) -> jax.Array:
    noise_key, shift_key = jax.random.split(key)
    return dithered(shift_key, total + scale * draw(noise_key, total.shape), FINEST_SHARE * stddev)

  return _released_as(event, release)


def _sign_response(noise: float) -> SumQuery:
  """Releases which of -1, 0 and 1 a number is, by randomised response.

  With probability `noise` the answer is uniform among the three.
  """

  def release(key: jax.Array, total: jax.Array) -> jax.Array:
    coin_key, value_key = jax.random.split(key)
    lie = jax.random.randint(value_key, total.shape, -1, 2).astype(jnp.float32)
    return jnp.where(jax.random.bernoulli(coin_key, noise), lie, jnp.round(total))

  return _released_as(RandomizedResponse(noise, 3), release)


def _released_as(
  event: SumQueryEvent, release: Callable[[jax.Array, jax.Array], jax.Array]
) -> SumQuery:
  """The query that returns release(key, sum of vectors of norm 1), with this event."""
  plain = gaussian_sum(1.0, 0.0)

  def finalize(key, state, total):
    sum_key, release_key = jax.random.split(key)
    result, _, state = plain.finalize(sum_key, state, total)
    return release(release_key, result), event, state

  return plain._replace(finalize=finalize, noise=None)
