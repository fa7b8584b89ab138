"""Draw and Discard, the parts: lines of descent against simulation, sums of Laplace noise against
quadrature.
"""

import math

import mpmath
import numpy as np
import pytest
from scipy import integrate, stats

from jdp.accounting.draw_and_discard import laplace_sums, lineage
from tests.helpers import statistical


@pytest.mark.parametrize(
  ("k", "updates", "gone"),
  [
    (20, 20, 0.4913),
    (20, 100, 0.8168),
    (20, 400, 0.9313),
    (20, math.inf, 0.95),
    (5, 20, 0.723342),
    (1, 9, 0.0),
  ],
)
def test_probability_gone_equals_reference_points(k, updates, gone):
  assert lineage.probability_gone(k, updates) == pytest.approx(gone, abs=5e-5 if k == 20 else 5e-7)


def test_descendants_keep_their_mean_and_reach_the_limit():
  law = lineage.num_descendants(20, 150)
  assert law.sum() == pytest.approx(1, abs=1e-12)
  assert np.arange(21) @ law == pytest.approx(1, abs=1e-12)
  late = lineage.num_descendants(20, 10**6)
  np.testing.assert_allclose(late[[0, 20]], [0.95, 0.05], atol=1e-9)


def _simulated_stems(k, updates, seen, runs):
  """The number of updates on the stem of what is seen, or `updates` + 1 where nothing seen
  descends; [runs].
  """
  rng = np.random.default_rng(1807)
  drawn, discarded = rng.integers(k, size=(2, updates, runs))
  ancestors = np.empty((updates + 1, runs, seen), int)
  ancestors[-1] = np.arange(seen)
  for t in range(updates, 0, -1):
    overwritten = ancestors[t] == discarded[t - 1][:, None]
    ancestors[t - 1] = np.where(overwritten, drawn[t - 1][:, None], ancestors[t])
  descends = ancestors[0] == rng.integers(k, size=(runs, 1))  # the slot of the user's update
  one = np.argmax(descends, axis=1)
  line = np.take_along_axis(ancestors, one[None, :, None], axis=2)
  together = np.all((ancestors == line) | ~descends, axis=2)
  stem = np.sum((discarded == line[1:, :, 0]) & together[1:], axis=0)
  return np.where(descends.any(axis=1), stem, updates + 1)


@pytest.mark.parametrize("seen", [1, 2, 4])
def test_updates_along_the_line_against_simulation(seen):
  k, updates, runs = 4, 12, 40_000
  law = lineage.updates_along_line(k, updates, seen=seen)
  whole = np.append(law, 1 - law.sum())
  # The distribution in its place: as if every line went on alone, with the right probability that
  # none descends.
  naive = np.append(
    law.sum() * stats.binom.pmf(np.arange(updates + 1), updates, 1 / k), 1 - law.sum()
  )
  if seen == 1:
    np.testing.assert_allclose(naive, whole, rtol=1e-12)
    naive = np.append(stats.binom.pmf(np.arange(updates + 1), updates, 1.1 / k) / k, 1 - 1 / k)
  counts = np.bincount(_simulated_stems(k, updates, seen, runs), minlength=updates + 2)
  statistical.assert_frequencies(counts, whole, catches=naive)


@pytest.mark.parametrize(("k", "updates"), [(1, 5), (2, 1), (5, 20), (20, 400)])
def test_lines_that_survive_are_those_of_the_chain(k, updates):
  every = lineage.updates_along_line(k, updates, seen=k)
  assert every.sum() == pytest.approx(1 - lineage.probability_gone(k, updates), rel=1e-12)
  assert lineage.updates_along_line(k, updates).sum() == pytest.approx(1 / k, rel=1e-12)


def test_variance_of_instances_is_the_average_over_the_coins():
  values, noise_variance = np.array([0.3, -1.0, 2.0, 0.1]), 0.7
  after = []
  for drawn in range(4):
    for discarded in range(4):
      instances = values.copy()
      instances[discarded] = values[drawn]
      # One entry's noise adds a k-th of its variance.
      after.append(instances.var(ddof=1) + noise_variance / 4)
  expected = lineage.instance_variance(4, noise_variance, updates=1, initial=values.var(ddof=1))
  assert np.mean(after) == pytest.approx(expected, rel=1e-12)
  assert lineage.instance_variance(20, 2.0, updates=10**5) == 20.0
  assert lineage.instance_variance(1, 2.0, updates=3) == 0.0


def _quadrature(draws, shift, epsilon):
  """The hockey stick from the density |x|^(n-1/2) K_(n-1/2)(|x|), in 30 digits, over the whole
  line.
  """
  with mpmath.workdps(30):
    order = draws - mpmath.mpf(1) / 2

    def density(x):
      return (
        abs(x) ** order
        * mpmath.besselk(order, abs(x))
        / (mpmath.sqrt(mpmath.pi) * mpmath.mpf(2) ** order * mpmath.gamma(draws))
      )

    def surplus(x):
      return density(x - shift) - mpmath.exp(epsilon) * density(x)

    start = mpmath.findroot(
      lambda x: surplus(x) / density(x), (shift * 0.51, 40.0), solver="anderson"
    )
    return float(mpmath.quad(surplus, [start, start + 5, start + 15, start + 45, start + 120]))


