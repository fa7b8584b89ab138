"""PrivUnit-infinity: constants against exact integers, the channel against its definition, the
sampler's exact distributions.
"""

import itertools
import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jdp.accounting.local import priv_unit_linf as cubes
from jdp.mechanisms import priv_unit_linf
from jdp.mechanisms.draws.agreement import count_sampler, random_subset
from tests.helpers import statistical


def exact_log_share(dim, threshold):
  """log P(Bin(dim, 1/2) >= threshold), from integers."""
  total = sum(math.comb(dim, count) for count in range(threshold, dim + 1))
  bits = total.bit_length()
  return math.log(total / 2**bits) - (dim - bits) * math.log(2)


def vertices(dim):
  return np.array(list(itertools.product([-1, 1], repeat=dim)))


def channel(cube):
  """P(report v | rounded input u), [2^d, 2^d], from the definition."""
  agreements = (vertices(cube.dim) @ vertices(cube.dim).T + cube.dim) // 2
  in_cap = agreements >= (cube.dim + cube.kappa + 1) / 2
  return np.where(in_cap, cube.p / in_cap.sum(axis=1), (1 - cube.p) / (~in_cap).sum(axis=1))


@pytest.mark.parametrize(
  ("dim", "kappa", "p", "m", "epsilon"),
  [(11, 2, 0.8, 0.27066859, 2.35863574), (100, 10, 0.9, 0.14222751, 4.04932466)],
)
def test_constants_of_a_pair(dim, kappa, p, m, epsilon):
  cube = cubes.cube_of(dim, kappa, p)
  assert cube.m == pytest.approx(m, abs=6e-9)
  assert cube.epsilon == pytest.approx(epsilon, abs=6e-9)


@pytest.mark.parametrize(
  ("dim", "threshold", "p", "m"), [(11, 8, 0.874610, 0.444099), (100, 58, 0.795753, 0.151643)]
)
def test_optimum_at_epsilon_4(dim, threshold, p, m):
  cube = cubes.optimal_cube(dim, 4.0)
  assert cube.threshold == threshold
  assert (cube.p, cube.m) == pytest.approx((p, m), abs=6e-7)


@pytest.mark.parametrize("dim", [1, 2, 15, 16, 17, 100, 1001])
def test_share_of_the_cap_against_exact_integers(dim):
  for spread in (0, 0.5, 2, 8, 1e9):
    threshold = min(dim, dim // 2 + 1 + int(spread * math.sqrt(dim) / 2))
    assert cubes.log_share(dim, threshold) == pytest.approx(
      exact_log_share(dim, threshold), rel=2e-13, abs=1e-14
    )


@pytest.mark.parametrize("dim", [1, 2, 3, 10, 41])
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 3.0, 30.0])
def test_optimum_is_the_best_of_all_thresholds(dim, epsilon):
  best = max(cubes.cube_at(dim, epsilon, kappa).m for kappa in range(dim))
  assert cubes.optimal_cube(dim, epsilon).m == pytest.approx(best, rel=1e-12)


@pytest.mark.parametrize("dim", [1, 2, 1000, 1_000_000])
@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 4.0, 100.0, 1e4])
def test_epsilon_is_spent_and_never_exceeded(dim, epsilon):
  cube = cubes.optimal_cube(dim, epsilon)
  assert epsilon * (1 - 1e-8) <= cube.epsilon <= epsilon
  if dim <= 1000:  # from integers: logit p - logit Q
    log_q = exact_log_share(dim, cube.threshold)
    assert cube.logit_p - log_q + math.log1p(-math.exp(log_q)) <= epsilon


@pytest.mark.parametrize(
  ("dim", "kappa", "p"), [(1, 0, 0.9), (2, 1, 0.4), (5, 0, 0.6), (5, 2, 0.7), (6, 5, 0.3)]
)
def test_channel_has_the_stated_loss_and_mean(dim, kappa, p):
  """By enumeration of all inputs and reports; epsilon is the largest log-likelihood ratio."""
  cube = cubes.cube_of(dim, kappa, p)
  law = channel(cube)
  np.testing.assert_allclose(law.sum(axis=1), 1)
  ratios = law[:, None] / law[None]
  assert cube.epsilon == pytest.approx(np.log(ratios.max()), rel=1e-12)
  np.testing.assert_allclose(law @ vertices(dim) / cube.m, vertices(dim), atol=1e-12 / cube.m)


