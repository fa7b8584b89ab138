"""Arguments are converted once, by their annotations, and refused by their names."""

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from jdp import _arguments, accounting, events, guarantees, ledger, mechanisms, queries, sampling
from jdp._arguments import Arrays, Matrix, Rows, Scalar, Vector, checked, shown
from jdp.events.base import EVENT_TYPES

LOW = (np.float16, ml_dtypes.bfloat16, np.float32, jnp.bfloat16, jnp.float16)


class Colour(enum.StrEnum):
  RED = "red"
  BLUE = "blue"


class Pair(NamedTuple):
  left: int
  right: int = 0


@checked
def taken(
  number: float = 0.0,
  count: int = 0,
  *,
  flag: bool = False,
  word: str = "",
  colour: Colour | str = Colour.RED,
  shape: tuple[int, ...] = (),
  rates: Sequence[float] = (),
  texts: Iterable[str] = (),
  bounds: Mapping[str, float] = {},  # never changed
  level: float | Callable = 0.0,
  traced: float | jax.Array = 0.0,
  most: int | None = None,
  pair: Pair | None = None,
  key: jax.Array | None = None,
  array: jax.Array | None = None,
  scalar: Scalar | None = None,
  vector: Vector | None = None,
  matrix: Matrix | None = None,
  rows: Rows | None = None,
  tree: Arrays | None = None,
  dtype: jax.typing.DTypeLike = "float32",
  **others: float,
) -> dict[str, Any]:
  return {**locals(), **others}


@pytest.mark.parametrize("kind", LOW)
def test_a_number_of_low_precision_keeps_its_value(kind):
  value = kind(1.1)
  found = taken(value, level=value, traced=value, rates=[value], bounds={"a": value}, more=value)
  expected = float(value)
  numbers = [found["number"], found["level"], found["rates"][0], found["bounds"]["a"]]
  assert all(type(own) is float and own == expected for own in [*numbers, found["more"]])
  # A JAX array may be a leaf of an event: it stays what it is.
  assert float(found["traced"]) == expected


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int64, np.uint32, jnp.int8])
def test_a_whole_number_of_any_kind_becomes_pythons(kind):
  found = taken(kind(100), kind(100), shape=[kind(2)], most=kind(7))
  assert found["number"] == 100.0
  assert type(found["number"]) is float
  assert found["count"] * 2 == 200
  assert type(found["count"]) is int
  assert found["shape"] == (2,)
  assert type(found["most"]) is int


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    ({"number": "1.0"}, "Expected number to be a number, got '1.0'"),
    ({"number": None}, "Expected number to be a number, got None"),
    ({"number": True}, "Expected number to be a number, got True"),
    ({"number": np.True_}, "Expected number to be a number, got np.True_"),
    ({"number": 1j}, "Expected number to be a number, got complex"),
    ({"number": np.ones(1)}, r"Expected number to be a number, got ndarray of shape \(1,\)"),
    ({"number": 10**400}, "Expected number to be a number that floats hold"),
    ({"count": 2.0}, "Expected count to be a whole number, got 2.0"),
    ({"count": True}, "Expected count to be a whole number, got True"),
    ({"flag": 1}, "Expected flag to be True or False, got 1"),
    ({"word": 1}, "Expected word to be a string, got 1"),
    ({"colour": "green"}, "Expected colour to be one of red, blue, got 'green'"),
    ({"shape": 3}, "Expected shape to be a sequence, got 3"),
    ({"shape": (2, 1.5)}, r"Expected shape\[1\] to be a whole number, got 1.5"),
    ({"rates": "0.1"}, "Expected rates to be a sequence, got '0.1'"),
    ({"texts": "words"}, "Expected texts to be an iterable, got 'words'"),
    ({"texts": ["a", 1]}, r"Expected texts\[1\] to be a string, got 1"),
    ({"bounds": {"a": None}}, r"Expected bounds\['a'\] to be a number, got None"),
    ({"level": "x"}, "Expected level to be a number or a function, got 'x'"),
    ({"pair": (1, 2)}, "Expected pair to be a Pair or None, got tuple"),
    ({"key": 0}, "Expected key to be a key of jax.random or None, got 0"),
    ({"array": "x"}, "Expected array to be an array or None, got 'x'"),
    ({"scalar": [1.0]}, "Expected scalar to be a number or None, got list"),
    ({"vector": 1.0}, "Expected vector to be an array of numbers with one axis or None"),
    ({"matrix": [[1.0], [1.0, 2.0]]}, "Expected matrix to be an array of numbers with two axes"),
    ({"rows": ["x"]}, "Expected rows to be an array of numbers with an axis or more"),
    ({"tree": {"a": object()}}, "Expected tree to be a pytree of arrays or None, got dict"),
    ({"dtype": lambda: None}, "Expected dtype to be a type of numbers, such as float32, got func"),
    ({"dtype": dict}, "Expected dtype to be a type of numbers, such as float32, got type"),
    ({"dtype": "(2, 3)f"}, "Expected dtype to be a type of numbers, such as float32, got '"),
    ({"dtype": jnp.float32(1)}, "Expected dtype to be a type of numbers, such as float32, got Arr"),
    ({"dtype": None}, "Expected dtype to be a type of numbers, such as float32, got None"),
    ({"more": "x"}, "Expected more to be a number, got 'x'"),
  ],
)
def test_what_is_of_another_kind_is_refused_by_name(arguments, message):
  with pytest.raises((ValueError, TypeError), match=message):
    taken(**arguments)


