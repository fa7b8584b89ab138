"""What a validator finds: layers that mix examples, by name; parameters that noise alone moves."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jdp import data, federated, models, queries, sampling
from jdp.models import Model


class MeanNorm(nn.Module):
  """Batch normalisation without running statistics, which `from_flax` would refuse."""

  @nn.compact
  def __call__(self, x):
    return (x - jnp.mean(x, 0)[None]) / (1e-3 + jnp.std(x, 0)[None])


class TwoNorms(nn.Module):
  @nn.compact
  def __call__(self, x):
    x = nn.relu(MeanNorm(name="first")(nn.Dense(8)(x)))
    return nn.Dense(2)(MeanNorm(name="second")(nn.LayerNorm()(x)))


def names(model, shape, **options):
  return [finding.where for finding in models.validate(model, shape, **options)]


@pytest.mark.slow
def test_every_layer_that_mixes_examples_is_named_and_no_other():
  found = models.validate(models.from_flax(TwoNorms(), (4,)), (4,))
  assert [f.where for f in found] == ["TwoNorms/first", "TwoNorms/second"]
  assert all("GroupNorm or LayerNorm" in str(f) for f in found)
  assert all("no other user is touched" in f.problem for f in found)


@pytest.mark.slow
@pytest.mark.parametrize(
  "make",
  [
    lambda: (models.from_flax(nn.Sequential([nn.GroupNorm(2), nn.Dense(2)]), (4,)), (4,)),
    lambda: (models.small_cnn((16, 16), 3), (16, 16)),
  ],
)
def test_models_that_keep_examples_apart_pass(make):
  assert names(*make()) == []


def test_what_mixes_in_training_alone_is_found():
  """A dropout that is the same for all examples mixes nothing; a mean over them does."""

  def shared(params, inputs, key):
    return inputs * jax.random.uniform(key, (4,))[None] @ params

  def mixed(params, inputs, key):
    return shared(params, jnp.cumsum(inputs, 0), key)

  plain = Model(lambda key: jnp.ones((4, 2)), lambda params, x: x @ params)
  assert names(plain._replace(apply_training=shared), (4,)) == []
  (where,) = names(plain._replace(apply_training=mixed), (4,))
  assert "mixed (test_validation.py, line" in where


@pytest.mark.slow
def test_words_are_inputs_too():
  embed = nn.Sequential([nn.Embed(2, 4), lambda x: x.reshape(x.shape[0], -1), nn.Dense(2)])
  assert names(models.from_flax(embed, (3,), dtype=jnp.int32), (3,), dtype=jnp.int32) == []


def test_parameters_that_only_noise_moves_are_named():
  params = {"used": jnp.ones((4, 2)), "idle": jnp.ones(3)}
  model = Model(lambda key: params, lambda p, x: x @ p["used"])
  assert names(model, (4,)) == ["idle"]
  assert names(models.freeze(model, params, lambda path: path != "idle"), (4,)) == []
  whole = {**params, "version": jnp.int32(1)}
  numbered = Model(lambda key: whole, model.apply)
  assert names(numbered, (4,)) == ["version"]


@pytest.mark.slow
def test_an_output_without_an_axis_of_examples_or_not_finite_is_a_finding():
  for apply in (lambda p, x: jnp.sum(x @ p, 0), lambda p, x: x @ p / 0.0):
    assert names(Model(lambda key: jnp.ones((4, 2)), apply), (4,)) == ["the output"]


BODY_AND_HEAD = {
  "body": {"w": jnp.ones((4, 4))},
  "head": jnp.zeros((4, 2)),
  "steps": jnp.int32(7),
}
WHOLE = Model(lambda key: BODY_AND_HEAD, lambda p, x: x @ p["body"]["w"] @ p["head"])
HEAD = models.freeze(WHOLE, BODY_AND_HEAD, lambda path: path == "head")


def run_of_the_head(query, learning_rate, num_rounds):
  """A run that trains the head, and all parameters after it, of which the others are as before."""
  clients = data.clients_from_arrays(np.ones((6, 4)), [0, 1] * 3, [0, 0, 1, 1, 2, 2])
  update = federated.gradient_step(models.cross_entropy(HEAD), learning_rate)
  sampler = sampling.poisson(3, 1.0)
  algorithm = federated.federated_averaging(update, query, sampler, optax.sgd(1.0))
  start = HEAD.init(jax.random.key(0))
  result = federated.train(algorithm, start, clients, num_rounds=num_rounds)
  assert [leaf.shape for leaf in jax.tree.leaves(result.params)] == [(4, 2)]
  everything = models.unfreeze(BODY_AND_HEAD, result.params)
  np.testing.assert_array_equal(everything["body"]["w"], BODY_AND_HEAD["body"]["w"])
  assert (everything["steps"], everything["steps"].dtype) == (7, jnp.int32)
  assert np.all(everything["head"] != 0)
  return result, everything


@pytest.mark.slow
def test_frozen_leaves_are_constant_and_get_no_noise():
  """Also in training with noise: what is trained moves, the rest is not even part of the model."""
  result, everything = run_of_the_head(queries.gaussian_sum(1.0, 1.0), 0.1, num_rounds=1)
  np.testing.assert_array_equal(
    HEAD.apply(result.params, jnp.ones((1, 4))), WHOLE.apply(everything, jnp.ones((1, 4)))
  )


@pytest.mark.slow
def test_frozen_leaves_take_no_part_in_adaptive_clipping():
  """The bound follows the norms of what is trained; the rest, whole numbers too, stays as it is."""
  query = federated.adaptive_average(1.0, 3.0, count_stddev=1.0)
  result, _ = run_of_the_head(query, 0.01, num_rounds=3)
  assert len({str(event) for event in result.ledger}) == 3  # a clip norm of its own in each round


def test_what_cannot_be_trained_is_not_chosen():
  params = {"w": jnp.ones(2), "steps": jnp.int32(7)}
  model = Model(lambda key: params, lambda p, x: x @ p["w"])
  with pytest.raises(ValueError, match=r"parameters of float32, got \['steps'\] \(int32\)"):
    models.freeze(model, params, lambda path: True)
  with pytest.raises(ValueError, match="Expected parameters of float32, got none"):
    models.freeze(model, params, lambda path: False)


def test_trained_parameters_of_another_structure_are_refused():
  params = {"w": jnp.ones(2), "b": jnp.ones(1)}
  for trained in ({"w": None}, [None, None], {"w": {"x": jnp.ones(2)}, "b": None}):
    with pytest.raises(ValueError, match="Expected trained to be params with None"):
      models.unfreeze(params, trained)
