"""Reconstruction by optimisation: an input whose gradient points where a released one does.

For models without a closed form. The loss is the one of J. Geiping et al., "Inverting gradients"
(arXiv 2003.14053, Section 4), one less the cosine between the two gradients, which needs
no magnitude: the direction alone is released. In place of their total variation the input is
penalised as a Gaussian prior would.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from jdp import _validate
from jdp.attacks.reconstruction import GaussianPrior
from jdp.numerics.vectors import unit


class Candidates(NamedTuple):
  """What the optimisation tries, each by itself.

  Attributes:
    labels: int32 [m].
    starts: float32 [m, d], the inputs that it starts from, as near as the prior's subspace has
      them.
  """

  labels: jax.Array
  starts: jax.Array


class Match(NamedTuple):
  """What the optimisation found.

  Attributes:
    input: float32 [d].
    candidate: int32 scalar, which of the candidates it took.
    cosine: float32 scalar, between the gradient of `input` and the released one.
  """

  input: jax.Array
  candidate: jax.Array
  cosine: jax.Array


def match_gradient(
  gradient_of: Callable[[jax.Array, jax.Array], jax.Array],
  prior: GaussianPrior,
  *,
  num_steps: int = 300,
  learning_rate: float = 0.1,
) -> Callable[[jax.Array, jax.typing.ArrayLike, Candidates], Match]:
  """An attack that moves an input until its gradient matches a released one.

  Every candidate is tried, and the one of the least loss taken. The input moves in the prior's
  standard coordinates, by Adam with a cosine schedule; `penalty` times their mean square is added
  to the loss. With 0 an exact gradient is matched. For a release Z of a direction, with noise of
  variance s^2 in each coordinate, k s^2 / (2 ||Z||) makes the loss that of the posterior mode under
  normal noise, k the prior's number of coordinates. Deterministic.

  The loss has many minima: where it starts matters, and images whose gradients are near the
  released one are better starts than the prior's mean.

  Args:
    gradient_of: (input [d], label) -> gradient of the model's loss at that example, flat [p];
      differentiable.
    prior: of inputs.
    num_steps: of the optimiser.
    learning_rate: of the optimiser at the start, in the prior's standard deviations.

  Returns:
    (released [p], penalty >= 0, candidates) -> `Match`. A release that is zero or not finite counts
    as the first basis vector.

  Raises:
    ValueError: if num_steps or learning_rate is out of range.

  >>> from jdp.attacks.reconstruction import pixel_prior
  >>> attack = match_gradient(lambda x, label: jnp.append(x, 1.0), pixel_prior(2), num_steps=100)
  >>> candidates = Candidates(jnp.array([0]), jnp.array([[0.5, 0.5]]))
  >>> attack(jnp.array([0.5, 1.5, 2.0]), 0.0, candidates).input.round(2).tolist()
  [0.25, 0.75]
  """
  _validate.integer(1, num_steps=num_steps)
  _validate.positive(learning_rate=learning_rate)
  optimizer = optax.adam(optax.cosine_decay_schedule(learning_rate, num_steps))
  scales = jnp.sqrt(prior.variances)

  def input_at(coordinates):
    return prior.mean + (scales * coordinates) @ prior.basis

  def cosine(coordinates, label, target):
    gradient = gradient_of(input_at(coordinates), label)
    return jnp.sum(gradient * target) / jnp.sqrt(jnp.sum(gradient**2) + 1e-20)

  def loss(coordinates, label, target, penalty):
    return 1 - cosine(coordinates, label, target) + penalty * jnp.mean(coordinates**2)

  def of_candidate(label, first, target, penalty):
    def step(carry, _):
      coordinates, state = carry
      gradient = jax.grad(loss)(coordinates, label, target, penalty)
      # Optax's adam raises its decay to the power of an integer.
      with jax.numpy_dtype_promotion("standard"):
        update, state = optimizer.update(gradient, state)
      return (optax.apply_updates(coordinates, update), state), None

    start = (prior.basis @ (first - prior.mean)) / scales
    (coordinates, _), _ = jax.lax.scan(step, (start, optimizer.init(start)), length=num_steps)
    return coordinates, loss(coordinates, label, target, penalty)

  def attack(released, penalty, candidates):
    target = unit(released)
    coordinates, losses = jax.vmap(of_candidate, (0, 0, None, None))(
      candidates.labels, candidates.starts, target, penalty
    )
    best = jnp.argmin(losses).astype(jnp.int32)
    return Match(
      input_at(coordinates[best]), best, cosine(coordinates[best], candidates.labels[best], target)
    )

  return attack
