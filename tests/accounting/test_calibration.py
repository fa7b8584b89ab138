"""Calibrated noise meets its target and not much less does; so do clip norm, probability, rounds
and cohort.
"""

import math

import numpy as np
import pytest

from jdp import accounting
from jdp.events import (
  FixedSizeSampling,
  GaussianSum,
  LocalRelease,
  PoissonSampling,
  Round,
  ShuffledBatches,
)
from jdp.guarantees import PureDP
from jdp.ledger import Ledger, subsampled_gaussian


def assert_least(z, target, delta, q, rounds, accountant="tightest"):
  assert (
    accounting.epsilon(subsampled_gaussian(q, z, rounds), delta, accountant=accountant) <= target
  )
  assert (
    accounting.epsilon(subsampled_gaussian(q, 0.999 * z, rounds), delta, accountant=accountant)
    > target
  )


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(40))
def test_least_noise_over_random_plans(seed):
  rng = np.random.default_rng(seed)
  target, delta, q = 10 ** rng.uniform([-2, -10, -6], [2, -3, 0])
  rounds = int(10 ** rng.uniform(0, 6))
  plan = target, delta, q, rounds
  if delta >= -math.expm1(rounds * math.log1p(-q)):  # the probability of ever being sampled
    with pytest.raises(ValueError, match="with such a delta no noise is needed"):
      accounting.calibrate_noise_multiplier(*plan)
  else:
    assert_least(accounting.calibrate_noise_multiplier(*plan), *plan)


@pytest.mark.parametrize(
  "plan",
  [
    (2.0, 1e-6, 0.001, 5000),
    (1e5, 1e-5, 0.5, 10),
    (0.001, 1e-5, 1.0, 1000),
    (1.0, 1e-7, 1e-6, 1),
    (1e-3, 1e-12, 1.0, 1),
  ],
)
def test_least_noise_at_the_ends(plan):
  assert_least(accounting.calibrate_noise_multiplier(*plan), *plan)


@pytest.mark.parametrize("accountant", ["moments", "rdp", "pld"])
def test_least_noise_by_other_accountants(accountant):
  plan = (1.0, 1e-5, 0.5, 10)
  z = accounting.calibrate_noise_multiplier(*plan, accountant=accountant)
  assert_least(z, *plan, accountant=accountant)
  least = accounting.calibrate_noise_multiplier(*plan)
  assert (z < 1.001 * least) == (accountant == "pld")


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
    ((1.0, 1e-5, 0.1, 2.5), "num_rounds to be a whole number"),
  ],
)
def test_refuses(arguments, message):
  with pytest.raises(ValueError, match=message):
    accounting.calibrate_noise_multiplier(*arguments)


@pytest.mark.parametrize(
  ("target", "delta", "accountant"), [(0.3, 1e-5, "moments"), (1e-5, 1e-12, "rdp")]
)
def test_refuses_an_accountant_below_its_floor(target, delta, accountant):
  # At order 33 the classic conversion alone adds log(1e5)/32 = 0.36.
  with pytest.raises(ValueError, match=f"that can be proved at delta={delta}, got {target}"):
    accounting.calibrate_noise_multiplier(target, delta, 0.01, 100, accountant=accountant)


@pytest.mark.slow
def test_refuses_a_delta_that_needs_no_noise():
  with pytest.raises(
    ValueError,
    match=r"Expected delta below 9\.99e-07, the probability that a record is ever sampled",
  ):
    accounting.calibrate_noise_multiplier(1.0, 1e-5, 1e-7, 10, accountant="pld")


def sampled(q, z, rounds):
  return subsampled_gaussian(q, z, rounds)


def epochs(stddev, number=10):
  first, other = (
    Round(ShuffledBatches(7, start), GaussianSum(1.0, stddev), "replace_one")
    for start in (True, False)
  )
  return Ledger().append(first, count=number).append(other, count=6 * number)


def decaying(z):
  """A run whose noise follows a schedule, with local releases of the same observer."""
  rounds = (
    Round(PoissonSampling(1.0), GaussianSum(1.0, z * (1 + i)), "replace_one", "user")
    for i in range(20)
  )
  local = LocalRelease(PureDP(0.01, unit="user", observer="model"))
  return Ledger().extend([*((event, 1) for event in rounds), (local, 9)])


@pytest.mark.parametrize("plan", [epochs, decaying])
@pytest.mark.parametrize("target", [0.3, 2.0])
def test_noise_of_any_plan(plan, target):
  noise = accounting.calibrate_noise(target, 1e-5, plan)
  assert (
    accounting.epsilon(plan(noise), 1e-5) <= target < accounting.epsilon(plan(0.999 * noise), 1e-5)
  )


def test_noise_agrees_with_the_noise_multiplier():
  by_plan = accounting.calibrate_noise(2.0, 1e-6, lambda z: sampled(0.001, z, 5000))
  assert by_plan == accounting.calibrate_noise_multiplier(2.0, 1e-6, 0.001, 5000)


