"""Strategies: sensitivities against brute force, errors against the matrices, published values."""

import itertools
import math

import numpy as np
import pytest

from jdp import accounting
from jdp import matrix_factorization as mf
from jdp.events import GaussianSum, PoissonSampling, Round
from jdp.ledger import Ledger
from jdp.matrix_factorization import buffered, trees
from jdp.matrix_factorization.banded_matrices import BandedStrategy
from jdp.matrix_factorization.participation import heaviest_pattern, pattern_bound
from jdp.matrix_factorization.toeplitz import from_coefficients

RNG = np.random.default_rng(0)


def patterns(num_rounds, min_separation, most):
  """All patterns of exactly as many rounds as fit, up to `most`, and of fewer."""
  for size in range(1, most + 1):
    for rounds in itertools.combinations(range(num_rounds), size):
      if all(b - a >= min_separation for a, b in itertools.pairwise(rounds)):
        yield list(rounds)


def brute_force(matrix, min_separation, most):
  """The squared sensitivity: the updates' worst directions agree or oppose as C^T C has it."""
  gram = np.abs(matrix.T @ matrix)
  return max(gram[np.ix_(p, p)].sum() for p in patterns(len(gram), min_separation, most))


def random_strategy(rng, kind, num_rounds):
  """A strategy with random coefficients."""
  if kind == "banded":
    diagonals = rng.uniform(-1, 1, (min(rng.integers(1, 5), num_rounds), num_rounds))
    diagonals[0] = rng.uniform(0.5, 1.5, num_rounds)
    for i in range(len(diagonals)):
      diagonals[i, num_rounds - i :] = 0
    return BandedStrategy(diagonals)
  c = rng.uniform(-1 if kind == "signed" else 0, 1, rng.integers(1, num_rounds + 1))
  if kind == "decreasing":
    c = np.sort(c)[::-1]
  c[0] += 0.5
  return from_coefficients(c, num_rounds, 0)


