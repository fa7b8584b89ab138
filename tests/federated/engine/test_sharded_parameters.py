"""Parameters that are sharded over a mesh: the run is that of one device, and stays sharded."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jdp import data, models, queries, sampling
from jdp import matrix_factorization as strategies
from jdp.federated import (
  add_updates,
  client_mesh,
  dp_fedavg,
  federated_averaging,
  gradient_step,
  local_sgd,
  rounds,
  train,
)
from jdp.federated.engine import placement
from jdp.random import seeded_key

pytestmark = pytest.mark.usefixtures("all_devices")
USERS, DIM, ROUNDS = 12, 64, 6
SAMPLER = sampling.poisson(USERS, 0.5)
CLIENTS = np.random.default_rng(0).integers(-3, 4, (USERS, DIM)).astype(np.float32)
PARAMS = {"matrix": jnp.zeros((DIM, DIM)), "vector": jnp.zeros(DIM)}
LAYOUTS = {
  "columns of two by two": ({"model": 2}, 4, PartitionSpec(None, "model")),
  "rows of one by four": ({"model": 4}, 4, PartitionSpec("model")),
  "both axes": ({"model": 2}, 4, PartitionSpec("model", "clients")),
  "two further axes": ({"rows": 2, "columns": 2}, 4, PartitionSpec("rows", "columns")),
  "replicated": ({}, 4, PartitionSpec()),
}


def client_fn(keys, params, client):
  """Whole numbers, whose sums are the same in any order."""
  del keys
  distance = 0.0 * params["matrix"] + client[:, None] * client[None]
  return {"matrix": distance, "vector": client}, {}


def algorithm(**kwargs):
  mean = queries.average(queries.gaussian_sum(1e6, 1e-3), SAMPLER.expected_size)
  server = add_updates(optax.sgd(0.5, momentum=0.9))
  return rounds(client_fn, mean, SAMPLER, server, relation="zero_out", **kwargs)


STRATEGIES = {
  "bands": strategies.square_root_toeplitz(ROUNDS, bands=3),
  "buffers": strategies.buffered_toeplitz(ROUNDS, buffers=2),
  "tree": strategies.tree(ROUNDS),
}


def correlated(name):
  query = queries.correlated_gaussian_sum(1e6, 1e-3, STRATEGIES[name], min_separation=2)
  mean = queries.average(query, USERS / 2)
  sampler = sampling.cyclic_poisson(USERS, 2, 0.9)
  server = add_updates(optax.sgd(0.5, momentum=0.9))
  return rounds(client_fn, mean, sampler, server, relation="zero_out")


def run(params, clients=CLIENTS, made=None, **kwargs):
  # Programs of JAX's default keys compile faster than those of ChaCha keys.
  options = {
    "noise_key": jax.random.key(5),
    "data_key": jax.random.key(3),
    "num_rounds": ROUNDS,
    "evaluate_every": 2,
  } | kwargs
  return train(made or algorithm(), params, clients, **options)


@functools.cache
def on_one_device(**kwargs):
  return run(PARAMS, jax.device_put(CLIENTS, jax.devices()[0]), **kwargs)


def laid_out(name):
  axes, count, spec = LAYOUTS[name]
  mesh = client_mesh(jax.devices()[:count], **axes)
  place = NamedSharding(mesh, spec)
  return mesh, place, {**PARAMS, "matrix": jax.device_put(PARAMS["matrix"], place)}


def assert_same(one, two):
  jax.tree.map(np.testing.assert_array_equal, one, two)


def total(params):
  """It takes the sharded parameter and the other one together."""
  return {"total": jnp.sum(params["matrix"] + params["vector"][None])}


@pytest.mark.sweep
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_run_has_the_bits_of_one_device_and_stays_sharded(name):
  mesh, place, params = laid_out(name)
  seen = []
  result = run(params, evaluate=total, callbacks=[lambda progress: seen.append(progress.params)])
  assert total(result.params)["total"] == result.metrics[-1]["total"]
  assert_same(result.params, on_one_device().params)
  assert result.ledger == on_one_device().ledger
  if place.is_fully_replicated:
    assert len(result.params["matrix"].devices()) == 1
  else:
    for params in [*seen, result.params]:
      assert params["matrix"].sharding.is_equivalent_to(place, 2)
      assert {shard.data.size for shard in params["matrix"].addressable_shards} == {
        DIM**2 // np.prod([mesh.shape[axis] for axis in place.spec if axis])
      }


@pytest.mark.parametrize("name", STRATEGIES)
def test_what_correlated_noise_keeps_is_divided_as_the_parameters_are(name):
  mesh, place, params = laid_out("columns of two by two")
  state = correlated(name).init(params).query
  kept = [x for x in jax.tree.leaves(state) if x.shape[-2:] == (DIM, DIM)]
  assert kept
  for leaf in kept:
    parts = [*[None] * (leaf.ndim - 2), *place.spec]
    assert leaf.sharding.is_equivalent_to(NamedSharding(mesh, PartitionSpec(*parts)), leaf.ndim)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bands", "buffers"])
@pytest.mark.parametrize("layout", ["columns of two by two", "two further axes"])
def test_correlated_noise_is_that_of_one_device(name, layout):
  """The last bits of a tree's nodes depend on how XLA fuses them, so its noise may be another."""
  _, place, params = laid_out(layout)
  result = run(params, made=correlated(name))
  assert_same(
    result.params, run(PARAMS, jax.device_put(CLIENTS, jax.devices()[0]), correlated(name)).params
  )
  assert result.params["matrix"].sharding.is_equivalent_to(place, 2)