@pytest.mark.parametrize("target", [0.1, 1.0, 8.0])
def test_sampling_probability(target):
  q = accounting.calibrate_sampling_probability(target, 1e-6, lambda q: sampled(q, 2.0, 300))
  assert accounting.epsilon(sampled(q, 2.0, 300), 1e-6) <= target
  assert accounting.epsilon(sampled(1.001 * q, 2.0, 300), 1e-6) > target


def test_sampling_probability_is_one_where_that_meets_the_target():
  assert accounting.calibrate_sampling_probability(1.0, 1e-6, lambda q: sampled(q, 50.0, 10)) == 1.0


@pytest.mark.parametrize("target", [1.6, 5.0, 100.0])
def test_rounds(target):
  rounds = accounting.calibrate_rounds(target, 1e-6, lambda rounds: sampled(0.02, 1.0, rounds))
  assert accounting.epsilon(sampled(0.02, 1.0, rounds), 1e-6) <= target
  assert accounting.epsilon(sampled(0.02, 1.0, rounds + 1), 1e-6) > target
  assert (
    accounting.calibrate_rounds(target, 1e-6, lambda n: sampled(0.02, 1.0, n), maximum=rounds - 1)
    == rounds - 1
  )


def test_cohort():
  def plan(size, population=5000):
    return Ledger().append(
      Round(FixedSizeSampling(size, population), GaussianSum(1.0, 3.0), "replace_one"), count=400
    )

  cohort = accounting.calibrate_cohort(2.0, 1e-6, plan, population=5000)
  assert accounting.epsilon(plan(cohort), 1e-6) <= 2.0 < accounting.epsilon(plan(cohort + 1), 1e-6)
  assert (
    accounting.calibrate_cohort(2.0, 1e-6, lambda m: plan(m, 100_000_000), population=5000) == 5000
  )


def outgrowing(q=0.1, z=1.0, rounds=40, overflow=4e-13):
  """A run whose samples may outgrow their slots: no epsilon above ln(delta / overflow) holds."""
  sampling = PoissonSampling(q, overflow)
  return Ledger().append(Round(sampling, GaussianSum(1.0, z)), count=rounds)


CALIBRATIONS = {
  "rounds": (accounting.calibrate_rounds, lambda n, **run: outgrowing(rounds=n, **run)),
  "noise": (accounting.calibrate_noise, lambda z, **run: outgrowing(z=z, **run)),
  "probability": (
    accounting.calibrate_sampling_probability,
    lambda q, **run: outgrowing(q=q, z=0.5, **run),
  ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("calibrate", "plan"), CALIBRATIONS.values(), ids=CALIBRATIONS)
def test_a_target_that_overflows_do_not_let_a_plan_reach_is_refused(calibrate, plan):
  with pytest.raises(
    ValueError,
    match=r"target_epsilon of at most 1\d\.?\d* at delta=0\.001, got 100\.0; .* a larger capacity",
  ) as refused:
    calibrate(100.0, 1e-3, plan)
  most = float(str(refused.value).split()[6])
  found = calibrate(most, 1e-3, plan)  # and what the message offers is met
  assert 0.98 * most < accounting.epsilon(plan(found), 1e-3) <= most
  calibrate(100.0, 1e-3, lambda x: plan(x, overflow=0.0))


def test_overflows_that_take_all_of_delta_are_named():
  with pytest.raises(ValueError, match=r"which no noise meets.* probability of 1\.6e-11"):
    accounting.calibrate_noise(2.0, 1e-12, lambda z: outgrowing(z=z))


def test_other_accountants_and_relations_are_passed_on():
  arguments = {"relation": "zero_out", "accountant": "pld"}
  noise = accounting.calibrate_noise(1.0, 1e-5, epochs, **arguments)
  assert accounting.epsilon(epochs(noise), 1e-5, **arguments) <= 1.0
  assert accounting.epsilon(epochs(0.999 * noise), 1e-5, **arguments) > 1.0
  assert noise < 0.6 * accounting.calibrate_noise(1.0, 1e-5, epochs)


@pytest.mark.parametrize(
  ("calibrate", "message"),
  [
    (
      lambda: accounting.calibrate_noise(0.0, 1e-5, epochs),
      "target_epsilon to be a finite number > 0",
    ),
    (
      lambda: accounting.calibrate_rounds(1.0, math.nan, sampled),
      "delta to be a finite number > 0",
    ),
    (
      lambda: accounting.calibrate_rounds(1.0, 0.1, sampled, maximum=0),
      "maximum to be a whole number >= 1",
    ),
    (
      lambda: accounting.calibrate_noise(1.0, 1e-5, lambda z: sampled(1.0, 0.1, 1)),
      "which no noise meets",
    ),
    (
      lambda: accounting.calibrate_noise(1.0, 1e-5, lambda z: sampled(1.0, 9.0, 1)),
      "depends on its noise",
    ),
    (
      lambda: accounting.calibrate_rounds(0.1, 1e-5, lambda n: sampled(1.0, 1.0, n)),
      "one round meets.*one costs 4",
    ),
    (
      lambda: accounting.calibrate_cohort(0.1, 1e-5, lambda n: sampled(1.0, 1.0, n), population=9),
      "that one record",
    ),
  ],
)
def test_searches_refuse(calibrate, message):
  with pytest.raises(ValueError, match=message):
    calibrate()
