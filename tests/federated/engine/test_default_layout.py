"""The layout that a cohort has where none is named: by shapes alone, and never another result."""

import os
import subprocess
import sys

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jdp import models, queries, sampling
from jdp.data import Examples
from jdp.federated import (
  CohortLayout,
  client_mesh,
  federated_averaging,
  fixed_denominator,
  flat_clipping,
  gradient_step,
  local_sgd,
  per_layer_clipping,
  rounds,
  train,
)
from jdp.federated.engine import placement
from jdp.federated.engine.default_layout import default_layout
from jdp.federated.engine.rounds import add_updates
from jdp.matrix_factorization import square_root_toeplitz
from jdp.models import Model, cross_entropy, logistic_regression, small_cnn

SHAPE = (28, 28)
LOGISTIC, CNN = logistic_regression(SHAPE, 10), small_cnn(SHAPE, 10)
WIDE = models.from_flax(
  nn.Sequential([lambda x: x.reshape(x.shape[0], -1), nn.Dense(100), nn.relu, nn.Dense(10)]), SHAPE
)
# Its second layer has 8,000 weights and 60 rows an example, so its gradient is smaller.
MIXED = models.from_flax(
  nn.Sequential(
    [
      lambda x: x.reshape(x.shape[0], -1),
      nn.Dense(100),
      lambda x: jnp.tile(x[:, None], (1, 60, 1)),
      nn.Dense(80),
      lambda x: x.mean(axis=1),
    ]
  ),
  SHAPE,
)
SERVER = optax.sgd(1.0)
AVERAGE = fixed_denominator(flat_clipping(1.0), 1.0, 8.0)
PER_LAYER = fixed_denominator(
  per_layer_clipping(jax.eval_shape(LOGISTIC.init, jax.random.key(0)), 1.0), 1.0, 8.0
)
# The same function; what it does to a record may have changed, for all that one can see.
CORRELATED = queries.correlated_gaussian_sum(1.0, 1.0, square_root_toeplitz(8, bands=2))
UNMARKED = AVERAGE._replace(preprocess=lambda *arguments: AVERAGE.preprocess(*arguments))


def step(model, wrap=lambda loss: loss):
  return gradient_step(wrap(cross_entropy(model)), 0.1)


def over_examples(loss):
  """The mean loss, of a model called by `vmap`."""

  def mean(params, client):
    return jnp.mean(jax.vmap(lambda *one: loss(params, Examples(*(x[None] for x in one))))(*client))

  return mean


def layout(model, update, rows, query=AVERAGE, expected_size=1e6, mesh=None):
  params = jax.eval_shape(model.init, jax.random.key(0))
  client = jax.eval_shape(
    lambda: Examples(jnp.zeros((rows, *SHAPE)), jnp.zeros(rows, jnp.int32), jnp.zeros(rows))
  )
  return default_layout(update, query, params, client, expected_size, mesh)


ONE_BY_ONE = CohortLayout(None)  # on a CPU


@pytest.mark.parametrize(
  ("model", "update", "rows", "query", "expected"),
  [
    (LOGISTIC, step(LOGISTIC), 1, AVERAGE, CohortLayout(256, ghost_norms=True)),
    (LOGISTIC, step(LOGISTIC), 10, AVERAGE, ONE_BY_ONE),
    (WIDE, step(WIDE), 10, AVERAGE, CohortLayout(25, ghost_norms=True)),
    (WIDE, step(WIDE), 100, AVERAGE, ONE_BY_ONE),
    (CNN, step(CNN), 1, AVERAGE, ONE_BY_ONE),
    (LOGISTIC, local_sgd(cross_entropy(LOGISTIC), 0.1, batch_size=1), 1, AVERAGE, ONE_BY_ONE),
    (LOGISTIC, step(LOGISTIC), 1, PER_LAYER, ONE_BY_ONE),
    (LOGISTIC, step(LOGISTIC), 1, UNMARKED, ONE_BY_ONE),
    (LOGISTIC, step(LOGISTIC), 1, CORRELATED, CohortLayout(256, ghost_norms=True)),
    (LOGISTIC, step(LOGISTIC), 1, queries.no_privacy(), CohortLayout(256, ghost_norms=True)),
    (LOGISTIC, step(LOGISTIC, over_examples), 1, AVERAGE, CohortLayout(256, ghost_norms=True)),
    (MIXED, step(MIXED), 1, AVERAGE, ONE_BY_ONE),
  ],
  ids=[
    "example",
    "few weights, ten rows",
    "many weights, ten rows",
    "many rows",
    "convolutions",
    "several steps",
    "a bound for each layer",
    "a query unknown",
    "correlated noise",
    "no privacy",
    "a model under vmap",
    "many weights that have a gradient",
  ],
)
def test_ghost_norms_are_taken_where_they_apply_and_win(model, update, rows, query, expected):
  assert layout(model, update, rows, query) == expected