@pytest.mark.parametrize(
  ("draws", "shift", "epsilon"), [(2, 1.0, 0.9), (11, 1.0, 0.6322), (11, 0.2, 0.01), (4, 8.0, 6.0)]
)
def test_hockey_stick_against_quadrature(draws, shift, epsilon):
  assert laplace_sums.hockey_stick(draws, shift, epsilon) == pytest.approx(
    _quadrature(draws, shift, epsilon), rel=1e-9
  )


@pytest.mark.parametrize(
  ("updates", "without_own", "with_own"),
  [(10, 0.6501, 0.6322), (100, 0.2602, 0.2590), (1000, 0.07960, 0.07956)],
)
def test_epsilon_of_the_sum_equals_reference_points(updates, without_own, with_own):
  for draws, expected in ((updates, without_own), (updates + 1, with_own)):
    epsilon = laplace_sums.least_epsilon(
      lambda e, n=draws: laplace_sums.hockey_stick(n, 1.0, e), 1e-6, 1.0
    )
    assert epsilon == pytest.approx(expected, rel=2e-4)
    assert laplace_sums.hockey_stick(draws, 1.0, epsilon) <= 1e-6


def test_hockey_stick_at_its_limits():
  for epsilon in (0.0, 0.3, 0.999):
    assert laplace_sums.hockey_stick(1, 1.0, epsilon) == pytest.approx(
      -math.expm1((epsilon - 1) / 2), rel=1e-12
    )
  assert laplace_sums.hockey_stick(7, 1.0, 1.0) == 0.0
  assert laplace_sums.hockey_stick(7, 0.0, 0.0) == 0.0
  assert 0 <= laplace_sums.hockey_stick(50, 1.0, 1 - 1e-12) < 1e-300
  deltas = [laplace_sums.hockey_stick(n, 1.0, 0.2) for n in (1, 2, 5, 20, 100)]
  assert deltas == sorted(deltas, reverse=True)


@pytest.mark.parametrize("shift", [2e-3, 0.5, 3.0, 30.0])
@pytest.mark.parametrize("order", [1.5, 4.0, 20.0])
def test_laplace_rdp_against_quadrature(shift, order):
  def density_power(x):  # p(x - shift)^a p(x)^(1-a), relative to its largest value
    return math.exp(-order * abs(x - shift) + (order - 1) * abs(x) - (order - 1) * shift) / 2

  moment = integrate.quad(
    density_power, -40, shift + 40, points=[0, shift], epsabs=0, epsrel=1e-13, limit=500
  )[0]
  expected = shift + math.log(moment) / (order - 1)
  assert float(laplace_sums.laplace_rdp(shift, order)) == pytest.approx(expected, rel=1e-6)


def test_the_worst_parts_of_a_shift():
  """Equal coordinates cost most at a given L2 norm, one whole coordinate at a given L1 norm, for
  every order.
  """
  rng = np.random.default_rng(7)
  orders = np.array([1.05, 2.0, 9.0, 300.0])
  for _ in range(200):
    parts = rng.dirichlet(np.full(5, 0.3)) * rng.choice([0.01, 1.0, 20.0])
    cost = sum(laplace_sums.laplace_rdp(part, orders) for part in parts)
    assert np.all(
      cost <= laplace_sums.iterated_rdp(1, np.linalg.norm(parts), 5, orders) * (1 + 1e-9)
    )
    assert np.all(cost <= laplace_sums.laplace_rdp(parts.sum(), orders) * (1 + 1e-9))
  by_dimension = [float(laplace_sums.iterated_rdp(11, 1.0, d, 8.0)) for d in (1, 2, 100, math.inf)]
  assert by_dimension == sorted(by_dimension)


def test_rdp_conversions_agree():
  def curve(orders):
    return laplace_sums.iterated_rdp(101, 1.0, 1, orders)

  epsilon = laplace_sums.rdp_epsilon(curve, 1e-6)
  assert laplace_sums.rdp_delta(curve, epsilon) == pytest.approx(1e-6, rel=1e-3)
  assert laplace_sums.rdp_epsilon(curve, 1.0) == 0.0


@pytest.mark.parametrize(
  ("call", "expected"),
  [
    (lambda: laplace_sums.hockey_stick(0, 1.0, 0.5), "draws"),
    (lambda: laplace_sums.hockey_stick(2, math.nan, 0.5), "shift"),
    (lambda: laplace_sums.hockey_stick(2, 1.0, math.nan), "epsilon"),
    (lambda: lineage.num_descendants(0, 3), "num_instances"),
    (lambda: lineage.updates_along_line(5, -1), "updates"),
    (lambda: lineage.updates_along_line(5, 3, seen=6), "seen"),
    (lambda: lineage.instance_variance(5, math.nan), "noise_variance"),
  ],
)
def test_arguments_out_of_range_are_refused(call, expected):
  with pytest.raises(ValueError, match=f"Expected {expected}"):
    call()
