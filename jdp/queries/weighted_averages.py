"""Averages of weighted records whose denominator is the sample's own, bounded below.

Source: arXiv 1710.06963, Section 3.2.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jdp import _validate
from jdp._arguments import checked
from jdp.events import WeightedAverage
from jdp.numerics.compensated import divide, maximum
from jdp.queries.base import PyTree, Schedule, SumQuery, scales
from jdp.queries.gaussian import (
  SumState,
  add_noise,
  at_step,
  check_clip_and_noise,
  clipped,
  initial_state,
  noise_by_state,
  weighted,
)


class WeightedContribution(NamedTuple):
  """What a record adds to the two sums.

  Attributes:
    vector: w_k D_k with D_k clipped. Float32, of the record's structure.
    weight: w_k in [0, 1], float32 scalar.
  """

  vector: PyTree
  weight: jax.Array


@checked
def weighted_average(
  clip_norm: float | Schedule, stddev: float | Schedule, *, min_total_weight: float
) -> SumQuery:
  """The average sum_k w_k D_k / max(W_min, sum_k w_k) of clipped records, plus N(0, sigma^2).

  The noise is on each coordinate. Where the sample's total weight varies, this average follows it,
  unlike `average` with its fixed denominator. The price is a larger sensitivity.

  Formal guarantee, to whoever sees the result: the average moves by at most 2S / W_min when a
  record is replaced by another of any weight. It moves by at most 2S / (W_min + 1) when one is
  added, removed or replaced by the null record. The accountant derives the noise multiplier from
  the event. This holds for any records (NaN and infinity are clipped to zero) and weights (clipped
  to [0, 1]). The realised total weight is never released.

  The second bound follows by cases. Let the others weigh W, and the record w:

  * While W + w <= W_min, the average moves by w S / W_min.
  * For W >= W_min, it moves by at most 2S w / (W + w).
  * Between the two, it moves by at most S ((w - W) / (W + w) + W / W_min). This bound grows with w
    and is convex in W. It is largest at w = 1 and W = W_min.

  In float32, the statements of `gaussian_sum` hold. Sums are divided and noise is added before the
  one rounding. The noised average is dithered.

  Args:
    clip_norm: S > 0, the bound on a record's vector D_k. A number or a schedule.
    stddev: sigma >= 0, on the *average*. It is z times the sensitivity for a noise multiplier z. A
      number or a schedule.
    min_total_weight: W_min, public. For a sampled fraction q of the records it is the paper's q
      W_min.

  Returns:
    A `SumQuery` on pytrees of float arrays. Its weights are the w_k. Contributions are
    `WeightedContribution`s. The result is a float32 tree of the record's structure. Its event is a
    `WeightedAverage`.

  Raises:
    ValueError: if clip_norm or min_total_weight is not in [1e-30, 1e30], or stddev is neither zero
      nor in that range.

  >>> query = weighted_average(clip_norm=1.0, stddev=0.0, min_total_weight=0.5)
  >>> state = query.init(jnp.zeros(2))
  >>> records, weights = jnp.array([[0.6, 0.8], [0.0, 5.0]]), jnp.array([0.5, 1.0])
  >>> contributions = jax.vmap(query.preprocess, (None, None, 0, 0))(
  ...   jax.random.key(0), state, records, weights
  ... )
  >>> total = jax.tree.map(lambda x: jnp.sum(x, axis=0), contributions)
  >>> result, event, _ = query.finalize(jax.random.key(1), state, total)
  >>> [round(x, 4) for x in result.tolist()], event
  ([0.2, 0.9333], WeightedAverage(clip_norm=1.0, stddev=0.0, min_total_weight=0.5))
  """
  check_clip_and_noise(clip_norm, stddev)
  _validate.float32_safe(min_total_weight=min_total_weight)
  clip, _ = clipped(clip_norm)

  @scales
  def preprocess(key, state, record, weight):
    del key
    return WeightedContribution(*weighted((clip(state, record), jnp.float32(1)), weight))

  def finalize(key, state, total):
    # Both sums are unrounded here. `add_noise` rounds once, after the noise.
    mean = divide(total.vector, maximum(total.weight, min_total_weight))
    sigma = at_step(stddev, state.step)
    bound = at_step(clip_norm, state.step)
    event = WeightedAverage(bound, sigma, min_total_weight)
    return add_noise(key, mean, sigma), event, SumState(state.step + 1)

  return SumQuery(
    initial_state, preprocess, finalize, noise_by_state(stddev), takes_pairs=True, clip=clip
  )
