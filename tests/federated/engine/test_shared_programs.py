"""One program for functions that differ in numbers: when it is shared, and what it computes."""

import functools
import itertools
from collections import OrderedDict

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback
from jax.sharding import PartitionSpec

from jdp import mechanisms, queries, random
from jdp.federated import client_mesh
from jdp.federated.engine import shared_programs
from jdp.federated.engine.rounds import block_of_at_most
from jdp.federated.engine.shared_programs import shared
from jdp.numerics.compensated import float64
from tests.helpers.compilations import compilations
from tests.helpers.toy_rounds import towards_own_values

X = np.linspace(0.1, 2.0, 8, dtype=np.float32)
CLIENTS = jnp.asarray(np.random.default_rng(0).normal(size=(6, 2)), jnp.float32)
KEYS = jax.random.key(1), jax.random.key(2)


@pytest.fixture(autouse=True)
def programs(monkeypatch):
  """The programs that are kept, none at first."""
  kept = OrderedDict()
  monkeypatch.setattr(shared_programs, "_programs", kept)
  return kept


def algorithm(stddev=2.0, clip_norm=0.5, rate=0.3):
  return towards_own_values(queries.gaussian_sum(clip_norm, stddev), len(CLIENTS), rate=rate)


def trained(made, compiled=None, clients=CLIENTS):
  """The parameters after three rounds, and their events."""
  compiled = compiled or block_of_at_most(made.round, 3)
  state, events, _ = compiled(*KEYS, made.init(jnp.zeros(2)), clients, np.int32(3))
  return np.asarray(state.params), events


ROWS = [{}, {"stddev": 3.0}, {"clip_norm": 0.7}, {"rate": 0.45}]


def test_rows_of_a_sweep_share_a_program(undithered):
  with compilations() as names:
    results = [trained(algorithm(**row)) for row in ROWS]
  assert sum("several_rounds" in name for name in names) == 1
  for row, (params, events) in zip(ROWS, results, strict=True):
    made = algorithm(**row)
    plain = jax.jit(block_of_at_most(made.round, 3).__wrapped__)
    expected, expected_events = trained(made, plain)
    # A few roundings: XLA fuses otherwise.
    np.testing.assert_allclose(params, expected, rtol=1e-6)
    assert jax.tree.structure(events) == jax.tree.structure(expected_events)


@pytest.mark.parametrize("dim", [64, 100])
def test_mechanisms_of_several_epsilons_share_a_program(programs, dim):
  """The threshold of a coin and the side that a cap's height is tabulated from are numbers."""
  value = jnp.ones(dim)
  for epsilon in (2.0, 8.0, 20.0):
    mechanism = mechanisms.separated(
      mechanisms.priv_unit(dim, epsilon), mechanisms.scalar_dp(10.0, 20.0)
    )
    found = shared(mechanism.privatize)(jax.random.key(1), value)
    expected = jax.jit(mechanism.privatize)(jax.random.key(1), value)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * mechanism.max_norm)
  assert len(programs) == 1


@pytest.mark.optimised
def test_the_bits_are_the_same_whichever_row_came_first(programs):
  first = [trained(algorithm(**row))[0] for row in ROWS]
  block_of_at_most.cache_clear()
  programs.clear()
  last = [trained(algorithm(**row))[0] for row in reversed(ROWS)]
  np.testing.assert_array_equal(first, last[::-1])
  assert len({params.tobytes() for params in first}) == len(ROWS)


def test_a_second_call_traces_nothing_and_compiles_nothing():
  traces = []

  def function(x):
    traces.append(x)
    return 0.3 * x

  call = shared(function)
  call(X)
  with compilations() as names:
    np.testing.assert_array_equal(call(2 * X), jax.jit(lambda x: 0.3 * x)(2 * X))
  assert len(traces) == 1
  assert not [name for name in names if "function" in name]
  assert call(X[:3]).shape == (3,)


def custom_jvp(factor):
  @jax.custom_jvp
  def function(x):
    return factor * x

  function.defjvp(lambda primals, tangents: (function(*primals), tangents[0]))
  return function


def custom_vjp(factor):
  @jax.custom_vjp
  def function(x):
    return factor * x

  function.defvjp(lambda x: (function(x), None), lambda _, x: (x,))
  return function


def custom_vmap(factor):
  function = jax.custom_batching.custom_vmap(lambda x: factor * x)
  function.def_vmap(lambda size, batched, x: (factor * x, batched[0]))
  return function


def over_devices(factor):
  spec = PartitionSpec("clients")
  mesh = jax.make_mesh((4,), ("clients",), axis_types=(jax.sharding.AxisType.Auto,))
  return jax.shard_map(lambda x: factor * x, mesh=mesh, in_specs=spec, out_specs=spec)


