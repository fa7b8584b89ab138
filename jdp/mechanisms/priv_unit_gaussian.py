"""PrivUnitG: the direction of a vector, by Gaussian noise truncated along it (arXiv 2205.02466)."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from jdp import _validate, random
from jdp._arguments import checked
from jdp.accounting.local.priv_unit_g import GaussianCap, log_normal_density, optimal_gaussian_cap
from jdp.guarantees import PureDP
from jdp.mechanisms.base import LocalMechanism, check_shape
from jdp.mechanisms.draws.quantiles import anywhere_or_top, by_inversion, tabulate
from jdp.numerics.dither import dithered
from jdp.numerics.row_products import row_directions, row_dots, weighted_row_sum
from jdp.numerics.vectors import l2_norm, unit

_SPACING = 1 / 64  # of the dither; the noise in V has a standard deviation of 1


@checked
def priv_unit_g(dim: int, epsilon: float) -> LocalMechanism:
  """Releases the direction u of a vector in R^dim by Gaussian noise that is truncated along u.

  With probability p the report V is N(0, I) given <V, u> >= gamma, else N(0, I) given <V, u> <
  gamma. So it is a truncated normal along u and plain noise orthogonal to u. It is not
  renormalised. The estimate V/m is unbiased for u. Exactly, E||V/m - u||^2 = (1 + s^2/12) dim /
  m^2, and the covariance is (1 + s^2/12) I / m^2.

  V leaves the client on a grid of spacing s = 1/64 with a public random shift
  (`jdp.numerics.dither`). So its low-order bits tell nothing of u, and V stays unbiased. The
  parameters gamma and p are those of the largest m that costs epsilon. They are the same in every
  dimension. For large epsilon, m^2 is about 2 epsilon.

  The error is that of `priv_unit` where dim is far above epsilon, and larger elsewhere. The reports
  have no bound. Prefer `priv_unit`, unless the distribution of a release must not depend on the
  dimension.

  Formal guarantee: `PureDP` per value, replace one (any two inputs), against the server. It holds
  for every input, because the input is first divided by its norm. An input without a direction
  (zero, NaN, infinite) is replaced by the first basis vector.

  That is for real numbers. On the machine, V is plain noise with a probability of (1 - p) / (1 -
  q), realised to a relative 2^-32, where q is the probability of <V, u> >= gamma. It then depends
  on random bits alone. Else <V, u> is above gamma. So no report is impossible under any input, and
  what float32 errors add to the probability of a report is bounded as for `priv_unit`.

  Args:
    dim: the dimension d. At least 2.
    epsilon: the privacy loss of one release. In [1e-3, 1e4].

  Returns:
    A `LocalMechanism` on float [dim] vectors in the L2 norm. Reports are V, float32 [dim].
    `parameters` is a `jdp.accounting.local.priv_unit_g.GaussianCap`. `max_norm` is infinite. Give a
    bound where one is needed, such as by a server that projects releases onto a ball, or an output
    grid. The norm is near sqrt(dim) / m. It exceeds that by a relative x / sqrt(dim) at most about
    as often as a normal exceeds sqrt(2) x.

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
    return random.normal(noise_key, (dim,)), *sample_height(height_key), shift_key

  def encode(key, value):
    check_shape(value, (dim,))
    noise, anywhere, height, shift_key = draw(key)
    u = unit(value)
    along = jnp.where(anywhere, 0.0, height - jnp.sum(noise * u))
    return dithered(shift_key, noise + along * u, _SPACING)

  def decode(report):
    return scale * report

  # `encode` for all rows at once. u is rows / lengths, and is never computed itself.
  def privatize_sum(keys, values, weights):
    noise, anywhere, height, shift_keys = jax.vmap(draw)(keys)
    rows, lengths = row_directions(values)
    along = jnp.where(anywhere, 0.0, (height - row_dots(noise, rows) / lengths) / lengths)
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


def truncated_normal(cap: GaussianCap) -> Callable[[jax.Array], tuple[jax.Array, jax.Array]]:
  """Makes the sampler key -> (anywhere, t) of t = <V, u>, a standard normal given t >= gamma.

  `anywhere` says that V is to be plain noise instead, so that t >= gamma with probability p.
  """

  def upper_quantile(y):
    log_tail = cap.log_q + y
    t = -scipy.special.ndtri_exp(log_tail)
    return t, -np.exp(log_tail - log_normal_density(t))  # dt / d log Phi(-t)

  top = by_inversion(tabulate(upper_quantile))
  return anywhere_or_top(cap.log_q, cap.logit_p, top)
