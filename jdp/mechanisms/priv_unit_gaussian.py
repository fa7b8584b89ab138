"""PrivUnitG: the direction of a vector, by Gaussian noise on one side of a plane (arXiv
2205.02466).
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from jdp import _validate, random
from jdp.accounting.local.priv_unit_g import GaussianCap, log_normal_density, optimal_gaussian_cap
from jdp.guarantees import PureDP
from jdp.mechanisms.base import LocalMechanism
from jdp.mechanisms.draws.quantiles import HALF, tabulate, two_sided
from jdp.numerics.dither import dithered
from jdp.numerics.row_products import row_directions, row_dots, weighted_row_sum
from jdp.numerics.vectors import l2_norm, unit

_SPACING = 1 / 64  # of the dither: the noise in a coordinate of V has a standard deviation of 1


def priv_unit_g(dim: int, epsilon: float) -> LocalMechanism:
  """Releases the direction u of a vector in R^dim by Gaussian noise whose component along u is
  truncated.

  The report V is N(0, I), given <V, u> >= gamma with probability p, else given <V, u> < gamma: a
  truncated normal along u and plain noise orthogonal to it, not renormalised. The estimate V/m is
  unbiased for u with E||V/m - u||^2 = (1 + s^2/12) dim / m^2, exactly, and covariance (1 + s^2/12)
  I / m^2. Its s = 1/64 is the spacing of the grid, with a public random shift, on which V leaves
  the client (`jdp.numerics.dither`): its low-order bits tell nothing of u, and it stays unbiased.
  `gamma` and p are those of the largest m that costs epsilon, the same in every dimension; m^2 is
  about 2 epsilon where epsilon is large.

  The error is that of `priv_unit` where dim is far above epsilon, and more where it is not; its
  reports have no bound. Prefer `priv_unit` but for a release whose distribution does not depend on
  the dimension.

  Formal guarantee: `PureDP`, replace one (any two inputs), per value, against the server, for
  every input: it is divided by its norm first, and one that has no direction (zero, NaN, infinite)
  is replaced by the first basis vector. That is for real numbers. On the machine 1 - p is realised
  to a relative 2^-32, and V is drawn in float32: <V, u> to about 1e-5, with tails cut at a
  probability of 2^-65, and the noise orthogonal to u at 7.45 in each coordinate of R^dim. The grid
  hides where the floats lie. No relative factor is proved: reports are within a total variation of
  1e-5 * 2 * 64 dim = 1.3e-3 dim of the ideal ones, a crude bound; audits by residues in 2 and 3
  dimensions, at epsilon .1, 1 and 4, refute nothing.

  Args:
    dim: d >= 2.
    epsilon: the privacy loss of one release, 1e-3 <= epsilon <= 1e4.

  Returns:
    A `LocalMechanism` on float [dim] vectors in the L2 norm. Reports: V, float32 [dim]. Its
    `max_norm` is infinite: where a bound is needed (a server that projects releases onto a ball, an
    output grid) give one. The norm is near sqrt(dim) / m: above it by a relative x / sqrt(dim) at
    most about as often as a normal exceeds sqrt(2) x. `parameters` is a
    `jdp.accounting.local.priv_unit_g.GaussianCap`.

  Raises:
    ValueError: if an argument is out of range.

  >>> mechanism = priv_unit_g(1000, 4.0)
  >>> print(mechanism.guarantee)
  4-DP per value (replace one), against the server
  >>> round(mechanism.mean_squared_error(1.0), 1)
  435.3
  >>> mechanism.privatize(jax.random.key(0), jnp.ones(1000)).shape
  (1000,)
  """
  _validate.integer(2, dim=dim)
  cap = optimal_gaussian_cap(epsilon)
  sample_height = truncated_normal(cap)
  scale = 1 / cap.m

  def draw(key):
    height_key, noise_key, shift_key = jax.random.split(key, 3)
    return random.normal(noise_key, (dim,)), sample_height(height_key), shift_key

  def encode(key, value):
    if value.shape != (dim,):
      raise ValueError(
        f"Expected a vector of shape ({dim},), got {value.shape}; vmap over a batch."
      )
    noise, height, shift_key = draw(key)
    u = unit(value)
    return dithered(shift_key, noise + (height - jnp.sum(noise * u)) * u, _SPACING)

  def decode(report):
    return scale * report

  def privatize_sum(keys, values, weights):
    noise, height, shift_keys = jax.vmap(draw)(keys)
    rows, lengths = row_directions(values)
    along = (height - row_dots(noise, rows) / lengths) / lengths
    v = jax.vmap(lambda key, v: dithered(key, v, _SPACING))(
      shift_keys, noise + along[:, None] * rows
    )
    return weighted_row_sum(scale * weights, v)

  def mean_squared_error(norm: float = 1.0) -> float:
    del norm  # A direction has norm 1.
    return cap.mean_squared_error(dim) * (1 + _SPACING**2 / 12)

  return LocalMechanism(
    encode=encode,
    decode=decode,
    privatize=lambda key, value: decode(encode(key, value)),
    guarantee=PureDP(cap.epsilon),
    shape=(dim,),
    norm=l2_norm,
    max_norm=math.inf,
    mean_squared_error=mean_squared_error,
    parameters=cap,
    privatize_sum=privatize_sum,
    noise=scale,
  )


def truncated_normal(cap: GaussianCap):
  """The sampler key -> t of t = <V, u>: a standard normal, given t >= gamma w.p. p and else given t
  < gamma.
  """

  def upper_quantile(log_tail):
    t = -special.ndtri_exp(log_tail)
    return t, -np.exp(log_tail - log_normal_density(t))  # dt / d log Phi(-t)

  in_top = tabulate(lambda y: upper_quantile(cap.log_q + y), 0.0)
  in_half = tabulate(upper_quantile, HALF)
  return two_sided(cap.log_q, cap.logit_p, in_top, in_half, mirror=lambda t: -t)
