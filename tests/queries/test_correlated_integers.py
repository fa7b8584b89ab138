"""Integers with correlated noise by the clients: exact costs, who was lost, and named seeds."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy

from experiments.client_dropout import enumeration
from jdp import accounting
from jdp.accounting import gaussian_epsilon
from jdp.events import CyclicPoissonSampling, MinSeparationSampling, PoissonSampling, Round
from jdp.ledger import Ledger
from jdp.matrix_factorization import (
  banded,
  banded_inverse_square_root,
  banded_toeplitz,
  identity,
  square_root_toeplitz,
)
from jdp.matrix_factorization.toeplitz import from_coefficients
from jdp.queries import correlated_integers
from jdp.queries.distributed.correlated_integer_sums import on_lattice
from jdp.queries.distributed.correlated_rows import ClientNoise, rows_for
from tests.helpers import statistical

N, DIM, ROUNDS, DELTA = 6, 4096, 4, 1e-4
LIKE = jnp.zeros(DIM)
STRATEGY = square_root_toeplitz(ROUNDS, bands=3)
QUERY = correlated_integers(LIKE, 1.0, 2.0, STRATEGY, num_clients=N, max_dropout=0.5)
FINALIZE = jax.jit(QUERY.finalize)
EVERYBODY = PoissonSampling(1.0)


def present(*missing, nameless=()):
  """Who reports and who names seeds, without some of each."""
  clients = np.arange(N)
  reported = ~np.isin(clients, missing)
  return jnp.array([reported, reported & ~np.isin(clients, nameless)])


def everybody():
  return [present()] * ROUNDS


def run(key, presents, query=QUERY, finalize=FINALIZE):
  """The results of a run whose records are all zero, and the states after its rounds."""
  state, results, states = query.init(LIKE), [], []
  for number, here in enumerate(presents):
    result, _, state = finalize(
      jax.random.fold_in(key, number), state, jnp.zeros(DIM, jnp.int32), here
    )
    results.append(np.asarray(result))
    states.append(state)
  return np.stack(results), states


def stated(query, sampling=EVERYBODY, **options):
  """The epsilon of all rounds of a run."""
  rounds = (
    (Round(sampling, dataclasses.replace(query.plan, index=number), "zero_out"), 1)
    for number in range(query.plan.num_rounds)
  )
  return accounting.epsilon(Ledger().extend(rounds), DELTA, **options)


@pytest.mark.parametrize("missing", [(), [(0, 0)], [(0, 0), (0, 1)]])
def test_exact_epsilons_are_at_most_the_stated_one(missing):
  """Of four clients who send a number in two rounds, and one of whom misses some of them.

  Standard deviations that are 6 % too small are found, and rows that do not grow with the loss.
  """
  query = correlated_integers(
    jnp.zeros(1), 1.0, 1.5, square_root_toeplitz(2), num_clients=4, max_dropout=0.25,
    modulus_bits=10,
  )  # fmt: skip
  mutant = np.full_like(query.stddevs, query.stddevs[0]) if missing else 0.94 * query.stddevs
  found, less = (
    enumeration.cost_of_a_run(query._replace(stddevs=own), 4, missing, DELTA, width=320)[0]
    for own in (query.stddevs, mutant)
  )
  # Rounding S down to an integer, and the lattice's share of the noise, are the rest.
  assert 0.8 * stated(query) < found <= stated(query) < less


def test_rows_that_could_outgrow_32_bits_are_refused():
  """The inverse of (1, 4) grows fourfold by round: a wrapped row would tell of earlier ones."""
  strategy = from_coefficients(np.array([1.0, 4.0]), 9, 1)
  with pytest.raises(ValueError, match="lower modulus_bits, or take a strategy with a smaller inv"):
    correlated_integers(
      jnp.zeros(4), 1.0, 2.0, strategy, num_clients=1, max_wrap_probability=0.5, modulus_bits=31
    )


def test_draws_that_are_too_many_to_be_near_gaussian_noise_are_refused():
  """A finer grid helps where rows are nearly too coarse, and nothing does with too many sums."""
  most = 2**19 - 1
  given = {"num_clients": most, "least": most, "dim": 2**16}
  assert rows_for(STRATEGY, most * 200.0, **given).parts.base == pytest.approx(196)
  with pytest.raises(
    ValueError, match=r"draws in all to be near Gaussian noise, got 17; raise mod"
  ):
    rows_for(STRATEGY, most * 21.0, **given)
  rows_for(STRATEGY, 1e4, 2, 2, int(1.44e8) // STRATEGY.num_rounds)
  with pytest.raises(ValueError, match=r"at most 1\.45e\+08 coordinates of all rounds' sums"):
    rows_for(STRATEGY, 1e4, 2, 2, int(1.46e8) // STRATEGY.num_rounds)


def test_the_cost_of_large_numbers_is_that_of_the_noise():
  """So the enumeration sees all of it, and the lattice's share is the whole difference."""
  variance, norm = 813.5, 40
  clients = [enumeration.Client((True, True), (variance, variance))] * 2
  sums = enumeration.sums(clients, (1.0, 0.5), width=300)
  found = enumeration.epsilon(sums, enumeration.moves(2, norm), DELTA)
  exact = gaussian_epsilon(math.sqrt(2 * variance / 3.25) / norm, DELTA)
  assert found == pytest.approx(exact, rel=1e-6)


