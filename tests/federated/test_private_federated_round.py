"""A round of private federated learning is what its events say, and one client can do no more than
its bound.
"""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

from jdp import data
from jdp.data import Examples
from jdp.events import GaussianSum, LocalRelease, NonPrivate, Round
from jdp.federated import client_mesh, gradient_step, local_sgd, private_federated
from jdp.federated.engine.cohort import default_chunk_size
from jdp.federated.engine.rounds import replicate
from jdp.guarantees import Relation
from jdp.ledger import Ledger
from jdp.mechanisms import gaussian, priv_unit, scalar_dp, separated
from jdp.models import cross_entropy, logistic_regression
from jdp.queries import average, gaussian_sum, no_privacy
from jdp.sampling import poisson
from tests.helpers import statistical

pytestmark = pytest.mark.usefixtures("undithered")

USERS, EXAMPLES, FEATURES, CLASSES = 12, 5, 3, 2
DIM = CLASSES * (FEATURES + 1)
S = 0.05
MODEL = logistic_regression((FEATURES,), CLASSES)
LOSS = cross_entropy(MODEL)
RNG = np.random.default_rng(0)
CLIENTS = Examples(
  RNG.normal(size=(USERS, EXAMPLES, FEATURES)).astype(np.float32),
  RNG.integers(0, CLASSES, (USERS, EXAMPLES)).astype(np.int32),
  np.ones((USERS, EXAMPLES), np.float32),
)
PARAMS = MODEL.init(jax.random.key(0))  # zeros
STEP = gradient_step(LOSS, 1.0)


def mechanism(max_value=1.0):
  """An (8, 4)-separated release of the whole model's difference."""
  return separated(priv_unit(DIM, 8.0), scalar_dp(4.0, max_value))


def algorithm(query=None, *, probability=1.0, sampler=None, optimizer=None, update=STEP, **kwargs):
  """Private federated learning with a Gaussian average of bound S and a little noise, unless told
  otherwise.
  """
  sampler = sampler or poisson(USERS, probability)
  query = average(query or gaussian_sum(S, 0.1 * S), sampler.expected_size)
  kwargs = {"chunk_size": 5} | kwargs  # no divisor of the cohort
  return private_federated(update, query, sampler, optimizer or optax.sgd(1.0), **kwargs)


TRAIN = local_sgd(LOSS, 1.0, batch_size=2)
PLAIN, IN_THE_CLEAR, LOCAL = algorithm(no_privacy()), algorithm(), algorithm(mechanism=mechanism())
EVERYTHING = algorithm(update=TRAIN, probability=0.5, mechanism=mechanism())


def run(made, clients=CLIENTS, *, rounds=1, seed=0):
  """The last state and the events and diagnostics of every round."""
  compiled, state, history = jax.jit(made.round), made.init(PARAMS), []
  for _ in range(rounds):
    state, events, diagnostics = compiled(
      jax.random.key(seed), jax.random.key(seed + 1), state, clients
    )
    history.append((events, diagnostics))
  return state, history


def flat(state):
  """The model's parameters in float64."""
  return np.asarray(ravel_pytree(state.params)[0], np.float64)


def row(tree, user):
  """One user's examples."""
  return jax.tree.map(lambda x: x[user], tree)


@functools.cache
def differences():
  """What each user's step is, one after the other: [users, DIM]."""
  one = jax.jit(lambda user: ravel_pytree(STEP(jax.random.key(0), PARAMS, user))[0])
  return np.stack([one(row(CLIENTS, user)) for user in range(USERS)])


def test_without_privacy_a_round_is_federated_averaging():
  state, history = run(PLAIN)
  np.testing.assert_allclose(flat(state), np.mean(differences(), axis=0), atol=1e-6)
  assert history[0][0] == (Round(poisson(USERS, 1.0).event(()), NonPrivate()),)


@pytest.mark.slow
def test_differences_are_averaged_over_the_expected_cohort():
  # Identical clients: the model moves by (members / expected members) times one client's
  # difference.
  same = jax.tree.map(lambda x: np.repeat(x[:1], USERS, axis=0), CLIENTS)
  state, history = run(algorithm(no_privacy(), probability=0.5, diagnose=True), same)
  expected = differences()[0]
  members = float(history[0][1]["cohort_size"])
  # on this key: so that dividing by the members would be seen
  assert members not in (0, USERS * 0.5, USERS)
  np.testing.assert_allclose(flat(state), expected * members / (USERS * 0.5), rtol=1e-5)


