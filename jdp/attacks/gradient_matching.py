"""Reconstruction by optimisation: an input whose gradient points where a released one does.

It is for models without a closed form. The loss is that of J. Geiping et al., "Inverting gradients"
(arXiv 2003.14053, Section 4): one minus the cosine between the two gradients. It needs no
magnitude, since the direction alone is released. Their total variation is replaced by the penalty
of a Gaussian prior on the input.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from jdp import _validate
from jdp._arguments import checked
from jdp.attacks.reconstruction import GaussianPrior
from jdp.numerics.vectors import unit


class Candidates(NamedTuple):
  """The labels that the optimisation tries, each by itself, and where it starts.

  Attributes:
    labels: int32 [m].
    starts: float32 [m, d], the initial inputs. Each is projected on the prior's subspace.
  """

  labels: jax.Array
  starts: jax.Array


class Match(NamedTuple):
  """What the optimisation found.

  Attributes:
    input: float32 [d].
    candidate: int32 scalar, the number of the best candidate.
    cosine: float32 scalar, between the gradient of `input` and the released one.
  """

  input: jax.Array
  candidate: jax.Array
  cosine: jax.Array


@checked
def match_gradient(
  gradient_of: Callable[[jax.Array, jax.Array], jax.Array],
  prior: GaussianPrior,
  *,
  num_steps: int = 300,
  learning_rate: float = 0.1,
) -> Callable[[jax.Array, jax.typing.ArrayLike, Candidates], Match]:
  """An attack that moves an input until its gradient matches a released one.

  It tries every candidate and returns the one of least loss. The input moves in the prior's
  standard coordinates, by Adam with a cosine schedule. The loss includes `penalty` times the mean
  square of the coordinates. The attack is deterministic.

  A penalty of 0 suits an exact gradient. Suppose that Z releases a direction, with noise of
  variance s^2 in each coordinate. Then k s^2 / (2 ||Z||) makes the minimum the posterior mode under
  normal noise, where k is the prior's number of coordinates.

  The loss has many minima, so the start matters. Images whose gradients are near the released one
  are better starts than the prior's mean.

  Args:
    gradient_of: (input [d], label) -> gradient of the model's loss at that example, flat [p]. It
      must be differentiable.
    prior: the prior of inputs.
    num_steps: the number of the optimiser's steps.
    learning_rate: the optimiser's at the start, in the prior's standard deviations.

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
    # The constant keeps the derivative finite where the gradient is zero.
    return jnp.sum(gradient * target) / jnp.sqrt(jnp.sum(gradient**2) + 1e-20)

  def loss(coordinates, label, target, penalty):
    return 1 - cosine(coordinates, label, target) + penalty * jnp.mean(coordinates**2)

  def of_candidate(label, first, target, penalty):
    def step(carry, _):
      coordinates, state = carry
      gradient = jax.grad(loss)(coordinates, label, target, penalty)
      # Optax's adam raises its decay to the power of an integer, which strict promotion refuses.
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
