"""No accountant states a number that cannot be right: random ledgers, and the extreme ones that
were once wrong.
"""

import math
import subprocess
import sys
import tracemalloc
import typing

import numpy as np
import pytest

from jdp import accounting
from jdp.accounting.composition import compose_pairs
from jdp.accounting.draw_and_discard import later_updates, one_update
from jdp.accounting.families.base import DominatingPair, Family
from jdp.accounting.families.releases import PURE
from jdp.accounting.local import reconstruction, scalar_dp
from jdp.accounting.profiles import PrivacyProfile, pure_profile, with_overflow
from jdp.events import (
  BallsInBins,
  ConcentratedRelease,
  DiscreteGaussianSum,
  FixedSizeSampling,
  GaussianSum,
  GroupedSums,
  LaplaceSum,
  LocalRelease,
  PoissonSampling,
  PureRelease,
  RandomizedResponse,
  Round,
  ShuffledBatches,
  SkellamSum,
  WeightedAverage,
)
from jdp.events.queries import SumQueryEvent
from jdp.events.sampling import SamplingEvent
from jdp.guarantees import PureDP
from jdp.ledger import Ledger, subsampled_gaussian
from tests.helpers.gaussian import gaussian_delta
from tests.helpers.ledgers import random_ledgers

WHOLE = PoissonSampling(1.0)


def once(query, sampling=WHOLE, relation="zero_out", count=1):
  return Ledger().append(Round(sampling, query, relation), count=count)


def test_the_search_draws_every_event():
  assert set(random_ledgers.QUERIES) == set(typing.get_args(SumQueryEvent))
  assert set(random_ledgers.SAMPLINGS) == set(typing.get_args(SamplingEvent))


@pytest.mark.sweep
@pytest.mark.parametrize(("accountant", "count"), [("rdp", 120), ("moments", 120), ("pld", 6)])
def test_random_ledgers(accountant, count):
  """Deterministic: a part of the search that the script runs at length."""
  faults, stated_by, _ = random_ledgers.search(
    count, seed=2026, accountants=(accountant,), pld_share=1.0
  )
  assert not faults, faults[0]
  assert stated_by[accountant] > 0.1 * count or accountant == "pld"


@pytest.mark.parametrize(
  "query",
  [
    SkellamSum(1e200, 1e200, 1e300, 1),
    SkellamSum(1e160, 1.0, 70.0, 10),
    SkellamSum(1.0, 1.7e308, 1e-160, 8),
    SkellamSum(1e-200, 1e-200, 1e300, 2**52),
    DiscreteGaussianSum(1e200, 1e200, 1e-100, 1, 10),
    DiscreteGaussianSum(1e-200, 1e-200, 1e200, 3, 10**12),
    GaussianSum(1e-300, 1e300),
    GaussianSum(1.7e308, 1.0),
    GaussianSum(5e-324, 1e-323),
    WeightedAverage(1e-308, 1.0, 1e160),
    WeightedAverage(1.0, 1.0, 5e-324),
    GroupedSums((GaussianSum(1e160, 1.0), ConcentratedRelease(1.0)), ("a", "b")),
    GroupedSums((GaussianSum(1.0, 1e200),), ("a",)),
  ],
  ids=str,
)
def test_noise_of_finite_size_never_hides_everything(query):
  """At delta = 0 all of them cost infinity; nor does NaN or an overflow look like a small epsilon
  elsewhere.
  """
  for relation in ("zero_out", "replace_one"):
    ledger = once(query, relation=relation)
    assert accounting.epsilon(ledger, 0.0) == math.inf
    epsilon = accounting.epsilon(ledger, 1e-5)
    assert epsilon >= 0
    assert 0 < accounting.delta(ledger, 1.0) <= 1
    if isinstance(query, SkellamSum) and query.l2_norm > 1:
      assert epsilon > 1e3


def test_the_least_probabilities_cost_something():
  for sampling in (PoissonSampling(5e-324), PoissonSampling(1e-300), FixedSizeSampling(1, 10**400)):
    relation = "replace_one" if isinstance(sampling, FixedSizeSampling) else "zero_out"
    ledger = once(GaussianSum(1.0, 1.0), sampling, relation, count=14)
    assert accounting.epsilon(ledger, 0.0) == math.inf or isinstance(sampling, FixedSizeSampling)
    assert 0 <= accounting.epsilon(ledger, 1e-12) < 1e-3


