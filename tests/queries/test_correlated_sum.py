"""Correlated noise: what is released has the strategy's covariance, and hides what the event says.

A stochastic test is wrong with probability 1e-6 over its keys, and misses an error of 2 % with 1e-3
at most.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import linalg, stats

from jdp import matrix_factorization as mf
from jdp import queries
from jdp.matrix_factorization import noise
from jdp.matrix_factorization.banded_matrices import BandedStrategy
from jdp.queries import correlated_sum
from tests.helpers import statistical

ROUNDS, DIM, Z, S, SEPARATION = 7, 400_000, 1.5, 2.0, 3
STRATEGIES = {
  "banded_toeplitz": lambda: mf.banded_toeplitz(ROUNDS, 3),
  "buffered": lambda: mf.buffered_toeplitz(ROUNDS, buffers=2),
  "tree": lambda: mf.tree(ROUNDS),
  "banded_inverse": lambda: mf.banded_inverse_square_root(ROUNDS, 3),
  "identity": lambda: mf.identity(ROUNDS),
  "square_root": lambda: mf.square_root_toeplitz(ROUNDS),
  "banded": lambda: mf.banded(ROUNDS, 3),
  "diagonal": lambda: BandedStrategy(np.linspace(0.5, 2.0, ROUNDS)[None]),
}
every_strategy = pytest.mark.parametrize("name", STRATEGIES)


def released(query, sums, key, record=None):
  """The results of all rounds, [n, d], and the events."""
  record = sums[0] if record is None else record

  @jax.jit
  def run(keys):
    def step(state, total_and_key):
      result, event, state = query.finalize(total_and_key[1], state, total_and_key[0])
      return state, (result, event)

    return jax.lax.scan(step, query.init(record), (sums, keys))[1]

  return run(jax.random.split(key, len(jax.tree.leaves(sums)[0])))


def measured(query, scale=1.0):
  """The second moments of a run's noise over its coordinates, [n, n], and the events."""
  sums = jnp.broadcast_to(3 * jnp.arange(7.0)[:, None], (ROUNDS, DIM))
  results, events = released(query, sums, jax.random.key(5))
  found = (np.asarray(results, np.float64) - np.asarray(sums)) / np.reshape(scale, (-1, 1))
  return found @ found.T / DIM, events


@functools.cache
def measured_strategy(name):
  query = queries.correlated_gaussian_sum(
    S, Z, STRATEGIES[name](), min_separation=SEPARATION, max_participations=2
  )
  return measured(query, S * Z)


def tree_decoder(rounds):
  """Honaker's estimates from below: a node's sum is estimated by its own subtree alone, at best."""
  encoder = mf.tree(rounds).matrix()
  rows = []
  for end in range(1, rounds + 1):
    row, start = np.zeros(len(encoder)), 0
    for size in (2**level for level in reversed(range(rounds.bit_length())) if end >> level & 1):
      below = np.zeros(rounds)
      below[start : start + size] = 1
      inside = (encoder @ (1 - below) == 0) & (encoder @ below > 0)
      columns = encoder[np.ix_(inside, below > 0)]
      row[inside] = np.sum(linalg.pinv(columns), axis=0)
      start += size
    rows.append(row)
  return np.stack(rows)


def noise_factor(name):
  """The matrix that turns Z into the noise of the rounds."""
  if name == "tree":
    prefix_sums = tree_decoder(ROUNDS)
    return np.diff(prefix_sums, axis=0, prepend=0)
  return linalg.inv(STRATEGIES[name]().matrix())


def assert_covariance(found, factor):
  """`found` is factor factor^T within 2 % of the standard deviations, entry by entry."""
  expected = factor @ factor.T
  size = np.sqrt(np.diag(expected))
  error = np.sqrt(2 / DIM)  # at most, of an entry over the standard deviations
  threshold = stats.norm.isf(statistical.FALSE_FAILURE / 2 / ROUNDS**2) * error
  assert threshold + stats.norm.isf(statistical.MISS) * error < 0.02
  off = np.max(np.abs(found - expected) / np.outer(size, size))
  # The dither adds a variance of 1/3072 of the noise that a round alone has.
  assert off <= threshold + 1 / 3072, f"a covariance is off by {off:.3g}, allowed {threshold:.3g}"


