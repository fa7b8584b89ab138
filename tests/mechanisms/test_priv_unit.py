"""The distribution of PrivUnit's releases.

Each statistical test compares with the exact distribution at a false-failure rate of 1e-6 (on
fixed keys: what passes once passes always) and is shown to reject a sampler that is wrong by 2 %.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jdp.accounting.local import priv_unit as caps
from jdp.mechanisms import priv_unit, priv_unit_g
from jdp.mechanisms.draws.cap_height import height_sampler
from jdp.mechanisms.priv_unit_l2 import published_split
from tests.helpers import releases

FALSE_FAILURE_RATE = 1e-6
MAX_Z = stats.norm.isf(FALSE_FAILURE_RATE / 2)
SETTINGS = [(2, 1.0), (3, 4.0), (10, 8.0), (1000, 16.0), (100_000, 64.0)]


def uniform_tail(dim, t):
  """P(<V, u> >= t) for V uniform on the sphere, t of any sign."""
  gamma = np.minimum(np.abs(t), 1 - 1e-15)
  log_q, _ = caps.log_share(dim, gamma, np.log1p(-gamma) - math.log(2))
  return np.where(np.asarray(t) >= 0, np.exp(log_q), -np.expm1(log_q))


def exact_tail(dim, gamma, p, t):
  """P(t' >= t) for PrivUnit's height t'."""
  q, upper = uniform_tail(dim, gamma), uniform_tail(dim, t)
  return p * np.minimum(upper, q) / q + (1 - p) * np.maximum(upper - q, 0) / (1 - q)


def exact_quantiles(cap, tails):
  """The heights t with P(t' >= t) = tails, by the float64 inverse."""
  q = math.exp(cap.log_q)
  upper = np.where(tails < cap.p, tails * q / cap.p, q + (tails - cap.p) / (1 - cap.p) * (1 - q))
  t, _ = caps.quantile(cap.dim, np.log(np.minimum(upper, 1 - upper)))
  return np.where(upper <= 0.5, t, -t)


def chi_square_p_value(t, cap, *, gamma=None, p=None):
  """Of heights against the distribution with another gamma or p, in 60 equal bins of the cap's own
  distribution, cut at its rim.
  """
  rim = cap.gamma * (1 - 1e-6)  # a float32 point of the rim is on one side or the other
  grid = np.sort(np.append(exact_quantiles(cap, np.linspace(0, 1, 61)[1:-1]), rim))
  tail = exact_tail(cap.dim, gamma or cap.gamma, p or cap.p, grid)
  expected = -np.diff(np.concatenate([[1.0], tail, [0.0]])) * len(t)
  observed = np.bincount(np.searchsorted(grid, t), minlength=len(expected))
  kept = expected > 5
  statistic = np.sum((observed - expected)[kept] ** 2 / expected[kept])
  return stats.chi2(np.sum(kept) - 1).sf(statistic)


@functools.cache
def draw_heights(cap, count):
  """Heights of the cap's branch, and in place of the other branch's those of NumPy."""
  keys = jax.random.split(jax.random.key(1), count)
  anywhere, (t, _) = jax.jit(jax.vmap(height_sampler(cap)))(keys)
  a = (cap.dim - 1) / 2
  uniform = 2 * np.random.default_rng(1).beta(a, a, count) - 1
  return np.where(anywhere, uniform, np.asarray(t, np.float64))


@pytest.mark.slow
@pytest.mark.parametrize(("dim", "epsilon"), SETTINGS)
def test_height_has_the_exact_law(dim, epsilon):
  cap = caps.optimal_cap(dim, epsilon)
  t = draw_heights(cap, 1_000_000)
  assert chi_square_p_value(t, cap) > FALSE_FAILURE_RATE
  assert chi_square_p_value(1.02 * t, cap) < FALSE_FAILURE_RATE  # heights 2 % too large
  # a cap 2 % too low
  assert chi_square_p_value(t, cap, gamma=min(1.02 * cap.gamma, 0.999)) < FALSE_FAILURE_RATE
  assert chi_square_p_value(t, cap, p=0.98 * cap.p) < FALSE_FAILURE_RATE  # p 2 % too high


@pytest.mark.slow
@pytest.mark.parametrize(("dim", "epsilon"), SETTINGS)
def test_cap_is_hit_with_probability_p(dim, epsilon):
  """5 standard errors of a million draws: an error of p above 0.24 points shows."""
  cap = caps.optimal_cap(dim, epsilon)
  share = np.mean(draw_heights(cap, 1_000_000) >= np.float32(cap.gamma))
  assert abs(share - cap.p) < MAX_Z * math.sqrt(cap.p * (1 - cap.p) / 1e6)


@pytest.mark.slow
def test_far_side_of_the_cap_is_not_lost_at_large_epsilon():
  """At 1 - p = 1e-4 a million draws leave the cap 100 times, give or take 5 standard errors."""
  cap = caps.cap_of(10, 0.7, 1 - 1e-4)
  outside = np.sum(draw_heights(cap, 1_000_000) < np.float32(cap.gamma))
  assert abs(outside - 100) < MAX_Z * 10


@pytest.mark.slow
@pytest.mark.parametrize(
  ("dim", "epsilon"),
  [
    (2, 1.0),
    (2, 8.0),
    (3, 4.0),
    (10, 8.0),
    (64, 8.0),
    (65, 8.0),
    (1000, 16.0),
    (10**5, 64.0),
    (10**9, 64.0),
  ],
)
def test_height_is_accurate_relative_to_its_scale(dim, epsilon):
  """Within 5e-6 / sqrt(d) of the float64 inverse, down to a share of 2^-65."""
  from jdp.mechanisms.draws import cap_height

  cap = caps.optimal_cap(dim, epsilon)
  from_pole = dim <= 64 or cap.gamma > 0.5
  y = np.linspace(-45, 0, 20_011).astype(np.float32)
  gamma, _ = caps.quantile(dim, np.minimum(cap.log_q + y.astype(float), cap.log_q))
  t, complement = cap_height._quantiles(dim, cap.log_q, from_pole)(jnp.asarray(y))
  assert np.max(np.abs(np.asarray(t, float) - gamma)) <= 5e-6 / math.sqrt(dim)
  np.testing.assert_allclose(np.asarray(t + complement), 1, rtol=2e-7)


def unit_vector(dim, seed=7):
  u = np.random.default_rng(seed).standard_normal(dim)
  return u / np.linalg.norm(u)


made = functools.cache(priv_unit)


def draw(mechanism, value, count):
  return releases.draw(mechanism.encode, value, count, seed=3).astype(np.float64)


@pytest.mark.slow
@pytest.mark.parametrize(
  ("dim", "epsilon", "count"),
  [(2, 1.0, 200_000), (3, 4.0, 200_000), (10, 8.0, 50_000), (1000, 16.0, 2000), (10**5, 64.0, 300)],
)
def test_release_has_norm_one_over_m_and_a_uniform_orthogonal_part(dim, epsilon, count):
  mechanism, u = made(dim, epsilon), unit_vector(dim)
  v = draw(mechanism, u, count)
  np.testing.assert_allclose(np.linalg.norm(v, axis=1), 1, rtol=1e-6)
  estimate = mechanism.decode(jnp.asarray(v[0], jnp.float32))
  assert float(jnp.linalg.norm(estimate)) == pytest.approx(1 / mechanism.parameters.m, rel=1e-6)
  # Projections on fixed axes orthogonal to u, over the length of the part of V orthogonal to u,
  # have the distribution of one coordinate on the sphere of R^(d-1). Axes among every so-many-th
  # coordinates only: a factorisation in all of 1e5 would take long.
  part = slice(None, None, max(1, dim // 2000))
  own = u[part] / np.linalg.norm(u[part])
  axes = np.random.default_rng(5).standard_normal((own.size, min(dim - 1, 256)))
  axes, _ = np.linalg.qr(axes - np.outer(own, own @ axes))
  if dim == 2:  # that distribution is a fair sign
    assert (
      abs(np.sum(v[:, part] @ axes > 0) - count / 2)
      < MAX_Z * math.sqrt(count) / 2
      < 0.02 * count / 2
    )  # 2 % would show
    return
  x = (v[:, part] @ axes / np.sqrt(1 - (v @ u) ** 2)[:, None]).ravel()
  law = stats.beta((dim - 2) / 2, (dim - 2) / 2, loc=-1, scale=2)
  cut = law.ppf(np.linspace(0, 1, 51)[1:-1])
  assert (
    stats.chisquare(np.bincount(np.searchsorted(cut, x), minlength=50)).pvalue > FALSE_FAILURE_RATE
  )
  assert abs(x.mean()) < MAX_Z * law.std() / math.sqrt(x.size)

  def z_of_scale(sample):
    return (np.mean(sample**2) - law.var()) * math.sqrt(sample.size) / np.std(sample**2)

  assert abs(z_of_scale(x)) < MAX_Z
  for wrong in (0.98, 1.02):  # an orthogonal part that is 2 % too short or too long
    assert abs(z_of_scale(wrong * x)) > MAX_Z


@pytest.mark.slow
@pytest.mark.parametrize(
  ("dim", "epsilon", "count"),
  [
    (2, 1.0, 400_000),
    (3, 0.5, 400_000),
    (10, 8.0, 100_000),
    (1000, 16.0, 5000),
    (10**5, 16.0, 300),
  ],
)
def test_release_is_unbiased(dim, epsilon, count):
  """Along u the mean is 1 within 5 standard errors; off u its squared length is that of averaged
  noise.
  """
  mechanism, u = made(dim, epsilon), unit_vector(dim)
  z = draw(mechanism, u, count) / mechanism.parameters.m
  # the covariance is isotropic at the optimum
  per_axis = mechanism.mean_squared_error() / dim / count
  error = z.mean(axis=0) - u
  along = error @ u
  assert abs(along) < MAX_Z * math.sqrt(per_axis)
  across = error @ error - along**2
  assert FALSE_FAILURE_RATE < stats.chi2(dim - 1).sf(across / per_axis) < 1 - FALSE_FAILURE_RATE


@pytest.mark.slow
@pytest.mark.parametrize(("dim", "epsilon"), [(10, 8.0), (1000, 4.0)])
def test_mean_squared_error_is_the_stated_one(dim, epsilon):
  """It is a constant: ||Z||^2 = 1/m^2 and the mean is u, so only the mean is random."""
  mechanism, u = made(dim, epsilon), unit_vector(dim)
  z = draw(mechanism, u, 20_000) / mechanism.parameters.m
  errors = np.sum((z - u) ** 2, axis=1)
  assert abs(errors.mean() - mechanism.mean_squared_error()) < MAX_Z * errors.std() / math.sqrt(
    len(errors)
  )


@pytest.mark.slow
@pytest.mark.parametrize(
  ("dim", "count"), [(2, 5000), (3, 5000), (10, 5000), (1000, 1000), (10**5, 100)]
)
def test_basis_vectors_and_their_negatives_are_ordinary_inputs(dim, count):
  mechanism = made(dim, 4.0)
  gamma, p = mechanism.parameters.gamma, mechanism.parameters.p
  for axis, sign in ((0, 1), (dim - 1, 1), (0, -1), (dim - 1, -1)):
    v = draw(mechanism, sign * (np.arange(dim) == axis), count)
    np.testing.assert_allclose(np.linalg.norm(v, axis=1), 1, rtol=2e-6)
    assert abs(np.mean(sign * v[:, axis] >= gamma) - p) < MAX_Z * math.sqrt(p * (1 - p) / count)


@pytest.mark.slow
@pytest.mark.parametrize("dim", [2, 3, 10, 1000, 10**5])
@pytest.mark.parametrize("filling", [0.0, np.nan, np.inf, -np.inf, 1e-40])
def test_input_without_a_direction_releases_as_the_first_basis_vector(dim, filling):
  mechanism, first = made(dim, 4.0), np.arange(dim) == 0
  released = draw(mechanism, np.full(dim, filling), 5)
  np.testing.assert_array_equal(released, draw(mechanism, first, 5))
  assert np.all(np.isfinite(released))


@pytest.mark.slow
@pytest.mark.parametrize("length", [1e-25, 1e-3, 5.0, 1e30])
def test_length_of_the_input_does_not_matter(length):
  mechanism, u = made(50, 2.0), unit_vector(50)
  np.testing.assert_allclose(draw(mechanism, length * u, 5), draw(mechanism, u, 5), atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [1e-3, 1e4])
@pytest.mark.parametrize("dim", [2, 3, 70, 5000])
def test_extreme_budgets_stay_finite(dim, epsilon):
  mechanism = priv_unit(dim, epsilon)
  v = draw(mechanism, unit_vector(dim), 100)
  np.testing.assert_allclose(np.linalg.norm(v, axis=1), 1, rtol=2e-6)
  assert np.all(np.isfinite(np.asarray(mechanism.decode(jnp.asarray(v, jnp.float32)))))


def test_pair_keeps_its_epsilon_and_is_refused_above_the_one_asked_for():
  gamma, p = published_split(1000, 1.0, 3.0)
  mechanism = priv_unit(1000, 4.0, gamma=gamma, p=p)
  assert mechanism.guarantee.epsilon == caps.cap_of(1000, gamma, p).epsilon < 4.0
  with pytest.raises(ValueError, match="exact epsilon"):
    priv_unit(1000, 2.9, gamma=gamma, p=p)


def test_gamma_alone_takes_the_p_that_spends_the_budget():
  mechanism = priv_unit(1000, 4.0, gamma=0.02)
  assert mechanism.parameters.gamma == 0.02
  assert mechanism.guarantee.epsilon == pytest.approx(4.0, rel=1e-9)


# The distribution that the machine realises


@pytest.mark.parametrize("make", [priv_unit, priv_unit_g])
@pytest.mark.parametrize("dim", [2, 3, 100])
def test_reports_from_anywhere_are_the_same_for_every_input(make, dim):
  """To the bit: so no report is impossible under a neighbour. They are a share of all."""
  mechanism, count = make(dim, 2.0), 4000
  cap = mechanism.parameters
  share = (1 - cap.p) / (1 - math.exp(cap.log_q))
  inputs = (unit_vector(dim), -unit_vector(dim), np.full(dim, np.nan), unit_vector(dim, seed=8))
  reports = np.stack([draw(mechanism, value, count) for value in inputs])
  same = np.all(reports == reports[0], axis=(0, 2))
  assert abs(np.sum(same) - count * share) < MAX_Z * math.sqrt(count * share)
  assert cap.epsilon == pytest.approx(
    math.log1p((1 - share) / (share * math.exp(cap.log_q))), rel=1e-9
  )


def exact_cells(gamma, count=60):
  """Phi of squares of side 1/4 around the origin of the plane, and Phi of them within the cap of
  the first axis, by a fine grid of points: [count, count] each.
  """
  fine, side = 24, 0.25
  x = (np.arange(count * fine) + 0.5) * side / fine - count * side / 2
  density = np.exp(-(x[:, None] ** 2 + x**2) / 2) / (2 * math.pi) * (side / fine) ** 2
  inside = density * (x[:, None] >= gamma * np.hypot(x[:, None], x))
  return tuple(z.reshape(count, fine, count, fine).sum(axis=(1, 3)) for z in (density, inside))


@pytest.mark.slow
def test_cells_of_the_cap_have_no_more_than_their_probability():
  """C' <= e^r Q' / q, in the plane at epsilon 2: of 2 million draws of each branch in squares of
  side 1/4, against an exact computation. It would see a cell that is 4 % too likely.
  """
  from jdp import random
  from jdp.mechanisms.priv_unit_l2 import _point_at_height_explicitly

  cap, count = caps.optimal_cap(2, 2.0), 2_000_000
  u = jnp.array([1.0, 0.0])

  def branches(key):
    height_key, noise_key = jax.random.split(key)
    noise = random.normal(noise_key, (2,))
    _, height = height_sampler(cap)(height_key)
    return noise, _point_at_height_explicitly(noise, u, *height)

  drawn = jax.jit(jax.vmap(branches))(jax.random.split(jax.random.key(9), count))
  edges = 0.25 * np.arange(61) - 7.5
  everywhere, inside = exact_cells(cap.gamma)
  for points, exact in zip(drawn, (everywhere, inside / math.exp(cap.log_q)), strict=True):
    counts = np.histogram2d(*np.float64(points).T, bins=edges)[0]
    kept = exact * count > 100
    z = (counts - exact * count)[kept] / np.sqrt(exact * count)[kept]
    rim = 0.02 * np.sqrt(exact * count)[kept]  # points of the fine grid on the rim
    assert np.all(np.abs(z) < 5.2 + rim)
  assert np.all(inside <= everywhere)


def test_a_cap_below_the_step_of_floats_shares_its_reports_with_neighbours():
  """In the plane at epsilon 40, of radius 3.4e-6, 23 % of reports were outside all values of a
  neighbour 1.3e-7 away. They are now points of a grid, whose spacing is 2^-12 of a normal.
  """
  mechanism, count = made(2, 40.0), 4000
  angle = 0.7
  values = [(math.cos(a), math.sin(a)) for a in (angle, angle + 1.3e-7)]
  reports = [draw(mechanism, value, count) for value in values]
  assert np.mean(np.any(reports[0] != reports[1], axis=1)) < 2e-3
  errors = np.sum((reports[0] / mechanism.parameters.m - np.array(values[0])) ** 2, axis=1)
  assert np.mean(errors) < mechanism.mean_squared_error()
