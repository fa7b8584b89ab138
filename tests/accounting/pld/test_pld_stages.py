"""Very many rounds, in two stages: Edgeworth's expansion, and one stage."""

import math

import numpy as np
import pytest
from scipy import optimize, stats

from jdp import accounting
from jdp.accounting.pld import plan, stages
from jdp.ledger import subsampled_gaussian


def by_edgeworth(q, z, number, delta):
  """Epsilon, by three cumulants of a removal's loss: the next term is of the order 1 / number."""
  x = np.linspace(-14, 15 + 1 / z, 200_001)
  none, one = stats.norm.pdf(x), stats.norm.pdf(x - 1 / z)
  p, loss = ((1 - q) * none + q * one) * (x[1] - x[0]), np.log1p(q * np.expm1(x / z - 0.5 / z**2))
  mean = p @ loss
  variance, third = p @ (loss - mean) ** 2, p @ (loss - mean) ** 3
  y = np.linspace(-12, 12, 200_001)
  weight = stats.norm.pdf(y) * (1 + third / variance**1.5 / number**0.5 / 6 * (y**3 - 3 * y))
  losses = number * mean + math.sqrt(number * variance) * y

  def missing(epsilon):
    gain = -np.expm1(np.minimum(epsilon - losses, 0.0))
    return weight @ gain * (y[1] - y[0]) - delta

  return optimize.brentq(missing, losses[0], losses[-1])


@pytest.mark.parametrize(
  ("q", "z", "number", "delta", "width"),
  [
    (1e-4, 2.0, 10**9, 1e-5, 1e-3),
    (1e-3, 5.0, 10**9, 1e-9, 1e-3),
    (1e-3, 1.0, 10**8, 1e-5, 1e-3),
    pytest.param(1e-2, 1.0, 10**9, 1e-5, 1e-3, marks=pytest.mark.slow),  # 6,000 nats
    (1e-3, 1.0, 10**10, 1e-5, 2e-3),
  ],
)
def test_very_many_sampled_gaussians(q, z, number, delta, width):
  run = subsampled_gaussian(q, z, number)
  lower, upper = accounting.epsilon_interval(run, delta)
  assert lower < by_edgeworth(q, z, number, delta) < upper < (1 + width) * lower
  found = accounting.epsilon(run, delta, accountant="pld")
  assert accounting.delta(run, found, accountant="pld") == pytest.approx(delta, rel=0.01)


@pytest.mark.parametrize(("q", "z", "number"), [(0.03, 2.0, 40_000), (1e-3, 4.0, 300_007)])
def test_two_stages_agree_with_one(q, z, number, monkeypatch):
  run = subsampled_gaussian(q, z, number)
  one = accounting.epsilon_interval(run, 1e-7)
  monkeypatch.setattr(stages, "_MANY", 10_000)
  monkeypatch.setattr(plan, "_MOST_POINTS", 2**14)
  two = accounting.epsilon_interval(run, 1e-7)
  assert two != one
  assert max(one[0], two[0]) <= min(one[1], two[1])
  assert two[1] < 1.001 * one[0]