@pytest.mark.slow
@every_strategy
def test_released_noise_has_the_covariance_of_the_strategy(name):
  """So have the sums so far, of which the last is that of all noise: the theory's errors."""
  found = measured_strategy(name)[0]
  assert_covariance(found, noise_factor(name))
  sums = np.tril(np.ones((ROUNDS, ROUNDS)))
  assert_covariance(sums @ found @ sums.T, sums @ noise_factor(name))
  theory = STRATEGIES[name]().squared_errors()
  np.testing.assert_allclose(np.sum((sums @ noise_factor(name)) ** 2, 1), theory, rtol=1e-9)


def patterns(separation, most):
  """All patterns of a user's rounds."""
  for size in range(1, most + 1):
    for rounds in itertools.combinations(range(ROUNDS), size):
      if all(later - earlier >= separation for earlier, later in itertools.pairwise(rounds)):
        yield list(rounds)


def hidden(covariance, separation, most):
  """How far a user moves the releases over their measured noise, squared, at worst."""
  precision = linalg.inv(covariance)
  signs = [np.array((1.0, *rest)) for rest in itertools.product((-1.0, 1.0), repeat=most - 1)]
  return max(
    s[: len(p)] @ precision[np.ix_(p, p)] @ s[: len(p)]
    for p in patterns(separation, most)
    for s in signs
  )


@pytest.mark.sweep
@every_strategy
def test_the_event_states_how_far_a_user_moves_the_released_noise(name):
  """The bound from the rounds' *measured* covariance; 3 % hold its error, with all seven rounds.

  Releases hide all rows of a tree but those they do not use, so its bound may be larger.
  """
  covariance, events = measured_strategy(name)
  moved = hidden(covariance, SEPARATION, 2)
  stated = events.squared_sensitivity
  assert moved < 1.03 * stated
  if name not in ("tree", "banded_inverse", "square_root"):  # whose bounds are exact here
    assert moved > 0.97 * stated
  # A plan of rows for columns, or of rounds one closer, would not have passed.
  if name in ("buffered", "square_root"):
    closer = hidden(covariance, SEPARATION - 2, 2)
    assert closer > 1.03 * stated


MUTATIONS = {
  "reused z": lambda source: source._replace(
    draw=lambda key, t, kept, like: source.draw(
      jax.random.wrap_key_data(jnp.zeros(2, jnp.uint32)), t, kept, like
    )
  ),
  "no memory": lambda source: source._replace(settle=lambda drawn, row: source.init(row)),
  "a round late": lambda source: source._replace(
    draw=lambda key, t, kept, like: source.draw(key, t + 1, kept, like)
  ),
  "rows for columns": lambda source: noise.noise_source(
    BandedStrategy(np.ascontiguousarray(_transposed(mf.banded(ROUNDS, 3).diagonals)))
  ),
}


def _transposed(diagonals):
  """The strategy read backwards: its columns become rows."""
  return np.stack([np.roll(row[::-1], -i) for i, row in enumerate(diagonals)])


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_wrong_noise_is_found(monkeypatch, mutation):
  true_source = noise.noise_source
  strategy = mf.banded(ROUNDS, 3)
  monkeypatch.setattr(
    correlated_sum, "noise_source", lambda strategy: MUTATIONS[mutation](true_source(strategy))
  )
  query = queries.correlated_gaussian_sum(S, Z, strategy)
  with pytest.raises(AssertionError, match="a covariance is off"):
    assert_covariance(measured(query, S * Z)[0], linalg.inv(strategy.matrix()))


@pytest.mark.slow
def test_noise_follows_a_clip_norm_that_changes():
  """Noise is correlated on sums over their clip norms, so that no round weighs more."""
  norms = 2.0 ** -np.arange(ROUNDS)
  query = queries.correlated_gaussian_sum(
    lambda step: jnp.exp2(-step.astype(jnp.float32)), Z, mf.square_root_toeplitz(ROUNDS)
  )
  found, events = measured(query, Z * norms)
  assert_covariance(found, linalg.inv(mf.square_root_toeplitz(ROUNDS).matrix()))
  np.testing.assert_allclose(events.clip_norm, norms)


