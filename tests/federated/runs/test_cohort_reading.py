"""Runs whose users are read from a source: they are the runs of the same users in memory."""

import json
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jdp import data, models, random, sampling
from jdp.federated import (
  CohortLayout,
  adaptive_average,
  client_mesh,
  cohort_sum,
  dp_fedavg,
  evaluate_users,
  federated_averaging,
  gradient_step,
  train,
)
from jdp.federated.engine import placement
from jdp.federated.engine.read_cohort import ReadCohort
from jdp.federated.runs import cohort_reading
from jdp.matrix_factorization import banded_toeplitz
from jdp.sampling import Sample
from tests.helpers.processes import two_process_scripts, two_processes_source

USERS, ROUNDS, DELTA = 30, 7, 1e-3
_rng = np.random.default_rng(0)
PAIRS = [
  (_rng.normal(size=(n, 3)).astype(np.float32), _rng.integers(0, 2, n))
  for n in _rng.integers(0, 7, USERS)
]
MODEL = models.logistic_regression((3,), 2)
LOSS = models.cross_entropy(MODEL)
PARAMS = MODEL.init(jax.random.key(0))
KEYS = {"noise_key": random.seeded_key(5), "data_key": jax.random.key(1)}
NAMES = [f"user {n}" for n in range(USERS)]


class Recorded:
  """The users of `PAIRS`, with a note of who is read, and by a rule of when that fails."""

  def __init__(self, fails=lambda reads: False, pairs=PAIRS):
    self.read, self.fails, self.pairs = [], fails, pairs

  def __len__(self):
    return len(self.pairs)

  def __getitem__(self, number):
    self.read.append(number)
    if self.fails(len(self.read)):
      raise OSError("the disk of user 3")
    return self.pairs[number]


def opened(source, **options):
  """The source's users; what was read to open it is forgotten."""
  clients = data.clients_from_source(source, max_examples=4, **options)
  source.read = []
  return clients


def averaging(clients, **options):
  arguments = {"cohort_size": 8, "noise_multiplier": 1.0, "num_rounds": ROUNDS, **options}
  return dp_fedavg(LOSS, clients, clip_norm=0.5, **arguments)


def run(clients, options=None, **changes):
  arguments = {"evaluate_every": 3, "delta": DELTA, **KEYS, **changes}
  return train(averaging(clients, **(options or {})), PARAMS, clients, **arguments)


def assert_same(one, other):
  jax.tree.map(np.testing.assert_array_equal, one.params, other.params)
  assert one.ledger == other.ledger
  assert one.metrics == other.metrics


class Late:
  """An array that is read when it is asked for, and cannot be."""

  def __init__(self, shape):
    self.shape = shape

  def __len__(self):
    return self.shape[0]

  def __getitem__(self, rows):
    return self

  def __array__(self, dtype=None, copy=None):
    raise TimeoutError("the disk of user 5")


CASES = {
  "Poisson": {},
  "side by side": {"layout": CohortLayout(3)},
  "ghost norms": {
    "layout": CohortLayout(2, ghost_norms=True),
    "local_update": lambda loss: gradient_step(loss, 0.5),
  },
  "a cap on participations": {
    "sampler": sampling.poisson(USERS, 0.3, max_participations=2),
    "cohort_size": 9,
  },
  "groups in turns": {
    "sampler": sampling.cyclic_poisson(USERS, 3, 0.5),
    "cohort_size": 5,
    "strategy": banded_toeplitz(ROUNDS, 3),
    "relation": "zero_out",
  },
}


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 3])
@pytest.mark.parametrize("case", CASES)
def test_a_source_gives_the_bits_of_memory(monkeypatch, case, devices):
  monkeypatch.setattr(placement, "_LEAST_WORK", 1 if devices > 1 else 10**9)
  some = jax.devices()[:devices]
  monkeypatch.setattr(jax, "devices", lambda: some)
  memory = data.clients_from_pairs(PAIRS, max_examples=4, names=NAMES)
  reads = opened(Recorded(), names=NAMES, num_threads=2)
  assert_same(run(memory, CASES[case]), run(reads, CASES[case]))


