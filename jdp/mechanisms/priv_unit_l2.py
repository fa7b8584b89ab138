"""PrivUnit: the direction of a vector, by sampling from a spherical cap.

Source: arXiv 1812.00984, Algorithm 1.
"""

import math

import jax
import jax.numpy as jnp

from jdp import _validate, random
from jdp._arguments import checked
from jdp.accounting.local import priv_unit as caps
from jdp.accounting.local.threshold import MAX_EPSILON
from jdp.guarantees import PureDP
from jdp.mechanisms.base import LocalMechanism, check_cost, check_shape
from jdp.mechanisms.draws.cap_height import height_sampler
from jdp.numerics.dither import dithered
from jdp.numerics.row_products import precise_dot, row_directions, row_dots, weighted_row_sum
from jdp.numerics.vectors import l2_norm, unit

# Up to this dimension the part of the noise orthogonal to the input is computed explicitly.
_SMALL_DIM = 64
# The spacing of the dither, as a share of the noise in a coordinate of Y, and its least value. The
# dither's error E has mean 0 and covariance (s^2/12) I. To second order the mean of the direction
# (Y + E) / ||Y + E|| is that of Y, shortened by (dim - 1) (s^2/24) E[1/||Y||^2], and E[1/||Y||^2] =
# 1/(dim - 2). As the norm stays 1/m, the squared error rises by twice that.
_SPACING_SHARE = 1 / 64
_LEAST_SPACING = 2.0**-12


@checked
def priv_unit(
  dim: int, epsilon: float, *, gamma: float | None = None, p: float | None = None
) -> LocalMechanism:
  """Releases the direction of a vector in R^dim by sampling from a cap around it.

  With probability p the report V is uniform on the cap {<v, u> >= gamma} around the input's
  direction u, else uniform on the rest of the unit sphere. The estimate is V/m. It is unbiased for
  u and has norm 1/m. Its error is E||V/m - u||^2 = 1/m^2 - 1. At the optimum its covariance is
  ((1/m^2 - 1)/dim) I.

  V is the direction of Y, a vector of the sphere times the length of dim normals. Y is rounded to a
  grid with a public random shift (`jdp.numerics.dither`). So the low-order bits of V tell nothing
  of u. The spacing s is (1 - m^2)^(1/2) / 64, about 1/64 of a coordinate's noise, and at least
  2^-12. The norm stays 1/m. The mean is shorter than u by a relative s^2/24 (dim - 1) / (dim - 2),
  1e-5 (1 - m^2) in many dimensions. The error is above 1/m^2 - 1 by a relative 2.1e-5. At the least
  spacing `mean_squared_error` is an upper bound.

  By default gamma and p are the exact optimum for epsilon. `gamma` alone takes the p that spends
  all of epsilon. `p` alone takes the gamma that does. A pair is kept as it is, with its own exact
  epsilon in the guarantee.

  Formal guarantee: `PureDP` per value, replace one (any two inputs), against the server. It holds
  for every input, because the input is first divided by its norm. An input without a direction
  (zero, NaN, infinite) is replaced by the first basis vector.

  That is for real numbers. On the machine, the release is one of two:

  * With a probability of (1 - p) / (1 - q), realised to a relative 2^-32, V is from anywhere on the
    sphere. Here q is the cap's share of the sphere. V is then made of random bits alone, the same
    for every input. So no report is impossible under any input, and rounding cannot make one rarer.
  * Else V is from the cap. What float32 errors add to the probability of a report is bounded by
    `jdp.accounting.float_noise.cap_surcharge` (statement 5.6 of `docs/theory/float_noise.md`).

  Epsilon rises by at most that, apart from a delta: at delta = 1e-10 by .02 in 2 dimensions, .3 in
  1,000 and 8 in 1e6. (For caps so small that the spacing is 2^-12, by up to .7 in 2 dimensions.)

  Args:
    dim: the dimension d. In [2, 1e9].
    epsilon: the privacy loss of one release. In [1e-3, 1e4].
    gamma: least <v, u> of the cap's points. In [0, 1).
    p: probability of drawing from the cap.

  Returns:
    A `LocalMechanism` on float [dim] vectors in the L2 norm. Reports are V, float32 [dim].
    `parameters` is a `jdp.accounting.local.priv_unit.Cap`.

  Raises:
    ValueError: if an argument is out of range, or the pair's exact epsilon exceeds the one asked
      for.

  >>> mechanism = priv_unit(1000, 4.0)
  >>> print(mechanism.guarantee)
  4-DP per value (replace one), against the server
  >>> u = jnp.zeros(1000).at[0].set(1.0)
  >>> estimate = mechanism.privatize(jax.random.key(0), u)
  >>> round(float(jnp.linalg.norm(estimate)) * mechanism.parameters.m, 4)
  1.0
  """
  cap = _choose_cap(dim, epsilon, gamma, p)
  sample_height = height_sampler(cap)
  point_at_height = _point_at_height_explicitly if dim <= _SMALL_DIM else _point_at_height
  scale = math.exp(-cap.log_m)
  spacing = max(_LEAST_SPACING, math.sqrt(-math.expm1(2 * cap.log_m)) * _SPACING_SHARE)

  def draw(key):
    height_key, noise_key, shift_key = jax.random.split(key, 3)
    return random.normal(noise_key, (dim,)), *sample_height(height_key), shift_key

  def encode(key, value):
    check_shape(value, (dim,))
    noise, anywhere, height, shift_key = draw(key)
    y = dithered(
      shift_key, jnp.where(anywhere, noise, point_at_height(noise, unit(value), *height)), spacing
    )
    # In few dimensions y may be the origin.
    return unit(y) if dim <= _SMALL_DIM else y / jnp.sqrt(precise_dot(y, y))

  def decode(report):
    return scale * report

  def privatize_sum(keys, values, weights):
    noise, anywhere, height, shift_keys = jax.vmap(draw)(keys)
    rows, lengths = row_directions(values)
    a, b = _coefficients(row_dots(noise, noise), row_dots(noise, rows) / lengths, *height)
    a, b = jnp.where(anywhere, 1.0, a), jnp.where(anywhere, 0.0, b)
    y = a[:, None] * noise + (b / lengths)[:, None] * rows  # as in `_point_at_height`
    y = jax.vmap(lambda key, y: dithered(key, y, spacing))(shift_keys, y)
    return weighted_row_sum(scale * weights / jnp.sqrt(row_dots(y, y)), y)

  def mean_squared_error(norm: float = 1.0) -> float:
    del norm  # A direction has norm 1.
    return math.expm1(-2 * cap.log_m) + (_coarse_error(dim) if spacing == _LEAST_SPACING else 0.0)

  return LocalMechanism(
    encode=encode,
    decode=decode,
    privatize=lambda key, value: decode(encode(key, value)),
    guarantee=PureDP(cap.epsilon),
    shape=(dim,),
    norm=l2_norm,
    max_norm=scale,
    mean_squared_error=mean_squared_error,
    parameters=cap,
    privatize_sum=None if dim <= _SMALL_DIM else privatize_sum,
    noise=scale / math.sqrt(dim),
  )


