"""Sums of integers whose noise the clients add, correlated over the rounds of a run.

Each of n clients keeps noise of its own, as the server of a `correlated_gaussian_sum` would. In
round t its row is, in units of the grid,

    w_t = y_t + rounding of -(c_1 w_{t-1} + c_2 w_{t-2} + ...),

with y_t a discrete Gaussian variable and C the strategy. The rounding is random, by a discrete
Gaussian distribution about the fraction (`jdp.random.rounding`). So w_t is a discrete Gaussian
variable about the fraction, and the rows of all clients add up to noise like that of one server,
whatever fractions the clients had. Rounding to the *nearest* integer would show them: on a coarse
lattice the parity of a sum tells of earlier noise.

**Clients that miss rounds.** A client makes its row in every round, also in one that it misses.
What it could not add it owes, and adds to its next report. So the loss is per round: at most
`max_dropout` of the n clients may miss a round, whether they return or not. A round that more of
them miss is abandoned: no sum opens, and all of them owe their rows.

**Removal of what is not needed** (after arXiv 2209.12528). Rows suffice for the largest tolerated
loss. Let f be the fewest clients that reported in any round so far. y_t has a part that n clients
need, and five parts of 1, 2, 4, 8 and 16 units of variance, each from a seed of its own. Once the
server has said f, each client names the seeds of the parts that its row can do without. The server
takes them off, and the client goes on as if they had never been in its row. Whoever reports and
names nothing leaves more noise than needed.

The statements are proved in `docs/theory/correlated_noise.md`: what sums of such rows hide (4.6),
with losses and named seeds (4.7). In arXiv 2410.16161 clients hand correlated noise on to those of
the next round, by secret sharing. Here each keeps its own.
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
from jdp.queries.distributed.integer_sums import Encoding, Grid, encoding, first_state
from jdp.random import integer_distributions, marked
from jdp.random.discrete import discrete_gaussian
from jdp.random.draws import LARGEST_NORMAL
from jdp.random.rounding import DENOMINATOR, FARTHEST, VARIANCE, gaussian_rounding

_LATTICE = 6.0  # the variance that the proof takes from each row, in units of the grid
_MOST_PARTS = 5
_NEGLIGIBLE = 2.0**-53  # of a log-likelihood: less than a float64 resolves


class ClientNoise(NamedTuple):
  """What a client keeps between rounds. Secret like a key.

  Attributes:
    rows: int32 [bands - 1, d], its latest rows. That of round t is in place t modulo bands - 1.
    owed: int32 [d], the sum of the rows that it has not reported.
  """

  rows: jax.Array
  owed: jax.Array


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
    stddevs: float64 [n - least_clients + 1]. The standard deviation of what a client's row has and
      no earlier one, in units of the result, by how many clients were missing at most.
    init: record -> the state before the first round.
    public: state -> the state without what must stay secret.
    encode: (key, state, record, weight) -> int32 [d]. A client's clipped vector as integers,
      *without noise*. Zero where the weight is 0. The rotation is the same in all rounds, as noise
      would not cancel otherwise.
    make: (key, step, noise) -> the `ClientNoise` of a client that has made its row of the round,
      with all parts. A report is the encoded vector plus what is `owed` then.
    trim: (key, step, fewest, noise) -> (int32 [d], `ClientNoise`). The parts that the row can do
      without, whose seeds follow from the same key, and the noise without them. The server takes
      them off what it received. Whoever has reported owes nothing any more.
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
    noise_multiplier: z > 0, of all noise, over S. The privacy of the run is that of z over the
      sensitivity.
    strategy: C. Toeplitz, with coefficients >= 0 and few bands, such as `banded_toeplitz`. It is
      scaled to a diagonal of 1, and rounded to whole 64ths: `CorrelatedIntegers.strategy` says to
      what.
    num_clients: n, below 2^19. All of them add noise in every round, whoever has a record there.
    max_dropout: the largest share of the clients that may miss a round. In [0, 1).
    min_separation: of the rounds of one user; neighbouring rounds are 1 apart.
    max_participations: of one user. None: as many as fit.
    modulus_bits: b in [2, 31]. The bits for each coordinate.
    max_wrap_probability: as for `discrete_sum`, in a round in which nobody owes anything.
    max_sum_norm: as for `discrete_sum`.

  Raises:
    TypeError: if the strategy is not Toeplitz.
    ValueError: if an argument is out of range, or a coefficient is negative. Also if no grid has so
      little wrapping, or is fine enough for the noise, or rows could grow beyond 32 bits.

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
    record, clip_norm, noise_multiplier, _LATTICE * num_clients * gain**2,
    widest=float(np.linalg.norm(lattice.inverse)) * math.sqrt(num_clients / least),
    num_clients=num_clients, modulus_bits=modulus_bits, max_wrap_probability=max_wrap_probability,
    max_sum_norm=max_sum_norm,
  )  # fmt: skip
  parts = _parts(variance, num_clients, least)
  numbers = num_clients * lattice.num_rounds * code.dim, lattice.num_rounds * code.dim
  if not _distance(parts, *numbers) <= _NEGLIGIBLE:
    raise ValueError(
      f"Expected noise of a client of a variance above {4 * VARIANCE:g} in units of the grid, and "
      f"{numbers[0]:.3g} draws in all to be near Gaussian noise, got {parts.base:.3g}; raise "
      "modulus_bits."
    )
  if not (most := DENOMINATOR * _largest_fraction(lattice, parts)) < 2**31:
    raise ValueError(
      f"Expected fractions of rows below 2^31 in units of 1 / {DENOMINATOR}, got up to {most:.3g}; "
      "lower modulus_bits, or take a strategy with a smaller inverse."
    )
  unit = code.grid.spacing
  plan = planned_sum(
    lattice, noise_multiplier, clip_norm=code.grid.l2_norm * unit, min_separation=min_separation,
    max_participations=max_participations,
  )  # fmt: skip
  first = DistributedCorrelatedSum(
    **{field.name: getattr(plan, field.name) for field in dataclasses.fields(plan)}
  )
  behind = lattice.bands - 1
  coefficients = np.round(DENOMINATOR * lattice.coefficients).astype(np.int32)

  def init(record):
    del record
    shape = (num_clients, behind, code.dim)
    noise = ClientNoise(jnp.zeros(shape, jnp.int32), jnp.zeros(shape[::2], jnp.int32))
    return CorrelatedIntegersState(jnp.int32(0), jnp.int32(num_clients), noise)

  # The rotation is that of the first round throughout.
  def encode(key, state, record, weight):
    del state
    return jnp.where(weight > 0, code.encode(key, first_state(record), record), 0)

  def rows(keys, step, earlier, levels):
    """The rows of clients of a round, int32 [n, d], with the parts of their levels."""
    lags = (step - 1 - np.arange(behind, dtype=np.int32)) % max(behind, 1) + 1
    weights = -jnp.asarray(coefficients)[lags]
    numerators = jnp.sum(weights[None, :, None] * earlier, axis=1, dtype=jnp.int32)
    total = _each(keys, _MOST_PARTS, parts.base, code.dim)
    total += jax.vmap(gaussian_rounding)(_folded(keys, _MOST_PARTS + 1), numerators)
    for number, part in enumerate(parts.further):
      chosen = (levels >> number) & 1 == 1

      def add(total, number=number, part=part, chosen=chosen):
        return total + jnp.where(chosen[:, None], _each(keys, number, part, code.dim), 0)

      total = jax.lax.cond(jnp.any(chosen), add, lambda total: total, total)
    return total

  def kept(noise, step, row):
    """The noise of clients, with the row of a round."""
    earlier = noise.rows.at[:, step % behind].set(row) if behind else noise.rows
    return ClientNoise(earlier, noise.owed + row)

  def level(fewest):
    """The parts that are needed if so many clients reported at least."""
    missing = jnp.clip(num_clients - fewest, 0, num_clients - least)
    return jnp.asarray(parts.levels)[missing]

  def make(key, step, noise):
    everybodys = jax.tree.map(lambda x: x[None], noise)
    row = rows(key[None], step, everybodys.rows, jnp.full(1, parts.all))
    return jax.tree.map(lambda x: x[0], kept(everybodys, step, row))

  def trim(key, step, fewest, noise):
    named = jnp.zeros(code.dim, jnp.int32)
    for number, part in enumerate(parts.further):
      unneeded = (level(fewest) >> number) & 1 == 0
      named += jnp.where(unneeded, _each(key[None], number, part, code.dim)[0], 0)
    earlier = noise.rows.at[step % behind].add(-named) if behind else noise.rows
    return named, ClientNoise(earlier, noise.owed - named)

  def finalize(key, state, total, present):
    reported, answered = present
    number = jnp.sum(reported, dtype=jnp.int32)
    opened = number >= least
    fewest = jnp.where(opened, jnp.minimum(state.fewest, number), state.fewest)
    arrived = reported & opened
    levels = jnp.where(arrived & ~answered, parts.all, level(fewest))
    row = rows(jax.random.split(key, num_clients), state.step, state.noise.rows, levels)
    noise = kept(state.noise, state.step, row)
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
    stddevs=unit * np.sqrt(parts.variances),
    init=init,
    public=_without_noise,
    encode=encode,
    make=make,
    trim=trim,
    finalize=finalize,
  )


def on_lattice(strategy: Strategy) -> ToeplitzStrategy:
  """The strategy with a diagonal of 1 and coefficients in whole 64ths.

  Raises:
    TypeError: if it is not Toeplitz.
    ValueError: if a coefficient is negative: what is lost of others' rows might then cost privacy.

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


