"""Noise from a key that is not the operating system's, or that the data have too, is marked
wherever it is counted.
"""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jdp import data, matrix_factorization, queries, random, transforms
from jdp.conformance.reference_queries import audited
from jdp.events import (
  BestOfRuns,
  EventBase,
  GaussianSum,
  GroupedSums,
  LocalRelease,
  PoissonSampling,
  PureRelease,
  Round,
  register,
)
from jdp.federated import individual_budget, masked_round, secure_aggregation
from jdp.federated.engine.rounds import block
from jdp.guarantees import PureDP
from jdp.ledger import DurableLedger, Ledger, load
from jdp.queries.base import taken
from jdp.random.chacha import IMPLS, SECURE_IMPLS
from jdp.random.keys import is_exposed, is_secure
from tests.test_stacked_events import PROCEDURES, SAMPLER

ROUND = Round(PoissonSampling(0.1), GaussianSum(1.0, 2.0))
EXPOSED = dataclasses.replace(ROUND, key_exposed=True)
SEEDED = {
  "threefry": lambda: jax.random.key(0),
  "seeded": lambda: random.seeded_key(0),
  "seeded by JAX": lambda: jax.random.key(0, impl=IMPLS["chacha20"]),
  "data of nobody knows where": lambda: jax.random.wrap_key_data(
    np.zeros(8, np.uint32), impl=IMPLS["chacha8"]
  ),
}
KEYS = ((random.secure_key("chacha8"), False), (jax.random.key(0), True))
DERIVED = {
  "itself": lambda key: key,
  "split": lambda key: jax.random.split(key, 3)[1],
  "folded in": lambda key: jax.random.fold_in(key, 7),
  "in jit": lambda key: jax.jit(jax.random.split)(key)[0],
  "in vmap": lambda key: jax.vmap(lambda k: jax.random.fold_in(k, 1))(jax.random.split(key))[0],
  "in a scan": lambda key: jax.lax.scan(lambda k, _: (jax.random.split(k)[0], ()), key, length=3)[
    0
  ],
  "on a device": lambda key: jax.device_put(key, jax.devices()[1]),
  "cloned": jax.random.clone,
}


@pytest.mark.sweep
@pytest.mark.parametrize("derive", DERIVED.values(), ids=DERIVED)
def test_what_is_derived_from_a_secure_key_is_secure_and_nothing_else_is(derive):
  assert is_secure(derive(random.secure_key("chacha8")))
  for make in SEEDED.values():
    assert not is_secure(derive(make()))


@pytest.mark.optimised
@pytest.mark.sweep
@pytest.mark.parametrize("impl", IMPLS)
def test_the_type_of_a_secure_key_changes_no_bit_and_survives_storing(impl):
  key = random.secure_key(impl)
  again = random.restore_key(np.asarray(jax.random.key_data(key)), impl)
  same_bits = jax.random.wrap_key_data(jax.random.key_data(key), impl=IMPLS[impl])
  assert (again.dtype == key.dtype, same_bits.dtype == key.dtype) == (True, False)
  drawn = [
    jax.random.bits(jax.random.fold_in(jax.random.split(k)[0], 3), (9,))
    for k in (key, again, same_bits)
  ]
  np.testing.assert_array_equal(drawn[0], drawn[1])
  np.testing.assert_array_equal(drawn[0], drawn[2])


def test_no_seed_makes_a_secure_key():
  with pytest.raises(
    ValueError, match=r"Expected a secure_chacha20 key from jdp.random.secure_key, got a seed"
  ):
    jax.random.key(0, impl=SECURE_IMPLS["chacha20"])


def test_key_data_of_another_shape_are_refused():
  for shape in ((2,), (3, 8), ()):
    with pytest.raises(ValueError, match="Expected the data of one key"):
      random.restore_key(np.zeros(shape, np.uint32))


def test_a_key_is_exposed_by_its_type_or_by_being_the_datas():
  key, other = jax.random.split(random.secure_key("chacha8"))
  assert is_exposed(jax.random.key(0)) is True
  # static: known while tracing
  assert is_exposed(key) is is_exposed(key, jax.random.key(0)) is False
  compared = jax.jit(is_exposed)
  assert (bool(compared(key, other)), bool(compared(key, key))) == (False, True)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROCEDURES)
