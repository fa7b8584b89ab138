"""The server of k instances: the process, its clocks and coins, and what theory says about it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jdp.accounting.draw_and_discard.lineage import instance_variance, num_descendants
from jdp.data import Examples
from jdp.events import LocalRelease
from jdp.federated import train
from jdp.federated.draw_and_discard import (
  average_predictions,
  client_updates,
  draw_and_discard,
  draw_and_discard_process,
  spread_instances,
)
from jdp.federated.draw_and_discard.batching_server import server_batching, server_batching_process
from jdp.federated.draw_and_discard.client_updates import exact_update, laplace_update
from jdp.federated.draw_and_discard.instance_server import average_model, instances
from jdp.federated.draw_and_discard.update_stream import arrivals, passes
from jdp.models.generalised_linear import glm
from jdp.random import binding, seeded_key
from tests.helpers import statistical

USERS, CLASSES, FEATURES, UPDATES, K = 6, 3, 8, 23, 4
RNG = np.random.default_rng(0)
MODEL = glm("multinomial", (FEATURES,), CLASSES)
CLIENTS = Examples(
  jnp.asarray(RNG.random((USERS, 5, FEATURES)), jnp.float32),
  jnp.asarray(RNG.integers(0, CLASSES, (USERS, 5)), jnp.int32),
  jnp.ones((USERS, 5)),
)
WHO = jnp.asarray(RNG.integers(0, USERS, UPDATES), jnp.int32)
PARAMS = jnp.zeros((CLASSES, FEATURES))
NOISY = laplace_update(MODEL.gradient, 2.0, 0.3, schedule=lambda t: 1 / (1 + 0.1 * t))
PLAIN = exact_update(MODEL.gradient, 0.3)
RUN_KEY = 7
NOTHING = jnp.zeros((1, 1))  # the data of one client of a process that looks at none
come = functools.partial(arrivals, population=USERS)
come_alone = functools.partial(arrivals, population=1)


def drifting(gradient, noise_scale):
  """An update whose gradient is constant and whose noise is Laplace of that scale; learning rate
  1.
  """
  return laplace_update(
    lambda params, client: jnp.full_like(params, gradient), 2 / noise_scale, 1.0
  )


def ran(process, state, update, who=WHO, clients=CLIENTS):
  """The state after these users came, one after the other."""
  run = jax.jit(process.run)
  return run(jax.random.key(RUN_KEY), state, come(who), clients, update.settings)


@functools.cache
def reference_step(update):
  return jax.jit(functools.partial(client_updates.step, update))


def reference(update, state, in_flight=0, random_returns=False):
  """The process as the paper tells it: a list of instances, and clients who return in their time;
  after each update.
  """
  models = list(instances(state))
  hands = []
  for number, user in enumerate(WHO.tolist()):
    choice_key, noise_key = jax.random.split(jax.random.fold_in(jax.random.key(RUN_KEY), number))
    limits = jnp.array([len(models), len(models), max(in_flight, 1)])
    drawn, discarded, returning = jax.random.randint(choice_key, (3,), 0, limits).tolist()
    client = jax.tree.map(lambda x, user=user: x[user], CLIENTS)
    noise = update.draw(noise_key, PARAMS)
    hands.append(
      reference_step(update)(update.settings, noise, models[drawn], client, jnp.int32(number))
    )
    if len(hands) > in_flight:
      place = returning if random_returns and in_flight else 0
      models[discarded] = hands.pop(place)
      if random_returns and in_flight:
        hands.insert(place, hands.pop())  # who drew takes the place of who returned
    yield np.stack(models)


CASES = [
  (PLAIN, {}),
  (NOISY, {}),
  (NOISY, {"in_flight": 1}),
  (NOISY, {"in_flight": 5}),
  (NOISY, {"in_flight": 5, "random_returns": True}),
]


@pytest.mark.optimised
@pytest.mark.slow
@pytest.mark.parametrize(
  ("update", "options"),
  CASES,
  ids=["plain", "sequential", "one held", "five held", "random returns"],
)
def test_every_update_is_the_algorithms_bit_for_bit(update, options):
  process = draw_and_discard_process(update, K, **options)
  state = process.init(spread_instances(jax.random.key(3), PARAMS, K, 0.01))
  run = jax.jit(process.run)
  for number, expected in enumerate(reference(update, state, **options)):
    state = run(
      jax.random.key(RUN_KEY), state, come(WHO[number : number + 1]), CLIENTS, update.settings
    )
    np.testing.assert_array_equal(instances(state), expected)
  assert state.number == UPDATES
  assert sorted([*state.rows.tolist(), *state.held.tolist()]) == list(range(state.models.shape[0]))


@pytest.mark.optimised
@pytest.mark.slow
@pytest.mark.parametrize("make_key", [jax.random.key, seeded_key], ids=["threefry", "chacha20"])
def test_neither_blocks_nor_where_a_run_is_cut_change_a_bit(make_key):
  def run(block_size, *cuts):
    process = draw_and_discard_process(NOISY, K, in_flight=3, block_size=block_size)
    state = process.init(spread_instances(jax.random.key(3), PARAMS, K, 0.01))
    for piece in np.split(WHO, cuts):
      state = jax.jit(process.run)(make_key(1), state, come(piece), CLIENTS, NOISY.settings)
    return instances(state)

  whole = run(None)
  np.testing.assert_array_equal(run(5, 10), whole)


@pytest.mark.optimised
@pytest.mark.slow
def test_one_instance_without_noise_is_stochastic_gradient_descent_bit_for_bit():
  process = draw_and_discard_process(PLAIN, 1)
  state = ran(process, process.init(PARAMS[None]), PLAIN)
  params = PARAMS
  descend = jax.jit(
    lambda p, client: p - jnp.float32(0.3) * jnp.clip(MODEL.gradient(p, client), -1.0, 1.0)
  )
  for user in WHO.tolist():
    params = descend(params, jax.tree.map(lambda x, user=user: x[user], CLIENTS))
  np.testing.assert_array_equal(average_model(instances(state)), params)
  assert np.max(np.abs(params)) > 0.1


@pytest.mark.slow
def test_vmap_over_seeds_and_settings_is_the_loop():
  updates = [
    laplace_update(MODEL.gradient, epsilon, rate)
    for epsilon, rate in ((0.5, 0.1), (2.0, 0.3), (8.0, 1.0))
  ]
  process = draw_and_discard_process(updates[0], K, in_flight=2)

  def final(seed, variance, settings):
    state = process.init(spread_instances(jax.random.key(seed), PARAMS, K, variance))
    return instances(process.run(jax.random.key(seed + 100), state, come(WHO), CLIENTS, settings))

  settings = jax.tree.map(lambda *x: jnp.stack(x), *[update.settings for update in updates])
  variances = jnp.array([update.noise_variance for update in updates])
  together = jax.jit(jax.vmap(final))(jnp.arange(3), variances, settings)
  alone = jax.jit(final)
  for seed, update in enumerate(updates):
    expected = alone(jnp.int32(seed), variances[seed], update.settings)
    # Products of batches of matrices round otherwise: by less than a thousandth of one update's
    # noise.
    np.testing.assert_allclose(
      together[seed], expected, rtol=0, atol=1e-3 * update.noise_variance**0.5
    )


@pytest.mark.slow
def test_one_program_serves_all_settings_and_all_calls():
  process = draw_and_discard_process(NOISY, K)
  traces = []

  @jax.jit
  def run(*arguments):
    traces.append(None)
    return process.run(*arguments)

  state = process.init(spread_instances(jax.random.key(0), PARAMS, K, 0.01))
  for update in (NOISY, laplace_update(MODEL.gradient, 0.1, 0.7, clip=0.1)):
    state = run(jax.random.key(1), state, come(WHO), CLIENTS, update.settings)
  assert len(traces) == 1


@pytest.mark.slow
def test_the_draw_and_the_discard_are_uniform_and_independent():
  """Each pair has probability 1/9; a pair 20 % too likely is caught."""
  update = exact_update(lambda params, client: jnp.full_like(params, -0.5), 1.0)
  process = draw_and_discard_process(update, 3)

  def pair(key):
    state = process.init(jnp.array([0.0, 1.0, 2.0]))
    after = instances(
      process.run(key, state, come_alone(jnp.zeros(1, jnp.int32)), NOTHING, update.settings)
    )
    discarded = jnp.argmax(after % 1 == 0.5)
    return 3 * discarded + after[discarded].astype(jnp.int32)

  pairs = jax.jit(jax.vmap(pair))(jax.random.split(jax.random.key(5), 30_000))
  skewed = np.full(9, 1 / 9) + np.where(np.arange(9) == 4, 0.2 / 9, -0.2 / 72)
  statistical.assert_frequencies(np.bincount(pairs, minlength=9), np.full(9, 1 / 9), catches=skewed)


@pytest.mark.slow
def test_the_initial_instances_have_half_k_times_the_noise_variance():
  """A standard deviation off by 2 % is caught."""
  params = {"w": jnp.full((500, 10), 2.0), "b": jnp.zeros(4)}
  spread = jax.jit(spread_instances, static_argnums=2)(jax.random.key(0), params, 20, 0.3)
  statistical.assert_normal_stddev(spread["w"] - 2.0, np.sqrt(10 * 0.3), catches=0.02)
  assert spread["b"].shape == (20, 4)
  alone = spread_instances(jax.random.key(0), params, 1, 0.3)
  np.testing.assert_array_equal(alone["w"][0], params["w"])


THEOREM_K, PIECE, PIECES = 5, 10, 8


@functools.cache
def sample_variances():
  """(keys, update variance for `init`, noise scale) -> mean sample variance of the instances,
  [seeds, pieces].
  """
  update = drifting(0.0, 1.0)
  process = draw_and_discard_process(update, THEOREM_K)

  def run(key, spread, scale):
    init_key, run_key = jax.random.split(key)
    start = process.init(spread_instances(init_key, jnp.zeros(10), THEOREM_K, spread))
    settings = update.settings._replace(noise_scale=scale)

    def piece(state, _):
      state = process.run(
        run_key, state, come_alone(jnp.zeros(PIECE, jnp.int32)), NOTHING, settings
      )
      return state, jnp.mean(jnp.var(instances(state), axis=0, ddof=1))

    return jax.lax.scan(piece, start, length=PIECES)[1]

  return jax.jit(jax.vmap(run, (0, None, None)))


def assert_theorem_3_1(initial, scale=1.0):
  """The expected sample variance of the instances, at every time."""
  keys = jax.random.split(jax.random.key(6), 4000)
  found = np.asarray(
    sample_variances()(keys, jnp.float32(initial / THEOREM_K * 2), jnp.float32(scale)), np.float64
  )
  numbers = PIECE * np.arange(1, PIECES + 1)
  expected = np.array(
    [instance_variance(THEOREM_K, 2.0, updates=int(t), initial=initial) for t in numbers]
  )
  statistical.assert_mean(
    found, expected, stddev=found.std(axis=0, ddof=1), catches=0.1 * THEOREM_K
  )


@pytest.mark.slow
def test_the_variance_stays_or_contracts_as_in_theorem_3_1():
  """Stationary at k s2 / 2, or closer by 1 - 2/k^2 per update; an error of 5 % in the noise's scale
  is caught.

  The standard deviation of a seed's variance is the sample's own. That of the initial instances has
  a test above.
  """
  assert_theorem_3_1(THEOREM_K)
  assert_theorem_3_1(0.0)
  with pytest.raises(AssertionError, match="a mean is off"):
    assert_theorem_3_1(THEOREM_K, scale=1.05)
  with pytest.raises(AssertionError, match="a mean is off"):
    assert_theorem_3_1(0.0, scale=0.95)


@pytest.mark.slow
def test_lineages_die_out_as_the_exact_chain_says():
  """How many instances descend from one update, 20 updates later; a distribution 0.02 off in
  P(gone) is caught.
  """
  update = exact_update(lambda params, client: jnp.zeros_like(params), 1.0)
  process = draw_and_discard_process(update, K)
  state = process.init((jnp.arange(K) == 0).astype(jnp.float32))

  def descendants(key):
    return jnp.sum(
      instances(
        process.run(key, state, come_alone(jnp.zeros(20, jnp.int32)), NOTHING, update.settings)
      )
    )

  counts = jax.jit(jax.vmap(descendants))(jax.random.split(jax.random.key(8), 40_000)).astype(
    jnp.int32
  )
  law = num_descendants(K, 20)
  shifted = law + np.array([0.02, *[-0.02 / K] * K])
  statistical.assert_frequencies(np.bincount(counts, minlength=K + 1), law, catches=shifted)


@pytest.mark.optimised
@pytest.mark.slow
def test_batches_of_one_are_one_instance_and_larger_ones_average():
  def run(batch_size, who):
    process = server_batching_process(NOISY, batch_size, block_size=4)
    return ran(process, process.init(PARAMS[None]), NOISY, who)

  single = draw_and_discard_process(NOISY, 1)
  state = ran(single, single.init(PARAMS[None]), NOISY)
  np.testing.assert_array_equal(run(1, WHO).params, instances(state)[0])

  params, size = np.zeros(PARAMS.shape), 5
  for batch, users in enumerate(WHO[:20].reshape(4, size).tolist()):
    total = 0.0
    for number, user in enumerate(users, batch * size):
      noise_key = jax.random.split(jax.random.fold_in(jax.random.key(RUN_KEY), number))[1]
      client = jax.tree.map(lambda x, user=user: x[user], CLIENTS)
      noise = NOISY.draw(noise_key, PARAMS)
      total += np.asarray(
        NOISY.release(NOISY.settings, noise, jnp.asarray(params, jnp.float32), client), np.float64
      )
    params = params - 0.3 / (1 + 0.1 * batch) * total / size
  after = run(size, WHO)  # three gradients of an unfinished batch are left
  np.testing.assert_allclose(after.params, params, rtol=0, atol=1e-5)
  assert after.number == UPDATES
  assert np.any(after.total)


@pytest.mark.slow
def test_hostile_clients_move_a_weight_by_no_more_than_honest_ones():
  process = draw_and_discard_process(PLAIN, K)
  start = process.init(jnp.stack([PARAMS] * K))
  for value in (np.nan, np.inf, -np.inf, 3e38):
    hostile = CLIENTS._replace(inputs=jnp.full_like(CLIENTS.inputs, value))
    state = ran(process, start, PLAIN, clients=hostile)
    assert np.max(np.abs(instances(state))) <= 0.3 * UPDATES * (1 + 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("in_flight", [0, 3])
def test_what_is_not_accepted_overwrites_nothing_and_is_counted(in_flight):
  def sometimes_nan(settings, noise, params, client):
    del settings, noise, client
    return jnp.where(params > 2, jnp.nan, -jnp.ones_like(params))

  update = exact_update(lambda params, client: params, 1.0)._replace(release=sometimes_nan)
  process = draw_and_discard_process(
    update, K, accept=lambda models, submitted: jnp.isfinite(submitted), in_flight=in_flight
  )
  end = ran(process, process.init(jnp.zeros(K)), update, clients=jnp.zeros((USERS, 1)))
  assert 2 <= np.max(instances(end)) <= 3  # and none of them is NaN
  assert 1 <= end.rejected < UPDATES - in_flight

  nothing = draw_and_discard_process(
    PLAIN, K, accept=lambda models, submitted: jnp.bool_(False), in_flight=in_flight
  )
  state = nothing.init(spread_instances(jax.random.key(3), PARAMS, K, 0.01))
  end = ran(nothing, state, PLAIN)
  np.testing.assert_array_equal(instances(end), instances(state))
  assert end.rejected == UPDATES - in_flight


@pytest.mark.slow
def test_predictions_are_averaged_after_the_link_weights_before():
  spread = jnp.stack([PARAMS, PARAMS.at[0].set(5.0)])
  inputs = CLIENTS.inputs[0]
  expected = np.mean([MODEL.predict(params, inputs) for params in spread], axis=0)
  np.testing.assert_allclose(
    average_predictions(MODEL.predict, spread, inputs), expected, rtol=1e-6
  )
  assert np.max(np.abs(MODEL.predict(average_model(spread), inputs) - expected)) > 0.05


@pytest.mark.parametrize(
  ("make", "message"),
  [
    (lambda: draw_and_discard_process(PLAIN, 0), "num_instances to be a whole number >= 1"),
    (lambda: draw_and_discard_process(PLAIN, 2.5), "num_instances"),
    (lambda: draw_and_discard_process(PLAIN, 2, in_flight=-1), "in_flight"),
    (lambda: server_batching_process(PLAIN, 0), "batch_size"),
    (
      lambda: draw_and_discard_process(PLAIN, 3).init(jnp.zeros((2, 5))),
      "Expected 3 models along a leading axis",
    ),
    (lambda: passes(5, 0), "num_rounds to be a whole number >= 1"),
    (lambda: passes(5, 1, rounds_per_pass=6), "rounds_per_pass of at most 5 users, got 6"),
  ],
)
def test_bad_arguments_are_refused(make, message):
  with pytest.raises(ValueError, match=message):
    make()


@pytest.mark.optimised
@pytest.mark.slow
@pytest.mark.parametrize("make", [draw_and_discard, server_batching])
def test_a_round_is_the_process_on_the_users_of_the_schedule(make, monkeypatch):
  """Bit for bit, and every round's event says what its users released."""
  monkeypatch.setattr(binding, "bind", lambda key, hidden: key)
  schedule = passes(USERS, 4, rounds_per_pass=2)
  algorithm, process = make(NOISY, K, schedule), globals()[f"{make.__name__}_process"](NOISY, K)
  models = spread_instances(jax.random.key(3), PARAMS, K, 0.01)[
    : K if make is draw_and_discard else 1
  ]
  noise_key, data_key = jax.random.key(RUN_KEY), jax.random.key(8)
  state = algorithm.init(models)
  expected = process.init(models)
  step = jax.jit(algorithm.round)
  run = jax.jit(process.run)
  np.testing.assert_array_equal(state.params, models)
  for number in range(4):
    state, (event,), diagnostics = step(noise_key, data_key, state, CLIENTS)
    users = schedule.users(data_key, jnp.int32(number))
    key = jax.random.fold_in(noise_key, number)
    expected = run(key, expected, come(users), CLIENTS, NOISY.settings)
    np.testing.assert_array_equal(state.params, process.models(expected))
    assert event == LocalRelease(NOISY.event.guarantee, max_releases=2)
    assert (int(event.number), bool(event.key_exposed), diagnostics) == (number, True, None)
  assert int(state.round) == 4
  assert np.any(state.params != models)


