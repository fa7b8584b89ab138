"""Sums whose noise the clients add, so that it exists before any server sees them.

`jdp.queries.distributed.noise_schemes` says who adds how much.

"The server" follows the protocol and sees sums only. Sums come from secure aggregation. With
calibration *inside* it, the sum opens once the last calibration has been added. The `honest` counts
state what remains against a coalition with clients that know, or leave out, their noise.

The relation is zero-out (or replace-one) *with the client still adding its noise*. Under add/remove
a removed client takes its share along, so neighbours differ in the variance of their noise too. At
m = 100 clients and 7,850 weights, this alone gives a Renyi divergence of order 2 of 0.40 a round,
whatever z. The accountant refuses that relation.

All guarantees are given who took part when: the numbers of clients at each stage are public. A
client whose *vanishing* depends on its data (large clients are slower) reveals something by
vanishing. No noise on the sum hides that.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jdp import _validate
from jdp._arguments import checked
from jdp.accounting.float_noise import FINEST_SHARE
from jdp.events import DistributedGaussianSum
from jdp.numerics import vectors
from jdp.numerics.compensated import add, rounded
from jdp.numerics.dither import dithered
from jdp.queries.base import PyTree
from jdp.queries.distributed.noise_schemes import Counts, NoiseScheme, normal_like, zeros_like
from jdp.random import marked


class RoundEvents(NamedTuple):
  """What the ledger must hold about one round, for each observer.

  Wrap the two in `Round`s of relation zero_out.

  Attributes:
    server: for rounds of observer "server". No sampling amplifies there.
    model: for rounds of observer "model".
  """

  server: DistributedGaussianSum
  model: DistributedGaussianSum


class DistributedSum(NamedTuple):
  """A sum with noise by the clients, as pure functions: what each party does, stage by stage.

  Attributes:
    scheme: who adds which noise.
    clip: record -> record. The record within the bound, float32.
    share: (key, record, n) -> report. The report of one of n announced clients is its clipped
      vector with its noise, float32.
    calibrate: (key of its report, like, counts so far) -> noise. What a survivor adds when asked
      again.
    noise: (key, like, counts) -> noise. The noise of all clients together, for simulations of large
      cohorts. It is drawn at once from its exact distribution (a sum of independent Gaussians is
      Gaussian).
    events: (counts, honest) -> `RoundEvents`. Honest counts default to the counts.
    open: (key, total of the reports, counts) -> sum, float32. It is for a scheme that shows the
      server this sum before the last noise. Secure aggregation must hand the sum over dithered, as
      `open` does.
    finalize: (key, total, counts, honest) -> (result, `RoundEvents`). `total` is the sum of all
      that arrived. The result is dithered. Below the floor it is zero, and the round is abandoned.
      The events are marked by the key, so make it and those of the shares of one key.
  """

  scheme: NoiseScheme
  clip: Callable[[PyTree], PyTree]
  share: Callable[[jax.Array, PyTree, jax.Array], PyTree]
  calibrate: Callable[[jax.Array, PyTree, Counts], PyTree]
  noise: Callable[[jax.Array, PyTree, Counts], PyTree]
  events: Callable[..., RoundEvents]
  open: Callable[[jax.Array, PyTree, Counts], PyTree]
  finalize: Callable[..., tuple[PyTree, RoundEvents]]


@checked
def distributed_sum(
  clip_norm: float, noise_multiplier: float, scheme: NoiseScheme, *, min_clients: int = 1
) -> DistributedSum:
  """The sum of vectors, each clipped to an L2 norm of C, with noise by the clients.

  The standard deviation of all noise is z C if nobody is lost.

  Formal guarantee: that of one Gaussian sum with the *realised* multiplier, for each observer as
  the module says, under zero-out with the client still adding its noise. The standard deviations
  drawn and recorded are within a relative 5e-7 of the stated ones. Clients are trusted to add their
  noise. The `honest` counts of `finalize` give the guarantee if only these clients do.

  In floating point, the total is dithered where it opens, by 1/16 of the standard deviation of all
  its noise. It costs what `gaussian_sum` says, with the observer's own standard deviation as the
  noise. A sum that the server sees *before* the last noise (`opens_at`: calibration outside secure
  aggregation, excess noise) must go through `open`, which does the same. One effect is not counted:
  each report was rounded to float32 before. This moves the total by up to 2^-24 of the sum of the
  reports' sizes. Integers have no such gap (`discrete_sum`).

  A round in which fewer than `min_clients` are left at any stage is abandoned, and its result is
  zero. If the server has seen no sum by then, this costs nothing. It reveals the numbers of
  clients, which are public anyway. With calibration outside secure aggregation or excess noise, the
  reports may have opened before too few answered. Then the server's event holds that release. The
  model's observer sees nothing of an abandoned round.

  Args:
    clip_norm: C. In [1e-30, 1e30].
    noise_multiplier: z >= 0, planned.
    scheme: who adds which noise, such as `calibrated()`.
    min_clients: the floor. At least 1.

  Raises:
    ValueError: if a number is out of range.

  >>> from jdp.queries.distributed.noise_schemes import calibrated
  >>> query = distributed_sum(1.0, 2.0, calibrated(), min_clients=2)
  >>> counts = jnp.array([4, 3, 3])
  >>> total = query.noise(jax.random.key(0), jnp.zeros(2), counts)
  >>> result, events = query.finalize(jax.random.key(1), total, counts)
  >>> print(f"{events.server.stddev:.4f} {bool(events.server.released)}")
  2.0000 True
  """
  _validate.float32_safe(clip_norm=clip_norm)
  _validate.integer(1, min_clients=min_clients)
  if noise_multiplier != 0:
    _validate.float32_safe(noise_multiplier=noise_multiplier)
    _validate.float32_safe(**{"noise_multiplier * clip_norm": noise_multiplier * clip_norm})
  planned = jnp.float32(noise_multiplier * clip_norm)

  def scaled(noise):
    return jax.tree.map(lambda x: planned * x, noise)

  clip = partial(vectors.clip, max_norm=clip_norm)

  def share(key, record, n):
    return jax.tree.map(jnp.add, clip(record), scaled(scheme.report(key, record, n)))

  def calibrate(key, like, counts):
    return scaled(scheme.calibrate(key, like, counts))

  def noise(key, like, counts):
    # With a central scheme `finalize` adds all noise.
    return (
      zeros_like(like)
      if scheme.central
      else scaled(normal_like(key, like, scheme.realised(counts, counts).model))
    )

  def events(counts, honest=None):
    realised = scheme.realised(counts, counts if honest is None else honest)
    enough = counts >= min_clients
    # The server has seen a sum if every stage up to the opening had enough clients.
    opened = jnp.all(enough) if scheme.opens_at == -1 else enough[0] & enough[1]
    server = DistributedGaussianSum(clip_norm, planned * jnp.sqrt(realised.server), opened)
    return RoundEvents(
      server, DistributedGaussianSum(clip_norm, planned * jnp.sqrt(realised.model), jnp.all(enough))
    )

  def dither(key, total, stddev):
    return dithered(key, rounded(total), FINEST_SHARE * stddev)

  def open_reports(key, total, counts):
    return dither(key, total, events(counts).server.stddev)

  def finalize(key, total, counts, honest=None):
    noise_key, shift_key = jax.random.split(key)
    if scheme.central:
      total = add(total, scaled(normal_like(noise_key, rounded(total), jnp.float32(1))))
    made = events(counts, honest)
    # The grid follows the noise of all clients, not only of the honest ones.
    opened = dither(shift_key, total, events(counts).model.stddev)
    result = jax.tree.map(lambda x: jnp.where(made.model.released, x, 0.0), opened)
    return result, RoundEvents(marked(made.server, key), marked(made.model, key))

  return DistributedSum(scheme, clip, share, calibrate, noise, events, open_reports, finalize)
