"""Calibrated noise meets its target, and not much less noise does."""

import math

import numpy as np
import pytest

from jdp import accounting
from jdp.ledger import subsampled_gaussian


def assert_least(z, target, delta, q, rounds, accountant="rdp"):
  assert accounting.epsilon(subsampled_gaussian(q, z, rounds), delta, accountant=accountant) <= target
  assert accounting.epsilon(subsampled_gaussian(q, 0.999 * z, rounds), delta, accountant=accountant) > target


@pytest.mark.parametrize("seed", range(40))
def test_least_noise_over_random_plans(seed):
  rng = np.random.default_rng(seed)
  target, delta, q = 10 ** rng.uniform([-2, -10, -6], [2, -3, 0])
  rounds = int(10 ** rng.uniform(0, 6))
  assert_least(accounting.calibrate_noise_multiplier(target, delta, q, rounds), target, delta, q, rounds)


@pytest.mark.parametrize(
  "plan",
  [
    (2.0, 1e-6, 0.001, 5000),
    (1e5, 1e-5, 0.5, 10),
    (0.001, 1e-5, 1.0, 1000),
    (1.0, 1e-5, 1e-6, 1),
    (1e-3, 1e-12, 1.0, 1),
  ],
)
def test_least_noise_at_the_ends(plan):
  assert_least(accounting.calibrate_noise_multiplier(*plan), *plan)


@pytest.mark.parametrize("accountant", ["moments", "pld"])
def test_least_noise_by_other_accountants(accountant):
  plan = (1.0, 1e-5, 0.5, 10)
  z = accounting.calibrate_noise_multiplier(*plan, accountant=accountant)
  assert_least(z, *plan, accountant=accountant)
  by_rdp = accounting.calibrate_noise_multiplier(*plan)
  assert (z < by_rdp) == (accountant == "pld")


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    ((0.0, 1e-5, 0.1, 10), "target_epsilon to be a finite number > 0"),
    ((math.nan, 1e-5, 0.1, 10), "target_epsilon to be a finite number > 0"),
    ((1.0, 0.0, 0.1, 10), "delta to be a finite number > 0"),
    ((1.0, 1.5, 0.1, 10), "delta to be a probability"),
    ((1.0, 1e-5, 0.0, 10), "sampling_probability to be a finite number > 0"),
    ((1.0, 1e-5, 1.1, 10), "sampling_probability to be a probability"),
    ((1.0, 1e-5, 0.1, 0), "num_rounds to be a whole number >= 1"),
    ((1.0, 1e-5, 0.1, 2.5), "num_rounds to be a whole number >= 1"),
    ((1e-5, 1e-12, 0.01, 100), "that the rdp accountant can prove at delta=1e-12, got 1e-05"),
  ],
)
def test_refuses(arguments, message):
  with pytest.raises(ValueError, match=message):
    accounting.calibrate_noise_multiplier(*arguments)


def test_refuses_the_moments_accountant_below_its_floor():
  # At order 33 the classic conversion alone adds log(1e5)/32 = 0.36.
  with pytest.raises(ValueError, match="that the moments accountant can prove"):
    accounting.calibrate_noise_multiplier(0.3, 1e-5, 0.01, 100, accountant="moments")


def test_refuses_a_delta_that_needs_no_noise():
  with pytest.raises(ValueError, match="Expected delta below 1e-06, the probability that a record is ever sampled"):
    accounting.calibrate_noise_multiplier(1.0, 1e-5, 1e-7, 10, accountant="pld")
