"""No event is lost: rounds cost the same in a loop, a scan and a scan of scans; those of several
runs are refused.
"""

import contextlib
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jdp import accounting, data, models, queries, sampling, transforms
from jdp.events import GaussianSum, LocalRelease, NonPrivate, PoissonSampling, Round
from jdp.events.base import EVENT_TYPES
from jdp.federated import (
  client_dropout,
  dropout,
  example_gradient,
  federated_averaging,
  fixed_denominator,
  flat_clipping,
  gradient_step,
  iterative_training,
  local_sgd,
  private_federated,
)
from jdp.federated.engine.rounds import block, events_by_round
from jdp.federated.iterative import initial_values
from jdp.guarantees import PureDP
from jdp.ledger import DurableLedger, Ledger, load
from jdp.ledger.unstacking import unstack
from jdp.mechanisms import priv_unit
from jdp.models.batch_norm import batch_norm_cnn

NUM_CLIENTS, NUM_ROUNDS, DELTA = 8, 6, 1e-3
RNG = np.random.default_rng(0)
EXAMPLES = data.examples(RNG.normal(size=(32, 3)), RNG.integers(0, 2, 32))
IMAGES = data.examples(RNG.normal(size=(32, 4, 4)), RNG.integers(0, 2, 32))
MODEL, CNN = models.logistic_regression((3,), 2), batch_norm_cnn((4, 4), 2)
GRADIENT = gradient_step(models.cross_entropy(MODEL), 0.1)
SAMPLER, QUERY = sampling.poisson(NUM_CLIENTS, 0.5), queries.gaussian_sum(0.1, 0.2)
SHUFFLED = sampling.shuffled(NUM_CLIENTS, 2)
TWO_PARTS = queries.grouped({"a": queries.gaussian_sum(1.0, 2.0), "b": QUERY}, {"w": "a", "b": "b"})


def clients_of(examples):
  return data.group(examples, np.split(np.arange(32), NUM_CLIENTS))


def averaged(sampler):
  return federated_averaging(
    GRADIENT, fixed_denominator(flat_clipping(0.1), 2.0, 4.0), sampler, optax.sgd(0.1)
  )


def with_dropout():
  lost = dropout.with_calibrations(dropout.independent(NUM_CLIENTS, 0.0), [0.0])
  query = queries.distributed_sum(0.1, 1.0, queries.calibrated())
  update = local_sgd(models.cross_entropy(MODEL), 0.1, batch_size=2)
  return client_dropout(
    update, query, lost, optax.sgd(0.1), num_clients=NUM_CLIENTS, local_clip_norm=0.1
  )


PARAMS = jax.jit(MODEL.init)(jax.random.key(2))
DIM = sum(leaf.size for leaf in jax.tree.leaves(PARAMS))
PROCEDURES = {
  "federated_averaging": (averaged(SAMPLER), PARAMS, clients_of(EXAMPLES)),
  "shuffled batches": (averaged(SHUFFLED), PARAMS, clients_of(EXAMPLES)),
  "dp_sgd": (
    federated_averaging(
      example_gradient(models.cross_entropy(MODEL)),
      fixed_denominator(flat_clipping(0.1), 2.0, 4.0),
      sampling.poisson(32, 0.5),
      optax.sgd(0.1),
      unit="example",
    ),
    PARAMS,
    EXAMPLES,
  ),
  "private_federated": (
    private_federated(GRADIENT, QUERY, SAMPLER, optax.sgd(0.1), mechanism=priv_unit(DIM, 2.0)),
    PARAMS,
    clients_of(EXAMPLES),
  ),
  "client_dropout": (with_dropout(), PARAMS, clients_of(EXAMPLES)),
  "iterative_training": (
    iterative_training(CNN, queries.gaussian_sum(1.0, 2.0), SAMPLER, optax.sgd(0.1)),
    initial_values(CNN, jax.random.key(2)),
    clients_of(IMAGES),
  ),
}
# with two events a round; with an event that varies
TWO = ["private_federated", "shuffled batches"]