@pytest.mark.parametrize(("platform", "ghost_norms"), [("gpu", True), ("tpu", False)])
def test_accelerators_choose_chunks_by_memory_and_ghost_norms_where_float64_is_fast(
  platform, ghost_norms, monkeypatch
):
  monkeypatch.setattr(jax, "default_backend", lambda: platform)
  assert layout(WIDE, step(WIDE), 10) == CohortLayout(None, ghost_norms)
  assert layout(WIDE, step(WIDE), 100) == ONE_BY_ONE


@pytest.mark.parametrize(("sequences", "expected"), [(1, CohortLayout(8, True)), (4, ONE_BY_ONE)])
def test_ghost_norms_of_a_transformer_are_taken_for_single_sequences(sequences, expected):
  """Factors hold .43 of one's numbers. Four have so many rows that each gradient is smaller."""
  model = models.transformer(1000, max_length=32, width=128)
  words = jax.ShapeDtypeStruct((sequences, 32), jnp.int32)
  client = Examples(words, words, jax.ShapeDtypeStruct((sequences,), jnp.float32))
  params = jax.eval_shape(model.init, jax.random.key(0))
  update = gradient_step(models.next_word_loss(model), 1.0)
  assert default_layout(update, AVERAGE, params, client, 1e6, None) == expected


def test_every_device_has_chunks_to_compute():
  """A chunk of all members would leave all devices but one idle."""
  assert layout(LOGISTIC, step(LOGISTIC), 1, expected_size=256).chunk_size == 128
  assert layout(LOGISTIC, step(LOGISTIC), 1, expected_size=256, mesh=client_mesh()).chunk_size == 32
  with jax.set_mesh(client_mesh()):
    assert layout(LOGISTIC, step(LOGISTIC), 1, expected_size=256).chunk_size == 32
  assert layout(LOGISTIC, step(LOGISTIC), 1, expected_size=2).chunk_size == 1


@pytest.mark.optimised
@pytest.mark.slow
def test_a_compiled_loss_is_left_as_it_was():
  """A layer changed inside of jit would stay changed in every later call, and not learn."""
  model = Model(LOGISTIC.init, jax.jit(LOGISTIC.apply))
  params = LOGISTIC.init(jax.random.key(0))
  client = Examples(jnp.ones((2, *SHAPE)), jnp.zeros(2, jnp.int32), jnp.ones(2))
  assert layout(model, step(model), 2) == CohortLayout(128, ghost_norms=True)
  gradients = [jax.grad(cross_entropy(own))(params, client) for own in (model, LOGISTIC)]
  jax.tree.map(np.testing.assert_array_equal, *gradients)
  assert np.any(gradients[0]["w"])


@pytest.mark.optimised
@pytest.mark.slow
def test_a_round_is_the_one_of_its_layout_and_a_chunk_size_alone_keeps_gradients():
  rng = np.random.default_rng(0)
  clients = Examples(
    rng.normal(size=(8, 1, *SHAPE)).astype(np.float32), np.zeros((8, 1), np.int32), np.ones((8, 1))
  )
  params = LOGISTIC.init(jax.random.key(0))

  def weights(**options):
    average = fixed_denominator(flat_clipping(1.0), 0.0, 8.0)
    sampler = sampling.poisson(8, 0.5)
    made = federated_averaging(step(LOGISTIC), average, sampler, optax.sgd(1.0), **options)
    keys = jax.random.key(0), jax.random.key(1)
    return np.asarray(jax.jit(made.round)(*keys, made.init(params), clients)[0].params["w"])

  chosen, ghost = weights(), weights(ghost_norms=True, chunk_size=2)
  np.testing.assert_array_equal(chosen, ghost)
  assert np.any(chosen != weights(chunk_size=1))