@pytest.mark.slow
def test_events_of_a_round_say_what_was_done_and_cost():
  sampler, local = poisson(USERS, 0.5, max_participations=2), mechanism()
  made = algorithm(gaussian_sum(1 / 3, 0.7), sampler=sampler, mechanism=local, relation="zero_out")
  state, history = run(made, rounds=8)
  central = Round(sampler.event(()), GaussianSum(1 / 3, 0.7), Relation.ZERO_OUT, "user", "model")
  release = LocalRelease(local.guarantee.restate(unit="user"), max_releases=2)
  assert all(
    events == (central, release) and diagnostics is None for events, diagnostics in history
  )
  assert release.guarantee.epsilon == pytest.approx(12.0)
  assert int(state.round) == int(state.query.step) == 8
  assert int(state.sampler.max()) == 2


@pytest.mark.slow
def test_without_a_cap_a_release_counts_in_every_round():
  _, [(events, _)] = run(LOCAL)
  assert events[0] == Round(poisson(USERS, 1.0).event(()), GaussianSum(S, 0.1 * S))
  assert events[1].max_releases is None


@pytest.mark.slow
@pytest.mark.parametrize(("poison", "effect"), [(np.nan, 0.0), (np.inf, 0.0), (1e30, S)])
@pytest.mark.parametrize("made", [IN_THE_CLEAR, LOCAL], ids=["in the clear", "local"])
def test_one_client_moves_the_model_by_at_most_its_bound_and_nobody_sees_it_in_the_events(
  made, poison, effect
):
  absent = CLIENTS._replace(
    mask=np.where(np.arange(USERS)[:, None] == USERS - 1, 0.0, CLIENTS.mask).astype(np.float32)
  )
  inputs = CLIENTS.inputs.copy()
  inputs[-1] = poison
  results = [run(made, clients) for clients in (CLIENTS._replace(inputs=inputs), absent)]
  (adversarial, events), (without, other_events) = results
  moved = np.linalg.norm(flat(adversarial) - flat(without)) * USERS
  assert np.all(np.isfinite(flat(adversarial)))
  assert events == other_events
  if made is IN_THE_CLEAR:
    assert moved == pytest.approx(effect, rel=1e-4, abs=1e-6)
  else:  # A client without examples releases a vector too: one record replaces another.
    assert moved <= 2 * S * (1 + 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
  "update", [STEP, local_sgd(LOSS, 5.0, batch_size=1)], ids=["gradient", "local sgd"]
)
def test_a_sampled_out_client_moves_the_model_by_its_own_bound_and_no_other_client(update):
  """Whoever it is: were the keys of local training dealt by slot, all later members would train
  otherwise.
  """
  sampler = poisson(USERS, 1.0)

  @jax.jit
  def round_without(absent):
    def sample_others(key, state):
      sample, state = sampler.sample(key, state)
      others = jnp.delete(sample.indices, absent, assume_unique_indices=True)
      weights = sample.weights.at[-1].set(0.0)
      indices = jnp.pad(others, (0, 1))
      return dataclasses.replace(
        sample, indices=indices, weights=weights, size=sample.size - 1
      ), state

    made = algorithm(sampler=sampler._replace(sample=sample_others), update=update)
    return made.round(jax.random.key(0), jax.random.key(1), made.init(PARAMS), CLIENTS)

  everybody, [(events, _)] = run(algorithm(sampler=sampler, update=update))
  for absent in (0, USERS // 2, USERS - 1):
    without, other_events, _ = round_without(jnp.array([absent]))
    moved = np.linalg.norm(flat(everybody) - flat(without)) * USERS
    assert moved == pytest.approx(S, rel=1e-4)  # every difference is longer than S
    assert events == other_events


@pytest.mark.slow
def test_a_round_computed_twice_is_the_same_twice():
  assert flat(run(EVERYTHING, rounds=2)[0]).tolist() == flat(run(EVERYTHING, rounds=2)[0]).tolist()
  assert flat(run(EVERYTHING, seed=7)[0]).tolist() != flat(run(EVERYTHING)[0]).tolist()


@pytest.mark.slow
@pytest.mark.parametrize(
  ("made", "same"),
  [
    (LOCAL, True),
    (algorithm(probability=0.5), True),
    (algorithm(no_privacy(), update=TRAIN), False),
  ],
  ids=["mechanism and noise", "sampling", "local training"],
)
def test_the_data_key_drives_local_training_and_nothing_else(made, same):
  run_round, state = jax.jit(made.round), made.init(PARAMS)
  one, two = (run_round(jax.random.key(0), jax.random.key(k), state, CLIENTS)[0] for k in (1, 2))
  assert (flat(one).tolist() == flat(two).tolist()) is same


@pytest.mark.slow
def test_what_reaches_the_server_is_the_mechanisms_release_and_not_the_difference():
  # Alone and without central noise, a client moves the model by its release: one of finitely many
  # lengths.
  local = mechanism()
  query = gaussian_sum(1.001 * local.max_norm, 0.0)
  made = algorithm(query, sampler=poisson(1, 1.0), mechanism=local, diagnose=True)
  grid = local.parameters.magnitude
  lengths = (
    np.abs(grid.a * (np.arange(grid.num_levels + 1) - grid.b)) / local.parameters.direction.m
  )
  for seed in range(5):
    state, [(_, diagnostics)] = run(made, row(CLIENTS, slice(1)), seed=seed)
    moved = np.linalg.norm(flat(state))
    assert moved == pytest.approx(lengths[np.argmin(np.abs(lengths - moved))], rel=1e-5)
    assert float(diagnostics["release_norm"]) == pytest.approx(moved, rel=1e-5)


@pytest.mark.slow
def test_every_round_has_noise_of_its_own():
  made = algorithm(gaussian_sum(1e-9, 1.0))  # all that moves the model is noise
  one, two = (flat(run(made, rounds=rounds)[0]) for rounds in (1, 2))
  assert np.min(np.abs(two - 2 * one)) > 0


@pytest.mark.slow
def test_a_client_with_other_code_has_other_local_noise():
  """Of the same data, key and round: the noise is the update's, whose difference would show."""
  local = gaussian(1.0, 1.0, 1e-5, shape=(DIM,))
  one, two = (
    flat(run(algorithm(no_privacy(), update=gradient_step(LOSS, rate), mechanism=local))[0])
    for rate in (1e-6, 2e-6)
  )
  # The same noise leaves a millionth. Noise of their own has a standard deviation of .41: all eight
  # entries are below .1 for one key in 500,000.
  assert np.max(np.abs(two - one)) > 0.1


@pytest.mark.slow
def test_every_round_has_local_training_of_its_own():
  # With a server that stands still, two rounds differ by what the clients drew alone.
  made = algorithm(no_privacy(), update=TRAIN, optimizer=optax.sgd(1e-6))
  one, two = (flat(run(made, rounds=rounds)[0]) for rounds in (1, 2))
  assert np.max(np.abs(two - 2 * one)) > 1e-3 * np.max(np.abs(one))


@pytest.mark.slow
def test_a_mesh_changes_nothing_but_rounding_and_communicates_once():
  mesh = client_mesh()
  sharded = algorithm(update=TRAIN, probability=0.5, mechanism=mechanism(), chunk_size=2, mesh=mesh)
  arguments = (jax.random.key(0), jax.random.key(1), sharded.init(PARAMS), replicate(CLIENTS, mesh))
  compiled = jax.jit(sharded.round).lower(*arguments).compile()
  collectives = re.findall(
    r" (all-[a-z-]+?|reduce-scatter|collective-[a-z]+)(?:-start)?\(", compiled.as_text()
  )
  # JAX before 0.8 would reduce in float32.
  assert collectives == ["all-reduce" if jax.__version_info__ >= (0, 8) else "all-gather"]
  (alone, _), (together, _, _) = run(EVERYTHING), compiled(*arguments)
  np.testing.assert_allclose(flat(together), flat(alone), atol=1e-7)
  assert np.any(flat(alone))


@pytest.mark.slow
@pytest.mark.parametrize(
  "optimizer", [optax.sgd(0.5, momentum=0.9), optax.adam(0.1)], ids=["momentum", "adam"]
)
def test_the_server_optimiser_steps_on_minus_the_average(optimizer):
  with jax.numpy_dtype_promotion("standard"):  # optax's adam promotes
    made = algorithm(no_privacy(), optimizer=optimizer)
    state, _ = run(made)
    plain, _ = run(PLAIN)
    gradient = jax.tree.map(jnp.subtract, PARAMS, plain.params)
    updates, _ = optimizer.update(gradient, optimizer.init(PARAMS), PARAMS)
  np.testing.assert_allclose(
    flat(state), np.asarray(ravel_pytree(updates)[0]), rtol=1e-5, atol=1e-7
  )


@pytest.mark.slow
def test_rounds_run_inside_a_scan_and_their_events_reach_the_ledger():
  made = algorithm(
    gaussian_sum(lambda step: S / (1 + step.astype(jnp.float32)), 0.01), probability=0.5
  )

  def one_round(state, _):
    state, events, _ = made.round(jax.random.key(0), jax.random.key(1), state, CLIENTS)
    return state, events

  # the run's keys are the same in every round: the round is folded in
  with jax.debug_key_reuse(False):
    state, (events,) = jax.jit(lambda s: jax.lax.scan(one_round, s, length=3))(made.init(PARAMS))
  ledger = Ledger().append(events)
  assert [e.query.clip_norm for e in ledger] == pytest.approx([S, S / 2, S / 3])
  np.testing.assert_allclose(flat(state), flat(run(made, rounds=3)[0]), rtol=1e-5, atol=1e-7)


@pytest.mark.slow
def test_diagnostics_are_averages_over_the_cohort():
  _, [(_, diagnostics)] = run(algorithm(diagnose=True))
  norms = np.linalg.norm(differences(), axis=1)
  assert float(diagnostics["cohort_size"]) == USERS
  assert float(diagnostics["update_norm"]) == pytest.approx(np.mean(norms), rel=1e-5)
  # in the clear
  assert float(diagnostics["release_norm"]) == pytest.approx(np.mean(norms), rel=1e-5)


@pytest.mark.slow
def test_the_released_average_is_unbiased_with_local_and_central_noise():
  """Rates: see `statistical`. An error of 8 % of the average's length in any entry would be
  caught.
  """
  rounds, stddev = 16_000, 0.05
  local = mechanism()
  query = gaussian_sum(1.001 * local.max_norm, stddev)  # the projection cuts nothing
  made = algorithm(query, mechanism=local, chunk_size=USERS)
  state = made.init(PARAMS)

  def move(key):
    return ravel_pytree(made.round(key, jax.random.key(0), state, CLIENTS)[0].params)[0]

  with jax.debug_key_reuse(False):
    moves = jax.jit(lambda keys: jax.lax.map(move, keys, batch_size=500))(
      jax.random.split(jax.random.key(1), rounds)
    )
  truth, norms = np.mean(differences(), axis=0), np.linalg.norm(differences(), axis=1).tolist()
  # Every entry's variance is at most that of the whole vector; at the optimum of PrivUnit it is
  # about 1/DIM of it.
  variance = (np.mean([local.mean_squared_error(norm) for norm in norms]) / USERS) + (
    stddev / USERS
  ) ** 2
  statistical.assert_mean(
    moves, truth, stddev=np.sqrt(variance), catches=0.08 * np.linalg.norm(truth)
  )


@pytest.mark.parametrize(
  ("local", "chunk_size", "training", "bounding"),
  [(True, None, "", "12,"), (True, 5, "5,", "5,"), (True, 1, "", ""), (False, None, "", "")],
)
def test_clients_who_draw_noise_train_one_by_one_in_a_chunk(local, chunk_size, training, bounding):
  """What a program does to one client or to a chunk's: a tangent each, by shape."""
  bound = gaussian_sum(S, 0.1 * S)
  made = algorithm(
    bound._replace(preprocess=lambda k, s, x, w: bound.preprocess(k, s, jnp.tan(x), w)),
    update=lambda *arguments, **named: jax.tree.map(jnp.tan, STEP(*arguments, **named)),
    mechanism=mechanism() if local else None,
    chunk_size=chunk_size,
  )
  keys = jax.random.key(0), jax.random.key(1)
  program = str(jax.make_jaxpr(made.round)(*keys, made.init(PARAMS), CLIENTS))
  found = set(re.findall(r"f32\[([\d,]+)\] = tan", program))
  leaves = {f"{training}{CLASSES}", f"{training}{CLASSES},{FEATURES}"}
  assert found == leaves | {f"{bounding}{DIM}"}


@pytest.mark.parametrize(
  ("members", "drawn", "numbers", "expected"),
  [
    (192, 0, 1, 1),
    (192, 650, 1, 192),
    (1000, 650, 1, 200),
    (1000, 7850, 1, 16),
    (1000, 650, 7850, 16),
    (1000, 10**6, 1, 1),
    (3, 8, 1, 3),
  ],
)
def test_chunks_have_what_stays_in_caches_and_are_equal(members, drawn, numbers, expected):
  size = functools.partial(
    default_chunk_size, None, None, None, np.zeros((2, numbers)), drawn=drawn
  )
  assert size(None, members=members) == expected
  of_a_device = -(-members // jax.device_count())
  assert size(client_mesh(), members=members) == size(None, members=of_a_device)


@pytest.mark.parametrize(("declared", "expected"), [(None, 1), (9, 5)])
def test_chunks_do_not_show_how_large_the_largest_user_is(declared, expected):
  """Others' updates would be rounded otherwise, and noise that is bound to them would differ."""
  users = data.pack(
    Examples(np.zeros((9, 3), np.float32), np.zeros(9, np.int32), np.ones(9, np.float32)),
    [np.arange(2), np.arange(2, 9)],
    max_examples=declared,
  )
  assert default_chunk_size(None, None, None, users, None, members=5, drawn=8) == expected