def test_rounding_to_the_nearest_integer_costs_more_than_is_stated():
  """On a coarse lattice it tells of earlier noise. Random rounding does not."""
  clients = [enumeration.Client((True, True), (2.0, 2.0))]
  planned = gaussian_epsilon(math.sqrt(2.0 / 3.25), DELTA)
  costs = [
    enumeration.epsilon(
      enumeration.sums(clients, (1.0, 0.5), width=30, rounding=rounding),
      enumeration.moves(2, 1),
      DELTA,
    )
    for rounding in (enumeration.by_nearest, enumeration.by_discrete_gaussian)
  ]
  assert costs[0] > 1.2 * planned
  assert costs[1] < planned


def test_a_clients_rows_have_the_distribution_that_is_enumerated(key):
  """By a chi-square test at 1e-6 on 65,536 coordinates; rounding to the nearest is rejected."""
  query = correlated_integers(
    jnp.zeros(2**16), 1.0, 0.05, square_root_toeplitz(2), num_clients=1, modulus_bits=7
  )
  make, noise = jax.jit(query.make), ClientNoise(*(x[0] for x in query.init(LIKE).noise))
  reports = []
  for number in range(2):
    noise = make(jax.random.fold_in(key, number), number, noise)
    reports.append(np.asarray(noise.owed))
    noise = noise._replace(owed=jnp.zeros_like(noise.owed))
  width = 80
  variance = float(query.stddevs[0] / query.grid.spacing) ** 2
  assert 20 < variance < 100
  first, second = np.meshgrid(*[np.arange(-width, width + 1)] * 2, indexing="ij")

  def cell(first, second):
    """The remainder of one row by 4, and how far the other is from its fraction."""
    apart = (2 * second + first) / (2 * math.sqrt(variance))
    return (first % 4) * 9 + np.digitize(apart, np.linspace(-1.5, 1.5, 8))

  counts = np.bincount(cell(*reports), minlength=36)
  used = np.bincount(cell(first, second).ravel(), minlength=36) > 0
  pvalues = []
  for rounding in (enumeration.by_discrete_gaussian, enumeration.by_nearest):
    client = enumeration.Client((True, True), (variance, variance))
    sums = enumeration.sums([client], (1.0, 0.5), width=width, rounding=rounding)
    expected = np.bincount(cell(first, second).ravel(), sums.ravel(), minlength=36) * 2**16
    pvalues.append(scipy.stats.chisquare(counts[used], expected[used]).pvalue)
  assert pvalues[0] > 1e-6
  assert pvalues[1] < 1e-12