MESH_FOR = placement.mesh_for  # Other tests of this process have one device.


@pytest.mark.parametrize(
  ("model", "rows", "cohort", "devices"),
  [
    (LOGISTIC, 10, 32, 1),
    (LOGISTIC, 10, 40, 2),
    (LOGISTIC, 10, 100, 4),
    (LOGISTIC, 1, 512, 1),  # by ghost norms, which make no gradients
    (LOGISTIC, 1, 1024, 3),
    (WIDE, 100, 8, 4),
  ],
)
def test_each_device_has_a_share_that_pays(model, rows, cohort, devices):
  """Shapes alone decide, so a run that goes on has the devices that it was begun with."""
  made = federated_averaging(step(model), AVERAGE, sampling.poisson(2 * cohort, 0.5), SERVER)
  inputs = np.zeros((2 * cohort, rows, *SHAPE), np.float32)
  ones = np.ones((2 * cohort, rows), np.float32)
  clients = jax.tree.map(jnp.asarray, Examples(inputs, ones.astype(np.int32), ones))
  mesh = MESH_FOR(made, model.init(jax.random.key(0)), clients)
  assert (mesh.size if mesh else 1) == devices


def test_an_algorithm_with_a_mesh_of_its_own_gets_no_other():
  made = federated_averaging(
    step(WIDE), AVERAGE, sampling.poisson(8, 1.0), SERVER, mesh=client_mesh()
  )
  assert made.work is None


@pytest.mark.slow
@pytest.mark.parametrize("most_copied", [2**32, 0], ids=["a copy on each", "a share on each"])
def test_train_takes_all_devices_and_shows_one(all_devices, monkeypatch, most_copied):
  """The test data are committed to a device, as a script may have them."""
  monkeypatch.setattr(placement, "_MOST_COPIED", most_copied)
  meshes, values = [], np.arange(12, dtype=np.float32).reshape(6, 2)
  test = jax.device_put(jnp.ones(2), jax.devices()[0])

  def client_fn(keys, value, own):
    meshes.append(dict(jax.sharding.get_abstract_mesh().shape))
    return own - value, {}

  def run(clients, start):
    query = queries.gaussian_sum(100.0, 1e-6)
    server = add_updates(optax.sgd(1 / 6))
    made = rounds(client_fn, query, sampling.poisson(6, 1.0), server, relation="add_remove")
    return train(made, start, clients, num_rounds=1, evaluate=lambda p: {"sum": jnp.sum(p * test)})

  result = run(values, jnp.zeros(2))
  assert meshes
  assert all(mesh == {"clients": 4} for mesh in meshes)
  assert len(result.params.sharding.device_set) == 1
  np.testing.assert_allclose(result.params, values.mean(axis=0), rtol=1e-5)
  assert result.metrics[-1]["sum"] == pytest.approx(11.0, rel=1e-5)
  again = run(values, result.params)  # a warm start, from a device
  np.testing.assert_allclose(again.params, values.mean(axis=0), rtol=1e-5)
  meshes.clear()
  run(jax.device_put(values, jax.devices()[0]), jnp.zeros(2))  # where the user put them
  assert all(mesh == {} for mesh in meshes)


_CORES = """
import os, jax, jdp.federated as federated
{first}
try:
  federated.use_all_cores()
except RuntimeError as error:
  print(error)
else:
  federated.use_all_cores()
  print(jax.device_count() == len(os.sched_getaffinity(0)), jax.device_count())
"""


@pytest.mark.parametrize(
  ("first", "flags", "expected"),
  [
    ("", "", "True"),
    ("", "--xla_force_host_platform_device_count=3", " 3"),
    ("jax.config.update('jax_num_cpu_devices', 5)", "", " 5"),
    ("jax.devices()", "", "Expected use_all_cores before JAX starts its devices, got 1 started"),
  ],
  ids=["cores", "chosen by XLA_FLAGS", "chosen by JAX", "too late"],
)
@pytest.mark.slow
@pytest.mark.skipif(os.cpu_count() == 1, reason="one core is one device")
def test_all_cores_are_devices_unless_the_user_chose(first, flags, expected):
  done = subprocess.run(
    [sys.executable, "-c", _CORES.format(first=first)],
    env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
    capture_output=True,
    text=True,
    check=True,
  )
  assert expected in done.stdout