def test_only_the_members_of_the_rounds_are_read():
  """Each once for every round that it is in, and nobody for a round that is not done."""
  source = Recorded()
  clients = opened(source)
  algorithm = averaging(clients)
  train(algorithm, PARAMS, clients, num_rounds=5, evaluate_every=2, **KEYS)
  state, members = (), []
  for number in range(5):
    _, sample, state = algorithm.sample(KEYS["noise_key"], jnp.int32(number), state)
    members += sample.indices[: int(sample.size)].tolist()
  assert source.read == members


@pytest.mark.slow
def test_numbers_take_the_place_of_names():
  memory = data.clients_from_pairs(PAIRS, max_examples=4)
  assert_same(run(memory), run(opened(Recorded())))


class Reusing(Recorded):
  """A source that gives views of the same arrays for every user."""

  inputs, labels = np.zeros((9, 3), np.float32), np.zeros(9, int)

  def __getitem__(self, number):
    inputs, labels = super().__getitem__(number)
    self.inputs[: len(inputs)], self.labels[: len(labels)] = inputs, labels
    return self.inputs[: len(inputs)], self.labels[: len(labels)]


def test_a_source_may_use_its_arrays_again():
  """Else one user would be counted in the places of all."""
  memory = data.clients_from_pairs(PAIRS, max_examples=4)
  assert_same(run(memory), run(opened(Reusing())))


@pytest.mark.parametrize("least", [0, 1])
def test_users_of_several_types_are_those_of_memory(least):
  """Whoever else is read: whole labels of some become floats, lists and tuples become arrays."""
  pairs = [
    (inputs.tolist() or np.zeros((0, 3)), (labels + (0.5 if number % 3 > least else 0)).tolist())
    for number, (inputs, labels) in enumerate(PAIRS)
  ]
  kinds = {"max_examples": 4, "label_kind": "numbers"}
  memory = data.clients_from_pairs(pairs, **kinds)
  clients = data.clients_from_source(pairs, **kinds)
  together = clients.read(np.arange(USERS), rows=USERS)
  for number in range(USERS):
    alone = clients.read(np.array([number]), rows=1)
    for read, place in ((alone, 0), (together, number)):
      own = jax.tree.map(lambda x, place=place: x[place], read)
      jax.tree.map(np.testing.assert_array_equal, memory.user(number), own)
  assert clients.seen.labels.dtype == np.float32


@pytest.mark.parametrize("members", [[5], [5, 6]], ids=["alone", "beside a float"])
def test_a_label_that_would_change_is_refused_whoever_else_is_read(members):
  pairs = [(inputs, labels.astype(float)) for inputs, labels in PAIRS * 10]
  pairs[5:7] = [(np.ones((1, 3)), np.array([2**31 + 1])), (np.ones((1, 3)), np.array([0.5]))]
  clients = data.clients_from_source(pairs, max_examples=4, label_kind="numbers")
  with pytest.raises(ValueError, match="labels that int32 holds"):
    clients.read(np.array(members), rows=2)


@pytest.mark.parametrize("num_threads", [1, 2])
def test_the_end_of_a_program_does_not_wait_for_a_read(num_threads):
  daemons = []

  class Noting(Recorded):
    def __getitem__(self, number):
      daemons.append(threading.current_thread().daemon)
      return super().__getitem__(number)

  clients = opened(Noting(), num_threads=num_threads)
  daemons.clear()
  run(clients, num_rounds=2)
  assert all(daemons)
  assert daemons


BUSY = max(range(1, USERS), key=lambda number: len(PAIRS[number][1]))
EMPTY = (PAIRS[0][0][:0], PAIRS[0][1][:0])
LARGEST = (np.full((3000, 3), 1e6, np.float32), np.ones(3000, int))