@pytest.fixture(autouse=True)
def _keys_of_whole_runs():
  """The keys of a run are given to every round, which folds its number in."""
  with jax.debug_key_reuse(False):
    yield


def keys():
  return jax.random.key(0), jax.random.key(1)


def ledger_of(events):
  """The ledger of events as they left jit."""
  ledger = Ledger()
  for event in events:
    ledger = ledger.append(event)
  return ledger


def epsilons(ledger):
  """The cost to each observer."""
  observers = sorted({event.observer for event, _ in ledger.entries})
  return {
    name: (accounting.epsilon(ledger, DELTA, observer=name), count_of(ledger, name))
    for name in observers
  }


def count_of(ledger, observer):
  return sum(count for event, count in ledger.entries if event.observer == observer)


@functools.cache
def one_by_one(name):
  """The ledger of the rounds, each from its own call."""
  algorithm, params, clients = PROCEDURES[name]
  step, state, ledger = jax.jit(algorithm.round), algorithm.init(params), Ledger()
  for _ in range(NUM_ROUNDS):
    state, events, _ = step(*keys(), state, clients)
    ledger = ledger.extend((event, 1) for stacked in events for event in unstack(stacked))
  return ledger


@pytest.mark.slow
@pytest.mark.parametrize("name", PROCEDURES)
def test_a_scan_costs_what_its_rounds_cost(name):
  algorithm, params, clients = PROCEDURES[name]
  _, events, _ = jax.jit(block(algorithm, NUM_ROUNDS))(*keys(), algorithm.init(params), clients)
  expected = epsilons(one_by_one(name))
  assert all(count == NUM_ROUNDS for _, count in expected.values())
  assert epsilons(ledger_of(events)) == expected
  rows = events_by_round(events)
  assert len(rows) == NUM_ROUNDS
  assert [event.number for event, *_ in rows] == list(range(NUM_ROUNDS))
  assert epsilons(ledger_of(event for row in rows for event in row)) == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", TWO)
