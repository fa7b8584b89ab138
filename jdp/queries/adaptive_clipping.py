"""Clipping to a quantile of the records' norms, which the rounds themselves estimate.

Source: arXiv 1905.03871.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jdp import _validate
from jdp._arguments import checked
from jdp.events import GaussianSum, GroupedSums
from jdp.guarantees import rounded_up
from jdp.matrix_factorization.plans import planned_sum
from jdp.matrix_factorization.strategies import Strategy
from jdp.numerics import vectors
from jdp.numerics.compensated import rounded
from jdp.queries.base import PyTree, SumQuery, scales
from jdp.queries.correlated_sum import correlated_release, without_noise
from jdp.queries.gaussian import add_noise, weighted

_CLIP_RANGE = (1e-15, 1e15)  # keeps the noise within float32's range as well


class AdaptiveState(NamedTuple):
  """What changes from round to round.

  Attributes:
    step: the number of rounds finalised, int32 scalar.
    clip_norm: S of the next round, float32 scalar. Public: it follows from released counts.
    kept: what correlated noise needs from earlier rounds. Secret. Empty without a strategy.
  """

  step: jax.Array
  clip_norm: jax.Array
  kept: Any = ()


class AdaptiveContribution(NamedTuple):
  """What a record adds to the two sums.

  Attributes:
    vector: the clipped record, float32.
    unclipped: the record's weight times 1/2 or -1/2, float32 scalar. The factor is 1/2 if the
      record's norm is within the clip norm.
  """

  vector: PyTree
  unclipped: jax.Array


@checked
def adaptive_clipped_sum(
  noise_multiplier: float,
  expected_size: float,
  *,
  initial_clip_norm: float = 0.1,
  quantile: float = 0.5,
  learning_rate: float = 0.2,
  count_stddev: float | None = None,
  strategy: Strategy | None = None,
  min_separation: int = 1,
  max_participations: int | None = None,
) -> SumQuery:
  """A Gaussian sum whose clip norm S follows a quantile of the records' norms.

  The quantile is learned from noised counts. Each round also counts the unclipped records. Their
  share is estimated by b = 1/2 + (sum_k b_k + N(0, sigma_b^2)) / m with centred bits b_k = +-1/2.
  Then S becomes S exp(-learning_rate (b - quantile)), kept within [1e-15, 1e15] (Section 2).

  Formal guarantee, to whoever sees the result and all clip norms: that of one Gaussian sum with
  noise multiplier z, under any relation. A record moves the count by at most 1/2 if it is added,
  removed or replaced by the null record, and by 1 if it is replaced. So the count costs a
  multiplier of 2 sigma_b. The sum gets the rest, z_sum = (z^-2 - (2 sigma_b)^-2)^(-1/2) (Theorem
  1). A record of weight 0 adds to neither sum. A record that holds NaN or infinity counts as a zero
  vector, unclipped.

  In float32 the event's stddev / clip_norm is within a relative 2e-7 of z_sum. Both noised sums are
  dithered, and cost what `gaussian_sum` says. The count is released through the clip norms, so it
  is one more coordinate.

  With a strategy the noise of sum and count is correlated over the rounds: it is the noise of the
  sums divided by their clip norms, which follow from earlier counts. Sum and count together are one
  correlated sum of the multiplier z. The guarantee is then that of
  `jdp.queries.correlated_gaussian_sum(S, z, strategy)`, for the whole run.

  Args:
    noise_multiplier: z >= 0, for sum and count together.
    expected_size: m > 0, the expected number of records in a sample. Public.
    initial_clip_norm: S in the first round, in [1e-15, 1e15].
    quantile: the share of records to leave unclipped. In [0, 1].
    learning_rate: the rate of the geometric update. Positive.
    count_stddev: sigma_b > z/2, the noise on the count. Default: m / 20, which costs the sum little
      if m is some hundreds or more.
    strategy: how noise is correlated over the rounds (`jdp.matrix_factorization`). None: it is
      independent.
    min_separation: with a strategy, the least distance between two rounds of one user.
    max_participations: with a strategy, the most rounds of one user. None: as many as fit.

  Returns:
    A `SumQuery` on pytrees of float arrays with an `AdaptiveState`. The result is the noised vector
    sum, a float32 tree of the record's structure. Its event is a `GroupedSums` of two
    `GaussianSum`s, "count" and "sum". The latter holds the clip norm and noise of that round. With
    a strategy it is a `CorrelatedGaussianSum`.

  Raises:
    ValueError: if an argument is out of range, such as a count_stddev that leaves nothing for the
      sum.

  >>> query = adaptive_clipped_sum(1.0, expected_size=100.0, initial_clip_norm=4.0)
  >>> state = query.init(jnp.zeros(2))
  >>> contribution = query.preprocess(
  ...   jax.random.key(0), state, jnp.array([6.0, 8.0]), jnp.float32(1)
  ... )
  >>> [round(x, 3) for x in contribution.vector.tolist()], float(contribution.unclipped)
  ([2.4, 3.2], -0.5)
  """
  _validate.non_negative(noise_multiplier=noise_multiplier)
  _validate.float32_safe(expected_size=expected_size)
  _validate.in_range(*_CLIP_RANGE, initial_clip_norm=initial_clip_norm)
  _validate.probability(quantile=quantile)
  _validate.positive(learning_rate=learning_rate)
  sigma_b = expected_size / 20 if count_stddev is None else count_stddev
  sum_multiplier = _sum_multiplier(noise_multiplier, sigma_b)
  if strategy is None:
    begin, release = _independent(sum_multiplier, sigma_b)
  else:
    plan = planned_sum(
      strategy,
      noise_multiplier,
      min_separation=min_separation,
      max_participations=max_participations,
    )
    begin, release = _correlated(correlated_release(strategy, plan), sum_multiplier, sigma_b)

  def init(record):
    return AdaptiveState(jnp.int32(0), jnp.float32(initial_clip_norm), begin(record))

  @scales
  def preprocess(key, state, record, weight):
    del key
    bit = jnp.where(vectors.l2_norm(record) <= state.clip_norm, 0.5, -0.5)
    return AdaptiveContribution(*weighted((vectors.clip(record, state.clip_norm), bit), weight))

  def finalize(key, state, total):
    noised, event, state = release(key, state, total)
    # The centred bits add up to (unclipped - clipped) / 2. So 1/2 is added back.
    share = 0.5 + noised.unclipped / expected_size
    clip_norm = jnp.clip(
      state.clip_norm * jnp.exp(-learning_rate * (share - quantile)), *_CLIP_RANGE
    )
    return noised.vector, event, state._replace(clip_norm=clip_norm)

  def noise(state):
    return jnp.float32(sum_multiplier) * state.clip_norm

  query = SumQuery(init, preprocess, finalize, noise, takes_pairs=True, public=without_noise)
  if strategy is None:
    return query
  return query._replace(noise=None, num_rounds=strategy.num_rounds)


def _independent(sum_multiplier: float, sigma_b: float) -> tuple[Callable, Callable]:
  """(record -> what is kept), ((key, state, sum) -> (noised, event, state)), with fresh noise."""

  def release(key, state, total):
    count_key, sum_key = jax.random.split(key)
    sigma = jnp.float32(sum_multiplier) * state.clip_norm
    event = GroupedSums(
      (GaussianSum(0.5, sigma_b), GaussianSum(state.clip_norm, sigma)), ("count", "sum")
    )
    vector = add_noise(sum_key, total.vector, sigma)
    noised = AdaptiveContribution(vector, add_noise(count_key, total.unclipped, sigma_b))
    return noised, event, state._replace(step=state.step + 1)

  return lambda record: (), release


def _correlated(
  parts: tuple[Callable, Callable], sum_multiplier: float, sigma_b: float
) -> tuple[Callable, Callable]:
  """As `_independent`, made from the parts of a `correlated_release`."""
  begin, release_all = parts

  def release(key, state, total):
    sigma = jnp.float32(sum_multiplier) * state.clip_norm
    of_vector = jax.tree.map(lambda _: sigma, rounded(total.vector))
    stddevs = AdaptiveContribution(of_vector, jnp.float32(sigma_b))
    return release_all(key, state, total, stddevs, state.clip_norm)

  return lambda record: begin(AdaptiveContribution(record, jnp.float32(0))).kept, release


def _sum_multiplier(z: float, sigma_b: float) -> float:
  """The noise multiplier of the sum alone.

  With it, sum and count together cost as much as one Gaussian sum of multiplier z.
  """
  if not z / 2 < sigma_b < math.inf:
    raise ValueError(
      f"Expected a finite count_stddev > noise_multiplier / 2 = {rounded_up(z / 2)}, got "
      f"{sigma_b!r}; with less noise the count alone costs more than the whole; raise count_stddev "
      "or expected_size."
    )
  # (z^-2 - (2 sigma_b)^-2)^(-1/2), in a form that allows z = 0.
  multiplier = z / math.sqrt(1 - (z / (2 * sigma_b)) ** 2)
  _validate.in_range(0, _CLIP_RANGE[1], noise_multiplier_of_the_sum=multiplier)
  return multiplier