class _Parts(NamedTuple):
  """What a row is made of, in units of the grid.

  Attributes:
    base: the variance of the part that is always there, without that of rounding.
    further: variances of parts, each twice the one before.
    levels: int32, which of them are needed, as binary digits, by how many clients were missing.
  """

  base: float
  further: tuple[float, ...]
  levels: np.ndarray

  @property
  def all(self) -> int:
    """The level that needs all parts."""
    return 2 ** len(self.further) - 1

  @property
  def variances(self) -> np.ndarray:
    """The variance of a row that is not in earlier ones, for each of `levels`."""
    unit = self.further[0] if self.further else 0.0
    return self.base + VARIANCE + unit * self.levels


def _parts(variance: float, num_clients: int, least: int) -> _Parts:
  """Parts by which any number of clients from `least` on has the variance."""
  share = variance / num_clients * (1 + 1e-12)
  needed = variance / np.arange(num_clients, least - 1, -1) * (1 + 1e-12)
  extra = needed[-1] - share
  if least == num_clients:
    return _Parts(share - VARIANCE, (), np.zeros(1, np.int32))
  number = min(max(math.floor(math.log2(extra / VARIANCE + 1)), 1), _MOST_PARTS)
  unit = max(extra, VARIANCE) / (2**number - 1) * (1 + 1e-9)
  levels = np.ceil((needed - share) / unit).astype(np.int32)
  return _Parts(share - VARIANCE, tuple(float(unit) * 2.0**k for k in range(number)), levels)


