"""The Gaussian sum query: clip every record, add them up, add Gaussian noise.

Source: arXiv 1812.06210, Section 2.2.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jdp import _validate
from jdp._arguments import checked
from jdp.accounting.float_noise import FINEST_SHARE
from jdp.events import GaussianSum, NonPrivate
from jdp.numerics import vectors
from jdp.numerics.compensated import add, rounded
from jdp.numerics.dither import dithered
from jdp.queries.base import PyTree, Schedule, SumQuery, scales, times
from jdp.random import draws


class SumState(NamedTuple):
  """What changes from round to round: `step`, int32 scalar, the number of rounds finalised."""

  step: jax.Array


def initial_state(record: PyTree) -> SumState:
  """The state before the first round, the same for every record."""
  del record
  return SumState(jnp.int32(0))


@checked
def gaussian_sum(clip_norm: float | Schedule, stddev: float | Schedule) -> SumQuery:
  """The sum of vectors, each clipped to an L2 norm of S, plus N(0, sigma^2) on each coordinate.

  Formal guarantee: privacy tuple (S, sigma), to whoever sees the result. The sum moves by at most S
  when a record is added, removed or replaced by the null record. It moves by at most 2S when a
  record is replaced by another. This holds for any records (NaN and infinity are clipped to zero)
  and weights (clipped to [0, 1]).

  Contributions must be added up by `jdp.federated.cohort_sum` or `jdp.numerics.compensated`, which
  move the sum by at most S (1 + 1e-6). Plain float32 sums of thousands can move by several S. Noise
  is added before the one rounding to float32.

  The low-order bits of float noise would reveal more than that (I. Mironov, CCS 2012). So the
  noised sum is dithered: rounded to a grid of sigma / 16 with a public random shift. It stays
  unbiased, and the variance of a coordinate rises by sigma^2 / 3072. What float32 adds to epsilon
  even so, tails included, is not part of the event. It is at most
  `jdp.accounting.grid_surcharge(sigma / 16, sigma, ...)` (`large`, for sums beyond 4,000 sigma). At
  delta = 1e-10 that is 1.1e-3 for one coordinate and 0.027 for a thousand.

  Args:
    clip_norm: S > 0, a number or a schedule (round number -> S).
    stddev: sigma >= 0, the noise on the sum. A number or a schedule. sigma = z S for a noise
      multiplier z.

  Returns:
    A `SumQuery` on pytrees of float arrays. Contributions and result are float32 trees of the same
    structure. Its event is a `GaussianSum`.

  Raises:
    ValueError: if clip_norm is not in [1e-30, 1e30], or stddev is neither zero nor in that range.
      Outside it float32 would turn one of the two into zero or infinity.

  >>> query = gaussian_sum(clip_norm=1.0, stddev=0.0)
  >>> state = query.init(jnp.zeros(2))
  >>> contribution = query.preprocess(
  ...   jax.random.key(0), state, jnp.array([3.0, 4.0]), jnp.float32(1)
  ... )
  >>> result, event, state = query.finalize(jax.random.key(1), state, contribution)
  >>> [round(x, 4) for x in result.tolist()], event
  ([0.6, 0.8], GaussianSum(clip_norm=1.0, stddev=0.0))
  """
  check_clip_and_noise(clip_norm, stddev)
  clip, preprocess = clipped(clip_norm)

  def finalize(key, state, total):
    sigma = at_step(stddev, state.step)
    bound = at_step(clip_norm, state.step)
    event = GaussianSum(bound, sigma)
    return add_noise(key, total, sigma), event, SumState(state.step + 1)

  return SumQuery(
    initial_state, preprocess, finalize, noise_by_state(stddev), takes_pairs=True, clip=clip
  )


def clipped(clip_norm: float | Schedule) -> tuple[Callable, Callable]:
  """The `clip` and the `preprocess` of a query that clips to S, whose state has a `step`."""

  def clip(state, record):
    return vectors.clip(record, at_step(clip_norm, state.step))

  @scales
  def preprocess(key, state, record, weight):
    del key
    return weighted(clip(state, record), weight)

  return clip, preprocess


def no_privacy() -> SumQuery:
  """The plain sum, for baselines.

  Nothing is clipped and no noise is added, so epsilon is infinite. A record that holds NaN or
  infinity counts as zero here too, so that a baseline sees the same cohort. So does one of inputs
  beyond 1e18 if ghost norms are taken.

  >>> query = no_privacy()
  >>> state = query.init(jnp.zeros(2))
  >>> record = jnp.array([3.0, 4.0])
  >>> contribution = query.preprocess(jax.random.key(0), state, record, jnp.float32(1))
  >>> result, event, state = query.finalize(jax.random.key(1), state, contribution)
  >>> result.tolist(), event
  ([3.0, 4.0], NonPrivate())
  """

  @scales
  def preprocess(key, state, record, weight):
    del key, state
    return weighted(vectors.clip(record, jnp.finfo(jnp.float32).max), weight)

  def finalize(key, state, total):
    del key
    return rounded(total), NonPrivate(), SumState(state.step + 1)

  return SumQuery(initial_state, preprocess, finalize, noise=0.0, takes_pairs=True)


@checked
def average(query: SumQuery, denominator: float) -> SumQuery:
  """The query's sum divided by a fixed number, such as the *expected* cohort size qN.

  The privacy tuple is that of the sum. The denominator must be public and the same for neighbouring
  data sets: the realised size of a sample would reveal who is in it.

  Raises:
    ValueError: if the denominator is not positive.

  >>> query = average(gaussian_sum(clip_norm=1.0, stddev=0.0), denominator=4.0)
  >>> query.finalize(jax.random.key(0), query.init(jnp.zeros(2)), jnp.array([2.0, 4.0]))[0].tolist()
  [0.5, 1.0]
  """
  _validate.positive(denominator=denominator)

  def finalize(key, state, total):
    result, event, state = query.finalize(key, state, total)
    return jax.tree.map(lambda x: x / jnp.float32(denominator), result), event, state

  # A noise of 0 or None stays what it is.
  return query._replace(
    finalize=finalize, noise=query.noise and times(1 / denominator, query.noise)
  )


def check_clip_and_noise(
  clip_norm: float | Schedule, stddev: float | Schedule, name: str = "stddev"
) -> None:
  """Refuses a constant S outside [1e-30, 1e30], and a constant sigma that is neither in there nor
  zero.

  `name` is the caller's name for sigma.
  """
  if not callable(clip_norm):
    _validate.float32_safe(clip_norm=clip_norm)
  if not callable(stddev) and stddev != 0:
    _validate.float32_safe(**{name: stddev})


def noise_by_state(stddev: float | Schedule) -> float | Callable[[SumState], Any]:
  """The `noise` of a query with a `SumState` that adds N(0, stddev^2)."""
  return (lambda state: at_step(stddev, state.step)) if callable(stddev) else stddev


def weighted(contribution: PyTree, weight: jax.Array) -> PyTree:
  """contribution * weight, with the weight clipped to [0, 1]; exactly zero at weight 0 or NaN."""
  weight = jnp.minimum(weight, 1.0)
  # `where`, not a product: 0 times NaN or infinity would not be zero.
  return jax.tree.map(lambda x: jnp.where(weight > 0, x * weight, 0.0), contribution)


def add_noise(key: jax.Array, total: PyTree, stddev: jax.typing.ArrayLike) -> PyTree:
  """total + N(0, stddev^2), rounded to float32 once, then dithered."""
  noise_key, shift_key = jax.random.split(key)
  drawn = draws.normal_like(noise_key, rounded(total))
  noise = jax.tree.map(lambda x: jnp.float32(stddev) * x, drawn)
  # Noise first, then the one rounding. Rounding first would add to the sensitivity.
  noised = rounded(add(total, noise))
  return dithered(shift_key, noised, FINEST_SHARE * stddev)


def at_step(value: float | Schedule, step: jax.Array) -> float | jax.Array:
  """A schedule's value at a step. A constant stays the host's float64."""
  return jnp.asarray(value(step), jnp.float32) if callable(value) else value