@pytest.mark.sweep
@pytest.mark.parametrize(
  "others",
  [PAIRS[1:], *([*PAIRS[:BUSY], own, *PAIRS[BUSY + 1 :]] for own in (EMPTY, LARGEST))],
  ids=["first gone", "emptied", "largest by far"],
)
def test_one_user_moves_the_sum_by_no_more_than_the_event_says(others):
  """Of a whole run without noise, whose first round has everybody: by S = 0.5, and rounding."""

  def total(pairs, names):
    clients = opened(Recorded(pairs=pairs), names=names)
    options = {"cohort_size": len(pairs), "noise_multiplier": 0.0, "num_rounds": 1}
    result = train(averaging(clients, **options), PARAMS, clients, **KEYS)
    before, after = (
      np.concatenate([np.float64(np.asarray(x)).ravel() for x in jax.tree.leaves(params)])
      for params in (PARAMS, result.params)
    )
    return len(pairs) * (after - before)

  distance = np.linalg.norm(total(PAIRS, NAMES) - total(others, NAMES[-len(others) :]))
  assert 0.01 < distance < 0.5 + 1e-5


def test_tuples_of_numbers_are_arrays():
  clients = data.clients_from_source([(((1.0, 2.0),), (1,)), ((), ())], max_examples=2)
  assert clients.read(np.array([0, 1]), rows=2).labels.tolist() == [[1, 0], [0, 0]]


def test_a_run_ends_with_its_budget():
  """In the middle of a block, whose rounds are read again."""
  memory, reads = data.clients_from_pairs(PAIRS, max_examples=4), opened(Recorded())
  results = [run(clients, max_epsilon=3.0) for clients in (memory, reads)]
  assert results[1].stopped
  assert 0 < len(results[1].ledger) < ROUNDS
  assert_same(*results)


@pytest.mark.slow
@pytest.mark.parametrize("adaptive", [False, True])
def test_a_run_that_stops_early_costs_all_its_rounds(adaptive):
  """Their users are read only where events follow them, as those of an adaptive clip norm do."""
  source = Recorded()
  memory, reads = data.clients_from_pairs(PAIRS, max_examples=4), opened(source)
  averages = adaptive_average(1.0, 9.0, count_stddev=2.0)
  adapting = federated_averaging(
    gradient_step(LOSS, 0.5), averages, sampling.poisson(USERS, 0.3), optax.sgd(1.0)
  )
  results = [
    train(
      adapting if adaptive else averaging(clients),
      PARAMS,
      clients,
      num_rounds=ROUNDS,
      evaluate_every=2,
      evaluate=lambda params: {"same": 1.0},
      early_stop=lambda rows: len(rows) > 1,
      **KEYS,
    )
    for clients in (memory, reads)
  ]
  assert results[1].stopped_early
  done = results[1].metrics[-1]["round"]
  assert done < ROUNDS - 1
  assert len(results[1].ledger) == ROUNDS
  assert_same(*results)
  sampler = adapting if adaptive else averaging(reads)
  sizes = [
    int(sampler.sample(KEYS["noise_key"], jnp.int32(number), ()).sample.size)
    for number in range(ROUNDS)
  ]
  # Of a round that is never done, one cohort may have been read ahead.
  most = sum(sizes) if adaptive else sum(sizes[: done + 1])
  assert sum(sizes[:done]) < len(source.read) <= most


def test_a_source_that_fails_is_mended_and_the_run_goes_on(tmp_path):
  """To the same bits. What it says names nobody."""
  whole = run(opened(Recorded()), workdir=tmp_path / "whole")
  source = Recorded(fails=lambda reads: reads > 40)
  with pytest.raises(ValueError, match="got OSError from it; mend it") as failed:
    run(opened(source), workdir=tmp_path / "failed")
  assert "user 3" not in str(failed.value)
  assert_same(run(opened(Recorded()), workdir=tmp_path / "failed"), whole)