def test_a_procedure_marks_every_event_of_a_key_that_is_not_secure(name):
  algorithm, params, clients = PROCEDURES[name]
  for noise_key, marked in (
    (random.secure_key(), False),
    (jax.random.key(0), True),
    (random.seeded_key(0), True),
  ):
    arguments = (noise_key, jax.random.key(1), algorithm.init(params), clients)
    with jax.debug_key_reuse(False):
      _, events, _ = jax.eval_shape(algorithm.round, *arguments)
    assert {event.key_exposed for event in events} == {marked}


@pytest.mark.slow
def test_a_procedure_marks_every_event_of_one_key_for_noise_and_data():
  algorithm, params, clients = PROCEDURES["shuffled batches"]
  rounds, caveats = jax.jit(block(algorithm, 2)), []
  key, other = jax.random.split(random.secure_key("chacha8"))
  with jax.debug_key_reuse(False):
    for data_key in (other, key):
      _, (event,), _ = rounds(key, data_key, algorithm.init(params), clients)
      caveats.append(Ledger().append(event).caveats)
  assert caveats[0] == ()
  assert caveats[1][0].startswith("the noise of 2 of 2 events came from a key that")


def test_one_key_for_noise_and_data_gives_a_client_the_servers_noise():
  """Why that is marked: what a round derives for its clients' training is what it draws the noise
  with.
  """
  key = jax.random.key(0)
  with jax.debug_key_reuse(False):
    _, _, server_key = jax.random.split(jax.random.fold_in(key, 5), 3)
    of_client_2 = jax.random.fold_in(jax.random.fold_in(key, 5), 2)
  assert server_key == of_client_2


@pytest.mark.sweep
@pytest.mark.parametrize("name", audited())
def test_what_is_released_by_hand_is_marked_through_its_round(name):
  entry = audited()[name]
  query = entry.make()

  def release(key):
    sum_key, noise_key = jax.random.split(key)
    state = query.init(entry.victim)
    total = query.preprocess(sum_key, state, entry.victim, jnp.float32(1))
    return query.finalize(noise_key, state, taken(query, total))[1]

  for key, marked in KEYS:
    event = Round(SAMPLER.event(()), jax.eval_shape(release, key))
    assert event.key_exposed is marked


def test_a_strangers_finalize_is_marked_however_the_query_was_made():
  def finalize(key, state, total):
    return total, PureRelease(1.0), state

  plain = queries.no_privacy()
  for query in (
    queries.SumQuery(plain.init, plain.preprocess, finalize),
    plain._replace(finalize=finalize),
    queries.average(plain._replace(finalize=finalize), 2.0),
  ):
    for key, marked in KEYS:
      assert query.finalize(key, plain.init(0.0), jnp.zeros(2))[1].key_exposed is marked


def test_sums_with_noise_by_clients_are_marked_by_hand():
  floats = queries.distributed_sum(1.0, 2.0, queries.calibrated())
  integers = queries.distributed_integers(jnp.zeros(2), 1.0, 0.5, num_clients=4)
  counts, zeros = jnp.array([4, 4, 4]), jnp.zeros(2)
  for key, marked in KEYS:
    made = jax.eval_shape(lambda k: floats.finalize(k, zeros, counts)[1], key)
    total, state = jnp.zeros(2, jnp.int32), integers.init(zeros)
    one = jax.eval_shape(
      lambda k, state=state, total=total: integers.finalize(k, state, total, counts)[1], key
    )
    assert [event.key_exposed for event in (*made, one)] == [marked] * 3


def test_correlated_integers_are_marked_by_their_key():
  query = queries.correlated_integers(
    jnp.zeros(2), 1.0, 2.0, matrix_factorization.square_root_toeplitz(2), num_clients=2
  )
  state, everybody = query.init(jnp.zeros(2)), jnp.ones((2, 2), bool)
  for key, marked in KEYS:
    event = jax.eval_shape(
      lambda k: query.finalize(k, state, jnp.zeros(2, jnp.int32), everybody)[1], key
    )
    assert event.key_exposed is marked


