"""The rows of noise that clients keep, correlated over the rounds, as integers.

`jdp.queries.distributed.correlated_integer_sums` says what a row is, and what it is made of.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jdp.matrix_factorization.toeplitz import ToeplitzStrategy
from jdp.random import integer_distributions
from jdp.random.discrete import discrete_gaussian
from jdp.random.draws import LARGEST_NORMAL
from jdp.random.rounding import DENOMINATOR, FARTHEST, VARIANCE, gaussian_rounding

LATTICE = 6.0  # the variance that the proof takes from each row, in units of the grid
_MOST_PARTS = 5
_NEGLIGIBLE = 2.0**-53  # in a log-likelihood: less than float64 resolves


class ClientNoise(NamedTuple):
  """What a client keeps between rounds. Secret like a key.

  Attributes:
    rows: int32 [bands - 1, d], its latest rows. The row of round t is in place t modulo bands - 1.
    owed: int32 [d], the sum of the rows that it has not reported.
  """

  rows: jax.Array
  owed: jax.Array


class Parts(NamedTuple):
  """What a row is made of, in units of the grid.

  Attributes:
    base: the variance of the part that is always there, without the variance of rounding.
    further: the variances of the further parts, each twice the one before.
    levels: int32, indexed by how many clients were missing. The binary digits say which further
      parts are needed.
  """

  base: float
  further: tuple[float, ...]
  levels: np.ndarray

  @property
  def all(self) -> int:
    """The level in which all parts are needed."""
    return 2 ** len(self.further) - 1

  @property
  def variances(self) -> np.ndarray:
    """The variance of the part of a row that is not in earlier rows, for each of `levels`."""
    unit = self.further[0] if self.further else 0.0
    return self.base + VARIANCE + unit * self.levels


def _parts_of(variance: float, num_clients: int, least: int) -> Parts:
  """Parts with which the rows of any `least` or more clients add up to at least the variance."""
  # The margins exceed float64 rounding, so rows never have less variance than needed.
  share = variance / num_clients * (1 + 1e-12)
  needed = variance / np.arange(num_clients, least - 1, -1) * (1 + 1e-12)
  extra = needed[-1] - share
  if least == num_clients:
    return Parts(share - VARIANCE, (), np.zeros(1, np.int32))
  number = min(max(math.floor(math.log2(extra / VARIANCE + 1)), 1), _MOST_PARTS)
  unit = max(extra, VARIANCE) / (2**number - 1) * (1 + 1e-9)
  levels = np.ceil((needed - share) / unit).astype(np.int32)
  return Parts(share - VARIANCE, tuple(float(unit) * 2.0**k for k in range(number)), levels)


def _distance(parts: Parts, draws: int, sums: int) -> float:
  """A bound on how far log-likelihoods are from those of Gaussian noise (Statement 4.6).

  Args:
    parts: what a row is made of.
    draws: the number of all coordinates of all rows.
    sums: the number of all coordinates of all sums.
  """
  if not parts.base > 4 * VARIANCE:
    return math.inf
  for variance in (parts.base, *parts.further):  # a table refuses what it cannot hold
    integer_distributions.discrete_gaussian(math.sqrt(variance))

  smallest = min((VARIANCE, *parts.further))
  own = _apart(smallest * parts.base / (smallest + parts.base))
  return 40 * (
    draws * ((len(parts.further) + 1) * own + _apart(LATTICE * 2 / 3)) + sums * _apart(LATTICE / 2)
  )


def _apart(variance: float) -> float:
  return math.exp(-2 * math.pi**2 * variance)


def _largest_fraction(strategy: ToeplitzStrategy, parts: Parts) -> float:
  """The largest possible fraction from earlier rows: every draw is at the end of its range.

  With C w = u, the draws of a row and of its rounding, the fraction is w - u, and w is C^-1 u.
  """
  drawn = sum(map(math.sqrt, (parts.base, *parts.further)))
  own = LARGEST_NORMAL * drawn + len(parts.further) + FARTHEST + 2
  return own * (1 + float(np.sum(np.abs(strategy.inverse))))


class Rows(NamedTuple):
  """How clients make their rows.

  Attributes:
    strategy: C, with coefficients in whole 64ths.
    parts: what a row is made of.
    num_clients: n.
    dim: the length of a row, d.
  """

  strategy: ToeplitzStrategy
  parts: Parts
  num_clients: int
  dim: int

  def init(self) -> ClientNoise:
    """The noise of all clients before the first round, with a leading axis of n."""
    shape = (self.num_clients, self.strategy.bands - 1, self.dim)
    return ClientNoise(jnp.zeros(shape, jnp.int32), jnp.zeros(shape[::2], jnp.int32))

  def level(self, fewest: jax.Array) -> jax.Array:
    """The parts that are needed if no opened round had fewer than `fewest` reports."""
    missing = jnp.clip(self.num_clients - fewest, 0, len(self.parts.levels) - 1)
    return jnp.asarray(self.parts.levels)[missing]

  def made(
    self, keys: jax.Array, step: jax.Array, noise: ClientNoise, levels: jax.Array
  ) -> ClientNoise:
    """Some clients' noise after they have made a round's rows, from the parts of their levels."""
    total = self._each(keys, _MOST_PARTS, self.parts.base)
    total += jax.vmap(gaussian_rounding)(
      _folded(keys, _MOST_PARTS + 1), self._fractions(step, noise)
    )
    for number, part in enumerate(self.parts.further):
      chosen = (levels >> number) & 1 == 1

      def add(total, number=number, part=part, chosen=chosen):
        return total + jnp.where(chosen[:, None], self._each(keys, number, part), 0)

      total = jax.lax.cond(jnp.any(chosen), add, lambda total: total, total)
    behind = self.strategy.bands - 1
    rows = noise.rows.at[:, step % behind].set(total) if behind else noise.rows
    return ClientNoise(rows, noise.owed + total)

  def trimmed(
    self, key: jax.Array, step: jax.Array, fewest: jax.Array, noise: ClientNoise
  ) -> tuple[jax.Array, ClientNoise]:
    """The parts that a client's row can do without, int32 [d], and its noise without them."""
    named = jnp.zeros(self.dim, jnp.int32)
    for number, part in enumerate(self.parts.further):
      unneeded = (self.level(fewest) >> number) & 1 == 0
      named += jnp.where(unneeded, self._each(key[None], number, part)[0], 0)
    behind = self.strategy.bands - 1
    rows = noise.rows.at[step % behind].add(-named) if behind else noise.rows
    return named, ClientNoise(rows, noise.owed - named)

  def _fractions(self, step: jax.Array, noise: ClientNoise) -> jax.Array:
    """The term from earlier rows in the next row, int32 [n, d], in 64ths."""
    behind = self.strategy.bands - 1
    coefficients = np.round(DENOMINATOR * self.strategy.coefficients).astype(np.int32)
    # `max` avoids a modulo by zero: with one band there are no earlier rows.
    lags = (step - 1 - np.arange(behind, dtype=np.int32)) % max(behind, 1) + 1
    weights = -jnp.asarray(coefficients)[lags]
    return jnp.sum(weights[None, :, None] * noise.rows, axis=1, dtype=jnp.int32)

  def _each(self, keys: jax.Array, number: int, variance: float) -> jax.Array:
    """The part with this number, for each client, int32 [n, d]."""
    stddev = math.sqrt(variance)
    return jax.vmap(lambda key: discrete_gaussian(key, stddev, (self.dim,)))(_folded(keys, number))


