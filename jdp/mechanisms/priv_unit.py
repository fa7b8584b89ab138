"""PrivUnit: the direction of a vector, by sampling from a spherical cap (arXiv 1812.00984, Algorithm 1)."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jdp import random
from jdp.accounting import cap as caps
from jdp.guarantees import PureDP
from jdp.mechanisms.base import LocalMechanism
from jdp.vectors import l2_norm, unit

# Up to this dimension the part of the noise orthogonal to the input is computed explicitly, and 1 - t
# rather than t: few coordinates cannot average rounding out.
_SMALL_DIM = 64
_KNOTS = 1024
# -log of the smallest 64-bit uniform is 65 log 2 = 45.05.
_DEEPEST = 45.1


def priv_unit(dim: int, epsilon: float, *, gamma: float | None = None, p: float | None = None) -> LocalMechanism:
  """Releases the direction of a vector in R^dim by sampling from a cap around it.

  With probability p the report V is uniform on the cap {<v, u> >= gamma} around
  the input's direction u, else uniform on the rest of the unit sphere. The
  estimate is V/m: unbiased for u, of norm 1/m, with E||V/m - u||^2 = 1/m^2 - 1
  and, at the optimum, covariance ((1/m^2 - 1)/dim) I.

  By default gamma and p are the exact optimum for epsilon. `gamma` alone takes
  the p that spends all of epsilon; `p` alone the gamma that does; a pair is kept as it
  is, with its own exact epsilon in the guarantee.

  Formal guarantee: `PureDP`, replace one (any two inputs), per value, against the
  server, for every input: it is divided by its norm first, and one that has no
  direction (zero, NaN, infinite) is replaced by the first basis vector. In float32 three things
  differ from the ideal: the side of the cap is decided to 2^-64 in total variation;
  <V, u> is accurate to 5e-6 / sqrt(dim); and the rounding of V itself is not
  protected, so its low-order bits may say more than the guarantee allows. A cap of
  angle sqrt(1 - gamma^2) below about 1e-6 is lost in rounding: such an epsilon protects nothing, and is
  offered for sweeps only.

  Args:
    dim: d, 2 <= dim <= 1e9.
    epsilon: the privacy loss of one release, 1e-3 <= epsilon <= 1e4.
    gamma: least <v, u> of the cap's points, in [0, 1).
    p: probability of drawing from the cap.

  Returns:
    A `LocalMechanism` on float [dim] vectors in the L2 norm. Reports: V, float32
    [dim]. `parameters` is a `jdp.accounting.cap.Cap`.

  Raises:
    ValueError: if an argument is out of range, or the pair's exact epsilon exceeds the one asked for.

  >>> mechanism = priv_unit(1000, 4.0)
  >>> print(mechanism.guarantee)
  4-DP per value (replace one), against the server
  >>> u = jnp.zeros(1000).at[0].set(1.0)
  >>> estimate = mechanism.privatize(jax.random.key(0), u)
  >>> round(float(jnp.linalg.norm(estimate)) * mechanism.parameters.m, 4)
  1.0
  """
  cap = _choose_cap(dim, epsilon, gamma, p)
  sample_height = _height_sampler(cap)
  move = _move_explicitly if dim <= _SMALL_DIM else _move
  scale = math.exp(-cap.log_m)

  def encode(key, value):
    if value.shape != (dim,):
      raise ValueError(f"Expected a vector of shape ({dim},), got {value.shape}; vmap over a batch.")
    height_key, noise_key = jax.random.split(key)
    height, complement = sample_height(height_key)
    return move(random.normal(noise_key, (dim,)), unit(value), height, complement)

  def decode(report):
    return scale * report

  return LocalMechanism(
    encode=encode,
    decode=decode,
    privatize=lambda key, value: decode(encode(key, value)),
    guarantee=PureDP(cap.epsilon),
    norm=l2_norm,
    max_norm=scale,
    mean_squared_error=lambda norm=1.0: math.expm1(-2 * cap.log_m),
    parameters=cap,
  )


def published_split(dim: int, epsilon0: float, epsilon1: float) -> tuple[float, float]:
  """(gamma, p) of the paper's parameterisation, to pass to `priv_unit` with epsilon0 + epsilon1.

  p = expit(epsilon0), and gamma the larger that the paper's two sufficient conditions
  allow for epsilon1 (`jdp.accounting.cap.published_cap`). The guarantee of the mechanism made from them is
  their exact epsilon, which is below epsilon0 + epsilon1.

  Raises:
    ValueError: if an argument is out of range (dim >= 3).

  >>> gamma, p = published_split(1000, 1.0, 3.0)
  >>> f"{priv_unit(1000, 4.0, gamma=gamma, p=p).guarantee.epsilon:.3f}"
  '2.939'
  """
  cap = caps.published_cap(dim, epsilon0, epsilon1)
  return cap.gamma, cap.p


def _choose_cap(dim, epsilon, gamma, p) -> caps.Cap:
  if gamma is None and p is None:
    return caps.optimal_cap(dim, epsilon)
  if p is None:
    return caps.cap_at(dim, epsilon, gamma)
  if gamma is None:
    return caps.widest_cap(dim, epsilon, p)
  cap = caps.cap_of(dim, gamma, p)
  if not cap.epsilon <= epsilon:
    raise ValueError(
      f"Expected a pair that costs at most epsilon = {epsilon}, got gamma = {gamma}, p = {p} with an exact "
      f"epsilon of {cap.epsilon:.9g}; ask for that epsilon, or leave p out."
    )
  return cap


class _Quantiles(NamedTuple):
  """The height t as a function of y, a log probability: cubic Hermite pieces between equidistant knots, counted from
  the highest y, where most of the probability lies and float32 is finest.

  Tabulates 1 - t where t comes close to 1 (`from_pole`), else t: the one that
  float32 can hold to 1e-7 of its own scale.
  """

  highest: float
  step: float
  values: np.ndarray
  slopes: np.ndarray
  from_pole: bool

  def __call__(self, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(t, 1 - t) at y, float32, of any shape."""
    position = jnp.clip((self.highest - y) / self.step, 0.0, _KNOTS - 1.0)
    left = jnp.minimum(position.astype(jnp.int32), _KNOTS - 2)
    s = position - left.astype(jnp.float32)
    v, d = jnp.asarray(self.values), jnp.asarray(self.slopes)
    v0, v1, d0, d1 = v[left], v[left + 1], d[left], d[left + 1]
    rise = v1 - v0
    value = v0 + s * (d0 + s * ((3 * rise - 2 * d0 - d1) + s * (d0 + d1 - 2 * rise)))
    return (1 - value, value) if self.from_pole else (value, 1 - value)


