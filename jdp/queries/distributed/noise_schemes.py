"""Who adds the noise of a distributed sum, and how much noise is left when clients vanish.

Each of n announced clients clips its vector to C and adds a share of the planned noise N(0, z^2
C^2). Some vanish, and take their shares with them. A *scheme* says who adds what. It also says how
much noise a round ends up with, as a fraction v of the planned variance. The ledger holds the
realised multiplier z sqrt(v).

Let m clients report and a answer. The noise of the sum, against each of two observers, is then:

| scheme | whoever sees the model | the server |
| --- | --- | --- |
| `uncalibrated` | v = m/n | v |
| `calibrated(inside=True)` | v = m/n + a (1/m - 1/n) | v |
| `calibrated(inside=False)` | the same v | m/n: it subtracts the noise that came separately |
| `excess` (at most t lost) | v = a / max(m, n - t) + (m - a) / (n - t) | v |
| `central` | v = 1 | no protection: it sees the sum without noise |

`jdp.queries.distributed.float_sums` says who "the server" is, and under which relation these hold.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jdp import _validate
from jdp._arguments import checked
from jdp._loop_carries import vary_like
from jdp.queries.base import PyTree
from jdp.random import draws

# int32 [2 + calibrations]: how many clients were announced, reported, and answered each calibration
Counts = jax.Array


class Realised(NamedTuple):
  """Fractions of the planned variance that an observer cannot subtract, float32 scalars.

  Attributes:
    server: against the server.
    model: against whoever sees the result only.
  """

  server: jax.Array
  model: jax.Array


class NoiseScheme(NamedTuple):
  """Who adds which noise, in units of the planned standard deviation, as pure functions.

  Attributes:
    num_calibrations: how often survivors are asked again after their report.
    opens_at: the stage at which the server first sees a sum. An index of the counts: 1 or the last.
    report: (key, like, n) -> noise. The noise of one client's report, float32, shaped as the tree
      `like`.
    calibrate: (key, like, counts so far) -> noise. The noise that a survivor adds when asked again.
      The key is the one of the client's report. The stage is folded in.
    central: whether the server adds noise of the whole planned variance, and the clients none.
    realised: (counts, honest counts) -> `Realised`. The variance of the honest clients' noise.
  """

  num_calibrations: int
  opens_at: int
  report: Callable[[jax.Array, PyTree, jax.Array], PyTree]
  calibrate: Callable[[jax.Array, PyTree, Counts], PyTree]
  central: bool
  realised: Callable[[Counts, Counts], Realised]


def uncalibrated() -> NoiseScheme:
  """Shares of variance 1/n. Lost shares are not replaced.

  >>> float(uncalibrated().realised(jnp.array([10, 7]), jnp.array([10, 7])).server)
  0.699999988079071
  """
  return calibrated(0)


@checked
def calibrated(num_calibrations: int = 1, *, inside: bool = True) -> NoiseScheme:
  """Shares of 1/n, then fresh noise by the survivors in place of what was lost (IEEE Access, 2021).

  Let k clients be asked while the sum has a fraction v of the planned variance. Then each of them
  adds the variance (1 - v) / k. At the first calibration this is 1/m - 1/n for each of m. If a of
  the k answer, the deficit 1 - v shrinks by the factor 1 - a / k.

  Args:
    num_calibrations: how often survivors are asked. At least 0.
    inside: whether reports and calibrations are summed under one secure aggregation, which opens
      once.

  Raises:
    ValueError: if num_calibrations is not a whole number >= 0.

  >>> counts = jnp.array([10, 8, 6])
  >>> realised = calibrated(inside=False).realised(counts, counts)
  >>> print(f"{realised.server:.4f} {realised.model:.4f}")
  0.8000 0.9500
  """
  _validate.integer(0, num_calibrations=num_calibrations)

  def report(key, like, n):
    return normal_like(jax.random.fold_in(key, 0), like, 1 / _at_least_one(n))

  def calibrate(key, like, counts):
    # Every client that is asked fills its part of the deficit with fresh noise. The stage is folded
    # into the key, so that no draw is made twice.
    _, deficit = _variance_and_deficit(counts, counts)
    return normal_like(
      jax.random.fold_in(key, len(counts) - 1), like, deficit / _at_least_one(counts[-1])
    )

  def realised(counts, honest):
    model, _ = _variance_and_deficit(counts, honest)
    at_report, _ = _variance_and_deficit(counts[:2], honest[:2])
    return Realised(model if inside else at_report, model)

  return NoiseScheme(num_calibrations, -1 if inside else 1, report, calibrate, False, realised)


@checked
def excess(max_dropout: float) -> NoiseScheme:
  """Noise for the worst case, from which the surplus is removed (arXiv 2209.12528, Section 3).

  Shares have the variance 1 / (n - t) with t = floor(n max_dropout). A share is a sum of
  independent components: one of 1/n, and one of 1 / ((n-k+1)(n-k)) for each k = 1, ..., t. When D
  <= t clients are lost, each survivor names (the seeds of) its components k > D. The server
  subtracts them, so each share is then 1 / (n - D).

  The remaining noise is independent of the named components, so it protects against the server too.
  A client that vanishes before naming leaves noise that is not needed. Nobody's absence makes the
  noise smaller than planned, as long as D <= t.

  A simulation draws t + 1 vectors per client. `DistributedSum.noise` draws one, from the
  distribution of their sum.

  Args:
    max_dropout: the largest fraction of lost clients for which the noise suffices. In [0, 1).

  Raises:
    ValueError: if max_dropout is not in [0, 1).

  >>> counts = jnp.array([10, 8, 8])
  >>> float(excess(0.5).realised(counts, counts).model)
  1.0
  """
  _validate.probability(max_dropout=max_dropout)
  if max_dropout == 1:
    raise ValueError("Expected max_dropout < 1, got 1; somebody must be left to add noise.")

  def tolerated(n):
    return jnp.floor(_at_least_one(n) * jnp.float32(max_dropout)).astype(jnp.int32)

  # Component k of a share has the key fold_in(key, k). So it can be drawn again when it is named.
  @jax.jit
  def components(key, like, n, first, last):
    """The sum of one client's components first, ..., last."""

    def add(k, total):
      kept = _at_least_one(n - k)
      variance = jnp.where(k == 0, 1 / kept, 1 / (_at_least_one(n - k + 1) * kept))
      return jax.tree.map(jnp.add, total, normal_like(jax.random.fold_in(key, k), like, variance))

    nothing = vary_like(zeros_like(like), key, n, first, last)
    return jax.lax.fori_loop(first, last + 1, add, nothing)

  def report(key, like, n):
    return components(key, like, n, 0, tolerated(n))

  def calibrate(key, like, counts):
    n, lost = counts[0], counts[0] - counts[1]
    return jax.tree.map(jnp.negative, components(key, like, n, lost + 1, tolerated(n)))

  def realised(counts, honest):
    reported, answered = jnp.asarray(honest[1:3], jnp.float32)
    least = _at_least_one(counts[0] - tolerated(counts[0]))
    # Clients that answered keep the share that the real losses require. The others left their whole
    # share.
    v = answered / jnp.maximum(_at_least_one(counts[1]), least) + (reported - answered) / least
    return Realised(v, v)

  return NoiseScheme(1, 1, report, calibrate, False, realised)


