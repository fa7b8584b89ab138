"""The groups of a record's vectors, and the queries on them that the experiment compares."""

import collections
import math
from collections.abc import Mapping
from typing import NamedTuple

import jax
import optax

from experiments.general_approach.options import GIVEN, GeneralApproachOptions
from jdp.federated.iterative import CLASS_SHARES, Trained, Vectors, record_like
from jdp.queries import (
  SumQuery,
  adaptive_clipped_sum,
  dimension_adjusted_noise,
  discrete_sum,
  gaussian_sum,
  grouped,
  joint_clipped_sum,
  no_privacy,
  on_grid,
  proportional_noise,
)


class Groups(NamedTuple):
  """The groups of a record.

  Attributes:
    labels: `Vectors` with the group's name in place of every vector.
    record: `Vectors` of shapes.
    clip_norms: S_g by group.
    dimensions: d_g, the number of coordinates, by group.
  """

  labels: Vectors
  record: Vectors
  clip_norms: dict[str, float]
  dimensions: dict[str, int]


def make_groups(options: GeneralApproachOptions, values: Trained) -> Groups:
  """The groups that the options ask for.

  Args:
    options: of the experiment.
    values: shapes of the server's values.
  """

  def layer(path, vector):
    del vector
    if not options.layers:
      return "gradient"
    return "convolutions" if "Conv" in jax.tree_util.keystr(path[:1]) else "dense layers"

  def metric(path, vector):
    del vector
    return "classes" if path == (jax.tree_util.DictKey(CLASS_SHARES),) else "metrics"

  record = record_like(values)
  labels = Vectors(
    jax.tree_util.tree_map_with_path(layer, record.gradient),
    jax.tree.map(lambda _: "moments", record.moments),
    jax.tree_util.tree_map_with_path(metric, record.metrics),
  )
  dimensions: collections.Counter[str] = collections.Counter()
  for label, vector in zip(jax.tree.leaves(labels), jax.tree.leaves(record), strict=True):
    dimensions[label] += math.prod(vector.shape)
  # A metric is at most 1, and there are two: sqrt(2) never clips. Nor does 1 clip shares.
  bounds = {"moments": options.moments_clip_norm, "metrics": math.sqrt(2), "classes": 1.0}
  # The gradient's groups share S equally, so that all of them together have the norm S at most.
  share = options.gradient_clip_norm / math.sqrt(len(dimensions.keys() - bounds.keys()))
  return Groups(
    labels, record, {name: bounds.get(name, share) for name in sorted(dimensions)}, dict(dimensions)
  )


def make_query(
  options: GeneralApproachOptions, groups: Groups, run: str, expected_size: float
) -> SumQuery:
  """The query of one row of the table: a sum of `Vectors` with noise multiplier z.

  `expected_size` is the expected number of records in a sample.
  """
  z, clip_norms = options.noise_multiplier, groups.clip_norms
  if run == "none":
    return no_privacy()
  if run in ("joint", "clipped"):
    scales = jax.tree.map(lambda label: clip_norms[label], groups.labels)
    clip_norm = options.joint_clip_norm or math.sqrt(len(clip_norms))
    return joint_clipped_sum(scales, clip_norm, z * clip_norm if run == "joint" else 0.0)
  if run == "dimension":
    stddevs = dimension_adjusted_noise(clip_norms, groups.dimensions, z)
  elif run == "given":
    stddevs = scaled_noise(clip_norms, _given(options, groups), z)
  else:
    stddevs = proportional_noise(clip_norms, z)

  def group_query(name):
    clip_norm, stddev = clip_norms[name], stddevs[name]
    if run == "adaptive":
      return adaptive_clipped_sum(stddev / clip_norm, expected_size, initial_clip_norm=clip_norm)
    if run == "discrete":
      part = jax.tree.map(
        lambda label, x: x if label == name else optax.MaskedNode(), groups.labels, groups.record
      )
      return discrete_sum(part, clip_norm, stddev, num_clients=round(expected_size))
    query = gaussian_sum(clip_norm, stddev)
    return on_grid(query, options.spacing * stddev) if run == "grid" else query

  return grouped({name: group_query(name) for name in clip_norms}, groups.labels)


def scaled_noise(
  clip_norms: Mapping[str, float], stddevs: Mapping[str, float], noise_multiplier: float
) -> dict[str, float]:
  """The given noise levels, scaled so that all groups together have the noise multiplier z.

  >>> scaled_noise({"a": 3.0, "b": 4.0}, {"a": 1.0, "b": 1.0}, noise_multiplier=2.0)
  {'a': 10.0, 'b': 10.0}
  """
  # The multiplier of all groups is 1 / hypot(S_g / sigma_g), as their losses add up in squares.
  factor = noise_multiplier * math.hypot(*(clip_norms[name] / stddevs[name] for name in clip_norms))
  return {name: factor * stddevs[name] for name in clip_norms}


def _given(options: GeneralApproachOptions, groups: Groups) -> dict[str, float]:
  stddevs = dict(zip(GIVEN, options.given_stddevs, strict=True))
  return {name: stddevs.get(name, stddevs["gradients"]) for name in groups.clip_norms}