def test_rows_of_the_sum_are_those_of_one_server(key):
  """C times the sums is independent noise of the planned deviation in each round.

  The false-failure rate is that of `assert_normal_stddev`, for each of three rounds.
  """
  results, _ = run(key, everybody())
  independent = QUERY.strategy.matrix() @ results
  for row in independent[1:]:
    statistical.assert_normal_stddev(row, QUERY.stddevs[0] * math.sqrt(N), catches=0.1)
  # Entries of neighbouring rounds are uncorrelated: 5 standard deviations of a mean of 4,096.
  products = independent[1:] * independent[:-1] / (N * QUERY.stddevs[0] ** 2)
  assert np.all(np.abs(products.mean(axis=1)) < 5 / math.sqrt(DIM))
  # As w is itself, a correlation of -1/2 would be seen.
  assert (results[1] * results[0]).mean() / (N * QUERY.stddevs[0] ** 2) < -0.3


def test_noise_is_that_of_the_fewest_clients_so_far(key):
  """Two are lost in the second round, and come back: from then on four have enough."""
  presents = [present(), present(0, 1), present(), present()]
  results, states = run(key, presents)
  assert [int(state.fewest) for state in states] == [6, 4, 4, 4]
  # All sums together hold the rows of all clients.
  clients_rows = np.asarray(states[-1].noise.rows, np.float64)
  assert not np.any(states[-1].noise.owed)
  total = results.sum(axis=0)
  weights = np.linalg.inv(QUERY.strategy.matrix()).sum(axis=0)
  levels = QUERY.stddevs[[0, 2, 2, 2]]
  expected = math.sqrt(N * np.sum((weights * levels) ** 2))
  statistical.assert_normal_stddev(total, expected, catches=0.1)
  assert clients_rows.shape == (N, 2, DIM)


def test_who_names_nothing_leaves_all_noise(key):
  """All six do, in the first round: the noise is that which three would need."""
  results, _ = run(key, [present(nameless=range(N))])
  statistical.assert_normal_stddev(results[0], QUERY.stddevs[-1] * math.sqrt(N), catches=0.1)
  needed = QUERY.stddevs[0] ** 2 * N
  assert QUERY.stddevs[-1] ** 2 * 3 == pytest.approx(needed, rel=1e-3)


def test_levels_suffice_and_are_no_more_than_a_part_above():
  missing = np.arange(4)
  together = QUERY.stddevs**2 * (N - missing)
  assert np.all(together >= together[0] * (1 - 1e-12))
  assert np.all(together <= together[0] * (1 + 1 / 31 + 1e-9))


@pytest.mark.slow
def test_message_by_message_it_is_the_same(key):
  """Clients make, report and trim their rows; the server takes off what was named."""
  presents = [present(), present(0, 1), present(0), present(5, nameless=(1,))]
  expected, states = run(key, presents)
  make, trim = jax.jit(jax.vmap(QUERY.make, (0, None, 0))), jax.vmap(QUERY.trim, (0, None, None, 0))
  noise = QUERY.init(LIKE).noise
  for number, here in enumerate(presents):
    keys = jax.random.split(jax.random.fold_in(key, number), N)
    reported, named = np.asarray(here)
    with jax.debug_key_reuse(False):
      noise = make(keys, number, noise)
      total = np.asarray(noise.owed)[reported].sum(axis=0)
      seeds, trimmed = jax.jit(trim)(keys, number, states[number].fewest, noise)
    total -= np.asarray(seeds)[named].sum(axis=0)
    untrimmed = (reported & ~named)[:, None]
    noise = ClientNoise(
      jnp.where(untrimmed[:, None], noise.rows, trimmed.rows),
      jnp.where(reported[:, None], 0, trimmed.owed),
    )
    np.testing.assert_array_equal(noise.rows, states[number].noise.rows)
    np.testing.assert_array_equal(noise.owed, states[number].noise.owed)
    # Decoding rotates the sum, and takes it times the spacing.
    length = np.linalg.norm(expected[number]) / QUERY.grid.spacing
    assert np.linalg.norm(total) == pytest.approx(length, rel=1e-4)


def test_an_abandoned_round_tells_nothing_and_its_noise_is_owed(key):
  results, states = run(key, [present(0, 1, 2, 3), present()])
  assert not np.any(results[0])
  assert int(states[0].fewest) == N
  assert np.all(np.any(np.asarray(states[0].noise.owed) != 0, axis=1))
  inverse = np.linalg.inv(QUERY.strategy.matrix())[:2].sum(axis=0)
  expected = QUERY.stddevs[0] * math.sqrt(N) * np.linalg.norm(inverse)
  statistical.assert_normal_stddev(results[1], expected, catches=0.1)