@pytest.mark.slow
@pytest.mark.parametrize(("dim", "kappa"), [(1, 0), (3, 0), (4, 1), (4, 3)])
def test_reports_have_the_law_of_the_channel(dim, kappa):
  """100,000 draws at a vertex; the distribution of a p 3 points larger is caught. Bits are packed
  as documented.
  """
  mechanism = priv_unit_linf(dim, 20.0, kappa=kappa, p=0.7)
  u = vertices(dim)[-2 % 2**dim]
  keys = jax.random.split(jax.random.key(0), 100_000)
  reports = np.asarray(
    jax.jit(jax.vmap(mechanism.encode, (0, None)))(keys, jnp.asarray(u, jnp.float32))
  )
  assert reports.shape == (100_000, 1)
  assert reports.dtype == np.uint8
  counts = np.bincount(reports[:, 0] >> (8 - dim), minlength=2**dim)
  law, other = (channel(cubes.cube_of(dim, kappa, p))[-2 % 2**dim] for p in (0.7, 0.73))
  statistical.assert_frequencies(counts, law, catches=other)


@pytest.mark.sweep
@pytest.mark.parametrize(("dim", "kappa"), [(200, 11), (1_000_000, 900)])
def test_number_of_agreements_has_the_truncated_binomial_law(dim, kappa):
  """20,000 counts against their probabilities; a shift by a fifth of a standard deviation is
  caught.
  """
  cube = cubes.cube_of(dim, kappa, 0.5)
  keys = jax.random.split(jax.random.key(1), 20_000)
  anywhere, top = jax.jit(jax.vmap(count_sampler(cube)))(keys)
  counts = np.where(anywhere, np.random.default_rng(1).binomial(dim, 0.5, len(keys)), top)
  edges = np.arange(dim + 1)
  log_law = cubes.log_probability(dim, edges)
  weights = np.where(edges >= cube.threshold, 0.5 * np.exp(log_law - cube.log_q), 0.0)
  weights += np.where(
    edges < cube.threshold, 0.5 * np.exp(log_law - np.log1p(-np.exp(cube.log_q))), 0.0
  )
  shift = max(1, round(0.1 * math.sqrt(dim)))
  statistical.assert_frequencies(
    np.bincount(counts, minlength=dim + 1), weights / weights.sum(), catches=np.roll(weights, shift)
  )


@pytest.mark.sweep
@pytest.mark.parametrize("dim", [11, 60, 300])
def test_no_vertex_is_likelier_than_stated(dim):
  """The table's own probabilities against exact ones, down to 2^-64: the ratio was off by up to
  2.4 % in 60 dimensions. Vertices of the other branch are the same for all inputs.
  """
  from jdp.mechanisms.draws import agreement

  cube = cubes.optimal_cube(dim, 8.0)
  table = agreement._count_distribution(dim, cube.threshold)
  starts = [int(h) << 32 | int(low) for h, low in zip(table.high, table.low, strict=True)]
  units = np.diff([*starts, 2**64])
  possible = sum(math.comb(dim, n) for n in range(cube.threshold, dim + 1))
  for n, unit in enumerate(units, start=table.start):
    assert Fraction(int(unit), 2**64) <= Fraction(math.comb(dim, n), possible) * (
      1 + Fraction(1, 10**12)
    )
  mechanism = priv_unit_linf(dim, 2.0)
  keys = jax.random.split(jax.random.key(3), 2000)
  encode = jax.jit(jax.vmap(mechanism.encode, (0, None)))
  ones = jnp.ones(dim)
  reports = np.stack(
    [encode(jax.random.clone(keys), value) for value in (ones, -ones, ones.at[0].set(-1))]
  )
  share = math.exp(-float(np.logaddexp(0, mechanism.parameters.logit_p))) / -math.expm1(
    mechanism.parameters.log_q
  )
  same = np.sum(np.all(reports == reports[0], axis=(0, 2)))
  assert abs(same - 2000 * share) < 5 * math.sqrt(2000 * share)