@pytest.mark.parametrize("kind", ["decreasing", "unordered", "signed", "banded"])
def test_no_pattern_exceeds_the_sensitivity_and_exact_ones_are_reached(kind):
  """500 strategies and participations in all."""
  rng = np.random.default_rng(1)
  ratios = []
  for _ in range(125):
    n = int(rng.integers(1, 13))
    b, k = int(rng.integers(1, n + 1)), int(rng.integers(1, 5))
    strategy = random_strategy(rng, kind, n)
    stated = strategy.sensitivity(min_separation=b, max_participations=k) ** 2
    truth = brute_force(strategy.matrix(), b, min(k, -(-n // b)))
    ratios.append(stated / truth)
    separate = b >= strategy.bands
    if kind == "decreasing" or separate or min(k, -(-n // b)) == 1:
      assert stated == pytest.approx(truth, rel=1e-12)
  assert min(ratios) > 1 - 1e-12
  assert np.median(ratios) < 1.1


def test_columns_that_do_not_meet_need_no_matrix():
  """Of 100,000 rounds it would take 80 GB."""
  strategy = from_coefficients(np.array([1.0, -0.2, 0.5]), 100_000, 0)
  squared = strategy.sensitivity(min_separation=4, max_participations=7) ** 2
  assert squared == pytest.approx(7 * 1.29)


def test_rows_for_columns_and_separations_off_by_one_are_refuted():
  """What the comparison with brute force would catch: numbers that are not bounds."""
  rng = np.random.default_rng(2)
  by_rows, wider, fewer = 0, 0, 0
  for _ in range(50):
    strategy = random_strategy(rng, "banded", 12)
    matrix, b = strategy.matrix(), max(2, len(strategy.diagonals))
    truth = brute_force(matrix, b, 3)
    by_rows += heaviest_pattern(np.sum(matrix**2, axis=1), b, 3) < truth * 0.99
    wider += strategy.squared_sensitivity(b + 1, 3) < truth * 0.99
    fewer += strategy.squared_sensitivity(b, 2) < truth * 0.99
  assert min(by_rows, wider, fewer) > 10


@pytest.mark.parametrize("n", [1, 5, 8, 12])
def test_a_trees_sensitivity_is_exact(n):
  for b, k in itertools.product((1, 2, 3, 5), (1, 2, 4)):
    stated = mf.tree(n).sensitivity(min_separation=b, max_participations=k) ** 2
    truth = brute_force(mf.tree(n).matrix(), b, min(k, -(-n // b)))
    assert stated == pytest.approx(truth, rel=1e-12)


def test_patterns_of_published_trees():
  for (k, b, n), expected in {
    (1, 8, 8): 4, (3, 4, 9): 11, (3, 3, 7): 9, (8, 1, 8): 120, (8, 3, 24): 88,
  }.items():  # fmt: skip
    squared = mf.tree(n).sensitivity(min_separation=b, max_participations=k) ** 2
    assert squared == pytest.approx(expected, rel=1e-12)


def test_the_bound_on_patterns_is_a_bound_where_rounds_meet():
  gram = RNG.normal(size=(10, 10))
  gram = gram @ gram.T
  assert pattern_bound(gram, 3, 1) == pytest.approx(np.max(np.diagonal(gram)))
  assert heaviest_pattern(np.diagonal(gram), 3, 4) <= pattern_bound(gram, 3, 4)


def every_round_of_every_pass(weights, min_separation, most):
  """The heaviest pattern of at most `most` rounds, without the windows of the real one."""
  best = [0.0] * len(weights)
  for _ in range(most):
    fewer, best = best, []
    for t, weight in enumerate(weights):
      with_last = weight + (fewer[t - min_separation] if t >= min_separation else 0.0)
      best.append(max(with_last, best[-1]) if best else with_last)
  return best[-1]


def test_the_heaviest_pattern_is_that_of_a_plain_programme():
  """To the bit, also where more rounds are allowed than fit, or rounds are worth nothing."""
  rng = np.random.default_rng(3)
  for _ in range(300):
    n, b, k = rng.integers(1, (30, 35, 35)).tolist()
    weights = rng.exponential(size=n) ** 3 * rng.integers(0, 2, n)
    assert heaviest_pattern(weights, b, k) == every_round_of_every_pass(weights, b, k)


def test_the_heaviest_pattern_of_many_rounds_takes_no_pass_over_all_for_each():
  """A pass over all 100,000 rounds for each of 50,000 of them would take minutes."""
  weights = np.arange(100_000.0) % 7
  assert heaviest_pattern(weights, 1, 100_000) == weights.sum()
  assert heaviest_pattern(weights, 2, 50_000) >= weights[1::2].sum()


STRATEGIES = {
  "identity": mf.identity,
  "square root": mf.square_root_toeplitz,
  "square root, banded": lambda n: mf.square_root_toeplitz(n, bands=4),
  "inverse square root": lambda n: mf.banded_inverse_square_root(n, 4),
  "banded Toeplitz": lambda n: mf.banded_toeplitz(n, 4),
  "buffered": lambda n: mf.buffered_toeplitz(n, buffers=2),
  "banded": lambda n: mf.banded(n, 4),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_errors_are_those_of_the_matrices(name):
  """By dense linear algebra, for prefix sums, momentum and any lower triangular workload."""
  n = 24
  strategy = STRATEGIES[name](n)
  inverse = np.linalg.inv(strategy.matrix())
  momentum = np.cumsum(0.9 ** np.arange(n))
  any_one = np.tril(RNG.normal(size=(n, n)))
  toeplitz = np.tril(momentum[np.abs(np.subtract.outer(np.arange(n), np.arange(n)))])
  for workload, matrix in (
    (None, np.tril(np.ones((n, n)))), (momentum, toeplitz), (any_one, any_one),
  ):  # fmt: skip
    expected = np.sum((matrix @ inverse) ** 2, axis=1)
    np.testing.assert_allclose(strategy.squared_errors(workload), expected, rtol=1e-9)
  sensitivity = math.sqrt(brute_force(strategy.matrix(), 8, 3))
  errors = np.sum(np.cumsum(inverse, axis=0) ** 2, axis=1)
  scope = {"min_separation": 8, "max_participations": 3}
  assert strategy.root_mean_squared_error(**scope) >= sensitivity * math.sqrt(errors.mean()) * (
    1 - 1e-9
  )
  assert strategy.max_error(**scope) == pytest.approx(
    strategy.sensitivity(**scope) * math.sqrt(errors.max()), rel=1e-9
  )


def test_a_trees_errors_are_those_of_its_estimates():
  """The best weights of a node's own noise and its children's estimates, by least squares."""
  n = 8
  variances = mf.tree(n).squared_errors()
  # Honaker's estimate of the root: every node below it, weighted by its precision.
  assert variances[0] == 1.0
  assert variances[1] == pytest.approx(2 / 3)
  assert variances[2] == pytest.approx(2 / 3 + 1)
  assert variances[3] == pytest.approx(4 / 7)
  assert variances[7] == pytest.approx(8 / 15)


@pytest.mark.parametrize(
  ("n", "expected"),
  [(2, 1.25), (100, 2.531352), (1000, 3.265003), (2048, 3.493229), (100_000, 4.730953)],
)
def test_published_errors_of_the_square_root(n, expected):
  assert mf.square_root_toeplitz(n).max_error(max_participations=1) == pytest.approx(
    expected, abs=6e-7
  )


@pytest.mark.parametrize(
  ("n", "k", "b", "mean", "largest"),
  [
    (2052, 6, 342, 8.97816, 11.04810),
    (2048, 8, 256, 10.94787, 13.82581),
    (64, 4, 16, 4.721414, 5.877920),
  ],
)
def test_published_errors_of_the_banded_square_root(n, k, b, mean, largest):
  strategy = mf.square_root_toeplitz(n, bands=b)
  scope = {"min_separation": b, "max_participations": k}
  assert strategy.root_mean_squared_error(**scope) == pytest.approx(mean, abs=6e-6)
  assert strategy.max_error(**scope) == pytest.approx(largest, abs=6e-6)


@pytest.mark.parametrize(
  ("bands", "expected"), [(2, 45.376), (4, 31.409), (8, 22.852), (16, 17.083), (64, 10.590)]
)
def test_published_errors_of_the_banded_inverse_square_root(bands, expected):
  strategy = mf.banded_inverse_square_root(2052, bands)
  error = strategy.root_mean_squared_error(min_separation=342, max_participations=6)
  assert error == pytest.approx(expected, abs=6e-4)
  assert mf.identity(2052).root_mean_squared_error(
    min_separation=342, max_participations=6
  ) == pytest.approx(78.48, abs=6e-3)


@pytest.mark.parametrize(
  ("n", "bands", "error", "first"),
  [
    (64, 8, 7.0967619, [1, 0.58774, 0.47846, 0.41829]),
    (500, 16, 22.106314, [1, 0.62730, 0.53711, 0.49153]),
  ],
)
def test_the_optimised_banded_toeplitz_strategy_is_the_published_one(n, bands, error, first):
  strategy = mf.banded_toeplitz(n, bands)
  found = strategy.root_mean_squared_error(min_separation=bands, max_participations=1) ** 2
  assert found == pytest.approx(error, rel=1e-7)
  np.testing.assert_allclose(strategy.coefficients[:4], first, atol=2e-4)


@pytest.mark.sweep
@pytest.mark.parametrize(
  ("n", "buffers", "expected", "over"),
  [
    (10_000, 3, 4.033252, 1.0258), (100_000, 4, 4.757684, 1.0199), (1_000_000, 5, 5.486481, 1.0165)
  ],
)  # fmt: skip
def test_buffers_reach_the_published_errors(n, buffers, expected, over):
  error = mf.buffered_toeplitz(n, buffers=buffers).max_error(max_participations=1)
  assert error <= expected * (1 + 1e-6)
  assert error / (1 + math.log(n) / math.pi) == pytest.approx(over, abs=1e-4)


def test_two_buffers_are_the_published_ones():
  strategy = mf.buffered_toeplitz(100_000, buffers=2)
  np.testing.assert_allclose(strategy.decay, [0.9999528892, 0.9857068667], rtol=1e-6)
  np.testing.assert_allclose(strategy.scale, [0.0122853238, 0.1878393665], rtol=1e-4)
  assert strategy.sensitivity(max_participations=1) == pytest.approx(2.041272, abs=2e-5)
  assert strategy.max_error(max_participations=1) == pytest.approx(5.296747, rel=1e-6)


def test_buffers_for_several_participations_beat_those_for_one():
  scope = {"min_separation": 50, "max_participations": 4}
  several = mf.buffered_toeplitz(200, buffers=2, objective="mean", **scope)
  one = mf.buffered_toeplitz(200, buffers=2, objective="mean")
  assert several.root_mean_squared_error(**scope) < one.root_mean_squared_error(**scope)
  assert several.squared_sensitivity(50, 4) == pytest.approx(
    from_coefficients(several.coefficients, 200, 2).squared_sensitivity(50, 4)
  )


@pytest.mark.parametrize(
  ("n", "separation", "most"), [(200, 50, 4), (200, 1, 200), (199, 7, 20), (50, 50, 1), (2, 1, 2)]
)
def test_the_search_for_buffers_knows_their_sensitivity(n, separation, most):
  """By series over all pairs of participations, against the coefficients themselves."""
  strategy = mf.buffered_toeplitz(100, buffers=2)
  found = buffered._squared_sensitivity(strategy.decay, strategy.inverse_decay, n, separation, most)
  longer = buffered._strategy(strategy.decay, strategy.inverse_decay, n)
  assert found == pytest.approx(longer.squared_sensitivity(separation, most), rel=1e-12)


@pytest.mark.parametrize("rounds", [1, 7, 24])
def test_nodes_above_two_rounds_are_counted(rounds):
  columns = mf.tree(rounds).matrix()
  np.testing.assert_array_equal(trees._nodes_above(rounds), columns.T @ columns)


@pytest.mark.sweep
@pytest.mark.parametrize("n", [48, 9])
def test_more_buffers_than_a_short_run_needs_do_no_harm(n):
  """Decays then meet, where the formulas divide by zero."""
  scope = {"min_separation": 20, "max_participations": None}
  few, many = (
    mf.buffered_toeplitz(n, buffers=b, objective="mean", **scope).root_mean_squared_error(**scope)
    for b in (1, 4)
  )
  assert many <= few * (1 + 1e-6)


def test_two_rounds_have_the_known_optimum():
  strategy = mf.banded(2, 2)
  columns = strategy.matrix()
  assert (columns.T @ columns)[0, 1] == pytest.approx(0.381966, abs=1e-6)
  error = 2 * strategy.root_mean_squared_error(max_participations=1) ** 2
  assert error == pytest.approx(2.618034, abs=1e-6)


@pytest.mark.sweep
@pytest.mark.parametrize("objective", ["mean", "max"])
def test_free_bands_are_no_worse_than_toeplitz_ones(objective):
  n, bands = 64, 8
  errors = [
    getattr(make(n, bands, objective=objective), name)(min_separation=bands, max_participations=1)
    for make in (mf.banded, mf.banded_toeplitz)
    for name in ["root_mean_squared_error" if objective == "mean" else "max_error"]
  ]
  assert errors[0] < errors[1] * 0.99


@pytest.mark.parametrize(
  ("multiplier", "squared", "expected"), [(1.411, 0.6, 3.4240073), (8.35, 2.0, 0.9935500)]
)
def test_a_run_is_one_gaussian_release(multiplier, squared, expected):
  event = Round(PoissonSampling(1.0), GaussianSum(math.sqrt(squared), multiplier))
  stated = accounting.epsilon(Ledger().append(event), 1e-10, accountant="pld")
  assert stated == pytest.approx(expected, rel=1e-3)
  assert stated >= expected * (1 - 1e-6)


@pytest.mark.parametrize(
  "make",
  [
    lambda: mf.identity(0),
    lambda: mf.square_root_toeplitz(10, bands=0),
    lambda: mf.banded_toeplitz(10, 2, objective="median"),
    lambda: mf.buffered_toeplitz(1, buffers=2),
    lambda: mf.tree(2.5),
    lambda: mf.identity(4).sensitivity(min_separation=0),
    lambda: mf.identity(4).sensitivity(max_participations=0),
    lambda: mf.identity(4).max_error(workload=np.ones(5)),
    lambda: mf.identity(4).max_error(workload=np.ones((4, 4))),
    lambda: mf.tree(4).max_error(workload=np.ones(4)),
  ],
)
def test_invalid_arguments_are_refused(make):
  with pytest.raises(ValueError, match="Expected"):
    make()


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int64])
@pytest.mark.parametrize(
  "strategy",
  [
    mf.banded_toeplitz(120, 3),
    mf.square_root_toeplitz(120),
    mf.banded_inverse_square_root(120, 3),
    mf.tree(120),
  ],
  ids=lambda strategy: type(strategy).__name__,
)
def test_small_integers_do_not_overflow_to_a_sensitivity_of_zero(strategy, kind):
  for separation in (7, 50, 100):
    expected = strategy.sensitivity(min_separation=separation, max_participations=10)
    found = strategy.sensitivity(min_separation=kind(separation), max_participations=kind(10))
    assert found == expected > 0


def test_rounds_farther_apart_than_the_run_is_long_are_one():
  for strategy in (mf.banded(12, 3), mf.banded_toeplitz(12, 3), mf.tree(12)):
    one = strategy.sensitivity(max_participations=1)
    assert strategy.sensitivity(min_separation=10**30) == pytest.approx(one, rel=1e-12)
