"""The hemisphere mechanism of Duchi, Jordan and Wainwright (arXiv 1604.02390, Section 4.2.3).

It serves as a baseline.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from jdp import _validate, random
from jdp._arguments import checked
from jdp.accounting.local.priv_unit import cap_at
from jdp.guarantees import PureDP
from jdp.mechanisms.base import LocalMechanism, check_shape
from jdp.numerics import vectors
from jdp.random import draws


@checked
def hemisphere(dim: int, epsilon: float, radius: float = 1.0) -> LocalMechanism:
  """Releases a vector of the L2 ball as a point of the hemisphere around it, or the opposite one.

  The vector v is rounded without bias to one end of the ball's diameter through it, +-radius u.
  With probability e^epsilon / (1 + e^epsilon) the report V is uniform on the half of the unit
  sphere around that end, else on the other half. The estimate is V radius/m. It is unbiased, with
  E||estimate - v||^2 = (radius/m)^2 - ||v||^2. For unit vectors it is PrivUnit at gamma = 0. It
  keeps magnitudes too, at the error of the largest.

  Formal guarantee: `PureDP` per value, replace one (any two inputs), against the server. It holds
  for every input: longer vectors are first scaled down to the radius. A vector that holds NaN or
  infinity counts as zero. V and -V are equally likely draws, and one coin decides which is sent. So
  the guarantee holds in float32 too, with the coin realised to a relative 2^-32. It holds even
  though the sign of a <V, u> within rounding of zero may be wrong.

  Args:
    dim: the dimension d. In [2, 1e9].
    epsilon: the privacy loss of one release. In [1e-3, 1e4].
    radius: the radius of the ball. In [1e-30, 1e30].

  Returns:
    A `LocalMechanism` on float [dim] vectors in the L2 norm. Reports are V, float32 [dim].
    `parameters` is a `jdp.accounting.local.priv_unit.Cap`. Its epsilon is a relative 5e-10 below
    the one asked for.

  Raises:
    ValueError: if an argument is out of range.

  >>> from jdp.mechanisms import priv_unit
  >>> hemisphere(100, 4.0).mean_squared_error(1.0) / priv_unit(
  ...   100, 4.0, gamma=0.0
  ... ).mean_squared_error(1.0)
  1.0
  """
  cap = cap_at(dim, epsilon, 0.0)
  _validate.float32_safe(radius=radius)
  log_opposite = -float(np.logaddexp(0.0, cap.logit_p))  # log(1 - p), also where p rounds to 1
  scale = radius * math.exp(-cap.log_m)

  def encode(key, value):
    check_shape(value, (dim,))
    rounding_key, side_key, draw_key = jax.random.split(key, 3)
    near = jax.random.uniform(rounding_key) < 0.5 + vectors.l2_norm(vectors.clip(value, radius)) / (
      2 * radius
    )
    opposite = draws.rare_bernoulli(side_key, log_opposite)
    v = vectors.unit(random.normal(draw_key, (dim,)))
    on_near_side = jnp.sum(v * vectors.unit(value)) >= 0
    return jnp.where(on_near_side == (near ^ opposite), v, -v)

  def decode(report):
    return scale * report

  def mean_squared_error(norm: float) -> float:
    return scale**2 - norm**2

  return LocalMechanism(
    encode=encode,
    decode=decode,
    privatize=lambda key, value: decode(encode(key, value)),
    guarantee=PureDP(cap.epsilon),
    shape=(dim,),
    norm=vectors.l2_norm,
    max_norm=scale,
    mean_squared_error=mean_squared_error,
    parameters=cap,
    # A report and its opposite are equally likely draws, so no bit tells more than the side.
    noise=0.0,
  )