@pytest.mark.slow
def test_rounds_are_compiled_once(caplog):
  with jax.log_compiles():
    run(laid_out("columns of two by two")[2], num_rounds=9, evaluate_every=3)
  compiled = [x for x in caplog.messages if x.startswith("Compiling") and "several_rounds" in x]
  assert len(compiled) == 1, compiled


def kill(progress):
  if progress.round == 4:
    raise KeyboardInterrupt


def test_a_killed_run_goes_on_to_the_same_bits(tmp_path):
  _, place, params = laid_out("columns of two by two")
  with pytest.raises(KeyboardInterrupt):
    run(params, workdir=tmp_path / "run", callbacks=[kill])
  result = run(params, workdir=tmp_path / "run")
  assert_same(result.params, on_one_device().params)
  assert result.params["matrix"].sharding.is_equivalent_to(place, 2)


@pytest.mark.slow
def test_a_run_may_be_resumed_on_another_layout(tmp_path):
  run(laid_out("columns of two by two")[2], workdir=tmp_path / "run", num_rounds=4)
  result = run(laid_out("rows of one by four")[2], workdir=tmp_path / "run", num_rounds=4)
  whole = run(PARAMS, num_rounds=4)
  assert_same(result.params, whole.params)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bands", "buffers"])
def test_a_killed_run_with_correlated_noise_goes_on_in_another_layout(name, tmp_path):
  """No noise is drawn twice: what was kept of earlier rounds is that of the run killed."""
  columns, rows = laid_out("columns of two by two")[2], laid_out("rows of one by four")[2]
  with pytest.raises(KeyboardInterrupt):
    run(columns, made=correlated(name), workdir=tmp_path / "run", callbacks=[kill])
  result = run(rows, made=correlated(name), workdir=tmp_path / "run")
  whole = run(PARAMS, jax.device_put(CLIENTS, jax.devices()[0]), correlated(name))
  assert_same(result.params, whole.params)
  assert result.ledger == whole.ledger


