"""A round of distributed integer noise under secure aggregation, message by message.

A round includes its calibration:

1. Each client's vector is clipped, rotated and rounded. It is masked with its share of Skellam
   noise.
2. Survivors are told how many they are. They mask fresh Skellam noise in place of what was lost
   (`calibrated` of `jdp.queries.distributed.noise_schemes`). Sums of Skellam noise are Skellam
   noise.
3. One sum of all messages opens.

The host drives the stages, as a server would. How much noise a calibration takes is known only once
the stage before it is over.
"""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jdp import _validate
from jdp._arguments import checked
from jdp.events import SkellamSum
from jdp.federated.dropout.secure_aggregation_protocol import SecureAggregation
from jdp.federated.engine.sharded import check_clients
from jdp.queries.base import PyTree, SumQuery
from jdp.queries.distributed.integer_sums import DiscreteContribution, DiscreteState
from jdp.random import marked
from jdp.random.binding import bind
from jdp.random.discrete import skellam

_VARIANCES = 1e-6, 4.5e7  # the least and the most that `skellam` draws


class Opened(NamedTuple):
  """A round's result, as the server learns it.

  Attributes:
    result: the noised sum of the vectors of all who reported. It is float32, structured as one
      record.
    event: the event for the ledger. It is stated under zero_out, against the server and whoever
      sees less.
  """

  result: PyTree
  event: SkellamSum


MaskedRound = Callable[[jax.Array, DiscreteState, PyTree, np.ndarray], Opened | None]
"""(key, query state, records [n, ...], who answers) -> what opened, or None.

Who answers at each stage is bool [1 + calibrations, n]. None means that the round was abandoned.
Then nothing opened, which costs nothing.
"""


@checked
def masked_round(
  query: SumQuery, protocol: SecureAggregation, *, min_clients: int = 1
) -> MaskedRound:
  """A round among the clients of a secure aggregation, who all take part.

  Formal guarantee: that of one Skellam sum with the variance of all noise that arrived, which the
  event holds. It is stated under zero_out with the client still adding its noise, if all clients
  are honest. It holds against a server that follows the protocol and sees all masked messages. It
  rests on the masks as `jdp.federated.secure_aggregation` says.

  Missing noise that is too little for exact draws (a variance below 1e-6 each) stays missing. The
  event does not count it.

  A round is abandoned, before any secret is revealed, in any of these cases:

  * Fewer than `min_clients` answer a stage.
  * The secrets of some client are lost.
  * The graph of those who answered a stage falls apart. The sums of its parts would open, each with
    less noise than the event would claim.

  Args:
    query: a `discrete_sum` with noise="skellam", made for as many clients as the protocol. Its
      modulus is the protocol's, or smaller.
    protocol: a `secure_aggregation`.
    min_clients: the floor, >= 1.

  Returns:
    A function of the host. Its compiled parts serve all rounds. Its memory holds all clients'
    integers at once.

  Raises:
    ValueError: if min_clients is not a whole number >= 1. In a round, before anything is sent: if
      the query's noise is not Skellam noise, its modulus is above the protocol's, or records or
      answers are not those of the protocol's clients. Also if a client that was lost answers again,
      or if min_clients survivors could not make up for the noise of the others by exact draws.

  >>> from jdp.federated.dropout.secure_aggregation_protocol import secure_aggregation
  >>> from jdp.queries import discrete_sum
  >>> query = discrete_sum(jnp.zeros(2), 1.0, 0.01, num_clients=6, noise="skellam")
  >>> run = masked_round(
  ...   query, secure_aggregation(6, degree=4, threshold=1, modulus_bits=16), min_clients=5
  ... )
  >>> present = np.arange(6)[None] < 4  # two clients are lost, and nobody calibrates
  >>> opened = run(jax.random.key(0), query.init(jnp.zeros(2)), jnp.full((6, 2), 0.1), present)
  >>> opened is None  # of five, opened.result would be near [0.5, 0.5]
  True
  """
  _validate.integer(1, min_clients=min_clients)
  report = jax.jit(jax.vmap(query.preprocess, (0, None, 0, None)))
  unmask = jax.jit(protocol.unmask)

  @partial(jax.jit, static_argnames="stage")
  def arrived(setup, integers, present, stage):
    """The sum of the masked messages that a stage's clients send."""
    clients = jnp.arange(len(integers), dtype=jnp.int32)
    masked = jax.vmap(partial(protocol.mask, stage=stage), (None, 0, 0))(setup, clients, integers)
    return jnp.sum(jnp.where(present[:, None], masked, jnp.uint32(0)), axis=0, dtype=jnp.uint32)

  def run(key, state, records, present):
    # Masks used in two rounds would reveal the rounds' difference, and so would noise.
    bound = bind(key, (state, records, present))
    setup_key, *keys = jax.random.split(bound, 1 + len(present))
    setup = protocol.setup(setup_key)
    _check_answers(present, setup.seats.size)
    check_clients(setup.seats.size, records)
    numbers = [setup.seats.size, *np.sum(present, axis=1).tolist()]
    if min(numbers) < min_clients or not all(protocol.connected(setup, row) for row in present):
      return None
    integers = report(
      jax.random.split(keys[0], numbers[0]), state, records, jnp.float32(1)
    ).integers
    planned = _planned(query, state, integers[0], protocol.modulus_bits)
    if len(present) > 1:
      _check_floor(min_clients, numbers[0] * planned.share_variance)
    each = [planned.share_variance, *calibrations(numbers, planned.share_variance)]
    total = arrived(setup, integers, present[0], stage=0)
    for stage, stage_key in enumerate(keys[1:], start=1):
      integers = (
        skellam(stage_key, each[stage], integers.shape) if each[stage] else jnp.zeros_like(integers)
      )
      total += arrived(setup, integers, present[stage], stage=stage)
    total, recovered = unmask(setup, total, jnp.asarray(present))
    if not recovered:
      return None
    contribution = DiscreteContribution(total.astype(jnp.int32), jnp.int32(numbers[1]))
    # The query adds no noise of its own here, so its key is of no use.
    result, *_ = query.finalize(jax.random.key(0), state, contribution)
    variance = total_variance(numbers[1:], each)
    event = SkellamSum(planned.l2_norm, planned.l1_norm, variance, 1, rounded=planned.rounded)
    return Opened(result, marked(event, key))

  return run