def rows_for(
  strategy: ToeplitzStrategy, variance: float, num_clients: int, least: int, dim: int
) -> Rows:
  """Rows that add up to the variance for any `least` or more clients, in units of the grid.

  Raises:
    ValueError: if the sums have too many coordinates in all, the grid is too coarse for the noise,
      or rows could grow beyond 32 bits.
  """
  parts, sums = _parts_of(variance, num_clients, least), strategy.num_rounds * dim
  if not sums <= (most := _NEGLIGIBLE / (40 * _apart(LATTICE / 2))):
    raise ValueError(
      f"Expected at most {most:.3g} coordinates of all rounds' sums, which are near Gaussian noise "
      f"together, got {sums:.3g}; take fewer rounds, or a smaller model."
    )
  if not _distance(parts, num_clients * sums, sums) <= _NEGLIGIBLE:
    raise ValueError(
      f"Expected noise of a client of a variance above {4 * VARIANCE:g} in units of the grid, and "
      f"{num_clients * sums:.3g} draws in all to be near Gaussian noise, got {parts.base:.3g}; "
      "raise modulus_bits."
    )
  if not (largest := DENOMINATOR * _largest_fraction(strategy, parts)) < 2**31:
    raise ValueError(
      f"Expected fractions of rows below 2^31 in units of 1 / {DENOMINATOR}, got up to "
      f"{largest:.3g}; lower modulus_bits, or take a strategy with a smaller inverse."
    )
  return Rows(strategy, parts, num_clients, dim)


def _folded(keys: jax.Array, number: int) -> jax.Array:
  return jax.vmap(lambda key: jax.random.fold_in(key, number))(keys)