@pytest.mark.slow
@pytest.mark.parametrize("dim", [DIM, 1056])
def test_the_noise_of_chacha_keys_is_that_of_one_device(dim):
  """Of the larger matrix, each device draws a share of 18 tiles."""
  _, place, _ = laid_out("columns of two by two")
  start = {"matrix": jnp.zeros((dim, dim)), "vector": jnp.zeros(dim)}
  sharded = start | {"matrix": jax.device_put(start["matrix"], place)}
  clients = np.resize(CLIENTS, (USERS, dim))
  found = [run(params, clients, noise_key=seeded_key(5)).params for params in (sharded, start)]
  assert_same(*found)


@pytest.mark.slow
@pytest.mark.parametrize("shares", [None, True])
def test_clients_are_dealt_out_over_their_axis_alone(shares):
  _, _, params = laid_out("columns of two by two")
  assert_same(run(params, shares=shares).params, on_one_device().params)


def test_clients_may_lie_on_the_same_mesh():
  mesh, _, params = laid_out("columns of two by two")
  clients = jax.device_put(CLIENTS, NamedSharding(mesh, PartitionSpec()))
  assert_same(run(params, clients).params, on_one_device().params)


@pytest.mark.slow
def test_users_of_a_source_are_read_for_their_axis_alone():
  images = np.random.default_rng(3).random((USERS, 3, DIM), np.float32)
  users = [(x, np.arange(3, dtype=np.int32)) for x in images]
  clients = data.clients_from_source(users, max_examples=3)

  def record(keys, params, client):
    del keys, params
    first = jnp.round(10 * client.inputs[0])
    return {"matrix": first[:, None] * first[None], "vector": first}, {}

  mean = queries.average(queries.gaussian_sum(1e6, 1e-3), SAMPLER.expected_size)
  made = rounds(record, mean, SAMPLER, add_updates(optax.sgd(0.5)), relation="zero_out")
  for name in ("columns of two by two", "rows of one by four"):
    _, place, params = laid_out(name)
    result = run(params, clients, made)
    assert_same(result.params, run(PARAMS, clients, made).params)
    assert result.params["matrix"].sharding.is_equivalent_to(place, 2)


MODEL = models.logistic_regression((DIM,), 4)
SENTENCES = data.Examples(
  np.random.default_rng(1).random((USERS, 3, DIM), np.float32),
  np.random.default_rng(2).integers(0, 4, (USERS, 3), np.int32),
  np.ones((USERS, 3), np.float32),
)
MEAN = queries.average(queries.gaussian_sum(0.5, 1e-9), SAMPLER.expected_size)
STEP = gradient_step(models.cross_entropy(MODEL), 0.5)
UPDATES = {
  "a gradient step": lambda: federated_averaging(STEP, MEAN, SAMPLER, optax.sgd(1.0)),
  "ghost norms": lambda: federated_averaging(
    STEP, MEAN, SAMPLER, optax.sgd(1.0), ghost_norms=True, chunk_size=4
  ),
  "local SGD": lambda: federated_averaging(
    local_sgd(models.cross_entropy(MODEL), 0.5, num_epochs=2, batch_size=2),
    MEAN,
    SAMPLER,
    optax.sgd(1.0, momentum=0.9),
  ),
}


@pytest.mark.slow
@pytest.mark.parametrize("update", UPDATES)
def test_training_is_that_of_one_device_up_to_rounding(update):
  start = MODEL.init(jax.random.key(0))
  mesh = client_mesh(model=2)
  place = NamedSharding(mesh, PartitionSpec("model"))
  params = {**start, "w": jax.device_put(start["w"], place)}
  sharded = run(params, SENTENCES, UPDATES[update]())
  alone = run(start, jax.device_put(SENTENCES, jax.devices()[0]), UPDATES[update]())
  jax.tree.map(
    functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6),
    sharded.params,
    alone.params,
  )
  assert sharded.params["w"].sharding.is_equivalent_to(place, 2)


