"""Groups, joint clipping, layers, and how noise is shared among them."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jdp.events import GaussianSum, GroupedSums, NonPrivate
from jdp.queries import (
  dimension_adjusted_noise,
  gaussian_sum,
  grouped,
  joint_clipped_sum,
  no_privacy,
  per_layer,
  proportional_noise,
  weighted_average,
)
from jdp.queries.per_layer_clipping import layers

RECORD = {
  "w": jnp.array([3.0, 4.0]),
  "metrics": {"loss": jnp.array([7.0]), "hits": jnp.array([1.0])},
}


def one_record(query, record, weight=1.0):
  """What the query releases of a sample of one record, and its event."""
  state = query.init(record)
  part = query.preprocess(jax.random.key(0), state, record, jnp.float32(weight))
  result, event, _ = query.finalize(jax.random.key(1), state, part)
  return result, event


def assert_trees_close(actual, expected):
  assert jax.tree.structure(actual) == jax.tree.structure(expected)
  jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=4e-6), actual, expected)


def test_each_group_is_clipped_by_itself_and_the_result_has_the_records_structure():
  query = grouped(
    {"m": gaussian_sum(1.0, 0.0), "a": gaussian_sum(5.0, 0.0)}, {"w": "a", "metrics": "m"}
  )
  result, event = one_record(query, RECORD)
  norm = math.sqrt(50)
  expected = {"w": [3.0, 4.0], "metrics": {"loss": [7 / norm], "hits": [1 / norm]}}
  assert_trees_close(
    result, jax.tree.map(jnp.array, expected, is_leaf=lambda x: isinstance(x, list))
  )
  assert event == GroupedSums((GaussianSum(5.0, 0.0), GaussianSum(1.0, 0.0)), ("a", "m"))


def test_groups_are_ordered_by_label_however_they_are_given():
  parts = {"b": gaussian_sum(1.0, 1.0), "a": gaussian_sum(2.0, 1.0)}
  labels = {"w": "a", "metrics": "b"}
  first, event = one_record(grouped(parts, labels), RECORD)
  second, same = one_record(grouped(dict(reversed(parts.items())), labels), RECORD)
  assert event == same
  assert_trees_close(first, second)


def test_a_poisoned_group_leaves_the_others_alone():
  query = grouped(
    {"a": gaussian_sum(9.0, 0.0), "m": gaussian_sum(9.0, 0.0)}, {"w": "a", "metrics": "m"}
  )
  result, _ = one_record(query, {**RECORD, "w": jnp.array([jnp.nan, 1.0])})
  assert_trees_close(result, {**RECORD, "w": jnp.zeros(2)})


def test_labels_may_be_a_function_that_sees_shapes_and_no_values():
  seen = []

  def by_size(shapes):
    seen.extend(jax.tree.leaves(shapes))
    return jax.tree.map(lambda x: "large" if x.size > 1 else "small", shapes)

  query = grouped({"large": no_privacy(), "small": gaussian_sum(1.0, 0.0)}, by_size)
  result, event = one_record(query, RECORD)
  assert result["w"].tolist() == [3.0, 4.0]
  np.testing.assert_allclose(result["metrics"]["hits"], 1 / math.sqrt(50), rtol=4e-6)
  assert event.parts == (NonPrivate(), GaussianSum(1.0, 0.0))
  assert {type(leaf) for leaf in seen} == {jax.ShapeDtypeStruct}


def test_nested_groups_see_the_others_masked_as_in_optax():
  seen = []

  def inner_labels(shapes):
    seen.append(shapes)
    return {"w": "never used", "metrics": {"loss": "l", "hits": "h"}}

  inner = grouped({"l": gaussian_sum(2.0, 0.0), "h": gaussian_sum(0.5, 0.0)}, inner_labels)
  result, event = one_record(
    grouped({"a": gaussian_sum(5.0, 0.0), "m": inner}, {"w": "a", "metrics": "m"}), RECORD
  )
  expected = {"w": RECORD["w"], "metrics": {"loss": jnp.array([2.0]), "hits": jnp.array([0.5])}}
  assert_trees_close(result, expected)
  assert event.labels == ("a", "m")
  assert event.parts[1] == GroupedSums((GaussianSum(0.5, 0.0), GaussianSum(2.0, 0.0)), ("h", "l"))
  assert all(shapes["w"] == optax.MaskedNode() for shapes in seen)


def test_nothing_in_a_record_stays_nothing():
  record = {"w": RECORD["w"], "no bias": None, "masked": optax.MaskedNode()}
  result, _ = one_record(grouped({"a": gaussian_sum(5.0, 0.0)}, "a"), record)
  assert_trees_close(result, record)


@pytest.mark.parametrize(
  ("labels", "message"),
  [
    ({"w": "a", "metrics": "typo"}, "label to be one of .*'a', 'm'.* got .*'typo'.*; add a query"),
    ({"w": "a", "metrics": {"loss": "a", "hits": 7}}, "label to be one of .*got .*'7'"),
    ("a", "vectors for every group, got none for .*'m'"),
    ({"w": "a"}, "labels to be a pytree prefix of the record"),
    ({"w": "a", "metrics": None}, "labels to be a pytree prefix of the record"),
    (lambda shapes: "a", "vectors for every group, got none for .*'m'"),
  ],
)
def test_labels_that_do_not_fit_are_refused_by_name(labels, message):
  query = grouped({"a": gaussian_sum(1.0, 1.0), "m": gaussian_sum(1.0, 1.0)}, labels)
  with pytest.raises(ValueError, match=f"Expected (every )?{message}"):
    query.init(RECORD)


@pytest.mark.parametrize(
  "queries", [{}, {1: gaussian_sum(1.0, 1.0)}, {None: gaussian_sum(1.0, 1.0)}]
)
def test_groups_need_names(queries):
  with pytest.raises(
    ValueError, match="Expected at least one query, each with a string as its label"
  ):
    grouped(queries, "a")


def test_joint_clipping_clips_the_scaled_record_and_keeps_a_small_one():
  query = joint_clipped_sum({"w": 10.0, "metrics": 0.5}, clip_norm=2.0, stddev=0.0)
  norm = math.sqrt(0.3**2 + 0.4**2 + 14**2 + 2**2)
  result, event = one_record(query, RECORD)
  assert_trees_close(result, jax.tree.map(lambda x: x * 2 / norm, RECORD))
  assert event == GaussianSum(2.0, 0.0)
  small = jax.tree.map(lambda x: x / 10, RECORD)
  assert_trees_close(one_record(query, small)[0], small)


def test_joint_clipping_divides_in_float32():
  record = jnp.array([6e4, 0.0], jnp.float16)
  result, _ = one_record(joint_clipped_sum(1e-3, 1e9, 0.0), record)
  np.testing.assert_allclose(result, [6e4, 0.0], rtol=1e-3)


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf, 1e-31, "1"])
def test_scales_are_checked_by_name(bad):
  with pytest.raises(ValueError, match=r"Expected scales\['metrics'\] to be a number in"):
    joint_clipped_sum({"w": 1.0, "metrics": bad}, 1.0, 1.0)


def test_scales_that_are_no_prefix_of_the_record_are_refused():
  query = joint_clipped_sum({"w": 1.0, "metrics": None}, 1.0, 1.0)
  with pytest.raises(ValueError, match="Expected scales to be a pytree prefix of the record"):
    one_record(query, RECORD)


@pytest.mark.parametrize("name", ["clip_norm", "stddev"])
@pytest.mark.parametrize(
  "make",
  [
    lambda **arguments: joint_clipped_sum(1.0, **arguments),
    lambda **arguments: weighted_average(**arguments, min_total_weight=1.0),
    lambda **arguments: per_layer(RECORD, **arguments),
  ],
  ids=["joint", "weighted average", "per layer"],
)
def test_bounds_and_noise_are_checked_by_name(make, name):
  with pytest.raises(ValueError, match=f"Expected {name} to be a number in"):
    make(**{"clip_norm": 1.0, "stddev": 1.0} | {name: np.nan})


class _Network(nn.Module):
  @nn.compact
  def __call__(self, tokens):
    x = nn.Embed(7, 4)(tokens)
    x = nn.RNN(nn.OptimizedLSTMCell(5))(x)
    return nn.Dense(3)(nn.LayerNorm()(x))


def test_a_layer_of_flax_is_one_weight_array_with_its_bias():
  params = jax.eval_shape(_Network().init, jax.random.key(0), jnp.zeros((2, 6), jnp.int32))[
    "params"
  ]
  named = jax.tree.leaves_with_path(layers(params))
  names = sorted({name for _, name in named})
  cell = [f"/OptimizedLSTMCell_0/{kind}{gate}" for kind in "hi" for gate in "fgio"]
  assert names == sorted(["/Dense_0", "/Embed_0", "/LayerNorm_0", *cell])
  assert sum(name == "/Dense_0" for _, name in named) == 2
  assert layers([(jnp.zeros(2), jnp.zeros(1)), (jnp.zeros(3),)]) == [("/0", "/0"), ("/1",)]
  assert layers(jnp.zeros(2)) == "/"


@pytest.mark.slow
@pytest.mark.parametrize("shares", ["equal", "dimension"])
@pytest.mark.parametrize("schedule", [False, True])
def test_layers_share_the_square_of_the_bound_and_each_is_clipped_to_its_own(shares, schedule):
  params = {
    "one": {"kernel": jnp.full((3, 4), 1e6), "bias": jnp.zeros(4)},
    "two": {"kernel": jnp.full(9, 1e6)},
  }
  clip = (lambda step: jnp.float32(5)) if schedule else 5.0
  result, event = one_record(per_layer(params, clip, 0.0, shares=shares), params)
  bounds = {"equal": [5 / math.sqrt(2)] * 2, "dimension": [4.0, 3.0]}[shares]
  assert event.labels == ("/one", "/two")
  np.testing.assert_allclose([part.clip_norm for part in event.parts], bounds, rtol=1e-7)
  assert [part.stddev for part in event.parts] == [0.0, 0.0]
  norms = [optax.tree.norm(result[layer]) for layer in ("one", "two")]
  np.testing.assert_allclose(norms, bounds, rtol=4e-6)


@pytest.mark.slow
def test_every_layer_gets_the_noise_of_the_whole_bound():
  params = {f"layer {i}": {"kernel": jnp.zeros(i + 1)} for i in range(5)}
  for shares in ("equal", "dimension"):
    _, event = one_record(per_layer(params, 2.0, 3.0, shares=shares), params)
    assert [part.stddev for part in event.parts] == [3.0] * 5
    assert sum((part.clip_norm / part.stddev) ** 2 for part in event.parts) == pytest.approx(
      (2 / 3) ** 2, rel=1e-12
    )


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    ({"shares": "by size"}, "Expected shares to be one of equal, dimension"),
    (
      {"record": {"a": {"b": jnp.zeros(0)}, "c": jnp.zeros(2)}, "shares": "dimension"},
      "Expected clip_norm to be",
    ),
  ],
)
def test_bad_layers_are_refused(arguments, message):
  with pytest.raises(ValueError, match=message):
    per_layer(**{"record": RECORD, "clip_norm": 1.0, "stddev": 1.0} | arguments)


@pytest.mark.parametrize("z", [0.3, 1.1, 20.0])
def test_noise_shares_meet_the_multiplier_and_their_proportions(z):
  clips, sizes = {"a": 0.1, "b": 3.0, "c": 1.0}, {"a": 1, "b": 1000, "c": 50}
  proportional, adjusted = proportional_noise(clips, z), dimension_adjusted_noise(clips, sizes, z)
  for stddevs in (proportional, adjusted):
    assert sum((clips[g] / stddevs[g]) ** 2 for g in clips) ** -0.5 == pytest.approx(z, rel=1e-12)
  assert len({round(proportional[g] / clips[g], 9) for g in clips}) == 1
  assert len({round(adjusted[g] * math.sqrt(sizes[g]) / clips[g], 9) for g in clips}) == 1


@pytest.mark.parametrize(
  ("make", "message"),
  [
    (lambda: proportional_noise({"a": 1.0}, np.nan), "noise_multiplier to be a finite number >= 0"),
    (lambda: proportional_noise({"a": -1.0}, 1.0), r"clip_norms\['a'\] to be a finite number > 0"),
    (
      lambda: dimension_adjusted_noise({"a": 1.0}, {"a": 0}, 1.0),
      r"dimensions\['a'\] to be a whole number >= 1",
    ),
    (
      lambda: dimension_adjusted_noise({"a": 1.0}, {"b": 1}, 1.0),
      r"dimensions of the groups \['a'\], got .*'b'",
    ),
  ],
)
def test_bad_shares_are_refused_by_name(make, message):
  with pytest.raises(ValueError, match=f"Expected {message}"):
    make()
