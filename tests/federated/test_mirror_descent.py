"""p-norm descent: against gradient descent, its own mirror, the bound, and with the L-infinity
mechanism.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jdp.federated import gradient_step, private_federated
from jdp.federated.mirror_descent import p_norm_descent
from jdp.mechanisms import priv_unit_linf
from jdp.queries import average, no_privacy
from jdp.sampling import poisson


def test_two_norm_descent_is_gradient_descent():
  params = {"a": jnp.array([1.0, -2.0]), "b": jnp.array([[0.5]])}
  gradient = {"a": jnp.array([0.3, 0.1]), "b": jnp.array([[-4.0]])}
  ours, plain = p_norm_descent(0.2, q=2.0), optax.sgd(0.2)
  updates, state = ours.update(gradient, ours.init(params), params)
  expected, _ = plain.update(gradient, plain.init(params), params)
  jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), updates, expected)
  jax.tree.map(
    lambda y, x, g: np.testing.assert_allclose(y, x - 0.2 * g, rtol=1e-5),
    state.dual,
    params,
    gradient,
  )


@pytest.mark.parametrize("q", [2.0, 5.0, 30.0])
@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
def test_the_mirror_of_the_mirror_image_is_the_vector(q, size):
  params = size * jnp.array([1.0, -0.5, 0.01, 0.0])
  optimizer = p_norm_descent(1.0, q=q)
  updates, _ = optimizer.update(jnp.zeros(4), optimizer.init(params), params)
  np.testing.assert_allclose(updates, np.zeros(4), atol=2e-5 * size)


def test_the_image_is_the_gradient_of_half_the_squared_norm():
  params, q = jnp.array([0.7, -0.2, 0.4]), 4.0
  p = q / (q - 1)
  expected = jax.grad(lambda x: 0.5 * jnp.sum(jnp.abs(x) ** p) ** (2 / p))(params)
  np.testing.assert_allclose(p_norm_descent(1.0, q=q).init(params).dual, expected, rtol=1e-5)


def test_all_leaves_are_one_vector():
  vector, gradient = jnp.linspace(-1.0, 1.0, 6), jnp.linspace(2.0, -3.0, 6)
  optimizer = p_norm_descent(0.3)
  whole, _ = optimizer.update(gradient, optimizer.init(vector), vector)
  tree, tree_gradient = ({"a": x[:4].reshape(2, 2), "b": x[4:]} for x in (vector, gradient))
  parts, _ = optimizer.update(tree_gradient, optimizer.init(tree), tree)
  np.testing.assert_allclose(np.concatenate([parts["a"].reshape(-1), parts["b"]]), whole, rtol=1e-5)


@pytest.mark.slow
def test_the_average_keeps_its_bound_and_gradient_descent_does_not():
  """Linear losses of random signs plus one small slope: the bound in the docstring, at its learning
  rate.
  """
  dim, count = 512, 3000
  slope = jnp.zeros(dim).at[7].set(-0.2)
  signs = jax.random.rademacher(jax.random.key(0), (count, dim), jnp.float32)
  gradients = 0.8 * signs + slope[None]
  target, largest = slope / slope[7], 1.0

  def excess(optimizer):
    def step(carry, gradient):
      x, state = carry
      updates, state = optimizer.update(gradient, state, x)
      return (x + updates, state), jnp.sum(gradient * (x - target))

    start = jnp.zeros(dim)
    return float(jnp.mean(jax.lax.scan(step, (start, optimizer.init(start)), gradients)[1]))

  q = 2 * math.log(dim)
  norm = math.sqrt(math.e) * largest
  bound = math.sqrt(2 * math.e * math.log(dim) / count)
  assert excess(p_norm_descent(1 / (norm * math.sqrt((q - 1) * count)))) <= bound
  # Gradient descent at the best rate of its own bound, ||x||_2 / (||g||_2 sqrt(n)).
  assert excess(optax.sgd(1 / (0.8 * math.sqrt(dim * count)))) > bound


@pytest.mark.slow
def test_it_trains_with_the_linf_mechanism():
  """A round of private federated learning steps by the dual of the average release."""
  dim, users = 20, 6
  params = jnp.zeros(dim)
  mechanism = priv_unit_linf(dim, 8.0)
  sampler = poisson(users, 1.0, capacity=users)

  def loss(x, client):
    return jnp.sum(x * client)

  algorithm = private_federated(
    gradient_step(loss, 1.0),
    average(no_privacy(), users),
    sampler,
    p_norm_descent(0.5),
    mechanism=mechanism,
    chunk_size=users,
  )
  clients = jnp.linspace(-1.0, 1.0, users * dim).reshape(users, dim)
  state, events, _ = jax.jit(algorithm.round)(
    jax.random.key(1), jax.random.key(2), algorithm.init(params), clients
  )
  released = state.optimizer.dual / -0.5 * users * mechanism.parameters.m  # sums of users' signs
  np.testing.assert_allclose(released, np.round(released), atol=1e-4)
  assert np.max(np.abs(released)) <= users
  assert any(getattr(event, "guarantee", None) is not None for event in events)
  largest = int(jnp.argmax(jnp.abs(state.optimizer.dual)))
  assert int(jnp.argmax(jnp.abs(state.params))) == largest


def test_arguments_are_checked():
  with pytest.raises(ValueError, match="learning_rate"):
    p_norm_descent(0.0)
  with pytest.raises(ValueError, match="Expected q"):
    p_norm_descent(0.1, q=1.9)
  optimizer = p_norm_descent(0.1)
  with pytest.raises(ValueError, match="Expected the parameters"):
    optimizer.update(jnp.ones(3), optimizer.init(jnp.ones(3)))
