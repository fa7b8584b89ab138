"""Whether a budget allows further events: exactly when the ledger with them is within it."""

import jax
import jax.numpy as jnp
import pytest

from jdp import accounting, ledger
from jdp.accounting import would_exceed
from jdp.events import GaussianSum, LocalRelease, NonPrivate, PoissonSampling, Round
from jdp.guarantees import PureDP

EVENT = Round(PoissonSampling(0.1), GaussianSum(1.0, 2.0))
DONE = ledger.subsampled_gaussian(0.1, 2.0, 5)


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_a_budget_is_used_up_to_the_last_round_and_no_further(accountant):
  budget = accounting.epsilon(DONE.append(EVENT, count=2), 1e-5, accountant=accountant)
  for number, exceeded in ((1, False), (2, False), (3, True)):
    asked = would_exceed(DONE, [EVENT] * number, budget, 1e-5, accountant=accountant)
    assert asked is exceeded
  assert not would_exceed(DONE, [], budget, 1e-5, accountant=accountant)


def test_events_of_a_scan_count_one_by_one():
  def one_round(carry, number):
    return carry, Round(PoissonSampling(0.1), GaussianSum(1.0, 2.0), number=number)

  _, stacked = jax.lax.scan(one_round, 0, jnp.arange(3))
  budget = accounting.epsilon(DONE.append(EVENT, count=2), 1e-5)
  assert would_exceed(DONE, stacked, budget, 1e-5)
  assert would_exceed(ledger.Ledger(), stacked, 0.0, 1e-5)


def test_what_has_no_bound_exceeds_every_budget_and_observers_are_kept_apart():
  assert would_exceed(DONE, Round(PoissonSampling(0.1), NonPrivate()), 1e300, 1e-5)
  local = LocalRelease(PureDP(4.0))
  assert would_exceed(DONE, local, 3.0, 1e-5, observer="server")
  assert not would_exceed(DONE, local, 3.0, 1e-5, observer="model")
  with pytest.raises(ValueError, match="observer"):
    would_exceed(DONE, local, 3.0, 1e-5)


@pytest.mark.parametrize("budget", [-1.0, float("nan"), float("inf")])
def test_a_budget_is_a_finite_number(budget):
  with pytest.raises(ValueError, match="Expected max_epsilon"):
    would_exceed(DONE, EVENT, budget, 1e-5)
