"""The best of a random number of runs: published corollaries, dp_accounting, exact small cases."""

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import rdp
from dp_accounting.dp_event import RepeatAndSelectDpEvent

from jdp import accounting
from jdp.accounting.statements import private_selection
from jdp.events import GaussianSum, PoissonSampling, PureRelease, Round
from jdp.ledger import Ledger, subsampled_gaussian


def pure(epsilon):
  return Ledger().append(Round(PoissonSampling(1.0), PureRelease(epsilon)))


@pytest.mark.parametrize("shape", [0.0, 0.5, 1.0, 5.0])
@pytest.mark.parametrize("mean", [1.0, 1.5, 30.0, 1e6])
def test_distribution_has_its_mean(shape, mean):
  gamma = math.exp(private_selection._log_gamma(mean, shape))
  if mean == 1.0:
    assert gamma == 1.0
  elif shape:
    assert shape * (1 - gamma) / (gamma * (1 - gamma**shape)) == pytest.approx(mean, rel=1e-6)
  else:
    assert (1 / gamma - 1) / math.log(1 / gamma) == pytest.approx(mean, rel=1e-6)


@pytest.mark.parametrize("shape", [0.0, 0.5, 1.0, 2.0])
def test_pure_runs_cost_as_published(shape):
  # Corollary 3 of arXiv 2110.03620: (2 + shape) epsilon, up to what the mean adds at large orders.
  found = accounting.selection_epsilon(pure(1.0), 1e-10, mean_runs=1000.0, shape=shape)
  assert found <= (2 + shape) * 1.0 + 1e-3
  assert found > 1.0


@pytest.mark.parametrize("shape", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("mean", [2.0, 20.0])
def test_agrees_with_dp_accounting(shape, mean):
  event = dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(8.0), 20)
  orders = (1 + np.geomspace(0.01, 1000, 400)).tolist()
  peer = rdp.RdpAccountant(orders)
  peer.compose(RepeatAndSelectDpEvent(event, mean, shape))
  run = subsampled_gaussian(1.0, 8.0, 20)
  found = accounting.selection_epsilon(run, 1e-6, mean_runs=mean, shape=shape)
  assert found == pytest.approx(peer.get_epsilon(1e-6), rel=2e-3)


@pytest.mark.parametrize("shape", [0.0, 0.7, 1.0, 4.0])
@pytest.mark.parametrize("mean", [1.0, 3.0, 50.0])
def test_never_below_the_exact_best_of_responses(shape, mean):
  # One run answers one bit at epsilon 1; the best is the larger answer. Its probabilities follow
  # from the generating function of the number of runs.
  gamma = math.exp(private_selection._log_gamma(mean, shape))

  def generating(x):
    if mean == 1.0:
      return x
    if shape == 0:
      return math.log1p(-(1 - gamma) * x) / math.log(gamma)
    return ((1 - (1 - gamma) * x) ** -shape - 1) / (gamma**-shape - 1)

  low = [1 / (1 + math.exp(sign)) for sign in (1.0, -1.0)]
  zero = np.array([generating(x) for x in low])  # all answers are 0
  for delta in (1e-3, 0.1):
    epsilon = accounting.selection_epsilon(pure(1.0), delta, mean_runs=mean, shape=shape)
    for p, q in (zero, zero[::-1]):
      stick = max(p - math.exp(epsilon) * q, 0) + max(1 - p - math.exp(epsilon) * (1 - q), 0)
      assert stick <= delta


def test_overflows_count_for_every_run():
  event = Round(PoissonSampling(0.1, overflow_probability=1e-7), GaussianSum(1.0, 3.0))
  plain = subsampled_gaussian(0.1, 3.0, 50)
  spilled = Ledger().append(event, count=50)
  clean = accounting.selection_epsilon(plain, 1e-3, mean_runs=10.0)
  assert accounting.selection_epsilon(spilled, 1e-3, mean_runs=10.0) > clean
  assert math.isinf(accounting.selection_epsilon(spilled, 1e-5, mean_runs=10.0))
  assert accounting.selection_epsilon(Ledger(), 1e-5, mean_runs=10.0) == 0
  assert clean > accounting.epsilon(plain, 1e-3)


def test_arguments_are_refused():
  with pytest.raises(ValueError, match="mean_runs"):
    accounting.selection_epsilon(pure(1.0), 1e-5, mean_runs=0.5)
  with pytest.raises(ValueError, match="shape"):
    accounting.selection_epsilon(pure(1.0), 1e-5, mean_runs=2.0, shape=-0.5)