def test_a_traced_number_is_refused_where_a_number_is_meant():
  with pytest.raises(ValueError, match="Expected number to be a number, got"):
    jax.jit(lambda x: taken(x)["number"])(1.0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", int, np.int8, jnp.bfloat16, bool])
def test_types_of_numbers_pass(dtype):
  assert taken(dtype=dtype)["dtype"] is dtype


def test_an_alias_without_members_opens_no_union_to_arrays(monkeypatch):
  # As from Python 3.12 on: all arguments that may be None took any array, and 1.5 for an integer.
  monkeypatch.setattr(_arguments, "ArrayLike", object())
  kind = _arguments._either(_arguments._kinds_of((int, type(None))))
  assert not kind.accepts(1.5)
  assert not kind.accepts(np.ones(2))
  assert kind.accepts(3)


def test_traced_arrays_pass():
  traced = jax.jit(lambda x: taken(traced=x, array=x, scalar=x)["traced"] * 2)
  assert traced(jnp.float32(1.5)) == 3.0


def test_iterators_stay_lazy():
  words = taken(texts=(word for word in ("a", "b")))["texts"]
  assert next(iter(words)) == "a"


def test_long_values_are_cut_in_messages():
  assert shown("x" * 100) == f"'{'x' * 49}... (102 characters)"
  assert shown(np.ones((2, 3))) == "ndarray of shape (2, 3)"


def _epsilon(make):
  return accounting.epsilon(make, 1e-5)


@pytest.mark.parametrize("kind", LOW)
@pytest.mark.parametrize(
  "cost",
  [
    lambda z, q: _epsilon(ledger.subsampled_gaussian(q, z, 100)),
    lambda z, q: accounting.gaussian_epsilon(z, 1e-5),
    lambda z, q: accounting.calibrate_noise_multiplier(z, 1e-5, q, 10),
    lambda z, q: accounting.noise_multiplier(events.GaussianSum(q, z), "add_remove"),
    lambda z, q: accounting.shuffled_epsilon(z, 1000, 1e-5),
    lambda z, q: mechanisms.gaussian(z, q, 1e-5).guarantee.epsilon,
    lambda z, q: mechanisms.laplace(z, q).parameters,
    lambda z, q: (
      mechanisms.separated(mechanisms.priv_unit(8, z), mechanisms.scalar_dp(z, q)).guarantee.epsilon
    ),
    lambda z, q: guarantees.PureDP(z).repeat(np.int8(100)).epsilon,
    lambda z, q: sampling.poisson(np.int8(100), q).event(()).probability,
    lambda z, q: queries.average(queries.gaussian_sum(z, z), q).noise,
  ],
)
def test_privacy_does_not_depend_on_the_precision_of_the_arguments(cost, kind):
  z, q = kind(1.3), kind(0.3)
  assert cost(z, q) == cost(float(z), float(q))


def test_small_integers_do_not_overflow():
  assert sampling.poisson(np.int8(100), 0.5, max_participations=np.int8(100)).population * 2 == 200
  release = events.LocalRelease(guarantees.PureDP(np.float16(0.1)), max_releases=np.uint8(200))
  spent = ledger.Ledger().append(release, count=300)
  assert accounting.local_guarantee(spent).epsilon == pytest.approx(200 * float(np.float16(0.1)))


def test_fields_of_events_become_pythons_numbers():
  event = events.PoissonSampling(ml_dtypes.bfloat16(0.1), population=np.int8(100))
  assert type(event.probability) is float
  assert type(event.population) is int
  with pytest.raises(ValueError, match="Expected probability to be a number, got 'x'"):
    events.PoissonSampling("x")
  with pytest.raises(TypeError, match="Expected query to be an EventBase, got None"):
    events.Round(events.PoissonSampling(0.1), None)


def test_registered_events_are_queries_too():
  @events.register
  class TestedRelease(events.EventBase):
    """A release that only this test makes."""

    scale: float

  try:
    event = events.Round(events.PoissonSampling(0.1), TestedRelease(np.float16(0.5)))
    assert event.query.scale == 0.5
    with pytest.raises(ValueError, match="Expected scale to be a number"):
      TestedRelease("x")
  finally:
    EVENT_TYPES.pop("TestedRelease")
    events.queries._REGISTERED.pop()


def test_events_with_traced_numbers_pass_through_jit_and_vmap():
  @jax.jit
  @jax.vmap
  def release(stddev):
    return events.GaussianSum(1.0, stddev)

  stacked = release(jnp.arange(1.0, 4.0))
  assert stacked.clip_norm == 1.0
  assert stacked.stddev.tolist() == [1.0, 2.0, 3.0]