def test_beyond_the_strategy_nothing_is_released(key):
  results, _ = run(key, [*everybody(), present()])
  assert np.all(np.isnan(results[-1]))
  assert not np.any(np.isnan(results[:-1]))


def test_sums_are_those_of_the_records(key):
  state = QUERY.init(LIKE)
  record = jnp.zeros(DIM).at[3].set(2.0)
  encode = jax.jit(QUERY.encode)
  encoded = encode(key, state, record, jnp.float32(1))
  assert not np.any(encode(jax.random.key(5), state, record, jnp.float32(0)))
  noise_key = jax.random.key(1)
  with jax.debug_key_reuse(False):
    sums = [FINALIZE(noise_key, state, x, present())[0] for x in (encoded, 0 * encoded)]
  # Unbiased rounding moves each coordinate by less than a unit.
  difference = sums[0] - sums[1]
  assert float(jnp.linalg.norm(difference - record / 2)) < QUERY.grid.spacing * math.sqrt(DIM)


def test_it_costs_a_central_run_and_is_not_amplified():
  pattern = {"min_separation": 3, "max_participations": 2}
  query = correlated_integers(
    LIKE, 1.0, 2.0, banded_toeplitz(9, 3), num_clients=9, max_dropout=0.2, **pattern
  )
  sampling = MinSeparationSampling(3, 2, 9, by_identity=True)
  central = gaussian_epsilon(2.0 / query.strategy.sensitivity(**pattern), DELTA)
  assert stated(query, sampling) == pytest.approx(central, rel=1e-3)
  assert stated(query, sampling, relation="replace_one") > central
  with pytest.raises(ValueError, match="takes its noise along"):
    stated(query, sampling, relation="add_remove")


def test_coins_do_not_amplify_noise_by_the_owners():
  query = correlated_integers(
    LIKE, 1.0, 2.0, banded_toeplitz(9, 3), num_clients=9, min_separation=3
  )
  whole = stated(query, MinSeparationSampling(3, 3, 9))
  assert stated(query, CyclicPoissonSampling(3, 0.1, 9)) == pytest.approx(whole, rel=1e-9)


def test_the_lattice_costs_what_it_is_stated_to():
  """sigma^2 = z^2 S^2 + 6 n |C|^2."""
  gain = on_lattice(STRATEGY).coefficients.sum()
  planned = (2.0 * QUERY.grid.l2_norm) ** 2 + 6 * N * gain**2
  assert N * (QUERY.stddevs[0] / QUERY.grid.spacing) ** 2 == pytest.approx(planned, rel=1e-4)


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"num_clients": 2**19}, "num_clients"),
    ({"max_dropout": 1.0}, "max_dropout < 1"),
    ({"max_dropout": math.nan}, "max_dropout"),
    ({"noise_multiplier": 0.0}, "noise_multiplier"),
    ({"modulus_bits": 1}, "modulus_bits"),
    ({"modulus_bits": 6}, "raise modulus_bits"),
    ({"modulus_bits": 31}, "coarser unit"),
    ({"strategy": banded_inverse_square_root(4, 2)}, None),
  ],
)
def test_refuses_what_it_cannot_keep(changes, message):
  arguments = {
    "record": jnp.zeros(3), "clip_norm": 1.0, "noise_multiplier": 2.0, "strategy": STRATEGY,
    "num_clients": 4,
  } | changes  # fmt: skip
  if message is None:
    assert correlated_integers(**arguments).plan.bands == 4
    return
  with pytest.raises(ValueError, match=message):
    correlated_integers(**arguments)


def test_refuses_strategies_that_losses_might_make_dearer():
  with pytest.raises(TypeError, match="Expected a Toeplitz strategy, got BandedStrategy"):
    on_lattice(banded(4, 2))
  with pytest.raises(ValueError, match="Expected coefficients >= 0"):
    on_lattice(from_coefficients(np.array([1.0, -0.5]), 4, 1))
  assert on_lattice(identity(3)).bands == 1