def assert_every_subset_is_equally_likely(key, count, of, size):
  """A subset 10 % too frequent at the cost of another is caught."""
  keys = jax.random.split(key, count)
  chosen = np.asarray(jax.jit(jax.vmap(lambda key: random_subset(key, of, size)))(keys))
  counts = np.bincount(chosen @ (1 << np.arange(of)), minlength=2**of)
  possible = [sum(1 << i for i in subset) for subset in itertools.combinations(range(of), size)]
  assert counts.sum() == counts[possible].sum()
  law = np.full(len(possible), 1 / len(possible))
  skewed = law * (1 + 0.1 * (-1.0) ** np.arange(len(law)))
  statistical.assert_frequencies(counts[possible], law, catches=skewed)


@pytest.mark.slow
def test_every_subset_is_equally_likely():
  """All 20 subsets of 3 of 6."""
  assert_every_subset_is_equally_likely(jax.random.key(2), 50_000, 6, 3)


@pytest.mark.slow
def test_things_that_tie_draw_again(monkeypatch):
  """With words of 1 bit nearly every draw ties; subsets stay of the right size and equally
  likely.
  """
  from jdp.mechanisms.draws import agreement

  bits = agreement.random.bits
  monkeypatch.setattr(
    agreement.random, "bits", lambda key, shape: bits(key, shape) >> np.uint32(31)
  )
  assert_every_subset_is_equally_likely(jax.random.key(3), 20_000, 5, 2)


@pytest.mark.slow
@pytest.mark.parametrize("count", [0, 1, 6, 7])
def test_subsets_of_any_size(count):
  chosen = jax.vmap(lambda key: random_subset(key, 7, count))(
    jax.random.split(jax.random.key(4), 5)
  )
  np.testing.assert_array_equal(np.sum(chosen, axis=1), count)


ENCODE_40 = jax.jit(jax.vmap(priv_unit_linf(40, 2.0).encode, (0, None)))


@pytest.mark.slow
@pytest.mark.parametrize(
  ("hostile", "tame"), [(np.nan, 0.0), (np.inf, 1.0), (-7.0, -1.0), (1e-42, 0.0)]
)
def test_coordinates_outside_the_domain_count_as_its_nearest(hostile, tame):
  reports = [
    ENCODE_40(jax.random.split(jax.random.key(5), 20), jnp.full(40, filling))
    for filling in (hostile, tame, 0.3)
  ]
  np.testing.assert_array_equal(reports[0], reports[1])
  assert np.any(reports[0] != reports[2])


@pytest.mark.slow
def test_rounding_inside_the_cube_has_no_bias():
  """At an epsilon that hardly changes a bit: an error of 3 % of the largest coordinate shows."""
  mechanism, u = priv_unit_linf(8, 40.0), jnp.linspace(-0.7, 0.7, 8)
  keys = jax.random.split(jax.random.key(6), 120_000)
  estimates = jax.jit(jax.vmap(mechanism.privatize, (0, None)))(keys, u)
  statistical.assert_mean(estimates, np.asarray(u), stddev=1.02, catches=0.03)


def test_a_single_large_coordinate_reaches_the_stated_error():
  mechanism = priv_unit_linf(7, 3.0)
  m = mechanism.parameters.m
  assert mechanism.mean_squared_error(1.0) == pytest.approx(7 / m**2 - 1)
  assert mechanism.max_norm == pytest.approx(1 / m)


def test_p_alone_takes_the_largest_affordable_threshold():
  cube = priv_unit_linf(50, 3.0, p=0.8).parameters
  assert cube.epsilon <= 3.0 < cubes.cube_of(50, cube.kappa + 2, 0.8).epsilon


def test_kappa_alone_spends_the_budget():
  cube = priv_unit_linf(50, 3.0, kappa=9).parameters
  assert (cube.kappa, cube.epsilon) == (9, pytest.approx(3.0, rel=1e-8))


@pytest.mark.parametrize(
  ("arguments", "options"),
  [
    ((0, 1.0), {}),
    ((2.5, 1.0), {}),
    ((10**8, 1.0), {}),
    ((10, math.nan), {}),
    ((10, 1e-4), {}),
    ((10, 1.0), {"kappa": 10}),
    ((10, 1.0), {"kappa": -1}),
    ((10, 1.0), {"kappa": 2, "p": 0.99}),
    ((10, 1.0), {"kappa": 2, "p": 0.01}),
    ((10, 1.0), {"p": 0.99}),
    ((10, 1.0), {"p": math.nan}),
  ],
)
def test_bad_arguments_are_refused(arguments, options):
  with pytest.raises(ValueError, match="Expected"):
    priv_unit_linf(*arguments, **options)