def test_a_run_does_not_go_on_with_another_source(tmp_path):
  run(opened(Recorded()), num_rounds=3, workdir=tmp_path / "run")
  others = [(inputs + 1, labels) for inputs, labels in PAIRS]
  with pytest.raises(ValueError, match="Expected the data that"):
    run(opened(Recorded(pairs=others)), workdir=tmp_path / "run")


@pytest.mark.parametrize(
  ("pair", "message"),
  [
    ((np.ones((2, 4), np.float32), [0, 1]), "got several shapes"),
    ((np.full((2, 3), np.nan), [0, 1]), "that are finite"),
    ((np.ones((2, 3)), [0, 1, 1]), "several lengths"),
    ((np.ones((2, 3)), [0, -1]), "got some below or above"),
    (([[1.0, 2.0, 3.0], [1.0]], [0, 1]), "got ValueError from it"),
    ((Late((2, 3)), [0, 1]), "got TimeoutError from it"),
    (np.ones((2, 3)), r"Expected \(inputs, labels\) of every user from the source, got ndarray"),
  ],
)
def test_what_a_user_gives_is_checked_when_it_is_read(pair, message):
  pairs = [pair if number == 5 else own for number, own in enumerate(PAIRS * 10)]
  clients = opened(Recorded(pairs=pairs))
  with pytest.raises(ValueError, match=message):
    run(clients, {"cohort_size": 300})


def test_a_source_that_has_grown_is_refused():
  source = Recorded(pairs=list(PAIRS))
  clients = opened(source, names=NAMES)
  source.pairs.append(PAIRS[0])
  with pytest.raises(
    ValueError, match="Expected a source of 30 users, as when it was opened, got 31"
  ):
    run(clients)


def test_shapes_tell_nothing_of_a_user():
  """Data that differ in one user, also in who is largest, are of one program's shapes."""

  def shapes(pairs):
    clients = opened(Recorded(pairs=pairs))
    return cohort_reading.shapes_of(averaging(clients), PARAMS, clients)

  huge = (np.ones((1000, 3), np.float32), np.ones(1000, int))
  assert shapes(PAIRS) == shapes([huge, *PAIRS[1:]])
  assert shapes(PAIRS).examples.inputs.shape[2] == 4


def test_rounds_are_compiled_once():
  traces = []

  def counted(params, examples):
    traces.append(1)
    return LOSS(params, examples)

  clients = opened(Recorded())
  algorithm = dp_fedavg(
    counted, clients, cohort_size=8, clip_norm=0.5, noise_multiplier=1.0, num_rounds=ROUNDS
  )
  train(algorithm, PARAMS, clients, num_rounds=1, **KEYS)
  once = len(traces)
  train(algorithm, PARAMS, clients, evaluate_every=2, **KEYS)
  assert len(traces) == once


@pytest.mark.sweep
@pytest.mark.parametrize("devices", [1, 3])
def test_who_is_not_in_the_sample_adds_nothing(devices):
  """Were another cohort read than the round's, nobody would take part who was not drawn."""
  mesh = client_mesh(jax.devices()[:devices]) if devices > 1 else None
  sample = Sample(jnp.arange(8), jnp.ones(8), jnp.int32(6), 30)

  def total(numbers):
    numbers = np.pad(np.array(numbers), (0, -8 % devices), constant_values=-1)
    numbers = numbers.reshape(-1, devices).T.astype(np.int32)
    examples = data.Examples(numbers[..., None, None] + 1.0, numbers[..., None], numbers[..., None])
    cohort = ReadCohort(jax.tree.map(jnp.float32, examples), jnp.asarray(numbers), (), devices, 30)
    return cohort_sum(
      lambda keys, shared, user, weight: weight * user.inputs.sum(), (), (), sample, cohort,
      chunk_size=2, mesh=mesh,
    )  # fmt: skip

  assert total(range(8)) == 21
  assert total([0, 1, 2, 9, 9, 5, 6, 7]) == 1 + 2 + 3 + 6
  assert total([-1] * 8) == 0