def test_individual_budgets_are_marked_by_the_key_of_their_rounds():
  budget = individual_budget(3, 1.0, 10.0, noise_multiplier=5.0)
  for key, marked in KEYS:
    spending = budget.init(key)
    _, after = jax.jit(budget.round)(spending, jnp.zeros((3, 1)))
    assert budget.event(spending).key_exposed is marked
    assert budget.event(after).key_exposed is marked


def a_strangers_type():
  """An event type that holds others, of somebody who knows of no marks."""

  @register
  class HeldByAStranger(EventBase):
    parts: tuple[EventBase, ...]
    times: int

  return HeldByAStranger


def in_a_group(event):
  return GroupedSums((GaussianSum(1.0, 1.0), event), ("other", "own"))


def in_a_run(event):
  return BestOfRuns((Round(PoissonSampling(1.0), event),), (3,), 2.0)


@pytest.mark.usefixtures("undone")
@pytest.mark.parametrize(
  "wrap",
  [
    in_a_group,
    lambda event: in_a_group(in_a_group(event)),
    in_a_run,
    lambda event: in_a_run(in_a_group(event)),
    lambda event: in_a_group(in_a_run(in_a_group(event))),
  ],
)
def test_marks_go_up_through_what_holds_an_event(wrap):
  sampling, held = PoissonSampling(0.1), a_strangers_type()
  for query in (GaussianSum(1.0, 2.0), held((GaussianSum(1.0, 2.0),), 1)):
    exposed = dataclasses.replace(query, key_exposed=True)
    for event, marked in ((query, False), (exposed, True)):
      assert Round(sampling, wrap(event)).key_exposed is marked
      assert bool(Ledger().append(Round(sampling, wrap(event))).caveats) is marked
  inner = held((GaussianSum(1.0, 2.0, key_exposed=True), GaussianSum(1.0, 2.0)), 1)
  assert Round(sampling, wrap(inner)).key_exposed is True
  assert Round(dataclasses.replace(sampling, key_exposed=True), query).key_exposed is True


@pytest.mark.usefixtures("undone")
def test_adaptive_choices_go_up_and_may_be_traced():
  adaptive = GaussianSum(1.0, 2.0, adaptive=True)
  assert Round(PoissonSampling(0.1), a_strangers_type()((in_a_group(adaptive),), 1)).adaptive
  assert Round(PoissonSampling(0.1, adaptive=True), GaussianSum(1.0, 2.0)).adaptive

  @jax.jit
  def made(one, other):
    parts = tuple(GaussianSum(1.0, 2.0, key_exposed=mark) for mark in (one, other))
    return Round(PoissonSampling(0.1), GroupedSums(parts, ("a", "b")))

  for one, other in itertools.product((False, True), repeat=2):
    assert bool(made(one, other).key_exposed) is (one or other)


@pytest.mark.parametrize("make", [transforms.release, transforms.privatize])
def test_a_loop_of_ones_own_is_marked_through_its_round(make):
  query = queries.gaussian_sum(1.0, 1.0)
  for key, count in ((random.secure_key("chacha8"), 0), (jax.random.key(0), 4)):
    optimizer = make(query, key)
    start = optimizer.init(jnp.zeros(3))

    def step(state, _, optimizer=optimizer):
      rows = jnp.zeros((2, 3)) if make is transforms.privatize else jnp.zeros(3)
      _, state = optimizer.update(rows, state)
      return state, Round(SAMPLER.event(()), state.event)

    _, events = jax.jit(lambda state, step=step: jax.lax.scan(step, state, length=4))(start)
    marked = Ledger().append(events)
    assert sum(event.key_exposed for event in marked) == count
    assert bool(marked.caveats) == bool(count)


def test_events_of_groups_keep_their_structure_through_a_scan():
  """The parts' marks are static, so the first state's event needs those of the later ones."""
  query = queries.grouped({"x": queries.gaussian_sum(1.0, 1.0)}, "x")
  for key, marked in ((random.secure_key("chacha8"), False), (jax.random.key(0), True)):
    optimizer = transforms.privatize(query, key)

    def step(state, _, optimizer=optimizer):
      _, state = optimizer.update(jnp.zeros((2, 3)), state)
      return state, state.event

    start = jax.eval_shape(optimizer.init, jnp.zeros(3))
    _, event = jax.eval_shape(lambda s, step=step: jax.lax.scan(step, s, length=2), start)
    assert (event.key_exposed, event.parts[0].key_exposed) == (marked, marked)