def _quantiles(dim: int, log_tail_start: float, highest: float, from_pole: bool) -> _Quantiles:
  """Tabulates the t >= 0 whose cap has the log share log_tail_start + y, for y in [highest - 45.1, highest]."""
  y = np.linspace(highest, highest - _DEEPEST, _KNOTS)
  gamma, log_height = caps.quantile(dim, log_tail_start + y)
  # dt / d log q = -q / density.
  slope = -np.exp(log_tail_start + y - caps.log_density(dim, gamma, log_height)) * (y[1] - y[0])
  values, slopes = (2 * np.exp(log_height), -slope) if from_pole else (gamma, slope)
  return _Quantiles(highest, float(y[0] - y[1]), np.float32(values), np.float32(slopes), from_pole)


def _height_sampler(cap: caps.Cap):
  """key -> (t, 1 - t): t = <V, u>, from the cap w.p. p and else from its complement, by inversion.

  In the cap, log S(t) = log q + log U. In the complement S(t) = q + (1-q) U, and where that exceeds 1/2 the lower
  tail 1 - S = (1-q)(1-U) is inverted instead, so that both tails keep their full depth.
  """
  small = cap.dim <= _SMALL_DIM
  in_cap = _quantiles(cap.dim, cap.log_q, 0.0, small or cap.gamma > 0.5)
  in_half = _quantiles(cap.dim, 0.0, math.log(0.5), small)
  probability_outside = math.exp(-np.logaddexp(0.0, cap.logit_p))
  log_q = np.float32(max(cap.log_q, -1e3))  # below the smallest U either way
  log_rest = np.float32(np.log1p(-math.exp(cap.log_q)))

  def sample(key):
    side_key, height_key = jax.random.split(key)
    outside = random.bernoulli(side_key, probability_outside)
    log_u, log_1mu = random.log_uniforms(height_key)
    log_upper = jnp.logaddexp(log_q, log_rest + log_u)
    log_lower = log_rest + log_1mu
    is_upper = log_upper <= log_lower
    near, complement = in_half(jnp.minimum(log_upper, log_lower))
    near, complement = jnp.where(is_upper, near, -near), jnp.where(is_upper, complement, 2 - complement)
    top, top_complement = in_cap(log_u)
    return jnp.where(outside, near, top), jnp.where(outside, complement, top_complement)

  return sample


def _move(noise, u, height, complement):
  """t u + sqrt(1-t^2) w as A g + B u: w, the part of g orthogonal to u, normalised, is never written down."""
  along = jnp.sum(noise * u)
  across = jnp.sqrt(jnp.sum(noise * noise) - along * along)
  a = jnp.sqrt(complement * (1 + height)) / across
  return a * noise + (height - a * along) * u


def _move_explicitly(noise, u, height, complement):
  """The same for few dimensions, where ||g||^2 - <g,u>^2 would cancel: w itself, orthogonalised twice."""
  for _ in range(2):
    noise = noise - jnp.sum(noise * u) * u
  length = jnp.sqrt(jnp.sum(noise * noise))
  # In float32 g may be parallel to u (at d = 2, once in 1e8 draws): then any orthogonal vector.
  shortest = jnp.arange(u.size) == jnp.argmin(jnp.abs(u))
  other = shortest.astype(jnp.float32) - jnp.sum(jnp.where(shortest, u, 0.0)) * u
  w = jnp.where(length > 1e-12, noise / jnp.maximum(length, 1e-30), other / jnp.sqrt(jnp.sum(other * other)))
  return height * u + jnp.sqrt(complement * (1 + height)) * w