# number -> function. Two numbers in one function change places if they are given in a wrong order.
PROGRAMS = {
  "an equation": lambda c: lambda x: c * x + c / 7,
  "both operands": lambda c: lambda x: x + lax.sub(np.float32(c), np.float32(c / 3)),
  "a division": lambda c: lambda x: x / c,
  "a result": lambda c: lambda x: (x, np.float32(c), jnp.float32(c) * 3),
  "jit": lambda c: lambda x: jax.jit(lambda x: c * x - c / 7)(x) / c,
  "scan": lambda c: (
    lambda x: lax.scan(lambda y, z: (c * y + z, y - c / 3), x * c, jnp.stack([x, c * x]))
  ),
  "while": lambda c: (
    lambda x: lax.while_loop(lambda y: jnp.sum(y) < 50 * c, lambda y: y * (1 + c) + c / 7, x / c)
  ),
  "fori": lambda c: lambda x: lax.fori_loop(0, 3, lambda i, y: y * c, x),
  "cond": lambda c: (
    lambda x: [
      lax.cond(jnp.sum(x) > bound, lambda y: c * y + c / 3, lambda y: y - c / 7, x)
      for bound in (0.5, 50.0)
    ]
  ),
  "switch": lambda c: (
    lambda x: [
      lax.switch(jnp.int32(i), [lambda y: y * c, lambda y: y, lambda y: y / c + c], x)
      for i in range(3)
    ]
  ),
  "custom_jvp": lambda c: custom_jvp(c),
  "custom_vjp": lambda c: custom_vjp(c),
  "custom_vmap": lambda c: custom_vmap(c),
  "checkpoint": lambda c: jax.grad(lambda x: jnp.sum(jax.checkpoint(lambda y: jnp.sin(c * y))(x))),
  "vmap": lambda c: jax.vmap(lambda x: jnp.exp(c * x)),
  "shard_map": over_devices,
  "nested": lambda c: (
    lambda x: lax.scan(
      lambda y, _: (jax.jit(lambda y: lax.cond(y[0] > c, custom_jvp(c), jnp.sin, y))(y), c * y),
      x,
      length=3,
    )
  ),
  "used twice": lambda c: lambda x: [f(x) for f in [jax.jit(lambda x: c * x)] * 2],
  "float64": lambda c: in_float64(c),
  "an array": lambda c: lambda x: x * jnp.full(8, c),
  "NumPy's array": lambda c: lambda x: x * np.full(8, c, np.float32),
  "a long integer array": lambda c: lambda x: x[np.arange(8) * int(10 * c) % 7],
  "random numbers": lambda c: lambda x: c * jax.random.normal(jax.random.key(3), x.shape) + x,
  "a key": lambda c: with_key(jax.random.key(int(10 * c))),
  "a coin": lambda c: lambda x: jnp.where(random.bernoulli(jax.random.key(3), c, x.shape), x, 0.0),
}


def with_key(key):
  return lambda x: x + jax.random.normal(key, x.shape)


def in_float64(factor):
  def function(x):
    with float64(True):
      wide = lax.mul(lax.convert_element_type(x, np.float64), lax.full((8,), 1.0) * factor)
      part = lax.convert_element_type(wide, np.float32)
      return part, lax.convert_element_type(
        wide - lax.convert_element_type(part, np.float64), np.float32
      )

  return function


@pytest.mark.parametrize("name", PROGRAMS)
def test_numbers_are_arguments_wherever_they_stand(programs, name):
  for number in (0.3, 0.7, 0.9):
    function = PROGRAMS[name](number)
    found, expected = shared(function)(X), jax.jit(function)(X)
    # XLA may fuse a product into a sum, which saves one rounding.
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=3e-7), found, expected)
  assert len(programs) == 1


@pytest.mark.optimised
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32, jnp.float64])
@pytest.mark.parametrize("number", [0.1, 1 / 3, -2.5, 6e-8, 1e-40])
def test_a_number_keeps_its_bits_and_its_type(dtype, number):
  def function(x):
    with float64(True):
      return lax.bitcast_convert_type(
        lax.optimization_barrier((np.asarray(number, dtype), x))[0], np.uint8
      )

  found = shared(function)(X)
  np.testing.assert_array_equal(found, np.asarray(number, dtype).reshape(1).view(np.uint8))


def test_weak_types_stay_weak():
  with jax.numpy_dtype_promotion("standard"):
    result = shared(lambda x: 0.3 * x)(jnp.ones(3, jnp.bfloat16))
  assert result.dtype == jnp.bfloat16


