"""Sums of integers with discrete noise by the clients, added up modulo 2^b.

A record is clipped, rotated and rounded to a grid (arXiv 2102.06387). In units of the grid's
spacing g it is a vector of L2 norm at most C / g. It is rounded to integers of norm at most

    S = min(sqrt(C^2 / g^2 + d / 4 + sqrt(2 log(1 / beta)) (C / g + sqrt(d) / 2)), C / g + sqrt(d)).

Unbiased rounding is repeated until that holds, which it does with a probability of at least 1 -
beta. Here the bound holds *always*: after 8 failures (probability beta^8) a record is rounded
towards zero. So S is the sensitivity, exactly, because only integers are noised, added and
released.

Sums are modulo 2^b. They are correct unless a coordinate leaves [-g 2^(b-1), g 2^(b-1)).
`Grid.wrap_probability` bounds the probability that one does, over rotation, rounding and noise. The
bound holds for any n records whose sum is not longer than planned for. Wrapping costs accuracy,
never privacy.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax.flatten_util import ravel_pytree

from jdp import _validate, random
from jdp._arguments import Arrays, checked
from jdp.events import DiscreteGaussianSum, SkellamSum
from jdp.numerics import vectors
from jdp.numerics.modular_arithmetic import centred, reduce
from jdp.numerics.rotations import randomized_hadamard
from jdp.queries.base import PyTree, SumQuery
from jdp.random import integer_distributions
from jdp.random.discrete import discrete_gaussian, skellam

_BETA = 1e-10  # bound on the probability that a rounded record is longer than S
_ATTEMPTS = 8
_ROUNDING = 1e-5  # exceeds the relative rounding error of a float32 norm of 1e8 integers


class Grid(NamedTuple):
  """What the integers of a `discrete_sum` are.

  Attributes:
    spacing: g.
    l2_norm: S. An L2 bound on one record's integers.
    l1_norm: min(sqrt(d), S) S. An L1 bound on them.
    wrap_probability: bound on the probability that any coordinate of a sum of n records wraps
      around. It holds if the sum is not longer than planned for.
  """

  spacing: float
  l2_norm: float
  l1_norm: float
  wrap_probability: float


class DiscreteState(NamedTuple):
  """What changes from round to round.

  Attributes:
    step: the number of rounds finalised, int32 scalar.
    rotation: the key of the next round's rotation. Public.
  """

  step: jax.Array
  rotation: jax.Array


class DiscreteContribution(NamedTuple):
  """What a record adds to the sum.

  Attributes:
    integers: the record with its share of the noise, int32 [padded dimension]. Addition of int32
      wraps modulo 2^32.
    shares: int32 scalar. It is 1, or 0 for padding.
  """

  integers: jax.Array
  shares: jax.Array


class Encoding(NamedTuple):
  """How records become integers, as pure functions.

  Attributes:
    grid: what the integers are.
    dim: the padded dimension d.
    encode: (key, state, record) -> int32 [d], clipped, rotated and rounded. It has no noise.
    decode: (state, sum of such integers) -> float32 tree, structured as one record.
  """

  grid: Grid
  dim: int
  encode: Callable[[jax.Array, DiscreteState, PyTree], jax.Array]
  decode: Callable[[DiscreteState, jax.Array], PyTree]


@checked
def discrete_sum(
  record: Arrays,
  clip_norm: float,
  stddev: float,
  *,
  num_clients: int,
  modulus_bits: int = 16,
  max_wrap_probability: float = 1e-6,
  max_sum_norm: float | None = None,
  noise: str = "gaussian",
) -> SumQuery:
  """The same sum of vectors as `gaussian_sum`, computed on integers with noise by the clients.

  Formal guarantee: that of its event, to whoever sees the sum, under zero-out or replace-one with
  the client still adding its noise. The event is the `DiscreteGaussianSum` or `SkellamSum` of *as
  many shares as there were*. Each client's share has a variance of stddev^2 / num_clients. Fewer
  clients mean less noise, and the event says so.

  No floating-point number is released or noised. Clipping and rotation are float32, but the
  integers' norm is at most S whatever they do. It is checked on the integers, in float32 with a
  margin of 1e-5, which S includes. Draws have their distribution's probabilities to a relative
  2^-100, up to 17 standard deviations (statement 5.7 of `docs/theory/float_noise.md`). Weights are
  0 (padding) or 1. Any other weight > 0 counts as 1. A record that holds NaN or infinity counts as
  a zero vector, with its noise.

  Args:
    record: one record or its shapes, such as the model's parameters.
    clip_norm: C > 0.
    stddev: sigma > 0, the noise on each coordinate of the sum of all num_clients.
    num_clients: n, the largest number of clients expected. Noise and grid are planned for it.
    modulus_bits: b in [2, 31]. The bits for each coordinate.
    max_wrap_probability: sets the grid. It is the finest for which `Grid.wrap_probability` is at
      most this.
    max_sum_norm: the L2 norm up to which sums must keep that bound. Public. Default: n C, the
      largest possible. Records that do not all point one way have shorter sums. If less is enough,
      the grid may be finer and S smaller.
    noise: "gaussian" or "skellam" (Skellam shares add up to a Skellam distribution exactly).

  Returns:
    A `SumQuery` on pytrees of this structure with a `DiscreteState`. The result is a float32 tree.
    `init` takes any record, because the state's first rotation is from a fixed public key.

  Raises:
    ValueError: if an argument is out of range, or every grid wraps with a higher probability. Also
      if the shares of noise are too small (below 1/2 of a grid's unit) or too large for exact
      draws.

  >>> query = discrete_sum(jnp.zeros(3), 1.0, 0.01, num_clients=2)
  >>> state = query.init(jnp.zeros(3))
  >>> one = jax.jit(query.preprocess)(
  ...   jax.random.key(0), state, jnp.array([0.6, 0.0, -0.8]), jnp.float32(1)
  ... )
  >>> result, event, _ = query.finalize(jax.random.key(1), state, one)
  >>> bool(jnp.all(jnp.abs(result - jnp.array([0.6, 0.0, -0.8])) < 0.06)), int(event.num_shares)
  (True, 1)
  """
  _validate.one_of(("gaussian", "skellam"), noise=noise)
  code = encoding(
    record, clip_norm, stddev, num_clients=num_clients, modulus_bits=modulus_bits,
    max_wrap_probability=max_wrap_probability, max_sum_norm=max_sum_norm, noise=noise,
  )  # fmt: skip
  grid, dim = code.grid, code.dim
  share_stddev = stddev / grid.spacing / math.sqrt(num_clients)
  if noise == "gaussian" and num_clients > 1 and share_stddev < 0.5:
    raise ValueError(
      "Expected shares of discrete Gaussian noise of at least 1/2 in units of the grid, got "
      f"{share_stddev:g}; raise modulus_bits or stddev, or take noise='skellam'."
    )
  draw: Callable[..., jax.Array]
  if noise == "gaussian":
    scale, table, draw = share_stddev, integer_distributions.discrete_gaussian, discrete_gaussian
  else:
    scale, table, draw = share_stddev**2, integer_distributions.skellam, skellam
  # Make the table here, so that a share that no table holds is refused now, not in the first round.
  table(scale)

  def preprocess(key, state, record, weight):
    rounding_key, noise_key = jax.random.split(key)
    integers = code.encode(rounding_key, state, record) + draw(noise_key, scale, (dim,))
    # The noise of an absent record is dropped too, and `shares` tells the event so.
    present = weight > 0
    return DiscreteContribution(jnp.where(present, integers, 0), present.astype(jnp.int32))

  def finalize(key, state, total):
    del key
    event: DiscreteGaussianSum | SkellamSum
    if noise == "gaussian":
      event = DiscreteGaussianSum(
        grid.l2_norm, grid.l1_norm, scale, total.shares, dim, rounded=True
      )
    else:
      event = SkellamSum(grid.l2_norm, grid.l1_norm, scale, total.shares, rounded=True)
    return code.decode(state, total.integers), event, state._replace(step=state.step + 1)

  # `noise` counts float noise only, and here only integers are noised.
  return SumQuery(first_state, preprocess, finalize, noise=0.0, takes_pairs=True)


def encoding(
  record: Arrays, clip_norm: float, stddev: float, *, modulus_bits: int, **planned: Any
) -> Encoding:
  """How records become integers, and sums of integers become records.

  Args:
    record: one record or its shapes.
    clip_norm: C.
    stddev: sigma.
    modulus_bits: b.
    **planned: further arguments of `plan_grid`.

  Raises:
    ValueError: if the record holds no number, or as `plan_grid`.
  """
  flat, unravel = ravel_pytree(jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), record))
  if not flat.size:
    raise ValueError("Expected a record of numbers, got none; leave out what holds nothing.")
  rotation = randomized_hadamard(flat.size)
  grid = plan_grid(rotation.dim, clip_norm, stddev, modulus_bits=modulus_bits, **planned)

  def rotation_key(state):
    return jax.random.fold_in(jax.random.wrap_key_data(state.rotation), state.step)

  def encode(key, state, record):
    clipped, _ = ravel_pytree(vectors.clip(record, clip_norm))
    rotated = rotation.apply(rotation_key(state), clipped) / np.float32(grid.spacing)
    return rounded(key, rotated, grid.l2_norm)

  def decode(state, integers):
    # int32 sums wrap modulo 2^32, which 2^b divides.
    result = centred(reduce(integers, modulus_bits), modulus_bits).astype(jnp.float32)
    return unravel(rotation.invert(rotation_key(state), result * np.float32(grid.spacing)))

  return Encoding(grid, rotation.dim, encode, decode)


def first_state(record: PyTree) -> DiscreteState:
  """The state before the first round. Its rotation is from a fixed public key."""
  del record
  return DiscreteState(jnp.int32(0), jax.random.key_data(jax.random.key(0)))


def plan_grid(
  dim: int,
  clip_norm: float,
  stddev: float,
  *,
  num_clients: int,
  modulus_bits: int = 16,
  max_wrap_probability: float = 1e-6,
  max_sum_norm: float | None = None,
  noise: str = "gaussian",
) -> Grid:
  """The finest grid whose sums wrap around with at most the given probability.

  All arguments but `dim` are those of `discrete_sum`.

  Args:
    dim: the dimension d of the rotated vectors.
    clip_norm: C.
    stddev: sigma.
    num_clients: n.
    modulus_bits: b. The bits for each coordinate.
    max_wrap_probability: the bound on `Grid.wrap_probability`.
    max_sum_norm: the L2 norm up to which sums must keep that bound. Default: n C.
    noise: "gaussian" or "skellam".

  Raises:
    ValueError: if an argument is out of range, or every grid wraps with a higher probability.

  >>> grid = plan_grid(2**17, 1.0, 10.0, num_clients=10_000)
  >>> print(f"{grid.spacing:.5f} {grid.l2_norm * grid.spacing:.4f}")
  0.00650 1.5752
  """
  _validate.float32_safe(clip_norm=clip_norm, stddev=stddev)
  _validate.integer(1, dim=dim, num_clients=num_clients)
  _validate.integer(2, modulus_bits=modulus_bits)
  _validate.in_range(2, 31, modulus_bits=modulus_bits)
  _validate.in_range(1e-15, 0.5, max_wrap_probability=max_wrap_probability)
  longest = num_clients * clip_norm if max_sum_norm is None else max_sum_norm
  _validate.float32_safe(max_sum_norm=longest)

  def log_bound(spacing):
    return _log_wrap_probability(spacing, dim, longest, stddev, num_clients, modulus_bits, noise)

  target = math.log(max_wrap_probability)
  # A bracket for the spacing. Without rounding and noise, the sums' spread alone needs the smallest
  # one. Rounding alone limits the largest.
  smallest = longest / math.sqrt(dim) / 2**modulus_bits
  largest = 1e6 * (smallest + stddev / 2**modulus_bits)
  if not log_bound(largest) < target:
    raise ValueError(
      f"Expected a grid that wraps with probability <= {max_wrap_probability}, got none for "
      f"{num_clients} clients and {modulus_bits} bits; raise modulus_bits."
    )
  # The bound falls as the spacing grows. The last factor exceeds the root's tolerance, so the bound
  # holds.
  spacing = math.exp(
    scipy.optimize.brentq(
      lambda x: log_bound(math.exp(x)) - target,
      math.log(smallest / 10),
      math.log(largest),
      xtol=1e-6,
    )
  ) * (1 + 1e-5)
  # The first margin is for the float32 clipping and rotation, the second for the check in
  # `rounded`.
  l2 = rounded_norm(clip_norm * (1 + _ROUNDING) / spacing, dim) * (1 + _ROUNDING)
  return Grid(spacing, l2, l2 * min(l2, math.sqrt(dim)), math.exp(log_bound(spacing)))


def rounded_norm(norm: float, dim: int) -> float:
  """S: an L2 norm that unbiased rounding of a [dim] vector of norm `norm` rarely exceeds.

  The probability is at most 1e-10.
  """
  by_variance = norm**2 + dim / 4 + math.sqrt(-2 * math.log(_BETA)) * (norm + math.sqrt(dim) / 2)
  return min(norm + math.sqrt(dim), math.sqrt(by_variance))


@partial(jax.jit, static_argnames="max_norm")
def rounded(key: jax.Array, x: jax.Array, max_norm: float) -> jax.Array:
  """Rounds x [d], float32 with |x| <= max_norm, to integers of an L2 norm of at most max_norm.

  The result is int32 [d], each entry next to that of x. It is unbiased except for the effect of the
  bound on the norm. In float32 the probabilities of rounding up are multiples of 2^-24. Where x is
  not finite, the result is zero.
  """
  floor = jnp.floor(x)

  def attempt(key):
    up = jax.lax.convert_element_type(
      random.bits(key, x.shape) >> np.uint32(8), np.float32
    ) * np.float32(2.0**-24)
    return floor + (up < x - floor).astype(np.float32)

  def too_long(integers):
    # `not <=`, so that NaN is too long. The margin covers the rounding of the float32 sum.
    return ~(jnp.sum(integers * integers) <= np.float32((max_norm / (1 + _ROUNDING)) ** 2))

  def again(carry):
    attempts, _ = carry
    return attempts + 1, attempt(jax.random.fold_in(key, attempts))

  start = (jnp.int32(1), attempt(jax.random.fold_in(key, 0)))
  _, integers = jax.lax.while_loop(
    lambda carry: (carry[0] < _ATTEMPTS) & too_long(carry[1]), again, start
  )
  # Rounding towards zero makes no finite vector longer. A vector that is still too long is not
  # finite.
  integers = jnp.where(too_long(integers), jnp.trunc(x), integers)
  return jnp.where(too_long(integers), np.float32(0), integers).astype(np.int32)


def _log_wrap_probability(
  spacing: float, dim: int, longest: float, stddev: float, n: int, modulus_bits: int, noise: str
) -> float:
  """The log of a bound on P(some coordinate of the sum of n records is outside the range).

  It is Chernoff's bound, in units of the spacing and over the signs of the rotation. It adds up the
  cumulants of three parts of a coordinate:

  * The rotated sum is subgaussian with proxy (|sum| / g)^2 / d.
  * Its rounding errors are subgaussian with proxy n / 4 (Hoeffding), before those too long are
    drawn again. Drawing again makes no event more likely than by a factor of (1 - beta)^-n.
  * Discrete Gaussian noise is subgaussian with its variance (arXiv 2004.00010). Skellam noise of
    variance v has the cumulants v (cosh t - 1).
  """
  proxy, variance = (longest / spacing) ** 2 / dim + n / 4, (stddev / spacing) ** 2
  limit = 2.0 ** (modulus_bits - 1) - 1

  def exponent(t):
    cumulant = variance * (t * t / 2 if noise == "gaussian" else 2 * math.sinh(t / 2) ** 2)
    return proxy * t * t / 2 + cumulant - t * limit

  # The best t is at most that of the Gaussian parts alone.
  best = scipy.optimize.minimize_scalar(
    exponent, bounds=(0.0, min(limit / (proxy + variance), 100.0)), method="bounded"
  )
  return math.log(2 * dim) + float(best.fun) - n * math.log1p(-_BETA)
