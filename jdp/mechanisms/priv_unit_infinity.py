"""PrivUnit-infinity: vectors of bounded coordinates, as a vertex of the cube.

Source: arXiv 1812.00984, Algorithm 2.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from jdp import random
from jdp._arguments import checked
from jdp.accounting.local import priv_unit_linf as cubes
from jdp.guarantees import PureDP
from jdp.mechanisms.base import LocalMechanism, check_cost, check_shape
from jdp.mechanisms.draws.agreement import count_sampler, random_subset, random_vertex
from jdp.numerics.vectors import linf_norm


@checked
def priv_unit_linf(
  dim: int, epsilon: float, *, kappa: int | None = None, p: float | None = None
) -> LocalMechanism:
  """Releases a vector of [-1, 1]^dim as a vertex of the cube: one bit for each coordinate.

  Each coordinate is rounded at random, without bias, to -1 or 1. With probability p the report V is
  uniform on the vertices that agree with the rounded vector in at least L = (dim + kappa) // 2 + 1
  coordinates, else uniform on the others. The estimate is V/m, so each of its coordinates is +-1/m.
  It is unbiased, with E||V/m - u||^2 = dim/m^2 - ||u||^2.

  By default kappa and p are the exact optimum for epsilon. `kappa` alone takes the p that spends
  all of epsilon. `p` alone takes the largest kappa that it affords. A pair is kept as it is, with
  its own exact epsilon in the guarantee.

  Formal guarantee: `PureDP` per value, replace one (any two inputs), against the server. It holds
  for every input: coordinates are first clipped to [-1, 1], and NaN counts as 0. The report is
  bits, so floating point leaks nothing. The draws are realised as follows:

  * Q is the cap's share of the vertices. With a probability of (1 - p) / (1 - Q), realised to a
    relative 2^-32, V is any vertex, made of random bits alone. So no report is impossible under any
    input, and each has its least probability.
  * Else V is from the cap. The number of agreements comes from integer tables, which are rounded
    down: no vertex is likelier than stated by more than a relative 1e-9.
  * Which coordinates agree is exactly uniform, given random words that are.
  * The rounding to +-1 is realised to 2^-24. It costs no privacy whatever its distribution.

  Args:
    dim: the dimension d. In [1, 1e7].
    epsilon: the privacy loss of one release. In [1e-3, 1e4].
    kappa: least <v, rounded input> - 1 of the cap's vertices. In [0, dim - 1].
    p: probability of drawing from the cap. Only p above the cap's share of the vertices is needed.

  Returns:
    A `LocalMechanism` on float [dim] vectors in the L-infinity norm. Reports are uint8 [ceil(dim /
    8)]: the bits of V as `jnp.packbits` orders them, 1 for +1. `parameters` is a
    `jdp.accounting.local.priv_unit_linf.Cube`. `mean_squared_error(r)` is an upper bound for
    vectors with a largest coordinate of r. Vectors with no other nonzero coordinate reach it.

  Raises:
    ValueError: if an argument is out of range, or the pair's exact epsilon exceeds the one asked
      for.

  >>> mechanism = priv_unit_linf(1000, 4.0)
  >>> report = mechanism.encode(jax.random.key(0), jnp.ones(1000))
  >>> report.nbytes, mechanism.parameters.kappa, round(mechanism.max_norm, 2)
  (125, 47, 20.87)
  """
  cube = _choose_cube(dim, epsilon, kappa, p)
  sample_count = count_sampler(cube)
  scale = math.exp(-cube.log_m)

  def draw(key, value):
    check_shape(value, (dim,))
    rounding_key, count_key, subset_key, vertex_key = jax.random.split(key, 4)
    anywhere, count = sample_count(count_key)
    # The coordinates in the subset agree with the rounded vector, the others do not.
    near = random_subset(subset_key, dim, count) == _rounds_up(rounding_key, value)
    return jnp.where(anywhere, random_vertex(vertex_key, dim), near)

  def decode(report):
    return _signed(jnp.unpackbits(report, count=dim) == 1, scale)

  def mean_squared_error(norm: float) -> float:
    return dim * scale**2 - norm**2

  return LocalMechanism(
    encode=lambda key, value: jnp.packbits(draw(key, value)),
    decode=decode,
    privatize=lambda key, value: _signed(draw(key, value), scale),
    guarantee=PureDP(cube.epsilon),
    shape=(dim,),
    norm=linf_norm,
    max_norm=scale,
    mean_squared_error=mean_squared_error,
    parameters=cube,
    noise=0.0,
  )


def _choose_cube(dim: int, epsilon: float, kappa: int | None, p: float | None) -> cubes.Cube:
  if kappa is None:
    return cubes.optimal_cube(dim, epsilon) if p is None else cubes.widest_cube(dim, epsilon, p)
  if p is None:
    return cubes.cube_at(dim, epsilon, kappa)
  cube = cubes.cube_of(dim, kappa, p)
  check_cost(cube.epsilon, epsilon, kappa=kappa, p=p)
  return cube


def _rounds_up(key: jax.Array, value: jax.Array) -> jax.Array:
  """Coins of bias (1 + u)/2 for u in [-1, 1]. NaN counts as 0."""
  value = jnp.asarray(value, jnp.float32)
  value = jnp.where(jnp.isnan(value), 0.0, jnp.clip(value, -1.0, 1.0))
  # Uniform on [0, 2) in steps of 2^-23: 24 random bits, which float32 holds exactly.
  uniform = (random.bits(key, value.shape) >> np.uint32(8)).astype(jnp.float32) * np.float32(
    2.0**-23
  )
  return uniform < 1 + value


def _signed(bits: jax.Array, scale: float) -> jax.Array:
  return jnp.where(bits, np.float32(scale), np.float32(-scale))
