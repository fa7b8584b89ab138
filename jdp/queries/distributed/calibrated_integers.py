"""Sums of integers whose noise survivors calibrate, for simulations of large cohorts.

Shares are Skellam noise, and sums of Skellam noise are Skellam noise. So all noise of a round can
be drawn at once, from the exact distribution of its sum. `jdp.federated.masked_round` does the same
message by message, under secure aggregation.

Variances are whole multiples of a unit, and a share has 2^k units. The numbers of units are
integers, which are exact. A client's calibration is rounded down to units, so the event states the
actual variance.
"""

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jdp import _validate
from jdp._arguments import Arrays, checked
from jdp._loop_carries import vary_like
from jdp.events import SkellamSum
from jdp.queries.base import PyTree
from jdp.queries.distributed.integer_sums import DiscreteState, encoding, first_state
from jdp.queries.distributed.noise_schemes import Counts
from jdp.random import marked
from jdp.random.discrete import skellam

_FINEST = 12  # a unit is 2^-12 of a share, or more where a share is small (see `finest`)
_LEAST, _MOST = 1e-6, 4.5e7  # the variances that `skellam` draws
_DIGIT = 4  # bits of a digit of the number of units


class IntegerSum(NamedTuple):
  """A sum of integers with noise by the clients, as pure functions.

  Attributes:
    num_calibrations: how often survivors are asked again after their report.
    init: record -> the state before the first round.
    encode: (key, state, record, weight) -> int32 [d]. A client's clipped vector as integers,
      *without noise*. Zero if the weight is 0.
    noise: (key, counts) -> int32 [d]. All noise of the clients together, as `finalize` adds it.
    event: (counts) -> `SkellamSum`. It holds against the server and whoever sees less.
    finalize: (key, state, total, counts) -> (result, event, state). `total` is the sum of the
      encoded vectors. The noise is drawn from the key and added. Below the floor the result is
      zero, and the round is abandoned.
  """

  num_calibrations: int
  init: Callable[[PyTree], DiscreteState]
  encode: Callable[[jax.Array, DiscreteState, PyTree, jax.Array], jax.Array]
  noise: Callable[[jax.Array, Counts], jax.Array]
  event: Callable[[Counts], SkellamSum]
  finalize: Callable[
    [jax.Array, DiscreteState, jax.Array, Counts], tuple[PyTree, SkellamSum, DiscreteState]
  ]


