"""Training under dropout: the noise that the ledger claims, local clipping, abandoned rounds, one
compilation.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jdp import accounting, data
from jdp.events import SkellamSum
from jdp.federated import dropout, gradient_step, local_sgd
from jdp.federated.dropout.distributed_noise import client_dropout
from jdp.federated.dropout.dropout_models import DropoutModel
from jdp.ledger import Ledger
from jdp.queries import (
  calibrated,
  discrete_sum,
  distributed_integers,
  distributed_sum,
  excess,
  uncalibrated,
)
from tests.helpers import statistical

N, DIM, CLIP, Z = 20, 90_000, 0.5, 4.0
CLIENTS = data.Examples(jnp.zeros((N, 1, 1)), jnp.zeros((N, 1)), jnp.ones((N, 1)))
SCHEMES = {"uncalibrated": uncalibrated(), "calibrated": calibrated(), "excess": excess(0.5)}


def loss_of_one_coordinate(params, examples):
  """Every client's difference is the first unit vector, times the learning rate."""
  del examples
  return -params[0]


def lost(rate, *rates):
  return dropout.with_calibrations(dropout.independent(N, rate), rates)


def fixed(*numbers):
  """The first so many clients answer at each stage."""
  present = np.arange(N) < np.array(numbers)[:, None]
  return DropoutModel(lambda key: (), lambda key, state: (jnp.asarray(present), state))


def training(query, model, **options):
  arguments = {"num_clients": N, "local_clip_norm": None, **options}
  return client_dropout(
    gradient_step(loss_of_one_coordinate, 1.0), query, model, optax.sgd(1.0), **arguments
  )


def run(algorithm, num_rounds, dim=DIM):
  """The state and the events after each round."""
  step, state, done = jax.jit(algorithm.round), algorithm.init(jnp.zeros(dim)), []
  for _ in range(num_rounds):
    state, events, _ = step(jax.random.key(0), jax.random.key(1), state, CLIENTS)
    done.append((state, events))
  assert step._cache_size() == 1
  return done


@pytest.mark.slow
@pytest.mark.parametrize(
  ("name", "draw_shares"),
  [("uncalibrated", False), ("calibrated", False), ("calibrated", True), ("excess", True)],
)
def test_steps_carry_the_noise_of_the_ledger(name, draw_shares):
  """The clients' vectors move one coordinate alone; the others are noise."""
  scheme = SCHEMES[name]
  numbers = (14, 11)[: 1 + scheme.num_calibrations]
  algorithm = training(distributed_sum(CLIP, Z, scheme), fixed(*numbers), draw_shares=draw_shares)
  *_, (state, (of_model, of_server)) = run(algorithm, 3)
  expected = scheme.realised(*[jnp.array([N, *numbers])] * 2)
  stddev = Z * CLIP * float(expected.model) ** 0.5
  for event in (of_model, of_server):
    np.testing.assert_allclose(event.query.stddev, stddev, rtol=1e-6)
  assert (of_model.observer, of_server.observer) == ("model", "server")
  noise = np.asarray(state.params[1:]) * 14 / 3**0.5
  statistical.assert_normal_stddev(noise, stddev, catches=0.02)
  assert abs(float(state.params[0]) - 3 * CLIP) < 4 * stddev * 3**0.5 / 14


@pytest.mark.slow
def test_noise_of_shares_is_per_client_and_round():
  algorithm = training(distributed_sum(CLIP, Z, calibrated()), lost(0.3, 0.1), draw_shares=True)
  (first, _), (second, _) = run(algorithm, 2)
  columns = np.stack([first.params, second.params - first.params], axis=1)[1:]
  statistical.assert_uncorrelated(columns, catches=0.05)


@pytest.mark.slow
def test_the_local_model_is_clipped_after_every_batch():
  """Steps of length 3 along -e1, -e2, -e1, ...: clipped to 0.5 each time, or once at the end."""

  def loss(params, examples):
    return 3.0 * jnp.sum(params * jax.nn.one_hot(jnp.int32(examples.labels[0]), 2))

  clients = data.Examples(jnp.zeros((N, 2, 1)), jnp.tile(jnp.arange(2.0), (N, 1)), jnp.ones((N, 2)))

  def difference(local_clip_norm):
    algorithm = client_dropout(
      local_sgd(loss, 1.0, batch_size=1), distributed_sum(CLIP, 0.0, uncalibrated()), lost(0.0),
      optax.sgd(1.0), num_clients=N, local_clip_norm=local_clip_norm,
    )  # fmt: skip
    state = algorithm.init(jnp.zeros(2))
    return jax.jit(algorithm.round)(jax.random.key(0), jax.random.key(1), state, clients)[0].params

  np.testing.assert_allclose(difference(None), -CLIP / 2**0.5, rtol=1e-5)
  # of one client: most of it from its last step
  last = np.array([0.5, 3.0]) / np.hypot(0.5, 3.0) * -CLIP
  clipped = difference(CLIP)
  share = (clipped[0] - last[0]) / (last[1] - last[0])  # of clients whose last step was along -e1
  assert abs(share * N - round(float(share * N))) < 1e-3
  assert 0 < share < 1
  np.testing.assert_allclose(jnp.sum(clipped), last.sum(), rtol=1e-5)


