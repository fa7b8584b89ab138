"""A round of distributed integer noise under secure aggregation, its calibration included, message by message.

Each client's clipped, rotated and rounded vector, with its share of Skellam noise, is masked; survivors are told how
many they are, and mask fresh Skellam noise in place of what was lost (`calibrated` of `jdp.queries.noise_schemes`;
sums of Skellam noise are Skellam noise); then one sum of all messages opens. The host drives the stages, as a server
would: how much noise a calibration takes is known once the stage before it is over.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jdp import _validate
from jdp.events import SkellamSum
from jdp.federated.dropout import counts
from jdp.federated.secure_aggregation import SecureAggregation
from jdp.queries.base import PyTree, SumQuery
from jdp.queries.discrete_sum import DiscreteContribution, DiscreteState
from jdp.queries.noise_schemes import calibrated
from jdp.random import is_exposed
from jdp.random.discrete import skellam

_realised = calibrated().realised


class Opened(NamedTuple):
  """What the server learns of a round.

  Attributes:
    result: the noised sum of the vectors of all who reported, float32, structured as one record.
    event: for the ledger, under zero_out, against the server and whoever sees less.
  """

  result: PyTree
  event: SkellamSum


MaskedRound = Callable[[jax.Array, DiscreteState, PyTree, np.ndarray], Opened | None]
"""(key, query state, records [n, ...], who answers at each stage, bool [1 + calibrations, n]) -> what opened, or None
if the round was abandoned: then nothing opened, which costs nothing."""


def masked_round(query: SumQuery, protocol: SecureAggregation, *, min_clients: int = 1) -> MaskedRound:
  """A round among the clients of a secure aggregation, who all take part.

  Formal guarantee, under zero_out with the client still adding its noise, against a server that follows the protocol
  and sees all masked messages: that of one Skellam sum with the variance of all noise that arrived, which the event
  holds, if all clients are honest. It rests on the masks as `jdp.federated.secure_aggregation` says.

  A round is abandoned, before any secret is revealed, if fewer than `min_clients` answer a stage, if the secrets of
  some client are lost, or if the graph of those who answered a stage falls apart: the sums of its parts would open,
  each with less noise than the event would claim.

  Args:
    query: a `discrete_sum` with noise="skellam", for as many clients and the modulus of the protocol.
    protocol: a `secure_aggregation`.
    min_clients: the floor, >= 1.

  Returns:
    A function of the host; its compiled parts serve all rounds. Memory: all clients' integers at once.

  Raises:
    ValueError: if min_clients is no whole number >= 1; in a round, if the query's noise is not Skellam noise.

  >>> from jdp.federated.secure_aggregation import secure_aggregation
  >>> from jdp.queries import discrete_sum
  >>> query = discrete_sum(jnp.zeros(2), 1.0, 0.01, num_clients=6, noise="skellam")
  >>> run = masked_round(query, secure_aggregation(6, degree=4, threshold=1, modulus_bits=16), min_clients=5)
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
    setup_key, *keys = jax.random.split(key, 1 + len(present))
    setup = protocol.setup(setup_key)
    numbers = counts(jnp.asarray(present))
    if int(numbers.min()) < min_clients or not all(protocol.connected(setup, row) for row in present):
      return None
    integers = report(jax.random.split(keys[0], present.shape[1]), state, records, jnp.float32(1)).integers
    planned = _planned(query, state, integers[0])
    total = arrived(setup, integers, present[0], stage=0)
    variance = planned.share_variance * int(numbers[1])
    for stage, stage_key in enumerate(keys[1:], start=1):
      each = _calibration(numbers[: stage + 1]) * planned.share_variance * present.shape[1]
      integers = skellam(stage_key, each, integers.shape) if each else jnp.zeros_like(integers)
      total += arrived(setup, integers, present[stage], stage=stage)
      variance += each * int(numbers[1 + stage])
    total, recovered = unmask(setup, total, jnp.asarray(present))
    if not recovered:
      return None
    contribution = DiscreteContribution(total.astype(jnp.int32), numbers[1])
    result, *_ = query.finalize(jax.random.key(0), state, contribution)  # which adds no noise of its own
    event = SkellamSum(planned.l2_norm, planned.l1_norm, variance, 1, key_exposed=is_exposed(key))
    return Opened(result, event)

  return run


def _planned(query, state, integers) -> SkellamSum:
  """The query's own statement about one client's report: bounds and share of the noise."""
  _, event, _ = query.finalize(jax.random.key(0), state, DiscreteContribution(jnp.zeros_like(integers), jnp.int32(1)))
  if not isinstance(event, SkellamSum):
    raise ValueError(f"Expected a discrete_sum with noise='skellam', got one of {type(event).__name__}.")
  return event


def _calibration(numbers) -> float:
  """What each of the last k clients counted adds, as a fraction of the planned variance: (1 - v) / k."""
  return float(1 - _realised(numbers, numbers).server) / int(numbers[-1])