# Two functions that are not one program, though some print alike.
UNLIKE = {
  "an integer": lambda c: lambda x: x * jnp.int32(c).astype(np.float32),
  "a shift": lambda c: lambda x: lax.bitcast_convert_type(x, np.uint32) >> np.uint32(c),
  "a short integer array": lambda c: lambda x: x[np.arange(4) + c],
  "an exponent": lambda c: lambda x: jnp.power(x, 0.5 + c),
  "a zero": lambda c: lambda x: jnp.copysign(x, np.float32((0.0, -0.0)[c - 1])),
  "one": lambda c: lambda x: x * (c - 1.0),
  "a shape": lambda c: lambda x: x[:c],
  "a type": lambda c: lambda x: x.astype((np.float16, np.int32, np.float32)[c]),
  "a primitive": lambda c: (jnp.sin, jnp.cos, jnp.tan)[c],
  "an order": lambda c: lambda x: (0.3 * x - 0.7, 0.7 - 0.3 * x, 0.7 * x)[c],
  "a bool": lambda c: lambda x: jnp.where(c > 1, x, 2.5 * x),
  "a callback": lambda c: calling(lambda x: c * x),
  "a callback that equals others": lambda c: calling(Equal(c)),
  "a derivative": lambda c: jax.grad(with_derivative(c)),
}


class Equal:
  """A function that takes itself for any other."""

  def __init__(self, factor):
    self.factor = factor

  def __call__(self, x):
    return np.float32(self.factor) * x

  def __eq__(self, other):
    return isinstance(other, Equal)

  def __hash__(self):
    return 0

  def __repr__(self):
    return "Equal"


def calling(callback):
  return lambda x: jax.pure_callback(callback, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def with_derivative(factor):
  @jax.custom_jvp
  def function(x):
    return jnp.sum(x)

  def jvp(primals, tangents):
    return function(*primals), (0.0, 1.0, -1.0)[factor] * jnp.sum(tangents[0])

  function.defjvp(jvp)
  return function


@pytest.mark.parametrize("name", UNLIKE)
def test_what_differs_in_more_than_numbers_is_not_shared(programs, name):
  for number in (1, 2):
    function = UNLIKE[name](number)
    np.testing.assert_array_equal(shared(function)(X), jax.jit(function)(X))
  assert len(programs) == 2


def test_side_effects_happen_at_every_call(programs):
  seen = []
  call = shared(lambda x: (io_callback(lambda y: seen.append(float(y)), None, x[0]), 0.3 * x)[1])
  for factor in (1, 2):
    call(factor * X)
  jax.effects_barrier()
  np.testing.assert_allclose(sorted(seen), [X[0], 2 * X[0]], rtol=1e-6)
  assert not programs


@pytest.mark.optimised
def test_it_can_be_differentiated_and_mapped(programs):
  call = shared(lambda x: jnp.sum(custom_jvp(0.3)(x)))
  np.testing.assert_array_equal(jax.grad(call)(X), np.ones(8))  # by the rule of its own
  np.testing.assert_allclose(jax.vmap(call)(X[:, None]), np.float32(0.3) * X, rtol=1e-6)
  assert not programs


def test_arguments_may_lie_on_several_devices(programs):
  mesh = client_mesh()
  sharding = jax.sharding.NamedSharding(mesh, PartitionSpec(mesh.axis_names[0]))
  for number in (0.3, 0.7):
    with jax.set_mesh(mesh):
      found = shared(lambda x, number=number: number * x)(jax.device_put(X, sharding))
    assert found.sharding.is_equivalent_to(sharding, 1)
    np.testing.assert_array_equal(found, jax.jit(lambda x, number=number: number * x)(X))
  assert len(programs) == 1


def test_the_programs_that_are_kept_are_few(programs, monkeypatch):
  monkeypatch.setattr(shared_programs, "_MOST_PROGRAMS", 2)
  for shape in itertools.chain(range(1, 5), [1]):
    call = shared(lambda x: 0.3 * x)
    np.testing.assert_array_equal(call(X[:shape]), jax.jit(lambda x: 0.3 * x)(X[:shape]))
    assert len(programs) <= 2


def test_no_array_is_kept_with_the_programs(programs):
  """Neither a secret key nor a data set stays in memory after the function that holds it."""
  key, many = jax.random.key(7), np.ones(10_000, np.float32)
  call = shared(lambda x: x + jax.random.normal(key) + many[:8])
  np.testing.assert_array_equal(call(X), call(X))  # The key is not an argument that counts as used.
  shared(lambda x: x * many)(np.ones(10_000, np.float32))

  def leaves(value):
    if isinstance(value, tuple | frozenset):
      for part in value:
        yield from leaves(part)
    else:
      yield value

  for name in programs:
    for leaf in leaves(name):
      assert not isinstance(leaf, jax.Array | np.ndarray)
      assert not isinstance(leaf, bytes) or len(leaf) <= 16
