"""Mirror descent, for gradients that are bounded in each coordinate.

`jdp.mechanisms.priv_unit_linf` releases such gradients.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jdp import _validate
from jdp._arguments import checked

PyTree = Any


class MirrorState(NamedTuple):
  """The state of p-norm descent.

  Attributes:
    dual: float32. The parameters' mirror image, of their structure.
  """

  dual: PyTree


@checked
def p_norm_descent(learning_rate: float, q: float | None = None) -> optax.GradientTransformation:
  """Mirror descent under ||x||_p^2 / 2, for optima with few large entries.

  All parameters are one vector x in R^d, with 1/p + 1/q = 1. The mirror image y is the gradient
  of ||x||_p^2 / 2. A step is y <- y - learning_rate * gradient. Then x is the gradient of ||y||_q^2
  / 2:

      x_j = sign(y_j) |y_j|^(q-1) ||y||_q^(2-q)

  With q = 2 that is gradient descent. With q = 2 log d, take n steps with gradients of entries up
  to G. If the learning rate is right, the average's loss exceeds that of any x by at most

      ||x||_1 G sqrt(2 e log(d) / n)

  in expectation. The bound grows with log d only, and with the *largest* entry, which is 1/m for
  releases by `priv_unit_linf`. Gradient descent has ||x||_2 and the L2 norm sqrt(d)/m instead. That
  is better for an x with many entries of similar size, and worse for one with few large ones.

  The image is the state. If x is changed other than by these updates, the next update undoes the
  change. Starts may be zero, where the image is zero too. Non-finite gradients are not repaired:
  privatise or clip first.

  Source: the non-Euclidean case that arXiv 1812.00984, Section 4, names as the use of its
  L-infinity mechanism. The method is by Grove, Littlestone, Schuurmans (Machine Learning 43, 2001)
  and Gentile (Machine Learning 53, 2003).

  Args:
    learning_rate: > 0.
    q: the order of the dual norm, >= 2. Default: max(2, 2 log d).

  Returns:
    An optax transformation, with updates of the parameters' types. `private_federated` takes it as
    its `optimizer`.

  Raises:
    ValueError: if learning_rate is not positive, or q is below 2 or infinite. On updating: if no
      parameters are passed.

  >>> optimizer = p_norm_descent(0.1)
  >>> params = jnp.zeros(1000)
  >>> updates, state = optimizer.update(
  ...   jnp.ones(1000).at[3].set(10.0), optimizer.init(params), params
  ... )
  >>> bool(jnp.argmax(-updates) == 3 and -updates[3] > 0.99 * jnp.sum(-updates))
  True
  """
  _validate.positive(learning_rate=learning_rate)
  if q is not None:
    _validate.in_range(2.0, 1e4, q=q)

  def init(params):
    order = _order(q, params)
    return MirrorState(_gradient_of_half_square(_float32(params), order / (order - 1)))

  def update(gradient, state, params=None):
    if params is None:
      raise ValueError(
        "Expected the parameters with the gradient, got none; call update(gradient, state, params)."
      )
    # The image takes the step, and the parameters follow it.
    dual = jax.tree.map(lambda y, g: y - learning_rate * g, state.dual, _float32(gradient))
    moved = _gradient_of_half_square(dual, _order(q, params))
    return jax.tree.map(
      lambda new, old: (new - old.astype(jnp.float32)).astype(old.dtype), moved, params
    ), MirrorState(dual)

  return optax.GradientTransformation(init, update)


def _order(q: float | None, params: PyTree) -> float:
  """The order q of the dual norm."""
  return q or max(2.0, 2 * math.log(sum(leaf.size for leaf in jax.tree.leaves(params))))


def _gradient_of_half_square(vector: PyTree, p: float) -> PyTree:
  """The gradient of ||x||_p^2 / 2.

  Powers are taken relative to the largest entry, so that none overflows.
  """
  largest = jnp.max(jnp.stack([jnp.max(jnp.abs(leaf)) for leaf in jax.tree.leaves(vector)]))
  # A vector of zeros has the gradient 0. Dividing by its largest entry would give NaN.
  scale = jnp.where(largest > 0, largest, 1.0)
  relative = jax.tree.map(lambda leaf: jnp.abs(leaf) / scale, vector)
  norm = sum(jnp.sum(leaf**p) for leaf in jax.tree.leaves(relative)) ** (1 / p)
  factor = scale * jnp.where(largest > 0, norm, 1.0) ** (2 - p)
  return jax.tree.map(lambda leaf, r: factor * jnp.sign(leaf) * r ** (p - 1), vector, relative)


def _float32(tree: PyTree) -> PyTree:
  return jax.tree.map(lambda leaf: leaf.astype(jnp.float32), tree)
