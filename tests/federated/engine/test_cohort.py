"""The cohort engine computes a plain sum, whatever the chunks, devices, padding and neighbours."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jdp.data import examples
from jdp.data.packed import pack
from jdp.federated import client_mesh, cohort_sum
from jdp.federated.engine.rounds import replicate
from jdp.federated.engine.sharded import shard
from jdp.sampling import Sample

NUM_CLIENTS, DIM = 23, 5
MESHES = {
  "one device": lambda: None,
  "four devices": client_mesh,
  "two by two": lambda: client_mesh(model=2),
}
every_mesh = pytest.mark.parametrize("mesh", MESHES)
RNG = np.random.default_rng(0)
DATA = {
  "x": RNG.normal(size=(NUM_CLIENTS, DIM)).astype(np.float32),
  "number": np.arange(NUM_CLIENTS, dtype=np.int32),
}


def make_sample(members, capacity, padding=0, population=NUM_CLIENTS):
  """The sample of the given clients; its padding points at client `padding`."""
  indices = np.full(capacity, padding, np.int32)
  indices[: len(members)] = members
  weights = (np.arange(capacity) < len(members)).astype(np.float32)
  return Sample(jnp.asarray(indices), jnp.asarray(weights), jnp.int32(len(members)), population)


def client_fn(keys, shared, client, weight):
  """Uses all it is given: two keys, shared values, its own row, its weight. A float vector and
  integers.
  """
  noise = jax.random.uniform(keys[0], (DIM,)) + 10 * jax.random.uniform(keys[1], (DIM,))
  vector = jnp.where(weight > 0, weight * (shared * client["x"] + noise), 0.0)
  # beyond what float32 adds exactly
  return vector, jnp.where(weight > 0, client["number"] + 2**24, 0)


def run(sample, data=DATA, *, seed=0, **kwargs):
  """The sum of `client_fn`, compiled."""
  keys, shared = (jax.random.key(seed), jax.random.key(seed + 1)), jnp.float32(0.5)
  mesh = kwargs.get("mesh")
  total = jax.jit(lambda *arguments: cohort_sum(client_fn, *arguments, **kwargs))
  return jax.tree.map(np.asarray, total(*replicate((keys, shared, sample, data), mesh)))


def plain_sum(sample, seed=0):
  """The definition, one client after the other."""
  total, integers = np.zeros(DIM), 0
  for slot in range(int(sample.size)):
    keys = [
      jax.random.fold_in(jax.random.key(s), int(sample.indices[slot])) for s in (seed, seed + 1)
    ]
    client = jax.tree.map(lambda x, slot=slot: x[int(sample.indices[slot])], DATA)
    vector, number = client_fn(keys, jnp.float32(0.5), client, sample.weights[slot])
    total, integers = total + np.asarray(vector, np.float64), integers + int(number)
  return total, integers


@pytest.mark.sweep
@every_mesh
@pytest.mark.parametrize("chunk_size", [1, 4, 100])
def test_the_sum_is_the_plain_loop_for_every_chunk_size_and_mesh(mesh, chunk_size):
  sample = make_sample([3, 22, 0, 7, 7, 11, 19], capacity=17)
  expected, integers = plain_sum(sample)
  vector, number = run(sample, chunk_size=chunk_size, mesh=MESHES[mesh]())
  # 7 additions of numbers below 20
  np.testing.assert_allclose(vector, expected, rtol=0, atol=20 * 7 * 2**-23)
  assert number == integers


@pytest.mark.sweep
@every_mesh
def test_an_empty_sample_sums_to_zeros(mesh):
  vector, number = run(make_sample([], capacity=6), mesh=MESHES[mesh]())
  assert (vector.tolist(), vector.dtype, number, number.dtype) == (
    [0.0] * DIM,
    np.float32,
    0,
    np.int32,
  )


def test_a_chunk_is_no_larger_than_the_sample():
  sample = make_sample([1, 4, 2], capacity=5)
  keys, shared = (jax.random.key(0), jax.random.key(1)), jnp.float32(0.5)
  program = jax.make_jaxpr(
    lambda sample: cohort_sum(client_fn, keys, shared, sample, DATA, chunk_size=1_000_000)
  )(sample)
  assert "1000000" not in str(program)


@pytest.mark.optimised
@pytest.mark.slow
@every_mesh
def test_padding_changes_no_bit_whatever_it_points_at(mesh):
  members = [3, 5, 8, 13, 21]
  poisoned = {**DATA, "x": np.where(np.arange(NUM_CLIENTS)[:, None] == 1, np.nan, DATA["x"])}
  kwargs = {"chunk_size": 3, "mesh": MESHES[mesh]()}
  expected, _ = run(make_sample(members, len(members)), **kwargs)
  for capacity in (6, 100):
    np.testing.assert_array_equal(
      run(make_sample(members, capacity, padding=1), poisoned, **kwargs)[0], expected
    )


@pytest.mark.optimised
def test_one_clients_data_does_not_touch_anothers_contribution():
  def placed(keys, shared, client, weight):
    contribution, _ = client_fn(keys, shared, client, weight)
    return jnp.zeros((NUM_CLIENTS, DIM)).at[client["number"]].set(contribution)

  total = jax.jit(
    lambda key, x: cohort_sum(
      placed, (key, key), jnp.float32(1), sample, DATA | {"x": x}, chunk_size=3
    )
  )
  sample = make_sample(np.arange(10), 12)
  changed = DATA["x"].copy()
  changed[4] = [np.nan, np.inf, 1e38, 0.0, -1.0]
  with jax.debug_key_reuse(False):
    before, after = (np.asarray(total(jax.random.key(0), x)) for x in (DATA["x"], changed))
  others = np.arange(NUM_CLIENTS) != 4
  np.testing.assert_array_equal(after[others], before[others])
  assert np.any(after[4] != before[4])


def test_one_program_serves_every_sample_size():
  traces = []

  def counted(keys, shared, client, weight):
    traces.append(1)
    return client_fn(keys, shared, client, weight)

  total = jax.jit(
    lambda keys, sample: cohort_sum(counted, keys, jnp.float32(1), sample, DATA, chunk_size=4)
  )
  once = None
  for size in (0, 1, 9, 12):
    total((jax.random.key(size), jax.random.key(100 + size)), make_sample(np.arange(size), 12))
    once = once or len(traces)
  assert len(traces) == once


@functools.cache
def compiled(capacity, place=None, dim=10_000):
  """The compiled sum of one [dim] float vector per client, on a mesh if the data has a place on
  it.
  """

  def scaled(key, shared, client, weight):
    return jnp.where(weight > 0, shared * client[0] + jax.random.normal(key, (dim,)), 0.0)

  mesh = client_mesh() if place else None
  total = jax.jit(lambda *arguments: cohort_sum(scaled, *arguments, chunk_size=4, mesh=mesh))
  arguments = (jax.random.key(0), jnp.zeros(dim), make_sample([0], capacity, population=8))
  data = (place or replicate)(np.zeros((8, 1), np.float32), mesh)
  return total.lower(*replicate(arguments, mesh), data).compile()


@pytest.mark.slow
def test_memory_is_set_by_the_chunk_and_not_by_the_cohort():
  small, large = (
    compiled(capacity).memory_analysis().temp_size_in_bytes for capacity in (1_000, 100_000)
  )
  # copies of the slots' indices and weights; the vectors would take 4e9 bytes
  assert large - small <= 3 * 4 * 100_000
  # a few vectors for each of the 4 clients of a chunk, and three float64 sums, one of the devices'
  assert small <= 24 * 4 * 10_000 + 16_000


@pytest.mark.sweep
@pytest.mark.parametrize("place", [replicate, shard])
def test_the_only_communication_is_one_sum(place):
  text = compiled(1_000, place).as_text()
  collectives = re.findall(r" (all-[a-z-]+?|reduce-scatter|collective-[a-z]+)(?:-start)?\(", text)
  assert collectives == ["all-reduce"]


def test_replicate_puts_a_copy_on_every_device():
  mesh = client_mesh()
  assert mesh.shape == {"clients": 4}
  tree = replicate(DATA, mesh)
  assert all(
    x.sharding.is_fully_replicated and len(x.sharding.device_set) == 4
    for x in jax.tree.leaves(tree)
  )
  assert replicate(DATA, None) is DATA


@pytest.mark.slow
def test_sharded_data_lies_in_shares_and_every_client_is_computed_where_it_lives():
  """Integers come out exactly; of 23 clients on 4 devices the last has a place to spare."""
  mesh = client_mesh()
  sharded = shard(DATA, mesh)
  assert all(
    {block.data.shape[0] for block in x.addressable_shards} == {1} for x in jax.tree.leaves(sharded)
  )
  assert sharded.shares["x"].shape == (4, 6, DIM)
  own = sharded.own(make_sample([3, 22, 0, 7], capacity=9, padding=5), jnp.int32(0))
  # no padding
  assert (own.indices[:2].tolist(), int(own.size), float(own.weights.sum())) == ([3, 0], 2, 2.0)
  total = jax.jit(lambda *arguments: cohort_sum(client_fn, *arguments, chunk_size=2, mesh=mesh))
  for members in ([3, 22, 0, 7, 7, 11, 19], [18, 19, 20, 21, 22], range(NUM_CLIENTS), []):
    sample = make_sample(members, capacity=NUM_CLIENTS, padding=5)
    keys = (jax.random.key(0), jax.random.key(1))
    vector, number = total(*replicate((keys, jnp.float32(0.5), sample), mesh), sharded)
    expected, integers = plain_sum(sample)
    np.testing.assert_allclose(vector, expected, rtol=0, atol=20 * 23 * 2**-23)
    assert number == integers


def test_packed_users_are_sharded_too():
  """Ten users of 0 to 9 examples, by threes on four devices; the third has most, and a row of
  padding for each of 9.
  """
  users, mesh = np.split(np.arange(45), np.cumsum(np.arange(9))), client_mesh()
  packed = pack(examples(np.arange(45.0)[:, None], np.arange(45)), users)
  sharded = shard(packed, mesh)
  assert sharded.shares.examples.labels.shape == (4, 6 + 7 + 8 + 9)
  total = jax.jit(
    lambda sample, data: cohort_sum(
      lambda _, __, user, weight: jnp.where(weight > 0, jnp.sum(user.labels * user.labels), 0),
      (),
      (),
      sample,
      data,
      chunk_size=2,
      mesh=mesh,
    )
  )
  for members in ([9, 0, 4, 4], [2], range(10)):
    sample = replicate(make_sample(members, 12, population=10), mesh)
    assert total(sample, sharded) == sum(int(np.sum(users[k] ** 2)) for k in members)


def test_data_sharded_over_other_devices_is_refused():
  sharded = shard(DATA, client_mesh(jax.devices()[:2]))
  for mesh in (None, client_mesh()):
    with pytest.raises(ValueError, match=r"Expected sharded data on the \d devices"):
      cohort_sum(client_fn, None, None, make_sample([0], 2), sharded, mesh=mesh)


@pytest.mark.parametrize(
  ("kwargs", "message"),
  [
    ({"chunk_size": 0}, "chunk_size to be a whole number >= 1"),
    ({"chunk_size": 2.5}, "chunk_size to be a whole number"),
    ({"mesh": "batch"}, "Expected a mesh with an axis 'clients', got axes"),
  ],
)
def test_bad_arguments_are_refused(kwargs, message):
  if "mesh" in kwargs:
    kwargs = {"mesh": jax.sharding.Mesh(np.array(jax.devices()[:2]), (kwargs["mesh"],))}
  with pytest.raises(ValueError, match=message):
    cohort_sum(client_fn, None, None, make_sample([0], 2), DATA, **kwargs)