@checked
def published_split(dim: int, epsilon0: float, epsilon1: float) -> tuple[float, float]:
  """(gamma, p) of the paper's parameterisation, to pass to `priv_unit` with epsilon0 + epsilon1.

  p is expit(epsilon0). gamma is the largest that either of the paper's two sufficient conditions
  allows for epsilon1 (`jdp.accounting.local.priv_unit.published_cap`). The guarantee of the
  mechanism made from them is their exact epsilon, which is below epsilon0 + epsilon1.

  Raises:
    ValueError: if an argument is out of range (dim >= 3).

  >>> gamma, p = published_split(1000, 1.0, 3.0)
  >>> f"{priv_unit(1000, 4.0, gamma=gamma, p=p).guarantee.epsilon:.3f}"
  '2.916'
  """
  _validate.in_range(0, MAX_EPSILON, epsilon0=epsilon0, epsilon1=epsilon1)
  cap = caps.published_cap(dim, epsilon0, epsilon1)
  return cap.gamma, cap.p


def _choose_cap(dim: int, epsilon: float, gamma: float | None, p: float | None) -> caps.Cap:
  if gamma is None:
    return caps.optimal_cap(dim, epsilon) if p is None else caps.widest_cap(dim, epsilon, p)
  if p is None:
    return caps.cap_at(dim, epsilon, gamma)
  cap = caps.cap_of(dim, gamma, p)
  check_cost(cap.epsilon, epsilon, gamma=gamma, p=p)
  return cap


def _coarse_error(dim: int) -> float:
  """Roughly what rounding to the least spacing adds to the squared error, for small caps."""
  inverse_square = 1 / (dim - 2) if dim > 2 else -math.log(_LEAST_SPACING)
  return (dim - 1) * _LEAST_SPACING**2 / 12 * inverse_square


def _point_at_height(
  noise: jax.Array, u: jax.Array, height: jax.Array, complement: jax.Array
) -> jax.Array:
  """||g|| (t u + sqrt(1-t^2) w), as A g + B u.

  Here g is the noise, and w is its part orthogonal to u, normalised. w itself is never computed.
  """
  a, b = _coefficients(jnp.sum(noise * noise), jnp.sum(noise * u), height, complement)
  return a * noise + b * u


def _coefficients(
  square: jax.Array, along: jax.Array, height: jax.Array, complement: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """(A, B) of `_point_at_height`, from ||g||^2 and <g, u>."""
  # sqrt(1 - t^2) from 1 - t, the complement: 1 - t^2 would cancel near the pole.
  a = jnp.sqrt(complement * (1 + height) * square / (square - along * along))
  return a, height * jnp.sqrt(square) - a * along


def _point_at_height_explicitly(
  noise: jax.Array, u: jax.Array, height: jax.Array, complement: jax.Array
) -> jax.Array:
  """`_point_at_height` for few dimensions, where ||g||^2 - <g,u>^2 would cancel.

  It computes w itself, orthogonalised twice.
  """
  radius = jnp.sqrt(jnp.sum(noise * noise))
  for _ in range(2):
    noise = noise - jnp.sum(noise * u) * u
  length = jnp.sqrt(jnp.sum(noise * noise))
  # In float32 g may be parallel to u (at d = 2, once in 1e8 draws). Then any normal to u will do.
  shortest = jnp.arange(u.size) == jnp.argmin(jnp.abs(u))
  other = shortest.astype(jnp.float32) - jnp.sum(jnp.where(shortest, u, 0.0)) * u
  w = jnp.where(
    length > 1e-12, noise / jnp.maximum(length, 1e-30), other / jnp.sqrt(jnp.sum(other * other))
  )
  return radius * (height * u + jnp.sqrt(complement * (1 + height)) * w)