def central() -> NoiseScheme:
  """No shares: the server adds the noise. Nothing protects against the server.

  >>> counts = jnp.array([10, 7])
  >>> realised = central().realised(counts, counts)
  >>> float(realised.server), float(realised.model)  # the clients' losses cost no noise
  (0.0, 1.0)
  """

  def nothing(key, like, counts):
    del key, counts
    return zeros_like(like)

  def realised(counts, honest):
    del counts, honest
    return Realised(jnp.float32(0), jnp.float32(1))

  return NoiseScheme(0, 1, nothing, nothing, True, realised)


def _variance_and_deficit(counts: Counts, honest: Counts) -> tuple[jax.Array, jax.Array]:
  """(variance that honest clients have added, deficit of all clients) after the counted stages."""
  filled, deficit = jnp.float32(0), jnp.float32(1)
  for asked, answered, honestly in zip(counts[:-1], counts[1:], honest[1:], strict=True):
    filled += honestly.astype(jnp.float32) * deficit / _at_least_one(asked)
    deficit *= (asked - answered).astype(jnp.float32) / _at_least_one(asked)
  return filled, deficit


def _at_least_one(number: jax.typing.ArrayLike) -> jax.Array:
  """The number as float32, at least 1, so that nothing is divided by zero."""
  return jnp.maximum(jnp.asarray(number), 1).astype(jnp.float32)


def normal_like(key: jax.Array, like: PyTree, variance: jax.Array) -> PyTree:
  """N(0, variance) on each coordinate, float32."""
  return jax.tree.map(lambda x: jnp.sqrt(variance) * x, draws.normal_like(key, like))


def zeros_like(like: PyTree) -> PyTree:
  """float32 zeros in the shape of a tree of arrays or shapes."""
  return jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), like)
