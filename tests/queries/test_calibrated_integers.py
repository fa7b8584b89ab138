"""Integers whose noise survivors calibrate: its variance, its event, the floor."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jdp import accounting, random
from jdp.events import PoissonSampling, Round
from jdp.ledger import Ledger
from jdp.queries import calibrated, distributed_integers, uncalibrated
from jdp.queries.distributed.integer_sums import plan_grid
from tests.helpers import statistical

N, DIM, STDDEV = 20, 4096, 4.0
LIKE = jnp.zeros(DIM)
GRID = plan_grid(DIM, 1.0, STDDEV, num_clients=N, noise="skellam")


def made(calibrations=1, **options):
  return distributed_integers(
    LIKE, 1.0, STDDEV, num_clients=N, num_calibrations=calibrations, **options
  )


def variance(event):
  return Fraction(event.share_variance) * int(event.num_shares)


@pytest.mark.parametrize(
  "numbers", [(20,), (14,), (14, 14), (14, 11), (14, 11, 11), (7, 7), (1, 1)]
)
def test_the_event_states_what_the_scheme_adds_and_no_more(numbers):
  query = made(len(numbers) - 1)
  counts = jnp.array([N, *numbers])
  planned = (STDDEV / GRID.spacing) ** 2
  scheme = calibrated(len(numbers) - 1) if len(numbers) > 1 else uncalibrated()
  realised = float(scheme.realised(counts, counts).model)
  stated = float(variance(query.event(counts)) / Fraction(planned))
  assert realised - 2**-12 < stated <= realised * (1 + 1e-6)


@pytest.mark.parametrize("numbers", [(14, 14), (14, 11), (3, 2), (1, 20), (30, 30)])
def test_noise_has_the_variance_of_its_event(key, numbers):
  """More answers than were asked for are not counted, as their noise was never drawn."""
  query = made()
  counts = jnp.array([N, *numbers])
  event = query.event(counts)
  assert event == query.event(jax.lax.cummin(counts))
  drawn = jax.jit(query.noise)(key, counts)
  # Of 4,096 draws, near normal: kurtosis is 3 + 1 / variance.
  expected = float(variance(event)) ** 0.5
  assert expected > 50
  statistical.assert_normal_stddev(drawn, expected, catches=0.1)


def test_a_variance_that_no_table_holds_is_that_of_several_draws(key):
  query = distributed_integers(LIKE, 1e-3, 4.0, num_clients=N, modulus_bits=19)
  counts = jnp.array([N, 20, 20])
  expected = float(variance(query.event(counts)))
  assert expected > 1e8
  statistical.assert_normal_stddev(
    np.asarray(jax.jit(query.noise)(key, counts)), expected**0.5, catches=0.1
  )


def test_the_sum_is_that_of_who_reported(key):
  query, state = made(0), made(0).init(LIKE)
  records = jax.random.normal(key, (N, DIM))
  records /= jnp.linalg.norm(records, axis=1, keepdims=True)
  weights = (jnp.arange(N) < 14).astype(jnp.float32)
  encoded = jax.vmap(query.encode, (0, None, 0, 0))(
    jax.random.split(jax.random.key(1), N), state, records, weights
  )
  counts = jnp.array([N, 14])
  total = encoded.sum(axis=0) - query.noise(key, counts)  # which `finalize` adds
  with jax.debug_key_reuse(False):
    result, event, after = query.finalize(key, state, total, counts)
  # Unbiased rounding moves each coordinate of each record by less than the spacing.
  error = float(jnp.linalg.norm(result - weights @ records))
  assert 0 < error < 14 * GRID.spacing * DIM**0.5
  assert int(after.step) == 1
  assert (event.l2_norm, event.l1_norm) == (GRID.l2_norm, GRID.l1_norm)


@pytest.mark.parametrize("numbers", [(9, 9), (14, 9)])
def test_a_round_below_the_floor_is_abandoned_and_costs_nothing(numbers):
  query = made(min_clients=10)
  total = jnp.ones(DIM, jnp.int32)
  result, event, _ = query.finalize(
    random.secure_key(), query.init(LIKE), total, jnp.array([N, *numbers])
  )
  assert not np.any(result)
  assert not event.released
  ledger = Ledger().append(Round(PoissonSampling(1.0), event, "zero_out"))
  assert accounting.epsilon(ledger, 1e-5) == 0
  at_the_floor = query.event(jnp.array([N, 10, 10]))
  ledger = ledger.append(Round(PoissonSampling(1.0), at_the_floor, "zero_out"))
  planned = accounting.gaussian_epsilon(STDDEV, 1e-5)
  assert planned < accounting.epsilon(ledger, 1e-5) < 1.15 * planned


@pytest.mark.parametrize(
  "changes",
  [
    {"num_clients": 2**19},
    {"num_calibrations": -1},
    {"min_clients": 0},
    {"stddev": 1e-9},
    {"modulus_bits": 1},
  ],
  ids=str,
)
def test_invalid_arguments_are_refused(changes):
  arguments = {"clip_norm": 1.0, "stddev": 1.0, "num_clients": 10, **changes}
  with pytest.raises(ValueError, match="Expected"):
    distributed_integers(jnp.zeros(3), **arguments)