@pytest.mark.slow
def test_frozen_weights_may_be_sharded():
  def apply(params, x):
    return x @ params["body"][jnp.arange(DIM)] @ params["head"]

  body, head = jnp.eye(DIM), jnp.zeros((DIM, 4))

  def trained(place):
    params = {"body": body, "head": head}
    params = jax.device_put(params, place) if place else params
    model = models.freeze(models.Model(lambda key: {}, apply), params, lambda path: path == "head")
    made = dp_fedavg(
      models.cross_entropy(model),
      SENTENCES,
      cohort_size=USERS // 2,
      clip_norm=1.0,
      num_rounds=ROUNDS,
      noise_multiplier=1e-6,
    )
    return run(model.init(jax.random.key(0)), SENTENCES, made).params["head"]

  place = NamedSharding(client_mesh(model=2), PartitionSpec("model"))
  sharded = trained(place)
  assert sharded.sharding.is_equivalent_to(place, 2)
  np.testing.assert_allclose(sharded, trained(None), rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_each_device_holds_its_part_alone():
  """The arguments, the results and the temporaries of a round are divided."""
  params = {"matrix": jax.ShapeDtypeStruct((1024, 1024), np.float32)}

  def record(keys, params, client):
    return {"matrix": params["matrix"] - client[:, None]}, {}

  def bytes_on_a_device(axes, spec):
    mesh = client_mesh(**axes)
    server = add_updates(optax.sgd(0.5, momentum=0.9))
    made = rounds(record, MEAN, SAMPLER, server, relation="zero_out", mesh=mesh)

    def place(leaf):
      own = spec if leaf.ndim == 2 else PartitionSpec()
      return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, own))

    state = jax.eval_shape(made.init, params)
    args = jax.tree.map(place, (jax.random.key(0), jax.random.key(1), state))
    everywhere = NamedSharding(mesh, PartitionSpec())
    clients = jax.ShapeDtypeStruct((USERS, 1024), np.float32, sharding=everywhere)
    memory = jax.jit(made.round).lower(*args, clients).compile().memory_analysis()
    return {
      "arguments": memory.argument_size_in_bytes,
      "results": memory.output_size_in_bytes,
      "temporaries": memory.temp_size_in_bytes,
    }

  whole = bytes_on_a_device({}, PartitionSpec())
  parts = bytes_on_a_device({"model": 4}, PartitionSpec("model"))
  assert all(parts[name] < 0.5 * whole[name] for name in whole), (parts, whole)


@pytest.mark.parametrize("explicit", [0, 1])
def test_a_mesh_of_another_kind_is_refused(explicit):
  kinds = [AxisType.Auto, AxisType.Auto]
  kinds[explicit] = AxisType.Explicit
  mesh = jax.make_mesh((2, 2), ("clients", "model"), axis_types=tuple(kinds))
  place = NamedSharding(mesh, PartitionSpec(None, "model"))
  with pytest.raises(ValueError, match=r"axes have the type Auto.*client_mesh"):
    run({**PARAMS, "matrix": jax.device_put(PARAMS["matrix"], place)})


def test_clients_on_other_devices_are_refused():
  with pytest.raises(ValueError, match="clients on the devices of the parameters' mesh"):
    run(laid_out("columns of two by two")[2], jax.device_put(CLIENTS, jax.devices()[0]))


def test_a_mesh_without_clients_keeps_its_parameters():
  place = NamedSharding(jax.make_mesh((4,), ("model",)), PartitionSpec("model"))
  params = {**PARAMS, "matrix": jax.device_put(PARAMS["matrix"], place)}
  assert placement.mesh_for(algorithm(), params, CLIENTS) is None


def test_devices_must_fill_the_mesh():
  with pytest.raises(ValueError, match="multiple of 3 devices"):
    client_mesh(model=3)
  with pytest.raises(ValueError, match="model"):
    client_mesh(model=0)
  with pytest.raises(ValueError, match="Expected further axes, got 'clients'"):
    client_mesh(clients=2)