@pytest.mark.parametrize("broken", [math.nan, -1.0])
def test_an_analysis_that_fails_raises(broken):
  def wrong(parameters, orders):
    return np.full((len(parameters), len(orders)), broken)

  kind = Family("a mechanism", wrong, lambda parameters: np.full(len(parameters), broken), None)
  composed = compose_pairs([(DominatingPair(kind, (2.0,)), 3), (DominatingPair(PURE, (1.0,)), 1)])
  for function in (lambda: composed.rdp((1.5, 2.0)), lambda: composed.max_loss):
    with pytest.raises(
      ValueError, match=r"Expected the analysis of a mechanism to give numbers >= 0, .* \[2.0\]; "
    ):
      function()


def test_a_profile_that_fails_raises(monkeypatch):
  nothing = PrivacyProfile(lambda delta: math.nan, lambda epsilon: math.nan)
  monkeypatch.setitem(accounting.accountant._ACCOUNTANTS, "rdp", lambda composed: nothing)
  ledger = subsampled_gaussian(0.1, 1.0, 10)
  for function in (accounting.epsilon, accounting.delta):
    with pytest.raises(ValueError, match="to be a number >= 0, got nan; "):
      function(ledger, 0.5, accountant="rdp")


def test_overflow_is_charged_beyond_an_epsilon_of_700():
  """(1 + e^epsilon) times 1e-308 is above delta from epsilon = 698 on."""
  profile = with_overflow(pure_profile(705.0), 1e-308)
  assert profile.epsilon(1e-5) == math.inf
  assert profile.delta(705.0) > 1e-3
  cheap = with_overflow(pure_profile(690.0), 1e-308)
  assert 690.0 <= cheap.epsilon(1e-5) <= 690.001
  # A delta for a smaller epsilon holds for a larger one: the surcharge of the larger is not
  # charged.
  assert cheap.delta(690.0) <= cheap.delta(705.0) * 1.001 <= 1.01 * cheap.delta(690.0)


def test_epsilon_and_delta_with_overflow_agree():
  ledger = once(GaussianSum(1.0, 1.0), PoissonSampling(0.01, 1e-7), count=100)
  least = accounting.delta(ledger, 50.0)
  assert 2e-7 < least < 1e-4
  assert accounting.epsilon(ledger, least * 1.001) < 50.0
  assert accounting.epsilon(ledger, 1.9e-7) == math.inf


def test_counts_beyond_float64_are_refused():
  for event in (Round(WHOLE, GaussianSum(1.0, 1.0)), LocalRelease(PureDP(1.0))):
    with pytest.raises(ValueError, match="every event at most 2\\^53 times, got more; "):
      accounting.epsilon(Ledger().append(event, count=10**400), 1e-5)
  enormous = once(RandomizedResponse(0.5, 10**400), relation="replace_one")
  assert accounting.epsilon(enormous, 1e-5) == math.inf
  assert (
    accounting.epsilon(once(RandomizedResponse(1.0, 10**400), relation="replace_one"), 0.0) == 0.0
  )
  for query in (SkellamSum(1.0, 1.0, 1.0, 10**400), DiscreteGaussianSum(1.0, 1.0, 1.0, 10**400, 1)):
    assert accounting.epsilon(once(query), 1e-5) >= 0


