"""Modules of flax and equinox as models: the same numbers, dropout in training alone."""

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jdp import data, models
from jdp.federated import gradient_step, local_sgd
from jdp.federated.engine.client import ClientKeys
from jdp.federated.engine.ghost_norms import ghost_client

X = jnp.asarray(np.random.default_rng(0).normal(size=(6, 4)), jnp.float32)
CLIENT = data.Examples(X, jnp.arange(6, dtype=jnp.int32) % 3, jnp.ones(6))


class Linen(nn.Module):
  rate: float = 0.5

  @nn.compact
  def __call__(self, x, train=False):
    x = nn.relu(nn.Dense(8)(x))
    return nn.Dense(3)(nn.Dropout(self.rate, deterministic=not train)(x))


class Nnx(nnx.Module):
  def __init__(self, rngs):
    self.hidden = nnx.Linear(4, 8, rngs=rngs)
    self.dropout = nnx.Dropout(0.5, rngs=rngs)
    self.out = nnx.Linear(8, 3, rngs=rngs)

  def __call__(self, x):
    return self.out(self.dropout(nnx.relu(self.hidden(x))))


class Equinox(eqx.Module):
  hidden: eqx.nn.Linear
  dropout: eqx.nn.Dropout
  out: eqx.nn.Linear

  def __init__(self, key):
    keys = jax.random.split(key)
    self.hidden = eqx.nn.Linear(4, 8, key=keys[0])
    self.dropout = eqx.nn.Dropout(0.5)
    self.out = eqx.nn.Linear(8, 3, key=keys[1])

  def __call__(self, x, key=None):
    return self.out(self.dropout(jax.nn.relu(self.hidden(x)), key=key))


MAKERS = {
  "linen": lambda: models.from_flax(Linen(), (4,)),
  "nnx": lambda: models.from_flax(Nnx, (4,)),
  "nnx module": lambda: models.from_flax(Nnx(nnx.Rngs(3)), (4,)),
  "equinox": lambda: models.from_equinox(Equinox, (4,)),
  "equinox module": lambda: models.from_equinox(Equinox(jax.random.key(3)), (4,)),
}


def matrices(params):
  """The two layers' weights and biases, [in, out], of any library's parameters."""
  found = sorted(jax.tree.leaves(params), key=lambda x: (x.ndim, x.size))
  bias_out, bias_hidden, weights_out, weights_hidden = found
  as_rows = {8: lambda w: w if w.shape[0] == 8 else w.T, 4: lambda w: w if len(w) == 4 else w.T}
  return as_rows[4](weights_hidden), bias_hidden, as_rows[8](weights_out), bias_out


@pytest.mark.slow
@pytest.mark.parametrize("name", MAKERS)
def test_outputs_are_the_modules_and_dropout_is_for_training(key, name):
  model = MAKERS[name]()
  params = jax.jit(model.init)(key)
  w, b, v, c = matrices(params)
  expected = jax.nn.relu(X @ w + b[None]) @ v + c[None]
  np.testing.assert_allclose(model.apply(params, X), expected, rtol=1e-5, atol=1e-6)
  first, again, other = (
    model.apply_training(params, X, jax.random.key(seed)) for seed in (1, 1, 2)
  )
  np.testing.assert_array_equal(first, again)
  assert np.any(first != other)
  same_rows = model.apply_training(params, jnp.broadcast_to(X[:1], X.shape), jax.random.key(1))
  assert len(np.unique(same_rows, axis=0)) > 1  # an example drops numbers of its own


@pytest.mark.slow
@pytest.mark.parametrize("name", MAKERS)
def test_keys_decide_what_a_module_begins_with_unless_it_was_made(key, name):
  model = MAKERS[name]()
  first, second = (jax.tree.leaves(model.init(jax.random.key(seed))) for seed in (0, 1))
  equal = all(np.array_equal(x, y) for x, y in zip(first, second, strict=True))
  assert equal == name.endswith("module")