def test_the_cohort_of_another_round_adds_nothing():
  """A cohort that was read for one round is nobody in another."""
  clients = opened(Recorded())
  algorithm = averaging(clients, noise_multiplier=0.0, cohort_size=30)
  reader = cohort_reading.CohortReader(algorithm, PARAMS, clients, KEYS["noise_key"], ROUNDS, None)
  cohort = next(reader.cohorts(0, 1, ()))
  state = algorithm.init(PARAMS)
  own, *_ = algorithm.round(*KEYS.values(), state, cohort)
  other, *_ = algorithm.round(*KEYS.values(), state._replace(round=jnp.int32(1)), cohort)
  assert any(jax.tree.leaves(jax.tree.map(lambda x, y: np.any(x != y), own.params, PARAMS)))
  jax.tree.map(np.testing.assert_array_equal, other.params, PARAMS)


def test_a_slow_source_is_named(monkeypatch):
  """Once, when most of the time is waiting."""
  monkeypatch.setattr(cohort_reading, "_PATIENCE", 0.05)
  source = Recorded()
  clients = opened(source)
  source.fails = lambda reads: time.sleep(0.1)
  with pytest.warns(UserWarning, match=r"has waited \d+ s for its source and computed") as warned:
    run(clients, delta=None)
  assert len(warned) == 1


def test_procedures_that_take_all_clients_refuse_a_source():
  clients = opened(Recorded())
  algorithm = averaging(clients)._replace(sample=None)
  with pytest.raises(ValueError, match="can read its samples from a source"):
    train(algorithm, PARAMS, clients, **KEYS)


def test_a_sampler_of_other_users_is_refused():
  clients = opened(Recorded())
  other = averaging(data.clients_from_pairs(PAIRS[1:], max_examples=4))
  with pytest.raises(ValueError, match="population of 29 that is sampled from, got 30"):
    train(other, PARAMS, clients, **KEYS)


def test_what_expects_arrays_says_no_data():
  clients = opened(Recorded(pairs=[(np.full((1, 3), 12345.0), [1])]))
  for function in (jnp.asarray, lambda users: evaluate_users(lambda params, user: {}, {}, users)):
    with pytest.raises(TypeError, match="SourceUsers") as refused:
      function(clients)
    assert "12345" not in str(refused.value)


def test_no_thread_is_left():
  before = threading.active_count()
  run(opened(Recorded()))
  source = Recorded(fails=lambda reads: reads > 20)
  with pytest.raises(ValueError, match="OSError"):
    run(opened(source))
  for _ in range(100):
    if threading.active_count() <= before:
      return
    time.sleep(0.05)
  raise AssertionError("A thread that reads outlives its run.")


@pytest.mark.slow
def test_two_processes_read_their_own_users_and_fail_together(tmp_path, monkeypatch):
  """Mended, they end with the bits of one process on as many devices, and in memory."""
  processes = two_process_scripts.start("two_processes_source.py", tmp_path, devices=2)
  monkeypatch.setattr(placement, "_LEAST_WORK", 1)
  pairs = two_processes_source.Users().pairs
  alone = two_processes_source.trained(data.clients_from_pairs(pairs, max_examples=4), None)
  two_process_scripts.finish(processes)
  first, second = (json.loads((tmp_path / f"{n}.json").read_text()) for n in range(2))
  assert "got OSError from it; mend it" in second["failure"]
  assert "Expected process 1 to go on" in first["failure"]
  # Everybody is in every round: slots are dealt out to four devices, two of each process.
  assert sorted(first["read"] + second["read"]) == list(range(two_processes_source.USERS))
  assert sorted(first["read"]) == [n for n in range(40) if n % 4 < 2]
  expected = [leaf.tolist() for leaf in jax.tree.leaves(alone.params)]
  assert first["params"] == second["params"] == expected
