"""Privatised optax steps release what the query says, once a step, and say so."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jdp import ledger, queries, transforms
from jdp.events import GaussianSum, PoissonSampling, Round
from jdp.ledger.unstacking import unstack
from jdp.numerics.compensated import add, rounded
from jdp.sampling import Sample
from tests.helpers import statistical

PARAMS = {"w": jnp.zeros((3, 2)), "b": jnp.zeros(2)}


def gradients(n, seed=0):
  """Per-record gradients of norms below and above 1."""
  rng = np.random.default_rng(seed)
  return jax.tree.map(
    lambda x: jnp.asarray(rng.normal(size=(n, *x.shape)) / 3, jnp.float32), PARAMS
  )


def clipped_sum(rows, clip, weights=None):
  """The sum of clipped rows, in float64."""
  x = np.concatenate(
    [np.asarray(rows["b"], np.float64), np.asarray(rows["w"], np.float64).reshape(-1, 6)], axis=1
  )
  x *= np.minimum(1, clip / np.linalg.norm(x, axis=1))[:, None]
  total = x.sum(axis=0) if weights is None else np.asarray(weights) @ x
  return {"b": total[:2], "w": total[2:].reshape(3, 2)}


def assert_trees_close(actual, expected):
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5), actual, expected
  )


def assert_trees_equal(actual, expected):
  jax.tree.map(np.testing.assert_array_equal, actual, expected)


def all_records(n):
  return Sample(jnp.arange(n, dtype=jnp.int32), jnp.ones(n), jnp.int32(n), n)


@pytest.mark.sweep
@pytest.mark.parametrize("weights", [None, [1.0, 0.5, 0.0, 1.0, 0.25]])
def test_privatize_clips_every_row_and_passes_on_to_the_optimizer(key, weights):
  optimizer = optax.chain(transforms.privatize(queries.gaussian_sum(0.7, 0.0), key), optax.sgd(0.1))
  extra = {} if weights is None else {"weights": jnp.array(weights)}
  updates, state = jax.jit(optimizer.update)(gradients(5), optimizer.init(PARAMS), PARAMS, **extra)
  expected = jax.tree.map(lambda x: -0.1 * x, clipped_sum(gradients(5), 0.7, weights))
  assert_trees_close(updates, expected)
  assert (state[0].event, int(state[0].step)) == (GaussianSum(0.7, 0.0), 1)


@pytest.mark.optimised
@pytest.mark.slow
def test_padding_rows_change_no_bit(key):
  optimizer = transforms.privatize(queries.gaussian_sum(0.7, 0.5), key)
  update = jax.jit(optimizer.update)
  rows = gradients(4)
  padded = jax.tree.map(lambda x: jnp.concatenate([x, jnp.full((3, *x.shape[1:]), jnp.nan)]), rows)
  state = optimizer.init(PARAMS)
  expected, _ = update(rows, state)
  actual, _ = update(padded, state, weights=jnp.array([1.0] * 4 + [0.0] * 3))
  assert_trees_equal(actual, expected)


def test_an_empty_batch_is_noise_alone(key):
  optimizer = transforms.privatize(queries.gaussian_sum(0.7, 0.5), key)
  updates, state = jax.jit(optimizer.update)(gradients(0), optimizer.init(PARAMS))
  assert all(np.all(np.isfinite(x)) and np.any(x) for x in jax.tree.leaves(updates))
  assert state.event == GaussianSum(0.7, 0.5)


@pytest.mark.sweep
@pytest.mark.parametrize("denominator", [1.0, 4.0])
def test_noise_of_zero_gradients_has_exactly_the_stated_stddev(key, denominator):
  optimizer = transforms.privatize(
    queries.average(queries.gaussian_sum(3.0, 0.8), denominator), key
  )
  params = jnp.zeros(90_000)
  updates, _ = jax.jit(optimizer.update)(jnp.zeros((2, 90_000)), optimizer.init(params), params)
  statistical.assert_normal_stddev(updates, 0.8 / denominator, catches=0.02)


def adaptive(key):
  """A transformation whose event and state change from step to step."""
  groups = {
    "a": queries.adaptive_clipped_sum(1.0, 4.0, count_stddev=1.0),
    "b": queries.gaussian_sum(1.0, 0.5),
  }
  return transforms.privatize(queries.grouped(groups, {"w": "a", "b": "b"}), key)


@pytest.mark.slow
def test_scan_equals_a_loop_and_stacks_the_events(key):
  optimizer = optax.chain(adaptive(key), optax.scale_by_learning_rate(0.1), optax.trace(0.9))
  steps = jax.tree.map(lambda *x: jnp.stack(x), *(gradients(4, seed) for seed in range(3)))

  def step(carry, rows):
    params, state = carry
    updates, state = optimizer.update(rows, state, params)
    return (optax.apply_updates(params, updates), state), Round(
      PoissonSampling(0.1), state[0].event
    )

  carry = (PARAMS, optimizer.init(PARAMS))
  one_step = jax.jit(step)
  (scanned, _), events = jax.jit(lambda c: jax.lax.scan(step, c, steps))(carry)
  loop = []
  for t in range(3):
    carry, event = one_step(carry, jax.tree.map(lambda x, t=t: x[t], steps))
    loop.append(event)
  assert_trees_close(scanned, carry[0])
  stacked = unstack(events)
  single = [unstack(event)[0] for event in loop]
  clips = [[event.query.parts[0].parts[1].clip_norm for event in run] for run in (stacked, single)]
  np.testing.assert_allclose(*clips, rtol=1e-6)
  assert len(set(clips[0])) == 3


def test_no_recompilation_from_step_to_step(key):
  optimizer = adaptive(key)
  traces = []

  @jax.jit
  def step(rows, state):
    traces.append(None)
    return optimizer.update(rows, state)

  state = optimizer.init(PARAMS)
  for seed in range(3):
    _, state = step(gradients(4, seed), state)
  assert len(traces) == 1


@pytest.mark.optimised
@pytest.mark.slow
def test_a_resumed_run_continues_bit_for_bit_and_no_noise_key_comes_twice(key, noise_draws):
  optimizer = adaptive(key)
  states, results = [optimizer.init(PARAMS)], []
  for seed in range(4):
    updates, state = optimizer.update(gradients(3, seed), states[-1])
    states.append(state)
    results.append(updates)
  drawn = len(noise_draws)
  # Two vectors and a count, and as many again before they are bound, for the event.
  assert drawn == 4 * 3 * 2
  # a checkpoint
  data = jax.tree.map(np.asarray, states[2]._replace(key=jax.random.key_data(states[2].key)))
  state = data._replace(key=jax.random.wrap_key_data(data.key))
  for seed in range(2, 4):
    updates, state = optimizer.update(gradients(3, seed), state)
    assert_trees_equal(updates, results[seed])
  assert len({key for key, _ in noise_draws}) == drawn  # the repeated steps drew the same again


def test_steps_and_vectors_never_share_noise(key):
  optimizer = transforms.privatize(queries.gaussian_sum(1.0, 1.0), key)
  params = {"a": jnp.zeros(20_000), "b": jnp.zeros(20_000)}
  rows, state, columns = jax.tree.map(lambda x: x[None], params), optimizer.init(params), []
  update = jax.jit(optimizer.update)
  for _ in range(2):
    updates, state = update(rows, state)
    columns += jax.tree.leaves(updates)
  statistical.assert_uncorrelated(np.stack(columns, axis=1), catches=0.07)


def regression(params, example):
  x, y = example
  return jnp.sum((x @ params["w"] + params["b"] - y) ** 2)


def regression_data(n):
  rng = np.random.default_rng(1)
  return jnp.asarray(rng.normal(size=(n, 3)), jnp.float32), jnp.asarray(
    rng.normal(size=(n, 2)), jnp.float32
  )


def test_contribution_sum_is_the_sum_of_clipped_gradients_whatever_the_chunk(key):
  query, data = queries.gaussian_sum(2.0, 0.0), regression_data(9)
  params = jax.tree.map(lambda x: x + 0.3, PARAMS)
  indices = jnp.array([7, 0, 3, 4, 5, 0, 0], jnp.int32)  # five members, then padding
  sample = Sample(indices, (jnp.arange(7) < 5).astype(jnp.float32), jnp.int32(5), 9)
  rows = jax.jit(jax.vmap(jax.grad(regression), (None, 0)))(
    params, jax.tree.map(lambda x: x[indices[:5]], data)
  )
  for chunk_size in (1, 2, 7):
    total = jax.jit(transforms.contribution_sum(jax.grad(regression), query, chunk_size=chunk_size))
    actual = rounded(total(jax.random.clone(key), query.init(params), params, sample, data))
    assert_trees_close(actual, clipped_sum(rows, 2.0))


@pytest.mark.slow
def test_release_of_a_sum_equals_privatize_of_its_rows(key):
  query, data = queries.gaussian_sum(2.0, 0.5), regression_data(6)
  rows = jax.jit(jax.vmap(jax.grad(regression), (None, 0)))(PARAMS, data)
  total = jax.jit(transforms.contribution_sum(jax.grad(regression), query, chunk_size=4))
  one, other = transforms.release(query, key), transforms.privatize(query, key)
  state = one.init(PARAMS)
  summed, _ = one.update(total(jax.random.key(0), state.query, PARAMS, all_records(6), data), state)
  assert_trees_close(summed, jax.jit(other.update)(rows, state)[0])


@pytest.mark.slow
def test_memory_is_set_by_the_chunk_and_not_by_the_sample():
  query, d = queries.gaussian_sum(1.0, 1.0), 50_000
  vectors_fn = jax.grad(lambda params, x: jnp.sum(jnp.sin(params * x)))

  def peak(n, chunk_size):
    total = transforms.contribution_sum(vectors_fn, query, chunk_size=chunk_size)
    arguments = (
      jax.random.key(0),
      query.init(None),
      jnp.zeros(d),
      all_records(n),
      jnp.ones((n, 1)),
    )
    return jax.jit(total).lower(*arguments).compile().memory_analysis().temp_size_in_bytes

  row = 4 * d
  assert peak(256, 2) < 12 * row  # of 256 rows
  assert peak(256, 2) < peak(16, 2) + row
  assert peak(256, 64) > 60 * row  # the measure can tell


@jax.jit
def microbatch_sum(data):
  """The sum of the clipped (to 1) means of the microbatches [n, size, 2]."""
  query = queries.gaussian_sum(1.0, 1.0)
  total = transforms.contribution_sum(
    lambda params, batch: jnp.mean(batch, axis=0), query, chunk_size=4
  )
  return rounded(total(jax.random.key(0), query.init(None), (), all_records(len(data)), data))


@pytest.mark.parametrize("size", [1, 2, 4])
def test_an_example_replaced_moves_the_sum_by_two_clip_norms_at_most(size):
  examples = 100.0 * np.random.default_rng(0).normal(size=(16, 2)).astype(np.float32)
  everyone = microbatch_sum(examples.reshape(-1, size, 2))
  moved = []
  for i in range(16):
    swapped = examples.copy()
    swapped[i] *= -1000
    moved.append(np.linalg.norm(microbatch_sum(swapped.reshape(-1, size, 2)) - everyone))
  assert max(moved) <= 2 + 1e-5
  assert max(moved) > 1  # as much as no example added or removed moves a sum of examples


def test_a_sample_cut_into_microbatches_afterwards_is_not_covered():
  """One example less moves every microbatch behind it."""
  one, other = [100.0, 10.0], [-100.0, 10.0]
  sample = np.array([one, one, other, other] * 8, np.float32)
  less_one = np.concatenate([sample[1:], [one]]).astype(np.float32)
  moved = np.linalg.norm(
    microbatch_sum(sample.reshape(-1, 2, 2)) - microbatch_sum(less_one.reshape(-1, 2, 2))
  )
  assert moved > 10


def test_multi_steps_around_privatize_is_refused_by_shape(key):
  optimizer = optax.MultiSteps(transforms.privatize(queries.gaussian_sum(1.0, 1.0), key), 2)
  with (
    jax.numpy_dtype_promotion("standard"),
    jax.numpy_rank_promotion("allow"),
    pytest.raises((TypeError, ValueError)),
  ):
    optimizer.update(gradients(4), optimizer.init(PARAMS), PARAMS)


def accumulate(optimizer, num_steps, updates, params):
  """The sum of all updates of a run, and the last state."""
  state, total = optimizer.init(params), jnp.zeros_like(params)
  # MultiSteps multiplies bools with integers, and selects among states: to the checker a use of
  # their keys.
  with jax.numpy_dtype_promotion("standard"), jax.debug_key_reuse(False):
    for _ in range(num_steps):
      result, state = optimizer.update(updates, state, params)
      total = total + result
  return total, state


@pytest.mark.slow
def test_accumulated_contributions_are_released_once_with_the_noise_of_one_release(key):
  params, query = jnp.zeros(90_000), queries.gaussian_sum(1.0, 0.8)
  release = transforms.release(query, key)
  contribution = query.preprocess(
    jax.random.key(0), query.init(params), jnp.full(90_000, 1e-3), jnp.float32(1)
  )
  by_hand, state = release.update(4 * contribution, release.init(params))
  statistical.assert_normal_stddev(by_hand - 4e-3, 0.8, catches=0.02)
  assert int(state.step) == 1
  wrapped, state = accumulate(
    optax.MultiSteps(release, 4, use_grad_mean=False), 4, contribution, params
  )
  np.testing.assert_allclose(wrapped, by_hand, atol=1e-6)
  assert int(state.inner_opt_state.step) == 1


def test_multi_steps_around_release_refuses_pairs(key):
  """Its accumulator is like the parameters: a pair is never taken for its value."""
  optimizer = optax.MultiSteps(
    transforms.release(queries.gaussian_sum(1.0, 1.0), key), 2, use_grad_mean=False
  )
  params = jnp.zeros(3)
  with pytest.raises(ValueError, match="Compensated"):
    accumulate(optimizer, 1, add(params, params), params)


@pytest.mark.slow
def test_multi_steps_behind_privatize_noises_every_small_step(key):
  params, query = jnp.zeros(90_000), queries.gaussian_sum(1.0, 0.8)
  optimizer = optax.chain(
    transforms.privatize(query, key), optax.MultiSteps(optax.identity(), 4, use_grad_mean=False)
  )
  total, state = accumulate(optimizer, 4, jnp.zeros((1, 90_000)), params)
  statistical.assert_normal_stddev(total, 0.8 * 2, catches=0.02)
  assert int(state[0].step) == 4  # as many events


def test_before_the_first_step_the_ledger_takes_no_placeholder_of_what_varies(key):
  state = adaptive(key).init(PARAMS)
  with pytest.raises(ValueError, match="Expected clip_norm to be a finite number > 0"):
    ledger.Ledger().append(Round(PoissonSampling(0.1), state.event))