def test_epochs_are_counted_in_whole_numbers():
  run = once(PureRelease(1.0), BallsInBins(3, False), count=10**17 // 100)
  assert accounting.epsilon(run, 0.0) == -(-(10**15) // 3)


def test_local_releases_without_protection_are_infinite():
  events = [(LocalRelease(PureDP(epsilon), max_releases=1), 2) for epsilon in (math.inf, 1.0)]
  assert accounting.local_guarantee(Ledger().extend(events)).epsilon == math.inf
  assert accounting.epsilon(Ledger().extend(events), 1e-5) == math.inf


@pytest.mark.parametrize(
  ("ledger", "accountant", "relation"),
  [
    (once(GaussianSum(1.0, 2 * z), FixedSizeSampling(10, 1000), "replace_one"), "rdp", None)
    for z in (1e-10, 1e-3, 0.5, 0.51, 1e10)
  ]
  + [
    (subsampled_gaussian(q, z, n), "pld", None)
    for q, z, n in ((1.0, 5e-3, 1), (0.1, 1e-10, 1), (0.1, 1.0, 10**9))
  ]
  + [
    (once(query, count=10**9), "pld", "zero_out")
    for query in (LaplaceSum(600.0, 1.0), PureRelease(5.0))
  ]
  + [
    (once(SkellamSum(1.0, 1.0, 10.0, 10**9)), "rdp", None),
    (once(DiscreteGaussianSum(1.0, 1.0, 1.0, 10**9, 9)), "rdp", None),
  ],
  ids=str,
)
def test_memory_is_bounded(ledger, accountant, relation):
  tracemalloc.start()
  try:
    assert accounting.epsilon(ledger, 1e-5, accountant=accountant, relation=relation) >= 0
    assert tracemalloc.get_traced_memory()[1] < 100e6
  finally:
    tracemalloc.stop()


@pytest.mark.slow
def test_the_whole_process_stays_below_500_megabytes():
  """Peak of the closed forms with large arguments, by Linux (whose `ru_maxrss` begins with the
  parent process).
  """
  script = """
import math
from jdp import accounting
from jdp.accounting.draw_and_discard import lineage
from jdp.accounting.draw_and_discard.later_updates import snapshot_epsilon
accounting.shuffled_epsilon(1.0, 10**15, 1e-6)
snapshot_epsilon(1.0, 1e-6, 20, 10**6, later="data_independent")
for call in (
  lambda: lineage.num_descendants(10**9, 10),
  lambda: lineage.updates_along_line(20, 10**12),
  lambda: lineage.updates_along_line(20, 10**7, seen=20),
):
  try:
    call()
  except ValueError as error:
    assert "Expected" in str(error) and ", got" in str(error)
  else:
    raise AssertionError("not refused")
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""
  done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
  assert int(done.stdout) < 500_000


def test_moments_that_are_not_computed_would_not_be_the_smaller_ones():
  """Up to z = 1/2 four times the even moments of |L - 1| exceed twice those of L."""
  from jdp.accounting.renyi.fixed_size_gaussian import _log_even_moments

  for z in (0.1, 0.3, 0.5):
    j = np.arange(2, 257, 2)
    with np.errstate(divide="ignore"):
      assert np.all(math.log(4) + _log_even_moments(z, 256) > math.log(2) + j * (j - 1) / 2 / z**2)


@pytest.mark.parametrize("sampling", [ShuffledBatches(7, True), PoissonSampling(0.1)], ids=str)
def test_free_rounds_stay_free(sampling):
  ledger = once(RandomizedResponse(1.0, 3), sampling) + once(PureRelease(0.0), sampling)
  assert accounting.epsilon(ledger, 0.0) == 0.0
  assert accounting.delta(ledger, 0.0) == 0.0


@pytest.mark.parametrize(
  ("call", "least"),
  [
    (lambda: gaussian_delta(1e-4, 1e160), 0.0),
    (lambda: one_update.channel_guarantee(1e160, reports=10, delta=1e-5).epsilon, 1e160),
    (
      lambda: (
        one_update.channel_guarantee(
          1.0, coordinates=5, l1_norm=0.0, delta=1e-5, noise="gaussian"
        ).epsilon
      ),
      0.0,
    ),
    (lambda: later_updates.line_epsilon(1.0, 1e-6, 10**9, later="data_independent"), 0.0),
    (lambda: later_updates.line_epsilon(1.0, 1e-6, 9, later="non_expansive", dimension=1e300), 0.1),
    (lambda: reconstruction.log_success(-math.inf, math.inf), 0.0),
    (lambda: reconstruction.log_guess(3, 5e-324), -math.inf),
    (lambda: reconstruction.log_success_gaussian(-math.inf, 5e-324), 0.0),
    (lambda: accounting.shuffled_delta(1.0, 10**400, 0.5), 0.0),
  ],
)
def test_closed_forms_at_extremes_are_numbers(call, least):
  assert call() >= least


@pytest.mark.parametrize(
  "call",
  [
    lambda: accounting.gaussian_noise_multiplier(1e160, 1e-50),
    lambda: one_update.channel_guarantee(1e300, coordinates=10**9, delta=1e-5),
    lambda: later_updates.line_epsilon(1.0, 1e-6, 10**400, later="non_expansive"),
    lambda: reconstruction.closest_alpha(3, 1.7e308, 0.5),
    lambda: scalar_dp.scalar_grid(5e-324, 1.0, 1),
  ],
)
def test_closed_forms_at_extremes_are_refused(call):
  with pytest.raises(ValueError, match=r"^Expected .*, got "):
    call()