def test_a_counted_vocabulary_is_marked():
  arguments = ([["a b"]], ["a", "b"], 1)
  for key, marked in ((random.secure_key("chacha8"), False), (jax.random.key(0), True)):
    _, event = data.private_vocabulary(key, *arguments, words_per_user=1, noise_multiplier=1.0)
    assert event.key_exposed is marked


@pytest.mark.slow
def test_a_masked_round_is_marked():
  query = queries.discrete_sum(jnp.zeros(2), 1.0, 0.01, num_clients=6, noise="skellam")
  run = masked_round(
    query, secure_aggregation(6, degree=4, threshold=1, modulus_bits=16), min_clients=2
  )
  opened = run(
    jax.random.key(0), query.init(jnp.zeros(2)), jnp.full((6, 2), 0.1), np.ones((1, 6), bool)
  )
  assert Round(PoissonSampling(1.0), opened.event).key_exposed is True


def test_equal_events_are_not_merged_where_one_is_marked():
  mixed = Ledger().append(ROUND, count=3).append(EXPOSED, count=2)
  assert [(event.key_exposed, count) for event, count in mixed.entries] == [(False, 3), (True, 2)]
  assert Ledger().append(EXPOSED, count=2).append(EXPOSED).entries == ((EXPOSED, 3),)


def test_marks_survive_sums_slices_and_files(tmp_path):
  mixed = (
    Ledger()
    .append(ROUND, count=3)
    .append(EXPOSED, count=2)
    .append(LocalRelease(PureDP(1.0), key_exposed=True))
  )
  mixed.save(tmp_path / "saved")
  durable = DurableLedger(tmp_path / "durable", "run", mixed)
  durable.append(0, [ROUND], [EXPOSED])
  durable.close()
  expected = "the noise of {} of {} events came from a key"
  for book, exposed, number in (
    (mixed, 3, 6),
    (load(tmp_path / "saved"), 3, 6),
    (mixed.rounds(2, 4), 1, 2),
    (Ledger().append(ROUND) + mixed, 3, 7),
    (durable.ledger, 4, 8),
    (load(tmp_path / "durable"), 4, 8),
  ):
    (caveat,) = book.caveats
    assert caveat.startswith(expected.format(exposed, number))
  assert mixed.rounds(0, 3).caveats == Ledger().caveats == ()


def test_a_round_on_file_is_not_repeated_with_a_key_of_another_kind(tmp_path):
  for first, second in ((ROUND, EXPOSED), (EXPOSED, ROUND)):
    durable = DurableLedger(tmp_path / str(first.key_exposed), "run", Ledger().append(first))
    durable.append(0, [first])
    durable.append(0, [first])
    with pytest.raises(ValueError, match="Expected round 0 to repeat the events on file"):
      durable.append(0, [second])
    durable.close()
    with pytest.raises(ValueError, match="to begin with the 1 earlier releases given, got others"):
      DurableLedger(tmp_path / str(first.key_exposed), "run", Ledger().append(second))


FORMER = (
  'ee0f0fd0 {"format":"jdp-ledger","version":1}\n'
  '58724c32 {"entries":[[{"type":"Round","sampling":{"type":"PoissonSampling","probability":0.1,'
  '"overflow_probability":0.0,"population":null},"query":{"type":"GaussianSum","clip_norm":1.0,"stddev":2.0},'
  '"relation":"add_remove","unit":"user","observer":"model"},3]]}\n'
)


def test_files_from_before_marks_and_numbers_are_read(tmp_path):
  (tmp_path / "former").write_text(FORMER)
  former = load(tmp_path / "former")
  assert (former, former.caveats) == (Ledger().append(ROUND, count=3), ())


def test_more_events_than_a_machines_word_counts_are_told_too():
  # Python's len refuses so many. A caveat must not be lost to an error.
  (caveat,) = Ledger().append(EXPOSED, count=10**30).caveats
  assert caveat.startswith(f"the noise of {10**30} of {10**30} events")