def test_a_scan_of_scans_is_counted_when_it_is_flattened_and_refused_when_not(name):
  algorithm, params, clients = PROCEDURES[name]
  inner = block(algorithm, 2)

  def outer(state, _):
    state, events, _ = inner(*keys(), state, clients)
    return state, events

  _, events = jax.jit(lambda state: jax.lax.scan(outer, state, length=NUM_ROUNDS // 2))(
    algorithm.init(params)
  )
  with pytest.raises(ValueError, match=r"at most one axis, of rounds, got shape \(3, 2\)"):
    ledger_of(events)
  flattened = jax.tree.map(lambda x: x.reshape(-1), events)
  assert epsilons(ledger_of(flattened)) == epsilons(one_by_one(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", TWO)
def test_runs_side_by_side_are_refused_until_one_is_taken(name):
  """Three seeds under vmap: their rounds are not rounds of one run, whatever order their axes are
  flattened in.
  """
  algorithm, params, clients = PROCEDURES[name]
  noise_keys = jax.random.split(jax.random.key(0), 3)

  def one_round(key, state):
    state, events, _ = algorithm.round(key, jax.random.key(1), state, clients)
    return state, events

  def run(key):
    return jax.lax.scan(
      lambda state, _: one_round(key, state), algorithm.init(params), length=NUM_ROUNDS
    )[1]

  _, once = jax.jit(jax.vmap(one_round, (0, None)))(noise_keys, algorithm.init(params))
  with pytest.raises(ValueError, match=r"numbers of rounds to increase, got 0 after 0"):
    ledger_of(once)
  events = jax.jit(jax.vmap(run))(noise_keys)
  with pytest.raises(ValueError, match=r"at most one axis, of rounds, got shape \(3, 6\)"):
    ledger_of(events)
  for reshape in (lambda x: x.reshape(-1), lambda x: x.T.reshape(-1)):
    with pytest.raises(ValueError, match="numbers of rounds to increase, got 0 after"):
      ledger_of(jax.tree.map(reshape, events))
  one_run = jax.tree.map(lambda x: x[1], events)
  assert epsilons(ledger_of(one_run)) == epsilons(one_by_one(name))


def loop_of_ones_own(query, sampler, key):
  """(initial carry, step) of a loop with `transforms.release`; a step returns the query's event and
  the round's.
  """
  records = {"w": jnp.ones((NUM_CLIENTS, 3)), "b": jnp.ones((NUM_CLIENTS, 2))}
  optimizer = optax.chain(transforms.release(query, key), optax.sgd(0.5))
  params = jax.tree.map(lambda x: jnp.zeros(x.shape[1:]), records)
  total = transforms.contribution_sum(lambda params, record: record, query, chunk_size=4)

  def step(carry, _):
    params, state, sampler_state = carry
    event = sampler.event(sampler_state)
    sample, sampler_state = sampler.sample(
      jax.random.fold_in(jax.random.key(1), state[0].step), sampler_state
    )
    updates, state = optimizer.update(
      total(jax.random.key(3), state[0].query, params, sample, records), state, params
    )
    round_event = Round(event, state[0].event, unit="example")
    return (optax.apply_updates(params, updates), state, sampler_state), (
      state[0].event,
      round_event,
    )

  return (params, optimizer.init(params), sampler.init()), step


def test_thirty_rounds_in_a_scan_are_not_taken_for_one(key):
  """Constant events: 1.68 is the cost of one round, 4.18 of thirty."""
  sampler = sampling.poisson(1000, 0.1)
  optimizer = transforms.release(
    queries.average(queries.gaussian_sum(1.0, 1.0), sampler.expected_size), key
  )

  def step(state, _):
    _, state = optimizer.update(jnp.zeros(4), state)
    return state, Round(sampler.event(()), state.event, unit="example")

  _, event = jax.jit(lambda state: jax.lax.scan(step, state, length=30))(
    optimizer.init(jnp.zeros(4))
  )
  ledger = Ledger().append(event)
  assert (len(ledger), len(ledger.entries)) == (30, 1)
  assert round(accounting.epsilon(ledger, 1e-5), 2) == 4.18
  assert round(accounting.epsilon(ledger.rounds(0, 1), 1e-5), 2) == 1.68


@pytest.mark.slow
@pytest.mark.parametrize("sampler", [SAMPLER, SHUFFLED], ids=["poisson", "shuffled"])
@pytest.mark.parametrize("query", [QUERY, TWO_PARTS], ids=["constant", "grouped"])
def test_a_loop_of_ones_own_costs_the_same_in_a_scan(key, query, sampler):
  carry, step = loop_of_ones_own(query, sampler, key)
  _, (of_query, stacked) = jax.jit(lambda carry: jax.lax.scan(step, carry, length=NUM_ROUNDS))(
    carry
  )
  ledger, one_step = Ledger(), jax.jit(step)
  for _ in range(NUM_ROUNDS):
    carry, (_, event) = one_step(carry, None)
    ledger = ledger.append(event)
  assert len(ledger) == NUM_ROUNDS
  assert epsilons(Ledger().append(stacked)) == epsilons(ledger)
  # from the release's state
  assert [event.number for event in unstack(stacked)] == list(range(NUM_ROUNDS))
  # a round that is put together on the host, from a query's event that was stacked
  if sampler is SAMPLER:
    made_later = Round(sampler.event(()), of_query, unit="example")
    assert epsilons(Ledger().append(made_later)) == epsilons(ledger)


@pytest.mark.slow
def test_a_loop_of_ones_own_compiles_once(key):
  for query in (QUERY, TWO_PARTS):
    traces = []
    carry, step = loop_of_ones_own(query, SHUFFLED, key)

    @jax.jit
    def counted(carry, step=step, traces=traces):
      traces.append(None)
      return step(carry, None)

    for _ in range(3):
      carry, _ = counted(carry)
    assert len(traces) == 1


HOST_MADE = [
  Round(PoissonSampling(0.1), GaussianSum(1.0, 2.0)),
  Round(PoissonSampling(0.1), NonPrivate()),
  LocalRelease(PureDP(1.0), max_releases=3),
]


def scanned(event, length=5):
  """The event of a host, as a scan of so many rounds returns it."""
  return jax.jit(lambda: jax.lax.scan(lambda carry, _: (carry, event), 0, length=length)[1])()


@pytest.mark.parametrize("event", HOST_MADE, ids=str)
def test_an_event_made_outside_is_counted_for_every_round_of_a_scan(event):
  assert Ledger().append(scanned(event)).entries == ((event, 5),)
  assert Ledger().append(jax.jit(lambda: event)()).entries == ((event, 1),)  # float64 and all


@pytest.mark.parametrize("name", sorted(EVENT_TYPES))
def test_every_type_of_event_has_an_axis_behind_a_scan_and_says_no_more_by_it(name):
  numbered = {field.name: field for field in dataclasses.fields(EVENT_TYPES[name])}["number"]
  assert (numbered.compare, numbered.repr, numbered.kw_only) == (False, False, True)


def test_numbers_are_no_part_of_equality():
  first, second = (dataclasses.replace(HOST_MADE[0], number=number) for number in (0, 1))
  assert first == second == HOST_MADE[0]
  assert hash(first) == hash(second)
  assert repr(first) == repr(HOST_MADE[0])
  assert Ledger().append(first).append(second).entries == ((HOST_MADE[0], 2),)


def test_branches_and_carries_take_events_of_host_and_trace():
  """A `cond` and a `while_loop` demand one structure of events with and without numbers, made here
  or there.
  """
  host = HOST_MADE[0]

  def traced(number):
    return Round(PoissonSampling(0.1), GaussianSum(1.0, 2.0), number=number)

  chosen = jax.jit(lambda n: jax.lax.cond(n > 0, lambda: traced(n), lambda: host))(jnp.int32(3))
  assert (int(chosen.number), chosen) == (3, host)
  looped = jax.jit(lambda: jax.lax.fori_loop(0, 4, lambda i, _: traced(i), host))()
  assert (int(looped.number), looped) == (3, host)


@pytest.mark.parametrize("count", [0, 2, 5])
def test_a_stacked_event_takes_no_count_beside_its_axis(count):
  stacked = scanned(HOST_MADE[0])
  with pytest.raises(
    ValueError, match=f"Expected count=1 with events stacked by a scan .5 rounds., got {count}"
  ):
    Ledger().append(stacked, count=count)


def test_stacked_events_are_no_entry_of_a_ledger():
  stacked = scanned(HOST_MADE[0])
  with pytest.raises(
    ValueError, match="Expected the event of one round, got 5 stacked by a scan; append it"
  ):
    Ledger().extend([(HOST_MADE[0], 1), (stacked, 1)])


def test_axes_that_differ_are_refused():
  with pytest.raises(
    ValueError, match=r"one axis, of rounds, in all arrays of an event, got shapes .*\(2,\).*\(3,\)"
  ):
    Ledger().append(Round(PoissonSampling(0.1), GaussianSum(jnp.ones(2), jnp.ones(3))))


def test_the_number_is_not_in_the_file(tmp_path):
  Ledger().append(HOST_MADE[0]).save(tmp_path / "without")
  Ledger().append(dataclasses.replace(HOST_MADE[0], number=0)).save(tmp_path / "with")
  assert (tmp_path / "with").read_bytes() == (tmp_path / "without").read_bytes()
  assert b"number" not in (tmp_path / "with").read_bytes()


def test_a_scan_of_no_rounds_is_no_event():
  assert Ledger().append(scanned(HOST_MADE[0], length=0)) == Ledger()


def of_rounds(*numbers, event=HOST_MADE[0]):
  return [dataclasses.replace(event, number=number) for number in numbers]


def test_a_loop_that_keeps_its_last_event_is_refused():
  """Nine of ten rounds would cost nothing."""
  host = HOST_MADE[0]
  last = jax.jit(
    lambda: jax.lax.fori_loop(0, 10, lambda i, _: dataclasses.replace(host, number=i), host)
  )()
  with pytest.raises(
    ValueError, match="Expected the Round of round 0 at most, got that of round 9: the events of"
  ):
    Ledger().append(last)


def test_blocks_that_return_their_last_event_are_refused(tmp_path):
  with pytest.raises(ValueError, match="of round 5 at most, got that of round 9"):
    ledger_of(of_rounds(*range(5), 9))
  with contextlib.closing(DurableLedger(tmp_path / "ledger", "run")) as durable:
    durable.append(0, *([event] for event in of_rounds(*range(5))))
    with pytest.raises(ValueError, match="of round 5 at most, got that of round 9"):
      durable.append(5, of_rounds(9))
    assert durable.last_round == 4
    durable.append(5, of_rounds(5))


def test_events_that_lie_between_rounds_are_missed_in_a_stack():
  every_third = jax.tree.map(lambda *x: jnp.stack(x), *of_rounds(0, 3, 6))
  with pytest.raises(ValueError, match="of round 1 at most, got that of round 3"):
    Ledger().append(every_third)


def test_a_resumed_run_goes_on_with_its_earlier_ledger(tmp_path):
  Ledger().append(HOST_MADE[0], count=50).save(tmp_path / "ledger")
  with pytest.raises(ValueError, match="Resume a run with the ledger of its earlier rounds"):
    ledger_of(of_rounds(50))
  ledger = load(tmp_path / "ledger")
  for event in of_rounds(50, 51):
    ledger = ledger.append(event)
  assert ledger.entries == ((HOST_MADE[0], 52),)
  with contextlib.closing(DurableLedger(tmp_path / "durable", "run")) as durable:
    durable.append(0, *([event] for event in of_rounds(*range(50))))
  with contextlib.closing(DurableLedger(tmp_path / "durable", "run")) as durable:
    durable.append(50, of_rounds(50))
    with pytest.raises(ValueError, match="of round 51 at most, got that of round 60"):
      durable.append(51, of_rounds(60))


def test_what_earlier_releases_hold_fills_no_gap_of_a_run(tmp_path):
  prior = Ledger().append(HOST_MADE[0], count=50)
  with (
    contextlib.closing(DurableLedger(tmp_path / "ledger", "run", prior)) as durable,
    pytest.raises(ValueError, match="of round 0 at most, got that of round 9"),
  ):
    durable.append(0, of_rounds(9))


@pytest.mark.parametrize(
  "events",
  [
    pytest.param([*of_rounds(0, 1, 2), *of_rounds(0, 1)], id="a run after another"),
    pytest.param(of_rounds(0, 1, 2, 0, 3, 1, 4, 2), id="two runs side by side, one begun later"),
    pytest.param(of_rounds(0, 0, 1, 1), id="two releases a round"),
    pytest.param(of_rounds(0, 1, 2, 1, 2, 3), id="rounds repeated from a checkpoint count again"),
    pytest.param(
      [*of_rounds(0, 1), *of_rounds(0, 1, event=HOST_MADE[2])], id="one scan's events, type by type"
    ),
    pytest.param([HOST_MADE[0], *of_rounds(1), HOST_MADE[0]], id="without a number"),
  ],
)
def test_numbers_that_miss_nothing_are_taken(events):
  assert len(ledger_of(events)) == len(events)


def test_a_count_and_a_slice_miss_nothing():
  ledger = Ledger().append(*of_rounds(9), count=10).append(*of_rounds(10))
  assert len(ledger.rounds(5, 8) + ledger.rounds(10, 11)) == 4
  assert Ledger().extend(ledger.rounds(5, 11).entries) == ledger.rounds(5, 11)