def test_local_training_draws_new_numbers_to_drop_in_every_step(key):
  """At a rate of 0 a step is that without a key; at 1/2 two epochs are not one step twice."""
  seen = []

  def loss(params, examples, key):
    jax.debug.callback(lambda k: seen.append(tuple(k.tolist())), jax.random.key_data(key))
    return jnp.sum(params) * jnp.mean(examples.inputs)

  local_sgd(loss, 0.1, num_epochs=2, batch_size=2)(key, jnp.zeros(3), CLIENT)
  jax.effects_barrier()
  assert len(seen) == len(set(seen)) == 6


@pytest.mark.optimised
@pytest.mark.slow
def test_dropout_at_rate_zero_changes_no_gradient(key):
  plain = models.from_flax(Linen(0.0), (4,))
  params = plain.init(key)
  with_key, without = (
    gradient_step(loss, 0.1)(jax.random.key(0), params, CLIENT)
    for loss in (
      models.cross_entropy(plain),
      lambda params, examples: models.cross_entropy(plain)(params, examples),
    )
  )
  jax.tree.map(np.testing.assert_array_equal, with_key, without)


@pytest.mark.optimised
@pytest.mark.slow
def test_ghost_norms_drop_what_the_gradient_drops(key):
  model = models.from_flax(Linen(), (4,))
  params, loss = model.init(key), models.cross_entropy(model)
  keys = ClientKeys(jax.random.key(1), jax.random.key(2))
  record, scalars = jax.jit(ghost_client(loss, 1.0))(keys, (params,), CLIENT)
  update = gradient_step(loss, 1.0)(jax.random.key(2), params, CLIENT)
  norm = jnp.sqrt(sum(jnp.sum(x**2) for x in jax.tree.leaves(update)))
  np.testing.assert_allclose(record.norm, norm, rtol=1e-3)
  np.testing.assert_array_equal(record.norm, scalars["update_norm"])


def linen_norm():
  return nn.Sequential([nn.Dense(3), nn.BatchNorm(use_running_average=True)])


def test_images_without_channels_are_refused():
  net = nn.Sequential([nn.Conv(4, (3, 3)), lambda x: x.mean(axis=(1, 2)), nn.Dense(10)])
  with pytest.raises(ValueError, match=r"one example, got \[10\]; an image needs an axis"):
    models.from_flax(net, (8, 8))
  models.from_flax(net, (8, 8, 1))


class NnxNorm(nnx.Module):
  def __init__(self, rngs):
    self.norm = nnx.BatchNorm(4, rngs=rngs)

  def __call__(self, x):
    return self.norm(x)


@pytest.mark.parametrize(
  ("make", "layer"),
  [
    (lambda: models.from_flax(linen_norm(), (4,)), "layers_1"),
    (lambda: models.from_flax(NnxNorm, (4,)), "norm"),
    (
      lambda: models.from_equinox(lambda key: eqx.nn.BatchNorm(4, "batch", mode="batch"), (4,)),
      "BatchNorm",
    ),
  ],
)
def test_layers_with_statistics_are_refused_by_name(make, layer):
  with pytest.raises(ValueError, match=f"{layer}.*GroupNorm"):
    make()


def test_parameters_that_nothing_would_noise_are_refused():
  with pytest.raises(ValueError, match=r"kernel.*bfloat16"):
    models.from_flax(nn.Dense(3, dtype=jnp.bfloat16, param_dtype=jnp.bfloat16), (4,))
  with pytest.raises(ValueError, match="none"):
    models.from_flax(nn.Dropout(0.5, deterministic=True), (4,))


@pytest.mark.parametrize("module", [Linen, None, "net"])
def test_what_is_no_module_is_refused(module):
  with pytest.raises(TypeError, match="Expected module to be"):
    models.from_flax(module, (4,))
  if module is not Linen:
    with pytest.raises(TypeError, match="Expected module to be"):
      models.from_equinox(module, (4,))
