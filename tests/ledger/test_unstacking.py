"""Events of many rounds are those that constructors make, and alike ones are checked once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jdp.events import GaussianSum, PoissonSampling, Round
from jdp.ledger import Ledger
from jdp.ledger.unstacking import unstack


def stacked(stddevs, numbers=None):
  """Rounds as a scan returns them."""
  count = len(stddevs)

  def one(number, stddev):
    return Round(PoissonSampling(0.1), GaussianSum(1.0, stddev, number=number), "zero_out")

  numbers = jnp.arange(count, dtype=jnp.int32) if numbers is None else jnp.asarray(numbers)
  stddevs = jnp.asarray(stddevs, jnp.float32)
  _, events = jax.lax.scan(lambda _, each: (None, one(*each)), None, (numbers, stddevs))
  return jax.device_get(events)


def test_each_event_is_the_one_that_its_constructor_makes():
  stddevs = [1.5, 1.5, 2.0, 1.5]
  for number, (event, stddev) in enumerate(zip(unstack(stacked(stddevs)), stddevs, strict=True)):
    query = GaussianSum(1.0, stddev, number=number)
    made = Round(PoissonSampling(0.1), query, "zero_out", number=number)
    assert event == made
    assert event.number == number
    assert {name: type(value) for name, value in vars(event).items()} == {
      name: type(value) for name, value in vars(made).items()
    }


def test_rounds_that_differ_in_their_number_alone_are_checked_once(monkeypatch):
  event, checked, check = (
    Round(PoissonSampling(0.1), GaussianSum(1.0, 1.5)),
    [],
    Round.__post_init__,
  )
  many = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (1000,)), event)
  object.__setattr__(many, "number", np.arange(1000))
  monkeypatch.setattr(Round, "__post_init__", lambda own: [checked.append(own), check(own)])
  events = unstack(many)
  assert len(checked) == 1
  assert [event.number for event in events] == list(range(1000))
  assert len(Ledger().extend((event, 1) for event in events).entries) == 1


def test_a_round_that_is_not_like_those_before_is_checked():
  bad = stacked([1.5, 1.5, -1.0, 1.5])
  with pytest.raises(ValueError, match="stddev"):
    unstack(bad)