@checked
def distributed_integers(
  record: Arrays,
  clip_norm: float,
  stddev: float,
  *,
  num_clients: int,
  num_calibrations: int = 1,
  min_clients: int = 1,
  modulus_bits: int = 16,
  max_wrap_probability: float = 1e-6,
  max_sum_norm: float | None = None,
) -> IntegerSum:
  """The sum of vectors as integers, with Skellam noise that survivors calibrate.

  Formal guarantee: that of one Skellam sum with the variance of all noise that arrived, under
  zero-out with the client still adding its noise, if all clients are honest. It holds against a
  server that sees sums only. Reports and calibrations are summed under one secure aggregation,
  which opens once. Integers are bounded and noised as by `discrete_sum`.

  Let m of n clients report. Each then adds the variance that is missing divided by m, rounded down
  to a unit. If fewer answer, the next calibration asks for what is still missing. So a sum has at
  least 1 - 2^-12 of the planned variance if all answer the last one (it lacks more if a share is
  below 0.004 in units of the grid, as no draw has a variance below 1e-6).

  A round in which fewer than `min_clients` are left at any stage is abandoned. No sum has opened by
  then, and it costs nothing.

  Args:
    record: one record or its shapes, such as the model's parameters.
    clip_norm: C > 0.
    stddev: sigma > 0, the noise on each coordinate of the sum if nobody is lost.
    num_clients: n, below 2^19. The number of clients announced.
    num_calibrations: how often survivors are asked. 0: lost noise stays missing.
    min_clients: the floor. At least 1.
    modulus_bits: b in [2, 31].
    max_wrap_probability: as for `discrete_sum`.
    max_sum_norm: as for `discrete_sum`.

  Raises:
    ValueError: if an argument is out of range, or every grid wraps with a higher probability. Also
      if a share of noise has a variance below 1e-6 in units of the grid.

  >>> query = distributed_integers(jnp.zeros(3), 1.0, 0.5, num_clients=4, min_clients=2)
  >>> state, counts = query.init(jnp.zeros(3)), jnp.array([4, 3, 3])
  >>> total = query.encode(jax.random.key(0), state, jnp.array([0.6, 0.0, -0.8]), jnp.float32(1))
  >>> result, event, _ = query.finalize(jax.random.key(1), state, total, counts)
  >>> result.shape, bool(event.released)
  ((3,), True)
  """
  _validate.in_range(1, 2**19 - 1, num_clients=num_clients)
  _validate.integer(0, num_calibrations=num_calibrations)
  _validate.integer(1, min_clients=min_clients)
  code = encoding(
    record, clip_norm, stddev, num_clients=num_clients, modulus_bits=modulus_bits,
    max_wrap_probability=max_wrap_probability, max_sum_norm=max_sum_norm, noise="skellam",
  )  # fmt: skip
  share = (stddev / code.grid.spacing) ** 2 / num_clients
  if not share >= _LEAST:
    raise ValueError(
      f"Expected shares of Skellam noise of a variance of at least {_LEAST} in units of the grid, "
      f"got {share:.3g}; raise modulus_bits or stddev."
    )
  finest = min(_FINEST, math.floor(math.log2(share / _LEAST)))
  units, unit = 2**finest, math.ldexp(share, -finest)

  def filled(counts):
    """The number of units of noise that arrived, out of the number planned."""
    counts = jax.lax.cummin(counts)  # only those who were asked answer
    missing = units * counts[0]
    total = units * counts[1]
    missing -= total
    for asked, answered in pairwise(counts[1:]):
      # `maximum` avoids a division by zero. If nobody is asked, nobody answers.
      added = answered * (missing // jnp.maximum(asked, 1))
      total, missing = total + added, missing - added
    return total

  def noise(key, counts):
    return _units_of_noise(key, unit, filled(counts), code.dim, most=units * num_clients)

  def event(counts):
    released = jnp.all(counts >= min_clients)
    grid = code.grid
    return SkellamSum(
      grid.l2_norm, grid.l1_norm, unit, filled(counts), rounded=True, released=released
    )

  def encode(key, state, record, weight):
    return jnp.where(weight > 0, code.encode(key, state, record), 0)

  def finalize(key, state, total, counts):
    made = marked(event(counts), key)
    decoded = code.decode(state, total + noise(key, counts))
    result = jax.tree.map(lambda x: jnp.where(made.released, x, 0.0), decoded)
    return result, made, state._replace(step=state.step + 1)

  return IntegerSum(num_calibrations, first_state, encode, noise, event, finalize)


@partial(jax.jit, static_argnames=("unit", "dim", "most"))
def _units_of_noise(
  key: jax.Array, unit: float, number: jax.Array, dim: int, *, most: int
) -> jax.Array:
  """Skellam noise of variance number * unit, int32 [dim], for a number of at most `most`.

  A digit with the value k is k draws of the variance of its place. All digits beyond the last
  variance that a table holds are taken as one digit.
  """
  total = vary_like(jnp.zeros(dim, jnp.int32), key, number)
  for place in range(0, most.bit_length(), _DIGIT):
    variance = math.ldexp(unit, place)
    beyond = math.ldexp(variance, _DIGIT) > _MOST
    digit = number >> place if beyond else (number >> place) & (2**_DIGIT - 1)

    def add(draw, total, place=place, variance=variance):
      own = jax.random.fold_in(jax.random.fold_in(key, place), draw)
      return total + skellam(own, variance, (dim,))

    total = jax.lax.fori_loop(0, digit, add, total)
    if beyond:
      break
  return total
