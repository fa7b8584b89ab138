"""All that is registered runs inside `jax.shard_map`, with its checks on, as it runs outside.

Each device has a key and values of its own, and computes what it would alone, to the bit. Outside
of any program, a second call compiles nothing.
"""

import inspect
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from jdp import transforms
from jdp.mechanisms import priv_unit, stream_sum
from jdp.mechanisms import registry as mechanisms
from jdp.queries import gaussian_sum
from jdp.queries import registry as queries
from jdp.random import binding, discrete, draws
from jdp.random.chacha import IMPLS
from jdp.sampling import poisson
from jdp.sampling import registry as samplers
from tests.helpers.compilations import compilations

DEVICES = 2
SAMPLERS = {name: partial(entry.make, 12, 4) for name, entry in samplers.registered().items()} | {
  "a small sample": partial(poisson, 5000, 1e-3)
}
DRAWS = {
  name: function
  for module in (binding, discrete, draws)
  for name, function in vars(module).items()
  if inspect.isfunction(function)
  and function.__module__ == module.__name__
  and not name.startswith("_")
  and inspect.signature(function).parameters.keys() & {"key"}
}
DRAW_ARGUMENTS = {
  "hidden": 1.0,
  "log_p": -1.0,
  "p": 0.9,
  "scale": 1.0,
  "shape": (5,),
  "stddev": 1.0,
  "tree": jnp.zeros(5),
  "variance": 1.0,
}


def assert_each_device_computes_as_alone(function, *args, impl="threefry2x32"):
  """`args` are trees of arrays whose rows are the devices' own."""
  mesh = Mesh(np.array(jax.devices()[:DEVICES]), ("devices",))
  key = jax.random.key(20181204, impl=IMPLS.get(impl, impl))
  keys = jax.random.split(key, DEVICES)

  def computed(*row):
    return [data_of(x) for x in jax.tree.leaves(function(*row))]

  def own(*rows):
    return jax.tree.map(lambda x: x[None], computed(*jax.tree.map(lambda x: x[0], rows)))

  each = PartitionSpec("devices")
  sharded = jax.jit(jax.shard_map(own, mesh=mesh, in_specs=each, out_specs=each))
  found, alone = sharded(jax.random.clone(keys), *args), jax.jit(computed)
  for device in range(DEVICES):
    rows = jax.tree.map(lambda x, device=device: x[device], (jax.random.clone(keys), *args))
    of_device = jax.tree.map(lambda x, device=device: x[device], found)
    jax.tree.map(np.testing.assert_array_equal, of_device, alone(*rows))


def assert_compiles_once(function, value):
  """Each operation of a call outside of a compiled program is compiled at most once."""
  function(jax.random.key(1), value)
  with compilations() as compiled:
    function(jax.random.key(2), value)
  assert compiled == []


def data_of(x):
  """An array, or the data of keys."""
  x = jnp.asarray(x)
  return jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x


def records(like):
  """A record like the given one for each device, of which the second is smaller."""
  return jax.tree.map(lambda x: jnp.stack([jnp.asarray(x), jnp.asarray(x) / 3]), like)


@pytest.mark.sweep
@pytest.mark.parametrize("name", mechanisms.registered())
def test_mechanisms(name):
  setting = mechanisms.Setting(16, 2.0, delta=1e-5)
  mechanism = mechanisms.registered()[name].make(setting)

  def release(key, value):
    encode_key, privatize_key = jax.random.split(key)
    return mechanism.encode(encode_key, value), mechanism.privatize(privatize_key, value)

  value = jnp.full(mechanism.shape, 0.25)
  assert_each_device_computes_as_alone(release, records(value))
  assert_compiles_once(release, value)


@pytest.mark.sweep
@pytest.mark.parametrize("name", queries.registered())
def test_queries(name):
  entry = queries.registered()[name]
  query = entry.make()

  def one_round(key, record):
    state = query.init(record)
    encode_key, noise_key = jax.random.split(key)
    total = query.preprocess(encode_key, state, record, jnp.float32(1))
    return query.finalize(noise_key, state, total)

  assert_each_device_computes_as_alone(one_round, records(entry.victim))
  assert_compiles_once(one_round, jax.tree.map(jnp.asarray, entry.victim))


@pytest.mark.sweep
@pytest.mark.parametrize("name", SAMPLERS)
def test_samplers(name):
  sampler = SAMPLERS[name]()

  def three_rounds(key):
    first_key, second_key = jax.random.split(key)
    first, state = sampler.sample(first_key, sampler.init())
    second, state = sampler.sample(second_key, state)
    return first, second, sampler.sample(jax.random.key(1), state)  # a key that devices share

  assert_each_device_computes_as_alone(three_rounds)


@pytest.mark.sweep
@pytest.mark.parametrize("impl", ["threefry2x32", "chacha20"])
@pytest.mark.parametrize("name", DRAWS)
def test_draws(name, impl):
  function = DRAWS[name]
  given = {p: DRAW_ARGUMENTS[p] for p in inspect.signature(function).parameters if p != "key"}
  assert_each_device_computes_as_alone(lambda key: function(key, **given), impl=impl)


def test_sums_over_the_clients_of_a_device():
  clients = jnp.linspace(-1.0, 1.0, 2 * 5 * 8).reshape(2, 5, 8)
  transformation = transforms.privatize(gaussian_sum(1.0, 1.0), jax.random.key(0))

  def sums(key, own):
    total, _ = transformation.update(own, transformation.init(own[0]))
    return total, stream_sum(priv_unit(8, 2.0), jax.random.split(key, 5), own, block_size=2)

  assert_each_device_computes_as_alone(sums, clients)
