"""Ghost norms are the norms of the gradients that they spare, whatever the layers share."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

from jdp.data import Examples
from jdp.federated import example_gradient, gradient_step
from jdp.federated.engine.client import ClientKeys, contribution
from jdp.federated.engine.cohort import unrounded_cohort_sum
from jdp.federated.engine.ghost_norms import _norm, ghost_client
from jdp.federated.estimators import (
  adaptive_average,
  clipped_denominator,
  fixed_denominator,
  flat_clipping,
  per_layer_clipping,
  true_average,
)
from jdp.federated.fedavg import federated_averaging, weight_by_examples
from jdp.models import Model, cross_entropy, logistic_regression
from jdp.numerics import vectors
from jdp.numerics.compensated import Product
from jdp.queries import gaussian_sum
from jdp.sampling import Sample, poisson

USERS, EXAMPLES, LENGTH, WORDS, FEATURES = 7, 4, 3, 6, 5
S = 0.1
RNG = np.random.default_rng(0)


class _Dense(nn.Module):
  """One layer wide enough for Gram matrices, a narrow one that is used twice, one without bias."""

  @nn.compact
  def __call__(self, x):
    shared = nn.Dense(20)
    x = nn.relu(nn.Dense(20)(x.reshape(x.shape[0], -1)))
    return nn.Dense(WORDS, use_bias=False)(shared(nn.tanh(shared(x))))


class _Tied(nn.Module):
  """Words in, words out, one table for both."""

  @nn.compact
  def __call__(self, x):
    table = nn.Embed(WORDS, FEATURES)
    hidden = nn.tanh(nn.Dense(FEATURES)(table(x.astype(jnp.int32))))
    return table.attend(hidden).mean(axis=1)


def model(network):
  """A classifier of sequences [n, LENGTH] among WORDS classes."""
  return Model(
    lambda key: network.init(key, jnp.zeros((1, LENGTH)))["params"],
    lambda p, x: network.apply({"params": p}, x),
  )


NETWORKS = {
  "dense": model(_Dense()),
  "tied": model(_Tied()),
  "logistic": logistic_regression((LENGTH,), WORDS),
}
CLIENTS = Examples(
  RNG.integers(0, WORDS, (USERS, EXAMPLES, LENGTH)).astype(np.float32),
  RNG.integers(0, WORDS, (USERS, EXAMPLES)).astype(np.int32),
  (np.arange(EXAMPLES)[None] < RNG.integers(1, EXAMPLES + 1, (USERS, 1))).astype(np.float32),
)


@functools.cache
def parameters(network):
  """Compiled: one by one, the operations of flax's `init` take longer than all else here."""
  return jax.jit(network.init)(jax.random.key(3))


@functools.cache
def prepared(network, average, ghost):
  """A compiled round, its parameters and its first state: one compilation for all tests that need
  it.
  """
  made = federated_averaging(
    gradient_step(cross_entropy(network), 0.5),
    average,
    poisson(USERS, 1.0),
    optax.sgd(1.0),
    weight=weight_by_examples(3),
    ghost_norms=ghost,
    diagnose=True,
    chunk_size=3 if ghost else 1,
  )
  params = parameters(network)
  return jax.jit(made.round), params, made.init(params)


def run(network, average, clients=CLIENTS, *, ghost):
  """How far a round moves the model, flat, and its diagnostics."""
  compiled, params, state = prepared(network, average, ghost)
  state, events, diagnostics = compiled(jax.random.key(0), jax.random.key(1), state, clients)
  moved = ravel_pytree(jax.tree.map(jnp.subtract, state.params, params))[0]
  return np.asarray(moved, np.float64), events, jax.tree.map(float, diagnostics)


AVERAGES = {
  "fixed": fixed_denominator(flat_clipping(S), 0.0, 5.0),
  "clipped denominator": clipped_denominator(flat_clipping(S), 0.0, 3.0),
  "adaptive": adaptive_average(0.0, 5.0, initial_clip_norm=S, count_stddev=1e-6),
  "true": true_average(),
}


