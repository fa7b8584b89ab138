"""Sum queries together with what is true of them, worked out by hand: the noise they add and what a
record can move.

Records are trees {"a": ., "b": {"v": ., "w": .}}.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from hypothesis import strategies as st

from jdp import queries
from jdp.queries.adaptive_clipping import AdaptiveState

LEAVES = ("a", "v", "w")


class Case(NamedTuple):
  """A query on some of the leaves, and the truth about it.

  Attributes:
    query: the query.
    stddevs: the noise of the result, {leaf: standard deviation}.
    clip_stddevs: the noise of log S of the next round, for each adaptive query, in the order of the
      state.
    cost: (S / sigma)^2, summed over groups, under add/remove and zero-out.
    replace_cost: the same under replace-one.
  """

  query: queries.SumQuery
  stddevs: dict[str, float]
  clip_stddevs: tuple[float, ...]
  cost: float
  replace_cost: float


def record(make):
  """A record of `make(leaf)` for each leaf."""
  return {"a": make("a"), "b": {"v": make("v"), "w": make("w")}}


def leaf_stddevs(case):
  """The noise of every leaf of the result, in tree order."""
  return [case.stddevs[leaf] for leaf in LEAVES if leaf in case.stddevs]


def clip_norms(state):
  """S of every adaptive query in a state."""
  states = jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, AdaptiveState))
  return [node.clip_norm for node in states if isinstance(node, AdaptiveState)]


def of_vectors(query, stddevs, clip, stddev):
  """The case of a query that bounds the whole of a record, or of it scaled."""
  return Case(query, stddevs, (), (clip / stddev) ** 2, (2 * clip / stddev) ** 2)


def gaussian(leaves, clip=1.5, stddev=0.8, schedule=False):
  bounds = (
    (lambda step: jnp.float32(clip), lambda step: jnp.float32(stddev))
    if schedule
    else (clip, stddev)
  )
  return of_vectors(queries.gaussian_sum(*bounds), dict.fromkeys(leaves, stddev), clip, stddev)


def joint(leaves, clip=1.2, stddev=0.5, scales=(2.0, 0.1, 30.0)):
  scale = dict(zip(LEAVES, scales, strict=True))
  query = queries.joint_clipped_sum(record(scale.get), clip, stddev)
  return of_vectors(query, {leaf: scale[leaf] * stddev for leaf in leaves}, clip, stddev)


def weighted(leaves, clip=1.5, stddev=0.6, min_total_weight=1.75):
  query = queries.weighted_average(clip, stddev, min_total_weight=min_total_weight)
  moved, replaced = 2 * clip / (min_total_weight + 1), 2 * clip / min_total_weight
  return Case(
    query, dict.fromkeys(leaves, stddev), (), (moved / stddev) ** 2, (replaced / stddev) ** 2
  )


def adaptive(leaves, z=0.8, clip=1.5, count_stddev=0.9):
  query = queries.adaptive_clipped_sum(
    z, 4.0, initial_clip_norm=clip, count_stddev=count_stddev, learning_rate=0.3
  )
  stddev = clip / math.sqrt(z**-2 - (2 * count_stddev) ** -2)
  return Case(query, dict.fromkeys(leaves, stddev), (0.3 * count_stddev / 4.0,), z**-2, 4 * z**-2)


def averaged(case, denominator=4.0):
  stddevs = {leaf: stddev / denominator for leaf, stddev in case.stddevs.items()}
  return case._replace(query=queries.average(case.query, denominator), stddevs=stddevs)


def grouped(parts, by_function=False):
  """The groups {label: case}, which cover different leaves."""
  of_leaf = {leaf: label for label, case in parts.items() for leaf in case.stddevs}
  labels = record(lambda leaf: of_leaf.get(leaf, "of another group"))
  of_label = {label: case.query for label, case in parts.items()}
  query = queries.grouped(of_label, (lambda shapes: labels) if by_function else labels)
  return Case(
    query,
    {leaf: stddev for case in parts.values() for leaf, stddev in case.stddevs.items()},
    tuple(stddev for label in sorted(parts) for stddev in parts[label].clip_stddevs),
    sum(case.cost for case in parts.values()),
    sum(case.replace_cost for case in parts.values()),
  )


def per_layer(shapes, clip=1.5, stddev=0.8, shares="equal"):
  query = queries.per_layer(shapes, clip, stddev, shares=shares)
  return of_vectors(query, dict.fromkeys(LEAVES, stddev), clip, stddev)


def examples(shapes) -> dict[str, Any]:
  """One case of every kind, on whole records of the given shapes."""
  nested = {"x": averaged(adaptive(["v"]), 2.0), "y": joint(["a"])}
  return {
    "sum": gaussian(LEAVES),
    "schedules": gaussian(LEAVES, schedule=True),
    "average": averaged(gaussian(LEAVES)),
    "joint": joint(LEAVES),
    "weighted average": weighted(LEAVES),
    "adaptive": adaptive(LEAVES),
    "grouped": grouped({"one": gaussian(["a", "w"], 0.7, 0.3), "two": gaussian(["v"], 2.0, 5.0)}),
    "nested": averaged(grouped({"in": grouped(nested, by_function=True), "out": weighted(["w"])})),
    "per layer": per_layer(shapes),
    "per layer by dimension": per_layer(shapes, shares="dimension"),
  }


@st.composite
def random_cases(draw, leaves=LEAVES, depth=3):
  """Queries nested at random."""
  leaves = tuple(leaves)
  kinds = ["gaussian", "joint", "weighted", "adaptive", "averaged"]
  if depth and len(leaves) > 1:
    kinds += ["grouped"] * 4
  kind = draw(st.sampled_from(kinds))
  clip, stddev = draw(st.sampled_from([0.02, 1.0, 40.0])), draw(st.sampled_from([0.5, 1.0, 3.0]))
  if kind == "gaussian":
    return gaussian(leaves, clip, clip * stddev, schedule=draw(st.booleans()))
  if kind == "joint":
    return joint(leaves, clip, clip * stddev, draw(st.permutations([0.01, 1.0, 50.0])))
  if kind == "weighted":
    return weighted(leaves, clip, clip * stddev, draw(st.sampled_from([0.3, 1.0, 2.5])))
  if kind == "adaptive":
    return adaptive(leaves, stddev, clip, stddev * draw(st.sampled_from([0.6, 2.0])))
  if kind == "averaged":
    return averaged(draw(random_cases(leaves, 0)), draw(st.sampled_from([0.5, 10.0])))
  names = draw(
    st.lists(st.sampled_from(["p", "q", "r"]), min_size=len(leaves), max_size=len(leaves))
  )
  parts = {
    name: [leaf for leaf, own in zip(leaves, names, strict=True) if own == name] for name in names
  }
  return grouped(
    {n: draw(random_cases(part, depth - 1)) for n, part in parts.items()}, draw(st.booleans())
  )


def contributions(case, records, weights):
  """Every record's contribution in the first round, with a leading axis, as float64 NumPy."""
  state = case.query.init(jax.tree.map(lambda x: x[0], records))
  rows = jax.vmap(case.query.preprocess, (None, None, 0, 0))(
    jax.random.key(0), state, records, weights
  )
  return state, jax.tree.map(lambda x: np.asarray(x, np.float64), rows)


def releases(case, state, totals):
  """What the sums `totals` (leading axis: samples) release, each in units of its noise: [samples,
  coordinates].

  All with the same noise, which cancels in differences.
  """
  totals = jax.tree.map(lambda x: np.asarray(x, np.float32), totals)
  results, _, states = jax.vmap(case.query.finalize, (None, None, 0))(
    jax.random.key(1), state, totals
  )
  results = [leaf for leaf in jax.tree.leaves(results) if not isinstance(leaf, optax.MaskedNode)]
  scaled = [np.float64(x) / s for x, s in zip(results, leaf_stddevs(case), strict=True)]
  scaled += [
    np.log(np.float64(x)) / s for x, s in zip(clip_norms(states), case.clip_stddevs, strict=True)
  ]
  return np.concatenate([x.reshape(len(x), -1) for x in scaled], axis=1)
