"""Gaussian sums whose noise is correlated over the rounds of a run (DP-FTRL).

Sources: arXiv 2202.08312, 2306.08153.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jdp import _validate
from jdp._arguments import checked
from jdp.accounting.float_noise import FINEST_SHARE
from jdp.events import CorrelatedGaussianSum
from jdp.matrix_factorization.noise import noise_source
from jdp.matrix_factorization.plans import planned_sum
from jdp.matrix_factorization.strategies import Strategy
from jdp.numerics.compensated import Compensated, add, divide, rounded
from jdp.numerics.dither import on_shifted_grid
from jdp.queries.base import PyTree, Schedule, SumQuery, times
from jdp.queries.gaussian import at_step, check_clip_and_noise, clipped


class CorrelatedState(NamedTuple):
  """What changes from round to round.

  Attributes:
    step: the number of rounds finalised, int32 scalar.
    kept: what the noise of later rounds needs from earlier noise. Secret, and clients do not see
      it.
  """

  step: jax.Array
  kept: Any


@checked
def correlated_gaussian_sum(
  clip_norm: float | Schedule,
  noise_multiplier: float,
  strategy: Strategy,
  *,
  min_separation: int = 1,
  max_participations: int | None = None,
) -> SumQuery:
  """The sum of vectors, each clipped to an L2 norm of S, plus noise that later rounds cancel.

  Round t releases S_t (G_t + row t of C^-1 Z). G_t is the sum divided by S_t, the round's clip
  norm. Z is independent noise N(0, z^2), and C is the strategy.

  Formal guarantee: a whole run is one Gaussian release with the noise multiplier z / `sensitivity`,
  to whoever sees all results, if a user's rounds are at least `min_separation` apart and at most
  `max_participations`. The sampler must see to that. With independent noise (`identity`) it is that
  of `gaussian_sum` in every round. Later records and clip norms may depend on all that earlier
  rounds released. Beyond the strategy's rounds the result is NaN, whatever the sum.

  Sums, clipping and the grid of the release are those of `gaussian_sum`. The spacing is a sixteenth
  of the noise that is new in the round. Later rounds cancel the rounding error of that grid like
  noise, so the sum of a run's results holds it once. Only where noise is drawn again from keys
  (`identity`, `banded_inverse_square_root`), the errors add up: a variance of S^2 z^2 / 3072 for
  each round. What float32 adds to epsilon is as for `gaussian_sum` in every round. Where noise is
  drawn again, this is not proved, as the cells of several rounds then share draws.

  Args:
    clip_norm: S > 0, a number or a schedule (round number -> S).
    noise_multiplier: z >= 0, the standard deviation of Z's entries. The run's privacy follows from
      z divided by the sensitivity, not from z.
    strategy: C, of `jdp.matrix_factorization`. Its `memory` says how many arrays of the model's
      size the state holds.
    min_separation: the least distance between two rounds of one user; neighbouring rounds are 1
      apart.
    max_participations: the most rounds of one user. None: as many as fit.

  Returns:
    A `SumQuery` on pytrees of float arrays with a `CorrelatedState`. Contributions and result are
    float32 trees of the same structure. Its event is a `CorrelatedGaussianSum`. It states no
    `noise`, so `on_grid` refuses it.

  Raises:
    ValueError: if a number is out of range.

  >>> from jdp.matrix_factorization import square_root_toeplitz
  >>> query = correlated_gaussian_sum(1.0, 2.0, square_root_toeplitz(8, bands=2), min_separation=4)
  >>> state = query.init(jnp.zeros(2))
  >>> result, event, state = query.finalize(jax.random.key(1), state, jnp.zeros(2))
  >>> event.noise_multiplier, event.max_participations, event.squared_sensitivity, int(event.index)
  (2.0, 2, 2.5, 0)
  >>> state.kept.shape, query.public(state).kept
  ((1, 2), ())
  """
  _validate.non_negative(noise_multiplier=noise_multiplier)
  check_clip_and_noise(
    clip_norm, times(noise_multiplier, clip_norm), "noise_multiplier times clip_norm"
  )
  plan = planned_sum(
    strategy, noise_multiplier, min_separation=min_separation, max_participations=max_participations
  )
  init, release = correlated_release(strategy, plan)
  clip, preprocess = clipped(clip_norm)

  def finalize(key, state, total):
    bound = at_step(clip_norm, state.step)
    stddevs = jax.tree.map(lambda _: noise_multiplier * bound, rounded(total))
    return release(key, state, total, stddevs, bound)

  return SumQuery(
    init,
    preprocess,
    finalize,
    takes_pairs=True,
    clip=clip,
    public=without_noise,
    num_rounds=strategy.num_rounds,
  )


def without_noise(state: Any) -> Any:
  """A state with `kept` left out."""
  return state._replace(kept=())


def correlated_release(
  strategy: Strategy, plan: CorrelatedGaussianSum
) -> tuple[Callable[[PyTree], CorrelatedState], Callable[..., Any]]:
  """The `init` of a query, and what its `finalize` does once noise levels are known.

  The latter is (key, state, sum, stddevs, clip norm) -> (result, event, state). The state may be of
  any type with the fields of `CorrelatedState`. `stddevs` is a tree like the sum, with z times the
  unit of each leaf.
  """
  source = noise_source(strategy)

  def init(record):
    return CorrelatedState(jnp.int32(0), source.init(record))

  def release(key, state, total, stddevs, clip_norm):
    event = dataclasses.replace(plan, clip_norm=clip_norm, index=state.step)
    if plan.noise_multiplier == 0:
      return _until(plan.num_rounds, state.step, rounded(total)), event, _next(state, state.kept)
    noise_key, shift_key = jax.random.split(key)
    row, drawn = source.draw(noise_key, state.step, state.kept, rounded(total))
    noised = rounded(add(total, jax.tree.map(_times, stddevs, row)))
    shift = jax.random.uniform(shift_key, dtype=jnp.float32)
    finest = FINEST_SHARE * source.fresh(state.step)
    result = jax.tree.map(lambda x, s: on_shifted_grid(x, shift, finest * s), noised, stddevs)
    # The noise as released, so that later rounds also cancel what the grid added.
    kept = source.settle(drawn, jax.tree.map(_noise_in_units, result, total, stddevs))
    return _until(plan.num_rounds, state.step, result), event, _next(state, kept)

  return init, release


def _noise_in_units(
  result: jax.Array, total: jax.Array | Compensated, stddev: jax.typing.ArrayLike
) -> jax.Array:
  """(result - total) / stddev. In float32, XLA divides differently from program to program."""
  noise = add(result, jax.tree.map(jnp.negative, total))
  return rounded(divide(noise, jnp.float32(stddev)))


def _times(stddev: jax.typing.ArrayLike, row: jax.Array) -> jax.Array:
  return jnp.float32(stddev) * row


def _next(state: Any, kept: Any) -> Any:
  """The state of the next round."""
  return state._replace(step=state.step + 1, kept=kept)


def _until(num_rounds: int, step: jax.Array, result: PyTree) -> PyTree:
  """The result, or NaN where there is no noise for the round."""
  return jax.tree.map(lambda x: jnp.where(step < num_rounds, x, jnp.nan), result)
