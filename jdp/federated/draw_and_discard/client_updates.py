"""A Draw and Discard client's update: its model moved by a noisy gradient (arXiv 1807.04369).

The updated model is theta - eta (clip(g) + noise), with g the average gradient over the client's
examples (Algorithm 1 there). The noise scales with the step. So the clipped gradient with its noise
is the release, and the step is post-processing of it. Learning rates and schedules cost no privacy.
Whoever knows theta sees the release. The server does, as it sent theta.

Low-order bits of float noise would tell more (I. Mironov, CCS 2012), so releases are dithered
(`jdp.numerics.dither`). They are rounded to a grid of 1/16 of the noise's standard deviation s,
with a public random shift for each weight. As each weight has its own shift, a sum of several
clients' releases tells observers of later models no more than one with real noise.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jdp import _validate, random
from jdp._arguments import checked
from jdp.accounting import gaussian_noise_multiplier
from jdp.accounting.float_noise import FINEST_SHARE, check_laplace, delta_of_real_noise
from jdp.data.clients import Examples
from jdp.events import LocalRelease
from jdp.federated.draw_and_discard.update_stream import ClientUpdate, Noise, Settings
from jdp.federated.draw_and_discard.update_stream import step as step  # where callers look for it
from jdp.guarantees import ApproxDP, PureDP, Unit
from jdp.numerics import vectors
from jdp.numerics.dither import on_shifted_grid, public_shifts

PyTree = Any
# (parameters, client's examples) -> average gradient
Gradient = Callable[[PyTree, Examples], PyTree]
# the update's number, float32 -> factor of the learning rate
Schedule = Callable[[jax.Array], jax.Array]
# (gradient, bound) -> the gradient within the bound
_ClipTo = Callable[[PyTree, Any], PyTree]

# Relative margin of the L1 norm. Rounding takes less than half of it from the float32 sum of up to
# 1e9 magnitudes, as XLA orders it.
_ROUNDING = 2e-6


@checked
def laplace_update(
  gradient: Gradient,
  epsilon: float,
  learning_rate: float,
  *,
  clip: float = 1.0,
  unit: Unit | str = Unit.COORDINATE,
  schedule: Schedule | None = None,
) -> ClientUpdate:
  """A gradient step with Laplace noise of scale 2 c eta / epsilon on each weight.

  Formal guarantee of one update, for all of the client's examples (replace one: any two data sets),
  against the server. The server knows the model it sent. The guarantee holds for any model and
  example, NaN and infinity included. It depends on the unit:

  * "coordinate": each coordinate of the gradient is clipped to [-c, c]. Each coordinate of the
    release, *seen alone*, is epsilon-DP. Jointly the update is only (epsilon times the number of
    weights)-DP, as one changed feature moves the residual and with it every coordinate. This is
    what arXiv 1807.04369 calls feature-level privacy. Models that are made from the update later
    mix its coordinates (see `jdp.accounting.draw_and_discard.one_update`).
  * "user": the gradient is scaled down to an L1 norm of at most c. The whole update is epsilon-DP.

  The noise scale is rounded up to float32. What floats add to epsilon is at most
  `jdp.accounting.grid_surcharge(s / 16, s, ...)`. At delta = 1e-10 that is 1.1e-3 for one
  coordinate.

  Args:
    gradient: (parameters, examples) -> average gradient. A pytree like the parameters. Use
      `glm(...).gradient`, or `jax.grad(loss)` of any model.
    epsilon: that of one update, in (0, 86].
    learning_rate: eta > 0. The step size, before the schedule's factor.
    clip: c > 0. The bound on the gradient.
    unit: "coordinate" or "user".
    schedule: (number of the update) -> factor of eta. The number counts from 0 over all clients,
      float32. None: always 1.

  Returns:
    A `ClientUpdate`. Its event holds a `PureDP`.

  Raises:
    ValueError: if a number is out of range or the unit is neither of the two.

  >>> from jdp.models.generalised_linear import glm
  >>> update = laplace_update(glm("logistic", (100,)).gradient, epsilon=1.0, learning_rate=0.1)
  >>> print(update.event.guarantee, round(update.noise_variance, 6))
  1-DP per coordinate (replace one), against the server 0.080026
  """
  _validate.positive(epsilon=epsilon)
  check_laplace(epsilon)
  kind, clip_to = _unit_and_clipping(unit, _clip_l1)
  scale = _round_up(2 * _clip_bound(clip) / epsilon)
  event = LocalRelease(PureDP(epsilon, unit=kind))
  return _noisy_update(
    gradient, clip_to, random.laplace, (learning_rate, clip, scale), 2.0, schedule, event
  )


@checked
def gaussian_update(
  gradient: Gradient,
  epsilon: float,
  delta: float,
  learning_rate: float,
  *,
  clip: float = 1.0,
  unit: Unit | str = Unit.COORDINATE,
  schedule: Schedule | None = None,
) -> ClientUpdate:
  """A gradient step with Gaussian noise (arXiv 1807.04369, Section 4.2).

  Formal guarantee of one update: that of `laplace_update`, with (epsilon, delta)-DP in place of
  epsilon-DP. For the unit "user" the norm of at most c is the *L2* norm. The standard deviation is
  2 c times the least noise multiplier of an (epsilon, delta)-DP Gaussian release (arXiv 1805.06530,
  Theorem 8).

  Args:
    gradient: see `laplace_update`.
    epsilon: that of one update, > 0.
    delta: that of one update, in (0, 1).
    learning_rate: eta > 0. The step size, before the schedule's factor.
    clip: c > 0. The bound on the gradient.
    unit: "coordinate" or "user".
    schedule: factor of eta. See `laplace_update`.

  Returns:
    A `ClientUpdate`. Its event holds an `ApproxDP`.

  Raises:
    ValueError: if a number is out of range or the unit is neither of the two.

  >>> from jdp.models.generalised_linear import glm
  >>> update = gaussian_update(glm("logistic", (100,)).gradient, 1.0, 1e-6, 0.1, unit="user")
  >>> print(update.event.guarantee, round(float(update.settings.noise_scale), 1))
  (1, 1e-06)-DP per user (replace one), against the server 8.4
  """
  kind, clip_to = _unit_and_clipping(unit, vectors.clip)
  # The noise of the whole delta is the smaller one, and its tails make more reports impossible.
  left = delta_of_real_noise(gaussian_noise_multiplier(epsilon, delta), delta)
  scale = _round_up(2 * _clip_bound(clip) * gaussian_noise_multiplier(epsilon, left))
  event = LocalRelease(ApproxDP(epsilon, delta, unit=kind))
  return _noisy_update(
    gradient, clip_to, random.normal, (learning_rate, clip, scale), 1.0, schedule, event
  )


@checked
def exact_update(
  gradient: Gradient, learning_rate: float, *, clip: float = 1.0, schedule: Schedule | None = None
) -> ClientUpdate:
  """A gradient step without noise, clipped by coordinate, for comparison.

  Its event says that epsilon is infinite.

  >>> from jdp.models import glm
  >>> update = exact_update(glm("logistic", (2,)).gradient, learning_rate=0.1, clip=0.5)
  >>> update.event.guarantee.epsilon, update.noise_variance
  (inf, 0.0)
  """
  _clip_bound(clip)
  clipped = _clipped(gradient, _clip_coordinates)

  def release(settings, noise, params, client):
    del noise
    return clipped(settings, params, client)

  settings = _settings(learning_rate, clip, np.float32(0))
  event = LocalRelease(PureDP(math.inf, unit=Unit.USER))
  return ClientUpdate(
    settings, lambda key, params: None, clipped, release, _rate(schedule), 0.0, event
  )


def _noisy_update(
  gradient: Gradient,
  clip_to: _ClipTo,
  draw_unit: Callable[[jax.Array, tuple[int, ...]], jax.Array],
  numbers: tuple[float, float, np.float32],
  unit_variance: float,
  schedule: Schedule | None,
  event: LocalRelease,
) -> ClientUpdate:
  """The update with noise from `draw_unit`: (key, shape) -> noise of scale 1.

  `numbers` are learning rate, clip and noise scale. `unit_variance` is the variance of noise of
  scale 1.
  """
  settings, rate, clipped = _settings(*numbers), _rate(schedule), _clipped(gradient, clip_to)
  unit_spacing = FINEST_SHARE * math.sqrt(unit_variance)

  def draw(key, params):
    leaves, structure = jax.tree.flatten(params)
    *keys, shift_key = jax.random.split(key, len(leaves) + 1)
    draws = [draw_unit(k, x.shape) for k, x in zip(keys, leaves, strict=True)]
    shift_keys = jax.random.split(shift_key, len(leaves))
    shifts = [public_shifts(k, x.shape) for k, x in zip(shift_keys, leaves, strict=True)]
    return Noise(jax.tree.unflatten(structure, draws), jax.tree.unflatten(structure, shifts))

  def release(settings, noise, params, client):
    spacing = unit_spacing * settings.noise_scale

    def noised(g, z, shift):
      return on_shifted_grid(g + settings.noise_scale * z, shift, spacing)

    return jax.tree.map(noised, clipped(settings, params, client), noise.draws, noise.shifts)

  # Rounding to a grid with a random shift adds the variance of a uniform error, spacing^2 / 12.
  variance = unit_variance + unit_spacing**2 / 12
  variance *= (float(rate(settings, jnp.int32(0))) * float(numbers[2])) ** 2
  return ClientUpdate(settings, draw, clipped, release, rate, variance, event)


def _clipped(
  gradient: Gradient, clip_to: _ClipTo
) -> Callable[[Settings, PyTree, Examples], PyTree]:
  # In float32: half precision would round the norm, and what is clipped to it.
  def clipped(settings, params, client):
    found = jax.tree.map(lambda g: g.astype(jnp.float32), gradient(params, client))
    return clip_to(found, settings.clip)

  return clipped


def _rate(schedule: Schedule | None) -> Callable[[Settings, jax.Array], Any]:
  if schedule is None:
    return lambda settings, number: settings.learning_rate
  return lambda settings, number: (
    settings.learning_rate * jnp.asarray(schedule(number.astype(jnp.float32)), jnp.float32)
  )


def _settings(learning_rate: float, clip: float, scale: np.float32) -> Settings:
  _validate.positive(learning_rate=learning_rate)
  return Settings(np.float32(learning_rate), np.float32(clip), scale)


def _clip_bound(clip: float) -> float:
  """The bound that takes effect: `clip` in float32."""
  with np.errstate(over="ignore"):
    bound = float(np.float32(clip))
  _validate.positive(clip=bound)
  return bound


def _round_up(scale: float) -> np.float32:
  """Rounds the noise scale up to float32, so that the noise is never less than asked for."""
  with np.errstate(over="ignore"):
    rounded = np.float32(scale)
    # Compared in float64: next to a float32, NumPy would round `scale` too.
    rounded = rounded if float(rounded) >= scale else np.nextafter(rounded, np.float32(np.inf))
  _validate.positive(noise_scale=float(rounded))
  return rounded


def _unit_and_clipping(unit: Unit | str, clip_user: _ClipTo) -> tuple[Unit, _ClipTo]:
  """The unit, and how a gradient is bounded for it."""
  _validate.one_of((Unit.COORDINATE, Unit.USER), unit=unit)
  return Unit(unit), _clip_coordinates if unit == Unit.COORDINATE else clip_user


def _clip_coordinates(gradient: PyTree, bound: jax.Array | float) -> PyTree:
  """Clips every coordinate to [-bound, bound]. NaN becomes 0."""
  return jax.tree.map(lambda g: jnp.where(jnp.isnan(g), 0.0, jnp.clip(g, -bound, bound)), gradient)


def _clip_l1(gradient: PyTree, bound: jax.Array | float) -> PyTree:
  """Scales the gradient down to an L1 norm of at most `bound`, minus a margin for rounding.

  A gradient with a NaN or infinite coordinate becomes zero.
  """
  leaves = jax.tree.leaves(gradient)
  # At least 1e-30, so that a gradient of zeros is not divided by zero.
  largest = jnp.max(jnp.stack([jnp.max(jnp.abs(g), initial=1e-30) for g in leaves]))
  scaled = jax.tree.map(lambda g: g / largest, gradient)  # in [-1, 1]: its norm cannot overflow
  # One sum over the leaves' sums. Added one by one, hundreds of leaves would round by more than
  # _ROUNDING allows.
  norm = jnp.sum(jnp.stack([jnp.sum(jnp.abs(g)) for g in jax.tree.leaves(scaled)]))
  bound = bound * (1 - _ROUNDING)
  factor = bound / jnp.maximum(norm, 1.0)
  usable = (norm < jnp.inf) & (largest < jnp.inf)  # false for NaN, which a sum passes on
  # `largest <= factor` says that the gradient is within the bound. Then it is kept bit for bit.
  kept = jax.tree.map(lambda g, s: jnp.where(largest <= factor, g, s * factor), gradient, scaled)
  return jax.tree.map(lambda g: jnp.where(usable, g, 0.0), kept)