@pytest.mark.slow
def test_an_adaptive_clip_norm_and_its_noise():
  """Sum and count are correlated together: each as the strategy says, over the round's own norm."""
  strategy = mf.square_root_toeplitz(ROUNDS)
  query = queries.adaptive_clipped_sum(
    Z, 10.0, initial_clip_norm=S, learning_rate=0.5, count_stddev=1.0, strategy=strategy
  )
  record = jnp.zeros(DIM)
  total = query.preprocess(jax.random.key(0), query.init(record), record, jnp.float32(0))
  totals = jax.tree.map(lambda x: jnp.broadcast_to(x, (ROUNDS, *x.shape)), total)
  results, events = released(query, totals, jax.random.key(6), record)
  of_sum = (Z**-2 - 2.0**-2) ** -0.5  # what the count leaves
  noise_of_sum = np.asarray(results, np.float64) / (of_sum * np.asarray(events.clip_norm)[:, None])
  assert_covariance(noise_of_sum @ noise_of_sum.T / DIM, linalg.inv(strategy.matrix()))
  assert events.noise_multiplier == Z
  assert len(set(events.clip_norm.tolist())) == ROUNDS
  assert query.public(query.init(record)).kept == ()


@pytest.mark.slow
@pytest.mark.parametrize(
  "make", [functools.partial(mf.square_root_toeplitz, bands=8), mf.tree,
           functools.partial(mf.buffered_toeplitz, buffers=3)]
)  # fmt: skip
def test_roundings_to_the_grid_do_not_add_up(monkeypatch, make):
  """A sum of 256 rounds holds them as it holds noise. Added up they would be 8 times as large."""
  strategy = make(256)
  query = queries.correlated_gaussian_sum(1.0, 16.0, strategy)  # a grid of spacing 1
  zeros = jnp.zeros((256, 400))
  rounded = np.asarray(released(query, zeros, jax.random.key(3))[0], np.float64)
  monkeypatch.setattr(correlated_sum, "on_shifted_grid", lambda x, shift, spacing: x)
  exact = np.asarray(released(query, zeros, jax.random.key(3))[0], np.float64)
  of_sum = np.std(np.sum(rounded - exact, axis=0))
  alone = np.sqrt(1 / 12)  # of one rounding
  # 400 coordinates tell this deviation to 20 % by 5 of their errors.
  assert of_sum < 1.2 * alone * max(1.0, np.sqrt(strategy.squared_errors()[-1]))
  assert np.std(rounded - exact) > 0.8 * alone


@pytest.mark.slow
def test_noise_is_kept_from_clients_and_from_observers():
  query = queries.average(
    queries.grouped(
      {
        "a": queries.correlated_gaussian_sum(1.0, 1.0, mf.square_root_toeplitz(6, bands=3)),
        "b": queries.correlated_gaussian_sum(1.0, 1.0, mf.tree(5)),
      },
      {"x": "a", "y": "b"},
    ),
    4.0,
  )
  record = {"x": jnp.ones(3), "y": jnp.ones(2)}
  state = query.init(record)
  total = query.preprocess(jax.random.key(1), state, record, jnp.float32(1))
  _, _, state = jax.jit(query.finalize)(jax.random.key(0), state, total)
  assert query.num_rounds == 5
  assert sorted(x.shape for x in jax.tree.leaves(state)) == [(), (), (2,), (2, 3), (3, 2)]
  public = query.public(state)
  assert [x.shape for x in jax.tree.leaves(public)] == [(), ()]
  for view in (state, public):
    contribution = query.preprocess(jax.random.key(1), view, record, jnp.float32(1))
    clipped = [float(jnp.linalg.norm(x)) for x in jax.tree.leaves(contribution)]
    np.testing.assert_allclose(clipped, 1.0, rtol=1e-5)


@pytest.mark.sweep
@pytest.mark.parametrize("multiplier", [1.0, 0.0])
def test_rounds_beyond_the_strategys_release_nothing(multiplier):
  query = queries.correlated_gaussian_sum(1.0, multiplier, mf.tree(2))
  results, events = released(query, jnp.ones((4, 2)), jax.random.key(0))
  assert np.isfinite(results[:2]).all()
  assert np.isnan(results[2:]).all()
  assert events.index.tolist() == [0, 1, 2, 3]


def test_without_noise_sums_are_exact():
  query = queries.correlated_gaussian_sum(1.0, 0.0, mf.square_root_toeplitz(3, bands=2))
  sums = jnp.arange(6.0).reshape(3, 2)
  np.testing.assert_array_equal(released(query, sums, jax.random.key(0))[0], sums)


def test_what_is_no_strategy_is_refused():
  with pytest.raises(TypeError, match="strategy"):
    queries.correlated_gaussian_sum(1.0, 1.0, "tree")
  with pytest.raises(ValueError, match="1e-30"):
    queries.correlated_gaussian_sum(1e-20, 1e-20, mf.tree(2))