def _distance(parts: _Parts, draws: int, sums: int) -> float:
  """A bound on how far log-likelihoods are from those of Gaussian noise (Statement 4.6).

  Args:
    parts: what a row is made of.
    draws: the number of all coordinates of all rows.
    sums: the number of those of all sums.
  """
  if not parts.base > 4 * VARIANCE:
    return math.inf
  for variance in (parts.base, *parts.further):  # a table refuses what it cannot hold
    integer_distributions.discrete_gaussian(math.sqrt(variance))

  def apart(variance: float) -> float:
    return math.exp(-2 * math.pi**2 * variance)

  smallest = min((VARIANCE, *parts.further))
  own = apart(smallest * parts.base / (smallest + parts.base))
  return 40 * (
    draws * ((len(parts.further) + 1) * own + apart(_LATTICE * 2 / 3)) + sums * apart(_LATTICE / 2)
  )


def _largest_fraction(strategy: ToeplitzStrategy, parts: _Parts) -> float:
  """The largest fraction of earlier rows, with every draw at its end.

  With C w = u, the draws of a row and of its rounding, the fraction is w - u, and w is C^-1 u.
  """
  drawn = sum(map(math.sqrt, (parts.base, *parts.further)))
  own = LARGEST_NORMAL * drawn + len(parts.further) + FARTHEST + 2
  return own * (1 + float(np.sum(np.abs(strategy.inverse))))


def _planned(
  record: Any, clip_norm: float, multiplier: float, lattice: float, *, widest: float, **planned: Any
) -> tuple[Encoding, float]:
  """The encoding, and sigma^2 in units of its grid; grid and noise depend on each other."""
  least = stddev = multiplier * clip_norm * widest
  while stddev < 1e3 * least:
    code = encoding(record, clip_norm, stddev, **planned)
    variance = (multiplier * code.grid.l2_norm) ** 2 + lattice
    needed = code.grid.spacing * math.sqrt(variance) * widest
    if needed <= stddev:
      return code, variance
    stddev = 1.001 * needed
  raise ValueError(
    f"Expected a grid whose noise leaves room in {planned['modulus_bits']} bits, got none; raise "
    "modulus_bits."
  )


def _folded(keys: jax.Array, number: int) -> jax.Array:
  return jax.vmap(lambda key: jax.random.fold_in(key, number))(keys)


def _each(keys: jax.Array, number: int, variance: float, dim: int) -> jax.Array:
  """The part of that number of each client, int32 [n, dim]."""
  stddev = math.sqrt(variance)
  return jax.vmap(lambda key: discrete_gaussian(key, stddev, (dim,)))(_folded(keys, number))


def _without_noise(state: CorrelatedIntegersState) -> CorrelatedIntegersState:
  return state._replace(noise=())