@pytest.mark.slow
@pytest.mark.parametrize(
  ("network", "average"),
  [("tied", "fixed"), ("logistic", "fixed"), *(("dense", average) for average in AVERAGES)],
)
def test_a_round_is_the_one_with_gradients_one_by_one(network, average):
  network, average = NETWORKS[network], AVERAGES[average]
  ordinary, events, diagnostics = run(network, average, ghost=False)
  ghost, other_events, other_diagnostics = run(network, average, ghost=True)
  assert np.linalg.norm(ghost - ordinary) < 2e-4 * np.linalg.norm(ordinary)
  assert jax.tree.structure(events) == jax.tree.structure(other_events)
  assert other_diagnostics == pytest.approx(diagnostics, rel=2e-4)


def ghost_norms(loss, params, clients):
  """What stands for the norm of each client's gradient."""
  client_fn = ghost_client(loss, 1.0)
  norm = jax.vmap(lambda client: client_fn(KEYS, (params,), client)[1]["update_norm"])
  return np.asarray(jax.jit(norm)(clients))


@pytest.mark.slow
@pytest.mark.parametrize("network", NETWORKS)
def test_the_norm_is_that_of_the_summed_gradient_and_never_below_it(network):
  """Tied weights and layers used twice: one gradient, whose parts may cancel or add up."""
  network = NETWORKS[network]
  params, loss = parameters(network), cross_entropy(network)
  found = ghost_norms(loss, params, CLIENTS)
  gradients = jax.jit(jax.vmap(jax.grad(loss), (None, 0)))(params, CLIENTS)
  for user, norm in enumerate(jax.vmap(vectors.l2_norm)(gradients).tolist()):
    assert norm * (1 - 1e-6) <= float(found[user]) <= norm * (1 + 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("poison", [np.nan, np.inf, 1e25, 1e10])
def test_a_hostile_user_moves_the_average_by_at_most_its_bound_and_hides_nobody(poison):
  network, average = NETWORKS["dense"], AVERAGES["fixed"]
  absent = CLIENTS._replace(
    mask=np.where(np.arange(USERS)[:, None] == 2, 0.0, CLIENTS.mask).astype(np.float32)
  )
  poisoned = CLIENTS._replace(
    inputs=np.where(np.arange(USERS)[:, None, None] == 2, poison, CLIENTS.inputs).astype(np.float32)
  )
  without, with_user = (
    run(network, average, clients, ghost=True)[0] for clients in (absent, poisoned)
  )
  change = np.linalg.norm(with_user - without) * 5.0
  weight = min(CLIENTS.mask[2].sum() / 3, 1)
  assert change == pytest.approx(S * weight if poison == 1e10 else 0.0, rel=1e-3, abs=1e-6)
  assert np.linalg.norm(without) > 0.01


KEYS = ClientKeys(jax.random.key(0), jax.random.key(1))


def test_where_gradients_cancel_the_norm_stays_an_upper_bound():
  """Examples that pull in opposite directions: the bound is what rounding may have hidden, and
  never NaN.
  """
  network = model(nn.Dense(100))
  inputs = np.tile(RNG.normal(size=(USERS, 1, 100)).astype(np.float32), (1, EXAMPLES, 1))
  signs = np.tile(np.array([1, -1, 1, -1], np.float32), (USERS, 1))

  def opposed(params, client):
    return jnp.sum(network.apply(params, client.inputs) * client.mask[:, None])

  params = {"kernel": jnp.zeros((100, 100)), "bias": jnp.zeros(100)}
  clients = Examples(inputs, np.zeros((USERS, EXAMPLES), np.int32), signs)
  norms = ghost_norms(opposed, params, clients)
  parts = EXAMPLES * 10 * np.linalg.norm(inputs[:, 0], axis=1)
  assert np.all(norms > 0)
  assert np.all(norms < 0.01 * parts)


@pytest.mark.slow
def test_dp_sgd_of_ghost_norms_is_dp_sgd():
  points = Examples(
    *(x.reshape(-1, *x.shape[2:]) for x in CLIENTS._replace(mask=np.ones_like(CLIENTS.mask)))
  )
  network, ends = NETWORKS["dense"], []
  params = parameters(network)
  for ghost in (False, True):
    made = federated_averaging(
      example_gradient(cross_entropy(network)),
      fixed_denominator(flat_clipping(S), 0.0, 10.0),
      poisson(len(points.labels), 0.5),
      optax.sgd(1.0),
      unit="example",
      ghost_norms=ghost,
    )
    state, *_ = jax.jit(made.round)(jax.random.key(0), jax.random.key(1), made.init(params), points)
    ends.append(np.asarray(ravel_pytree(jax.tree.map(jnp.subtract, state.params, params))[0]))
  assert np.linalg.norm(ends[1] - ends[0]) < 2e-4 * np.linalg.norm(ends[0])


@pytest.mark.slow
def test_a_query_with_several_bounds_is_refused():
  network = NETWORKS["dense"]
  average = fixed_denominator(per_layer_clipping(parameters(network), S), 0.0, 5.0)
  with pytest.raises((ValueError, TypeError), match="Expected"):
    run(network, average, ghost=True)


def test_a_query_that_changes_more_than_the_length_is_refused():
  """Its `preprocess` is that of a stranger, and would not be applied to any coordinate."""
  plain = fixed_denominator(flat_clipping(S), 0.0, 5.0)

  def signs(key, state, record, weight):
    return plain.preprocess(key, state, jax.tree.map(jnp.sign, record), weight)

  with pytest.raises(ValueError, match="Expected a query that scales a record by one factor"):
    run(NETWORKS["dense"], plain._replace(preprocess=signs), ghost=True)


@pytest.mark.slow
def test_a_user_moves_the_sum_of_a_large_cohort_by_at_most_its_bound():
  """Users whose gradient is their input; chunks summed in float32 would move by 1e-4 more."""
  network = nn.Dense(2, use_bias=False)

  def loss(params, inputs):
    return -jnp.mean(network.apply({"params": params}, inputs)[:, 0])

  query, params = gaussian_sum(1.0, 1.0), {"kernel": jnp.zeros((3, 2))}
  summand = contribution(ghost_client(loss, 1.0), query, None, diagnose=False)
  others = np.r_[np.ones(2048), np.full(2048, -0.99 * 2.0**-13)]
  count = len(others) + 1
  sample = Sample(jnp.arange(count, dtype=jnp.int32), jnp.ones(count), jnp.int32(count), count)

  @jax.jit
  def total(inputs):
    keys, shared = (jax.random.key(0), jax.random.key(1)), ((params,), query.init(params))
    return unrounded_cohort_sum(summand, keys, shared, sample, inputs, chunk_size=64)[0]["kernel"]

  rows = [
    np.r_[first, others].astype(np.float32)[:, None, None] * np.eye(1, 3, 1, np.float32)
    for first in (1.0, 0.0)
  ]
  with_it, without = ([np.float64(x) for x in jax.tree.leaves(total(x))] for x in rows)
  assert 1 - 1e-3 < np.linalg.norm(sum(with_it) - sum(without)) <= 1 + 1e-6


@pytest.mark.parametrize("precision", ["bfloat16", "tensorfloat32"])
@pytest.mark.parametrize("wide", [False, True])
def test_no_norm_rests_on_products_of_lower_precision(precision, wide):
  """Whatever a process sets for its other products: the norms' would be short by 1.0009 and
  1.0066.
  """
  rows, columns = (2, 40) if wide else (40, 2)
  product = Product(jnp.ones((rows, columns)), jnp.ones((rows, columns)), (columns, columns))
  with jax.default_matmul_precision(precision):
    jaxpr = jax.make_jaxpr(_norm)(product)
  text = str(jaxpr)
  assert (
    text.count("dot_general") == text.count("precision=(Precision.HIGHEST, Precision.HIGHEST)") > 0
  )


@pytest.mark.parametrize("inputs", [[3e-20], [1.0, 3e-20]], ids=["one row", "beside another row"])
def test_no_norm_is_lost_in_the_squares_of_small_inputs(inputs):
  """A square below 1e-38 is zero in float32, while the derivative may be as large as 1e18."""
  left = np.tile(np.float32(inputs)[:, None], (1, 100))
  right = np.where(left[:, :2] == 1, 1e-18, 1e18).astype(np.float32)
  norm = _norm(Product(jnp.asarray(left), jnp.asarray(right), (100, 2)))
  exact = np.linalg.norm(left.astype(np.float64).T @ right.astype(np.float64))
  assert exact * (1 - 1e-6) <= norm <= exact * (1 + 1e-5)


def test_an_input_beyond_the_range_adds_nothing():
  left, right = jnp.full((1, 4), 2.0**61), jnp.full((1, 4), 1e-38)
  assert jnp.isnan(_norm(Product(left, right, (4, 4))))
