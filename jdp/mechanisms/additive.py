"""Additive noise: Laplace, Gaussian and L2-Laplace, on a ball as wide as the sensitivity.

A sensitivity is a promise about inputs. Here the mechanism keeps it. The domain is the ball around
zero of radius sensitivity / 2, whose points are at most `sensitivity` apart. Every input is scaled
down into it.

The low-order bits of float noise reveal more than a guarantee for real numbers allows (I. Mironov,
"On significance of the least significant bits for differential privacy", CCS 2012). So every report
is dithered (`jdp.numerics.dither`): it is rounded to a grid with a public random shift. The grid's
spacing is 1/16 of s, the standard deviation of the noise on a coordinate. The report stays
unbiased, at a variance of (1 + 1/3072) s^2. What float32 still adds to epsilon is at most
`jdp.accounting.grid_surcharge(s / 16, s, ...)`.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jdp import _validate, random
from jdp._arguments import checked
from jdp.accounting.analytic_gaussian import gaussian_epsilon
from jdp.accounting.float_noise import FINEST_SHARE, check_laplace, delta_of_real_noise
from jdp.guarantees import AnyGuarantee, ApproxDP, PureDP
from jdp.mechanisms.base import LocalMechanism, check_shape
from jdp.numerics import vectors
from jdp.numerics.dither import dithered
from jdp.random import draws

# The float32 sum of the magnitudes of up to 1e9 entries, as XLA orders it, is within 2e-6 of the
# exact one.
_ROUNDING = 2e-6


@checked
def laplace(epsilon: float, sensitivity: float, *, shape: tuple[int, ...] = ()) -> LocalMechanism:
  """Releases a value plus independent Laplace noise on each coordinate.

  The scale of the noise is sensitivity / epsilon. The estimate is unbiased for values of an L1 norm
  up to sensitivity / 2. Its error is E||estimate - value||^2 = 2 size (sensitivity / epsilon)^2 (1
  + 1/3072). For a number in [0, r_max], take r_max for the sensitivity and release value - r_max
  / 2.

  Formal guarantee: `PureDP(epsilon)` per value, replace one (any two inputs), against the server.
  It holds for every input, because the input is first scaled down to an L1 norm of sensitivity / 2.
  An input that holds NaN or infinity, or whose norm exceeds float32's range, counts as zero. Floats
  add the surcharge of the module's docstring: at delta = 1e-10 at most 1.1e-3 for one coordinate.
  The tails end at 155 times the scale. An epsilon above 86 is refused: up to it, any two inputs
  share all but 1e-30 of their reports (statement 5.5 of `docs/theory/float_noise.md`).

  Source: Dwork, McSherry, Nissim and Smith, "Calibrating noise to sensitivity in private data
  analysis" (TCC 2006).

  Args:
    epsilon: the privacy loss of one release. In (0, 86].
    sensitivity: the L1 distance of the farthest two values of the domain. Positive.
    shape: the shape of one value.

  Returns:
    A `LocalMechanism` on float values of `shape` in the L1 norm. Reports are the estimates, float32
    of `shape`. `max_norm` is infinite. `parameters` is the noise's scale. `mean_squared_error(r)`
    is exact for r <= sensitivity / 2. Beyond, the estimate is biased, and it is an upper bound.

  Raises:
    ValueError: if epsilon or sensitivity is out of range, or a value has another shape.

  >>> mechanism = laplace(2.0, 1.0)
  >>> mechanism.guarantee.epsilon, mechanism.parameters, mechanism.mean_squared_error(0.5)
  (2.0, 0.5, 0.5001627604166666)
  """
  _validate.positive(epsilon=epsilon, sensitivity=sensitivity)
  check_laplace(epsilon)
  scale = sensitivity / epsilon
  noise = random.laplace
  return _additive(
    _clip_l1, _l1_norm, noise, scale, 2 * math.prod(shape), PureDP(epsilon), sensitivity, shape
  )


@checked
def gaussian(
  stddev: float, sensitivity: float, delta: float, *, shape: tuple[int, ...] = ()
) -> LocalMechanism:
  """Releases a value plus independent normal noise on each coordinate.

  The noise has the standard deviation `stddev`. The estimate is unbiased for values of an L2 norm
  up to sensitivity / 2. Its error is E||estimate - value||^2 = size stddev^2 (1 + 1/3072). For a
  given epsilon, `stddev` is the sensitivity times
  `jdp.accounting.analytic_gaussian.gaussian_noise_multiplier(epsilon, delta)`.

  Formal guarantee: `ApproxDP(epsilon, delta)` per value, replace one (any two inputs), against the
  server. Its epsilon is the exact one of this delta (arXiv 1805.06530, Theorem 8), valid for small
  and large values. It holds for every input, because the input is first scaled down to an L2 norm
  of sensitivity / 2. An input that holds NaN or infinity counts as zero. Floats add the surcharge
  of the module's docstring. The tails end at 17.3 times the standard deviation. The mass that this
  makes impossible under a neighbour is part of delta, and is its least value
  (`jdp.accounting.float_noise.gaussian_cut`). It is 2e-12 for a noise of a tenth of the
  sensitivity, and below 1e-30 from a fifth on.

  Args:
    stddev: the noise's standard deviation. Between 1e-4 and 1e4 times the sensitivity.
    sensitivity: the L2 distance of the farthest two values of the domain. Positive.
    delta: the delta at which epsilon is stated. In (`gaussian_cut`, 1).
    shape: the shape of one value.

  Returns:
    A `LocalMechanism` on float values of `shape` in the L2 norm. Reports are the estimates, float32
    of `shape`. `max_norm` is infinite. `parameters` is the stddev. `mean_squared_error(r)` is exact
    for r <= sensitivity / 2. Beyond, the estimate is biased, and it is an upper bound.

  Raises:
    ValueError: if an argument is out of range, or a value has another shape.

  >>> print(gaussian(4.0, 1.0, 1e-5).guarantee)
  (0.926342, 1e-05)-DP per value (replace one), against the server
  """
  _validate.positive(stddev=stddev, sensitivity=sensitivity)
  _validate.in_range(1e-4 * sensitivity, 1e4 * sensitivity, stddev=stddev)
  noise_multiplier = stddev / sensitivity
  left = delta_of_real_noise(noise_multiplier, delta)
  guarantee = ApproxDP(gaussian_epsilon(noise_multiplier, left), delta)
  size = math.prod(shape)
  return _additive(
    vectors.clip, vectors.l2_norm, random.normal, stddev, size, guarantee, sensitivity, shape
  )


@checked
def l2_laplace(
  epsilon: float, sensitivity: float, *, shape: tuple[int, ...] = ()
) -> LocalMechanism:
  """Releases a vector plus noise z of density proportional to exp(-epsilon ||z||_2 / sensitivity).

  The noise has a uniform direction. Its length is Gamma(size) distributed, the sum of `size`
  exponentials. The estimate is unbiased for vectors of an L2 norm up to sensitivity / 2. Its error
  is E||estimate - value||^2 = size (size + 1) (sensitivity / epsilon)^2 (1 + 1/3072). For a scalar
  it is the Laplace mechanism.

  Formal guarantee: `PureDP(epsilon)` per value, replace one (any two inputs), against the server.
  It holds for every input, because the input is first scaled down to an L2 norm of sensitivity / 2.
  An input that holds NaN or infinity counts as zero. For one number, floats add the surcharge of
  the module's docstring, and the tails end as those of `laplace`. That bound does not apply to the
  coordinates of a vector, which share one length. `on_grid` says what holds for them.

  Source: Chaudhuri, Monteleoni and Sarwate, "Differentially private empirical risk minimization"
  (JMLR 2011), Algorithm 1.

  Args:
    epsilon: the privacy loss of one release. In (0, 86].
    sensitivity: the L2 distance of the farthest two values of the domain. Positive.
    shape: the shape of one value.

  Returns:
    A `LocalMechanism` on float values of `shape` in the L2 norm. Reports are the estimates, float32
    of `shape`. `max_norm` is infinite. `parameters` is the noise's scale. `mean_squared_error(r)`
    is exact for r <= sensitivity / 2. Beyond, the estimate is biased, and it is an upper bound.

  Raises:
    ValueError: if epsilon or sensitivity is out of range, or a value has another shape.

  >>> l2_laplace(2.0, 1.0, shape=(10,)).mean_squared_error(0.5)
  27.508951822916668
  """
  _validate.positive(epsilon=epsilon, sensitivity=sensitivity)
  check_laplace(epsilon)
  size = math.prod(shape)

  def noise(key, shape):
    direction_key, length_key = jax.random.split(key)
    # An inner product, because XLA on CPU would fuse a sum with the draws, number by number.
    length = jnp.dot(draws.exponential(length_key, (size,)), jnp.ones(size), precision="highest")
    return length * vectors.unit(random.normal(direction_key, shape))

  scale, second_moment = sensitivity / epsilon, size * (size + 1)
  return _additive(
    vectors.clip, vectors.l2_norm, noise, scale, second_moment, PureDP(epsilon), sensitivity, shape
  )


def _additive(
  clip: Callable[[jax.Array, float], jax.Array],
  norm: Callable[[jax.Array], jax.Array],
  noise: Callable[[jax.Array, tuple[int, ...]], jax.Array],
  scale: float,
  second_moment: float,
  guarantee: AnyGuarantee,
  sensitivity: float,
  shape: tuple[int, ...],
) -> LocalMechanism:
  """clip(value, sensitivity / 2) + scale * noise(key, shape), dithered.

  The noise has E||noise||^2 = second_moment.
  """
  # Beyond this range float32 would flush the noise to zero or infinity.
  of_noise = "scale of the noise, by sensitivity and epsilon or stddev,"
  _validate.float32_safe(**{of_noise: scale, "sensitivity": sensitivity})
  size, radius = math.prod(shape), sensitivity / 2
  stddev = math.sqrt(second_moment / max(1, size)) * scale
  spacing = FINEST_SHARE * stddev

  def encode(key, value):
    value = jnp.asarray(value)
    check_shape(value, shape)
    noise_key, shift_key = jax.random.split(key)
    return dithered(
      shift_key, clip(value, radius) + np.float32(scale) * noise(noise_key, shape), spacing
    )

  def mean_squared_error(norm: float) -> float:
    # Three parts: the noise, the dither's rounding, and the bias of a value that is clipped.
    return second_moment * scale**2 + size * spacing**2 / 12 + max(0.0, norm - radius) ** 2

  return LocalMechanism(
    encode=encode,
    decode=lambda report: report,
    privatize=encode,
    guarantee=guarantee,
    shape=shape,
    norm=norm,
    max_norm=math.inf,
    mean_squared_error=mean_squared_error,
    parameters=scale,
    noise=stddev,
  )


def _l1_norm(value: jax.Array) -> jax.Array:
  return jnp.sum(jnp.abs(value))


def _clip_l1(value: jax.Array, max_norm: float) -> jax.Array:
  """Scales a value down to an L1 norm of at most max_norm.

  A scaled value is a relative 2e-6 shorter than max_norm, to leave room for rounding.
  """
  value = value.astype(jnp.float32) / np.float32(max_norm)
  norm = _l1_norm(value)
  usable = norm < jnp.inf  # also False for NaN
  factor = np.float32(max_norm) / jnp.maximum(norm * (1 + _ROUNDING), 1.0)
  return jnp.where(usable, value, 0.0) * jnp.where(usable, factor, 0.0)
