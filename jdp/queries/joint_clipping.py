"""Joint clipping: vectors of different scales, clipped and noised as one.

Source: arXiv 1812.06210, Section 2.2.
"""

import jax
import jax.numpy as jnp

from jdp import _validate
from jdp._arguments import checked
from jdp.queries.base import PyTree, Schedule, SumQuery, times
from jdp.queries.gaussian import gaussian_sum
from jdp.queries.prefix import broadcast_prefix


@checked
def joint_clipped_sum(
  scales: PyTree, clip_norm: float | Schedule, stddev: float | Schedule
) -> SumQuery:
  """The sum of records of vectors v_1..v_K, clipped together after each is divided by its scale.

  All v_j / a_j are clipped together to S and noised by sigma. Then the sum is multiplied by a_j. A
  record that is large in one vector is often small in the others. Joint clipping then clips less
  than a bound for each vector. With a_j a bound on v_j's own norm, nothing is clipped at S =
  sqrt(K).

  Formal guarantee: privacy tuple (S, sigma) to whoever sees the result. It is that of
  `gaussian_sum` on the scaled vectors, because the multiplication by a_j follows the noise and its
  dithering. The relations and the effect of floating point are the same too. An entry that float32
  cannot hold after its division by a_j counts as infinite, so its record counts as zero.

  Args:
    scales: a_j in [1e-30, 1e30], public. A pytree of numbers that is a prefix of the record. The
      vectors under one number share it.
    clip_norm: S > 0, the bound on the scaled record. A number or a schedule.
    stddev: sigma >= 0, a number or a schedule. The noise on vector j has a standard deviation of
      a_j sigma.

  Returns:
    A `SumQuery` on pytrees of float arrays. Contributions (of the scaled record) and result are
    float32 trees of the same structure. Its event is the `GaussianSum` of the scaled sum.

  Raises:
    ValueError: if a number is out of range. Also when the query meets a record, if `scales` is no
      prefix of it.

  >>> query = joint_clipped_sum({"w": 10.0, "b": 0.1}, clip_norm=1.0, stddev=0.0)
  >>> record = {"w": jnp.array([0.0, 30.0]), "b": jnp.array([0.4])}
  >>> state = query.init(record)
  >>> contribution = query.preprocess(jax.random.key(0), state, record, jnp.float32(1))
  >>> result, event, _ = query.finalize(jax.random.key(1), state, contribution)
  >>> {name: [round(x, 4) for x in vector.tolist()] for name, vector in result.items()}, event
  ({'b': [0.08], 'w': [0.0, 6.0]}, GaussianSum(clip_norm=1.0, stddev=0.0))
  """
  for path, scale in jax.tree_util.tree_leaves_with_path(scales):
    _validate.float32_safe(**{f"scales{jax.tree_util.keystr(path)}": scale})
  scaled_sum = gaussian_sum(clip_norm, stddev)

  def preprocess(key, state, record, weight):
    by_vector = broadcast_prefix("scales", scales, record)
    # Divide in float32 whatever the record's type: half precision would overflow.
    scaled = jax.tree.map(lambda x, a: jnp.asarray(x).astype(jnp.float32) / a, record, by_vector)
    return scaled_sum.preprocess(key, state, scaled, weight)

  def finalize(key, state, total):
    result, event, state = scaled_sum.finalize(key, state, total)
    by_vector = broadcast_prefix("scales", scales, result)
    return jax.tree.map(lambda x, a: x * a, result, by_vector), event, state

  largest = max(jax.tree.leaves(scales), default=1.0)
  return SumQuery(
    scaled_sum.init, preprocess, finalize, times(largest, scaled_sum.noise), takes_pairs=True
  )