def calibrations(numbers: Sequence[int], share_variance: float) -> list[float]:
  """The variance of the noise that each client adds if asked, for each calibration.

  It is 0 where it is below the smallest exact draw. Of k clients asked, each adds a k-th of the
  missing variance. The share of those who do not answer stays missing. It is a product of shares of
  clients, so rounding cannot make it negative.

  Args:
    numbers: clients announced, clients that reported, clients that answered each calibration.
    share_variance: the variance of the noise in one client's report.

  >>> # 8 of 24 is missing among 8; 4 answer, and 4 is missing among 4
  >>> calibrations([12, 8, 4, 3], 2.0)
  [1.0, 1.0]
  """
  missing, each = share_variance * (numbers[0] - numbers[1]), []
  for asked, answered in pairwise(numbers[1:]):
    each.append(missing / asked if missing / asked >= _VARIANCES[0] else 0.0)
    if each[-1]:
      missing *= (asked - answered) / asked
  return each


def total_variance(answered: Sequence[int], each: Sequence[float]) -> float:
  """The variance of all noise that arrived, exact and then rounded down.

  It is the sum over all clients that answered at a stage.
  """
  # Exact fractions and a step down: the event must never claim more noise than there is.
  exact = sum(number * Fraction(variance) for number, variance in zip(answered, each, strict=True))
  return math.nextafter(float(exact), 0.0)


def _check_answers(present: np.ndarray, num_clients: int) -> None:
  """Refuses answers of other clients, or of clients that were lost before."""
  if present.ndim != 2 or present.shape[1] != num_clients:
    raise ValueError(
      f"Expected who answers of the protocol's {num_clients} clients, got shape {present.shape}."
    )
  if np.any(present[1:] & ~present[:-1]):
    raise ValueError(
      "Expected clients that are lost at a stage to stay lost, got one that answers again."
    )


def _check_floor(min_clients: int, variance: float) -> None:
  """Refuses a floor so low that each survivor would have to add too much noise.

  A table of exact draws holds no more than `_VARIANCES[1]`.
  """
  needed = math.ceil(variance / _VARIANCES[1])
  if min_clients < needed:
    raise ValueError(
      f"Expected min_clients of at least {needed}, to make up for the others' noise, got "
      f"{min_clients}."
    )


def _planned(
  query: SumQuery, state: DiscreteState, integers: jax.Array, modulus_bits: int
) -> SkellamSum:
  """The query's own statement about one client's report: bounds and share of the noise."""
  wrapped = jnp.full_like(integers, np.int64(2**modulus_bits).astype(np.int32))
  result, event, _ = query.finalize(
    jax.random.key(0), state, DiscreteContribution(wrapped, jnp.int32(1))
  )
  if not isinstance(event, SkellamSum):
    raise ValueError(
      f"Expected a discrete_sum with noise='skellam', got one of {type(event).__name__}."
    )
  if any(np.any(leaf) for leaf in jax.tree.leaves(result)):
    raise ValueError(
      f"Expected a query whose sums wrap as those of the protocol, modulo 2^{modulus_bits}, got a "
      "larger modulus; make both with one modulus_bits."
    )
  return event
