"""Per-layer clipping: a bound for each layer of a model, one noise level for all.

Source: arXiv 1710.06963, Section 3.2.
"""

import collections
import math

import jax

from jdp import _validate
from jdp._arguments import Arrays, checked
from jdp.queries.base import PyTree, Schedule, SumQuery, times
from jdp.queries.gaussian import gaussian_sum
from jdp.queries.grouped_query import grouped


@checked
def layers(record: PyTree) -> PyTree:
  """Names the layer of each vector of a record, for `grouped`: a tree of the record's structure.

  A layer is one weight array with its bias: the arrays that lie directly in one innermost
  container. In flax's parameters that is one module's dict, named by its path. An LSTM cell has one
  layer for each of its matrices. Arrays at the root are a layer "/".

  >>> import jax.numpy as jnp
  >>> layers(
  ...   {"Dense_0": {"kernel": jnp.zeros((2, 3)), "bias": jnp.zeros(3)}, "scale": jnp.zeros(2)}
  ... )
  {'Dense_0': {'bias': '/Dense_0', 'kernel': '/Dense_0'}, 'scale': '/'}
  """

  def name(path, leaf):
    del leaf
    return "/" + jax.tree_util.keystr(path[:-1], simple=True, separator="/")

  return jax.tree_util.tree_map_with_path(name, record)


@checked
def per_layer(
  record: Arrays, clip_norm: float | Schedule, stddev: float | Schedule, *, shares: str = "equal"
) -> SumQuery:
  """The sum of records with each layer j clipped to its own S_j, plus N(0, sigma^2).

  Every coordinate gets the same noise.

  Formal guarantee: that of `gaussian_sum(S, sigma)`. As sum_j S_j^2 = S^2, the groups' composed
  noise multiplier is (sum_j (S_j / sigma)^2)^(-1/2) = sigma / S. (Noise of z S_j on layer j would
  have a multiplier of z / sqrt(layers) only.) A layer that holds NaN or infinity counts as zero.
  The other layers still count.

  Args:
    record: one record or its shapes, such as the model's parameters.
    clip_norm: S > 0, the bound on a whole record. A number or a schedule.
    stddev: sigma >= 0, the noise on every coordinate of the sum. A number or a schedule.
    shares: how S is divided. With "equal", S_j = S / sqrt(layers). With "dimension", S_j = S
      sqrt(dim_j / sum_h dim_h).

  Returns:
    A `grouped` query with one `GaussianSum` a layer (see `layers`), on records of this structure.

  Raises:
    ValueError: if an argument is invalid, or if a layer has no entries, and so no share by
      dimension.

  >>> import jax.numpy as jnp
  >>> params = {
  ...   "a": {"kernel": jnp.zeros((3, 4)), "bias": jnp.zeros(3)},
  ...   "b": {"kernel": jnp.zeros(5)},
  ... }
  >>> query = per_layer(params, clip_norm=2.0, stddev=1.0, shares="dimension")
  >>> _, event, _ = query.finalize(
  ...   jax.random.key(0),
  ...   query.init(params),
  ...   query.preprocess(jax.random.key(1), query.init(params), params, jnp.float32(1)),
  ... )
  >>> {label: round(part.clip_norm, 4) for label, part in zip(event.labels, event.parts)}
  {'/a': 1.7321, '/b': 1.0}
  """
  return grouped(
    {
      n: gaussian_sum(bound, stddev) for n, bound in layer_bounds(record, clip_norm, shares).items()
    },
    layers,
  )


def layer_bounds(
  record: PyTree, clip_norm: float | Schedule, shares: str
) -> dict[str, float | Schedule]:
  """Each layer's S_j by its name. Arguments as for `per_layer`."""
  _validate.one_of(("equal", "dimension"), shares=shares)
  sizes: collections.Counter[str] = collections.Counter()
  for name, vector in zip(jax.tree.leaves(layers(record)), jax.tree.leaves(record), strict=True):
    sizes[name] += math.prod(vector.shape)
  weights = dict.fromkeys(sizes, 1) if shares == "equal" else sizes
  total = sum(weights.values())
  if not total:
    raise ValueError("Expected params or a record with an element, got none; give a layer.")
  return {name: times(math.sqrt(weights[name] / total), clip_norm) for name in sizes}