@pytest.mark.slow
def test_whoever_is_lost_is_not_in_the_average():
  """Clients' numbers are their data: the noiseless average is over those who reported."""
  own = data.Examples(jnp.arange(20.0).reshape(N, 1, 1), jnp.zeros((N, 1)), jnp.ones((N, 1)))
  query = distributed_sum(1000.0, 0.0, uncalibrated())
  algorithm = client_dropout(
    gradient_step(lambda params, examples: -params[0] * examples.inputs[0, 0], 1.0), query,
    fixed(5), optax.sgd(1.0), num_clients=N, local_clip_norm=None,
  )  # fmt: skip
  state, *_ = jax.jit(algorithm.round)(
    jax.random.key(0), jax.random.key(1), algorithm.init(jnp.zeros(1)), own
  )
  assert float(state.params[0]) == 2.0


def test_abandoned_rounds_change_nothing_and_cost_what_was_opened():
  outside = distributed_sum(CLIP, Z, calibrated(inside=False), min_clients=10)
  rounds = run(training(outside, fixed(14, 9)), 2, dim=2)
  state = rounds[-1][0]
  assert state.params.tolist() == [0.0, 0.0]
  assert int(state.round) == 2
  ledger = Ledger()
  for _, released in rounds:
    for event in released:
      ledger = ledger.append(event)
  assert accounting.epsilon(ledger, 1e-5, observer="model") == 0
  two = accounting.gaussian_epsilon(Z * 0.7**0.5 / 2**0.5, 1e-5)
  assert accounting.epsilon(ledger, 1e-5, observer="server", accountant="pld") == pytest.approx(
    two, rel=1e-3
  )


@pytest.mark.slow
def test_integers_count_the_shares_that_arrived():
  query = discrete_sum(jnp.zeros(4000), CLIP, Z * CLIP, num_clients=N, noise="skellam")
  *_, (state, (event, of_server)) = run(training(query, fixed(14)), 4, dim=4000)
  assert isinstance(event.query, SkellamSum)
  assert of_server.query == event.query
  assert int(event.query.num_shares) == 14
  noise = np.asarray(state.params[1:]) * 14 / 4**0.5
  statistical.assert_normal_stddev(noise, Z * CLIP * 0.7**0.5, catches=0.1)


@pytest.mark.slow
def test_integers_are_calibrated_as_their_event_says():
  query = distributed_integers(jnp.zeros(4000), CLIP, Z * CLIP, num_clients=N, min_clients=11)
  *_, (state, (event, of_server)) = run(training(query, fixed(14, 11)), 4, dim=4000)
  assert of_server.query == event.query
  spacing = CLIP / event.query.l2_norm  # a little less than the grid's
  realised = float(calibrated().realised(*[jnp.array([N, 14, 11])] * 2).model)
  stated = (event.query.share_variance * int(event.query.num_shares)) ** 0.5 * spacing
  assert 0.8 < stated / (Z * CLIP * realised**0.5) < 1
  noise = np.asarray(state.params[1:]) * 14 / 4**0.5
  statistical.assert_normal_stddev(noise, Z * CLIP * realised**0.5, catches=0.1)
  assert abs(float(state.params[0]) - 4 * CLIP) < 4 * Z * CLIP * 4**0.5 / 14


@pytest.mark.sweep
@pytest.mark.optimised
@pytest.mark.parametrize(
  "query",
  [
    distributed_sum(CLIP, Z, calibrated()),
    distributed_integers(jnp.zeros(2), CLIP, Z * CLIP, num_clients=N),
  ],
  ids=["floats", "integers"],
)
def test_whoever_did_not_report_does_not_calibrate(query):
  """A dropout model may say that clients come back. No sum holds noise of theirs."""
  (back, of_back), (lost_for_good, expected) = (
    run(training(query, fixed(*numbers)), 1, dim=2)[0] for numbers in [(7, 14), (7, 7)]
  )
  np.testing.assert_array_equal(back.params, lost_for_good.params)
  assert of_back == expected


def test_integers_below_the_floor_change_nothing_and_cost_nothing():
  query = distributed_integers(jnp.zeros(2), CLIP, Z * CLIP, num_clients=N, min_clients=10)
  (state, events), *_ = run(training(query, fixed(14, 9)), 1, dim=2)
  assert state.params.tolist() == [0.0, 0.0]
  assert int(state.round) == 1
  for event in events:
    assert accounting.epsilon(Ledger().append(event), 1e-5, observer=event.observer) == 0


@pytest.mark.slow
def test_one_compilation_serves_all_rounds():
  # which counts them
  rounds = run(training(distributed_sum(CLIP, Z, calibrated(2)), lost(0.5, 0.3, 0.3)), 4, dim=2)
  assert len({float(event.query.stddev) for _, (event, _) in rounds}) > 1


@pytest.mark.parametrize(
  "changes", [{"num_clients": 0}, {"local_clip_norm": 0.0}, {"local_clip_norm": np.nan}], ids=str
)
def test_invalid_arguments_are_refused(changes):
  with pytest.raises(ValueError, match="Expected"):
    training(distributed_sum(CLIP, Z, calibrated()), lost(0.1, 0.1), **changes)


@pytest.mark.parametrize(("model", "num_clients"), [(lost(0.1), N), (lost(0.1, 0.1), N + 1)])
def test_a_dropout_model_of_another_round_is_refused(model, num_clients):
  algorithm = training(distributed_sum(CLIP, Z, calibrated()), model, num_clients=num_clients)
  with pytest.raises(ValueError, match="Expected a dropout model of 2 stages"):
    run(algorithm, 1, dim=2)
