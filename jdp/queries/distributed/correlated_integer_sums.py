"""Sums of integers whose noise the clients add, correlated over the rounds of a run.

Each of n clients keeps noise of its own, as the server of a `correlated_gaussian_sum` does. In
round t its row is, in units of the grid,

    w_t = y_t + rounding of -(c_1 w_{t-1} + c_2 w_{t-2} + ...),

with y_t a discrete Gaussian variable and C the strategy. The rounding is random, by a discrete
Gaussian distribution about the fraction (`jdp.random.rounding`). So w_t is a discrete Gaussian
variable about the fraction, and the rows of all clients add up to noise like that of one server,
whatever fractions the clients had. Rounding to the *nearest* integer would reveal the fractions: on
a coarse lattice the parity of a sum tells something about earlier noise.

**Clients that miss rounds.** A client makes its row in every round, also in one that it misses. It
owes the rows that it could not add, and adds them to its next report. So the loss is per round: at
most `max_dropout` of the n clients may miss a round, whether they return or not. A round that more
clients miss is abandoned: no sum opens, and all clients owe their rows.

**Removal of what is not needed** (after arXiv 2209.12528). Rows suffice for the largest tolerated
loss. Let f be the fewest clients that reported in any round so far. y_t is made of a part that n
clients need, and five parts of 1, 2, 4, 8 and 16 units of variance, each from a seed of its own.
Once the server has said f, each client names the seeds of the parts that its row can do without.
The server takes them off, and the client goes on as if they had never been in its row. Whoever
reports and names nothing leaves more noise than needed.

The statements are proved in `docs/theory/correlated_noise.md`: what sums of such rows hide (4.6),
with losses and named seeds (4.7). In arXiv 2410.16161 clients pass correlated noise on to the
clients of the next round, by secret sharing. Here each client keeps its own noise.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jdp import _validate
from jdp._arguments import Arrays, checked
from jdp.events import DistributedCorrelatedSum
from jdp.matrix_factorization.plans import planned_sum
from jdp.matrix_factorization.strategies import Strategy
from jdp.matrix_factorization.toeplitz import ToeplitzStrategy, from_coefficients
from jdp.queries.base import PyTree
from jdp.queries.distributed.correlated_rows import LATTICE, ClientNoise, rows_for
from jdp.queries.distributed.integer_sums import Encoding, Grid, encoding, first_state
from jdp.random import marked
from jdp.random.rounding import DENOMINATOR


class CorrelatedIntegersState(NamedTuple):
  """What changes from round to round.

  Attributes:
    step: the number of rounds finalised, int32 scalar.
    fewest: the fewest clients that reported in a round that opened, int32 scalar.
    noise: `ClientNoise` of all clients, with a leading axis of n. Secret.
  """

  step: jax.Array
  fewest: jax.Array
  noise: Any


class CorrelatedIntegers(NamedTuple):
  """A sum of integers with correlated noise by the clients, as pure functions.

  Attributes:
    strategy: C, with coefficients in whole 64ths.
    grid: what the integers are.
    plan: the event of the first round.
    least_clients: how many must report.
    stddevs: float64 [n - least_clients + 1]. The standard deviation of the part of a client's row
      that is in no earlier row, in units of the result. The index is the most clients that were
      missing so far.
    init: record -> the state before the first round.
    public: state -> the state without what must stay secret.
    encode: (key, state, record, weight) -> int32 [d]. A client's clipped vector as integers,
      *without noise*. Zero if the weight is 0. The rotation is the same in all rounds, as otherwise
      noise would not cancel.
    make: (key, step, noise) -> the `ClientNoise` of a client that has made its row of the round,
      with all parts. A report is the encoded vector plus `owed` of this `ClientNoise`.
    trim: (key, step, fewest, noise) -> (int32 [d], `ClientNoise`). The parts that the row can do
      without (their seeds follow from the same key), and the noise without them. The server
      subtracts these parts from what it received. A client that has reported owes nothing any more.
    finalize: (key, state, total, present) -> (result, event, state). `total` is the sum of the
      encoded vectors of those who reported. The noise of all clients is made and added here.
      `present` is bool [2, n]: who reported, and who named its seeds. The result is zero in an
      abandoned round, and NaN beyond the strategy's rounds.
  """

  strategy: ToeplitzStrategy
  grid: Grid
  plan: DistributedCorrelatedSum
  least_clients: int
  stddevs: np.ndarray
  init: Callable[[PyTree], CorrelatedIntegersState]
  public: Callable[[CorrelatedIntegersState], CorrelatedIntegersState]
  encode: Callable[[jax.Array, CorrelatedIntegersState, PyTree, jax.Array], jax.Array]
  make: Callable[[jax.Array, jax.Array, ClientNoise], ClientNoise]
  trim: Callable[[jax.Array, jax.Array, jax.Array, ClientNoise], tuple[jax.Array, ClientNoise]]
  finalize: Callable[..., tuple[PyTree, DistributedCorrelatedSum, CorrelatedIntegersState]]


@checked
def correlated_integers(
  record: Arrays,
  clip_norm: float,
  noise_multiplier: float,
  strategy: Strategy,
  *,
  num_clients: int,
  max_dropout: float = 0.0,
  min_separation: int = 1,
  max_participations: int | None = None,
  modulus_bits: int = 18,
  max_wrap_probability: float = 1e-6,
  max_sum_norm: float | None = None,
) -> CorrelatedIntegers:
  """The sum of vectors as integers, with noise by the clients that later rounds cancel.

  Formal guarantee: a whole run is one Gaussian release with the noise multiplier z / `sensitivity`,
  under zero-out or replace-one with the client still adding its noise, given who took part when, if
  a user's rounds keep the pattern. It holds against a server that follows the protocol and sees
  sums and named seeds, if all clients are honest. If a share h of those who report in each round
  is, it holds with z sqrt(h). Whatever earlier rounds released may decide later records.

  The sensitivity is that of integers of an L2 norm of S, as for `discrete_sum`. The lattice costs a
  client the variance 6 |C|^2 in units of the grid, with |C| the sum of the coefficients: all noise
  has sigma^2 = z^2 S^2 + 6 n |C|^2. A finer grid makes that small, and distances from Gaussian
  noise negligible (below 2^-53 in a log-likelihood; a grid that is too coarse is refused).

  If m clients report at least, each row of m clients has the variance sigma^2 of a central run, up
  to one unit: a 31st of what m = n - floor(n max_dropout) needs beyond m = n. Noise of clients that
  left, or are away, stays in the sum of the results beside it.

  Args:
    record: one record or its shapes, such as the model's parameters.
    clip_norm: bound on the L2 norm of a record.
    noise_multiplier: z > 0, the multiplier of all noise, relative to S. The run's privacy follows
      from z divided by the sensitivity.
    strategy: C. Toeplitz, with coefficients >= 0 and few bands, such as `banded_toeplitz`. It is
      scaled to a diagonal of 1, and rounded to whole 64ths: `CorrelatedIntegers.strategy` is the
      result.
    num_clients: n, below 2^19. All of them add noise in every round, whoever has a record there.
    max_dropout: the largest share of the clients that may miss a round. In [0, 1).
    min_separation: the least distance between two rounds of one user; neighbouring rounds are 1
      apart.
    max_participations: the most rounds of one user. None: as many as fit.
    modulus_bits: b in [2, 31]. The bits for each coordinate.
    max_wrap_probability: as for `discrete_sum`, in a round in which nobody owes anything.
    max_sum_norm: as for `discrete_sum`.

  Raises:
    TypeError: if the strategy is not Toeplitz.
    ValueError: if an argument is out of range, or a coefficient is negative. Also if every grid
      wraps with a higher probability or is too coarse for the noise, or if rows could grow beyond
      32 bits. Also if the sums of all rounds have more than 1.4e8 coordinates together (Statement
      4.6).

  >>> from jdp.matrix_factorization import banded_toeplitz
  >>> query = correlated_integers(
  ...   jnp.zeros(3),
  ...   1.0,
  ...   2.0,
  ...   banded_toeplitz(8, 3),
  ...   num_clients=5,
  ...   max_dropout=0.4,
  ...   min_separation=3,
  ... )
  >>> query.least_clients, query.plan.max_participations, query.plan.bands
  (3, 3, 3)
  >>> state = query.init(jnp.zeros(3))
  >>> total = query.encode(jax.random.key(0), state, jnp.array([0.6, 0.0, -0.8]), jnp.float32(1))
  >>> present = jnp.array([[True, True, True, True, False]] * 2)
  >>> result, event, state = query.finalize(jax.random.key(1), state, total, present)
  >>> result.shape, int(state.fewest), state.noise.rows.shape, bool(jnp.any(state.noise.owed[4]))
  ((3,), 4, (5, 2, 4), True)
  """
  _validate.positive(noise_multiplier=noise_multiplier)
  _validate.in_range(1, 2**19 - 1, num_clients=num_clients)
  _validate.probability(max_dropout=max_dropout)
  lattice = on_lattice(strategy)
  least = num_clients - math.floor(num_clients * max_dropout)
  if least < 1:
    raise ValueError("Expected max_dropout < 1, got 1; somebody must be left to add noise.")
  gain = float(np.sum(lattice.coefficients))
  code, variance = _planned(
    record, clip_norm, noise_multiplier, LATTICE * num_clients * gain**2,
    widest=float(np.linalg.norm(lattice.inverse)) * math.sqrt(num_clients / least),
    num_clients=num_clients, modulus_bits=modulus_bits, max_wrap_probability=max_wrap_probability,
    max_sum_norm=max_sum_norm,
  )  # fmt: skip
  rows = rows_for(lattice, variance, num_clients, least, code.dim)
  unit = code.grid.spacing
  plan = planned_sum(
    lattice, noise_multiplier, clip_norm=code.grid.l2_norm * unit, min_separation=min_separation,
    max_participations=max_participations,
  )  # fmt: skip
  first = DistributedCorrelatedSum(**vars(plan))

  def init(record):
    del record
    return CorrelatedIntegersState(jnp.int32(0), jnp.int32(num_clients), rows.init())

  # All rounds use the rotation of the first round.
  def encode(key, state, record, weight):
    del state
    return jnp.where(weight > 0, code.encode(key, first_state(record), record), 0)

  def make(key, step, noise):
    everybodys = jax.tree.map(lambda x: x[None], noise)
    made = rows.made(key[None], step, everybodys, jnp.full(1, rows.parts.all))
    return jax.tree.map(lambda x: x[0], made)

  def finalize(key, state, total, present):
    reported, answered = present
    number = jnp.sum(reported, dtype=jnp.int32)
    opened = number >= least
    fewest = jnp.where(opened, jnp.minimum(state.fewest, number), state.fewest)
    arrived = reported & opened
    levels = jnp.where(arrived & ~answered, rows.parts.all, rows.level(fewest))
    noise = rows.made(jax.random.split(key, num_clients), state.step, state.noise, levels)
    total += jnp.sum(jnp.where(arrived[:, None], noise.owed, 0), axis=0)
    noise = noise._replace(owed=jnp.where(arrived[:, None], 0, noise.owed))
    beyond = state.step >= lattice.num_rounds
    result = jax.tree.map(
      lambda x: jnp.where(beyond, jnp.nan, jnp.where(opened, x, 0.0)),
      code.decode(first_state(record), total),
    )
    event = marked(dataclasses.replace(first, index=state.step), key)
    return result, event, CorrelatedIntegersState(state.step + 1, fewest, noise)

  return CorrelatedIntegers(
    strategy=lattice,
    grid=code.grid,
    plan=first,
    least_clients=least,
    stddevs=unit * np.sqrt(rows.parts.variances),
    init=init,
    public=_without_noise,
    encode=encode,
    make=make,
    trim=rows.trimmed,
    finalize=finalize,
  )


def on_lattice(strategy: Strategy) -> ToeplitzStrategy:
  """The strategy with a diagonal of 1 and coefficients in whole 64ths.

  Raises:
    TypeError: if it is not Toeplitz.
    ValueError: if a coefficient is negative: losing parts of others' rows might then cost privacy.

  >>> from jdp.matrix_factorization import square_root_toeplitz
  >>> on_lattice(square_root_toeplitz(8, bands=3)).coefficients[:4].tolist()
  [1.0, 0.5, 0.375, 0.0]
  """
  if not isinstance(strategy, ToeplitzStrategy):
    raise TypeError(
      f"Expected a Toeplitz strategy, got {type(strategy).__name__}; take banded_toeplitz."
    )
  scaled = strategy.coefficients / strategy.coefficients[0]
  if not np.all(scaled >= 0):
    raise ValueError(
      f"Expected coefficients >= 0, got {np.min(scaled):.3g}; take banded_toeplitz, or "
      "square_root_toeplitz."
    )
  whole = np.trim_zeros(np.round(DENOMINATOR * scaled) / DENOMINATOR, "b")
  return from_coefficients(whole, strategy.num_rounds, len(whole) - 1)


def _planned(
  record: Any, clip_norm: float, multiplier: float, lattice: float, *, widest: float, **planned: Any
) -> tuple[Encoding, float]:
  """The encoding, and sigma^2 in units of its grid; grid and noise depend on each other."""
  least = stddev = multiplier * clip_norm * widest
  _validate.float32_safe(**{"noise_multiplier * clip_norm": least})
  while stddev < 1e3 * least:
    code = encoding(record, clip_norm, stddev, **planned)
    variance = (multiplier * code.grid.l2_norm) ** 2 + lattice
    needed = code.grid.spacing * math.sqrt(variance) * widest
    if needed <= stddev:
      return code, variance
    # More noise makes a coarser grid, which needs more noise: repeat until both agree.
    stddev = 1.001 * needed
  raise ValueError(
    f"Expected a grid whose noise leaves room in {planned['modulus_bits']} bits, got none; raise "
    "modulus_bits."
  )


def _without_noise(state: CorrelatedIntegersState) -> CorrelatedIntegersState:
  return state._replace(noise=())