@pytest.mark.sweep
@pytest.mark.parametrize("make", [draw_and_discard, server_batching])
@pytest.mark.parametrize("what", ["data", "code", "an array that the code holds"])
def test_a_round_with_other_data_or_code_has_other_noise(make, what):
  """For all its users: without that, their reports in two runs would show what changed."""
  params = jnp.zeros((2 if make is draw_and_discard else 1, CLASSES, FEATURES))
  factors = jnp.full((CLASSES, FEATURES), 0.9999)

  def released(update, clients):
    algorithm = make(update, 2, passes(USERS, 4, rounds_per_pass=2))
    step, state = jax.jit(algorithm.round), algorithm.init(params)
    return np.asarray(step(jax.random.key(RUN_KEY), jax.random.key(8), state, clients)[0].params)

  def by(factor):
    return laplace_update(lambda p, client: factor * MODEL.gradient(p, client), 2.0, 0.3)

  update, clients, other, changed = by(factors), CLIENTS, by(factors), CLIENTS
  if what == "data":
    changed = CLIENTS._replace(inputs=jnp.asarray(CLIENTS.inputs).at[:].multiply(1.0001))
  elif what == "code":
    update, other = by(1.0), by(0.9999)
  else:
    other = by(factors.at[0, 0].set(1.0))
  first = released(update, clients)
  np.testing.assert_array_equal(first, released(update, clients))
  updated = first != np.asarray(params)
  assert np.mean(updated) > 0.1
  # With the same noise, gradients that differ by so little would move models by less than this.
  assert np.all(abs(released(other, changed) - first)[updated] > 1e-3)


@pytest.mark.sweep
@pytest.mark.parametrize(
  ("make", "num_models"),
  [
    (functools.partial(draw_and_discard, NOISY, K), K),
    (functools.partial(server_batching, NOISY, 2), 1),
  ],
  ids=["draw and discard", "server batching"],
)
def test_more_rounds_than_the_schedule_states_release_nothing(make, num_models):
  """The event counts the releases of the schedule's rounds, so no user may make more."""
  algorithm = make(passes(USERS, num_rounds=2, rounds_per_pass=2))
  with pytest.raises(ValueError, match="Expected num_rounds of at most 2"):
    train(algorithm, jnp.zeros((num_models, CLASSES, FEATURES)), CLIENTS, num_rounds=3)
  state, step = algorithm.init(jnp.zeros((num_models, CLASSES, FEATURES))), jax.jit(algorithm.round)
  for number in range(4):
    before = state.params
    with jax.debug_key_reuse(False):
      state, _, _ = step(jax.random.key(0), jax.random.key(1), state, CLIENTS)
    assert np.any(state.params != before) == (number < 2)
