"""Events keep their meaning out of jit, and cannot be made of what has none."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jdp.events import GaussianSum, LocalRelease, NonPrivate, PoissonSampling, Round
from jdp.events.base import EVENT_TYPES, NO_NUMBER
from jdp.guarantees import Observer, PureDP, Relation, Unit
from jdp.ledger import Ledger
from jdp.ledger.unstacking import unstack
from tests.helpers.ledgers.example_events import EVENTS


def names_inside(event):
  """The types of an event and of the events in it."""
  values = [part for v in vars(event).values() for part in (v if isinstance(v, tuple) else (v,))]
  inner = [names_inside(v) for v in values if type(v) in EVENT_TYPES.values()]
  return {type(event).__name__}.union(*inner)


def test_these_tests_meet_every_type_of_event():
  assert set().union(*map(names_inside, EVENTS)) == set(EVENT_TYPES)


@pytest.mark.parametrize("event", EVENTS, ids=lambda e: type(e).__name__)
def test_a_constant_event_leaves_jit_as_it_is(event):
  index = getattr(getattr(event, "query", None), "index", NO_NUMBER)
  assert set(map(int, jax.tree.leaves(event))) <= {int(NO_NUMBER), index}
  (left,) = unstack(jax.jit(lambda: event)())
  assert left == event  # float64 and all


def test_schedules_leave_a_scan_stacked_and_are_unrolled():
  def step(carry, scale):
    event = Round(PoissonSampling(0.1), GaussianSum(scale, jnp.float32(2) * scale))
    return carry, (event, LocalRelease(PureDP(1.0)))

  scales = jnp.array([1.0, 0.5, 0.5, 0.25])
  _, (stacked, constant) = jax.jit(lambda: jax.lax.scan(step, 0, scales))()
  ledger = Ledger().append(stacked).append(constant)
  expected = [Round(PoissonSampling(0.1), GaussianSum(s, 2 * s)) for s in scales.tolist()]
  assert list(ledger) == expected + [LocalRelease(PureDP(1.0))] * 4
  assert [count for _, count in ledger.entries] == [1, 2, 1, 4]
  assert all(type(e.query.stddev) is float for e in unstack(stacked))


def test_float32_values_reach_the_ledger_exactly():
  (event,) = unstack(jax.jit(lambda x: GaussianSum(x, 1.0))(jnp.float32(0.1)))
  assert (event.clip_norm, event.stddev) == (float(np.float32(0.1)), 1.0)


@pytest.mark.parametrize(
  ("make", "message"),
  [
    (lambda: PoissonSampling(1.5), "Expected probability to be a probability"),
    (lambda: PoissonSampling(np.nan), "Expected probability"),
    (lambda: PoissonSampling(0.1, -1e-9), "Expected overflow_probability"),
    (lambda: PoissonSampling(0.1, population=0), "Expected population to be a whole number >= 1"),
    (lambda: GaussianSum(0.0, 1.0), "Expected clip_norm to be a finite number > 0"),
    (lambda: GaussianSum(np.nan, 1.0), "Expected clip_norm"),
    (lambda: GaussianSum(1.0, -1.0), "Expected stddev to be a finite number >= 0"),
    (lambda: GaussianSum(1.0, np.inf), "Expected stddev"),
    (lambda: Round(PoissonSampling(0.1), NonPrivate(), relation="neighbour"), "neighbour"),
    (
      lambda: LocalRelease(PureDP(1.0), max_releases=0),
      "Expected max_releases to be a whole number >= 1",
    ),
    (lambda: LocalRelease(PureDP(1.0), max_releases=1.5), "Expected max_releases"),
  ],
)
def test_an_invalid_event_cannot_be_made(make, message):
  with pytest.raises(ValueError, match=message):
    make()


@pytest.mark.parametrize(
  "values", [(np.nan, 1.0), (1.0, np.nan), (-1.0, 1.0), (1.0, -1.0), (1.0, np.inf)]
)
def test_a_traced_value_is_checked_when_it_reaches_the_ledger(values):
  event = jax.jit(lambda s, z: Round(PoissonSampling(0.1), GaussianSum(s, z)))(*values)
  with pytest.raises(ValueError, match="Expected"):
    Ledger().append(event)


def test_scope_accepts_names_and_keeps_enumerations():
  event = EVENTS[1]
  assert (event.relation, event.unit, event.observer) == (
    Relation.ZERO_OUT,
    Unit.EXAMPLE,
    Observer.SERVER,
  )
  release = EVENTS[4]
  assert (release.relation, release.unit, release.observer) == (
    Relation.REPLACE_ONE,
    Unit.USER,
    Observer.CLIENTS,
  )
