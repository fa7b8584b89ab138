"""Who takes part in a round.

A sampler draws a sample of fixed shape inside jit: `capacity` slots, those that
are not used padded with weight 0. It carries the event that the accountant
needs. How many members a sample has is itself private: nothing derived from it may
be shown un-noised.
"""

import bisect
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from scipy import special

from jdp import _validate, random
from jdp.events import PoissonSampling, SamplingEvent

_NEGLIGIBLE = 1e-12


class Sample(NamedTuple):
  """A round's members.

  Attributes:
    indices: int32 [capacity], which record each slot holds; members come first.
    weights: float32 [capacity], 1 for a member, 0 for padding.
    size: int32 scalar, the number of members. Private.
  """

  indices: jax.Array
  weights: jax.Array
  size: jax.Array


class Sampler(NamedTuple):
  """A sampling policy as pure functions.

  Attributes:
    init: () -> state.
    sample: (key, state) -> (Sample, state).
    event: what the ledger must hold about each round.
    expected_size: the expected number of members, public.
    capacity: the number of slots, public.
    max_participations: the most rounds one record takes part in, or None.
  """

  init: Callable[[], Any]
  sample: Callable[[jax.Array, Any], tuple[Sample, Any]]
  event: SamplingEvent
  expected_size: float
  capacity: int
  max_participations: int | None


def poisson(
  population: int,
  probability: float,
  *,
  capacity: int | None = None,
  max_participations: int | None = None,
) -> Sampler:
  """Each of `population` records takes part independently with a given probability.

  Formal guarantee: the event is a `PoissonSampling`, analysed under add/remove or zero-out of a record. Samples
  larger than the capacity lose the members with the highest numbers, whatever they hold; the event carries the
  probability of that, which the accountant adds to delta. The coins are 64-bit
  integers compared with a threshold; the event records the probability that they realise.

  A participation cap keeps the amplification: given everything released before, a record takes
  part with probability at most q, and the divergence of the round grows with q.
  It makes the total of a user's *local* releases a public number.

  Args:
    population: N, a public constant.
    probability: q in (0, 1].
    capacity: slots of a sample. Default: the least for which a sample
      outgrows it with a probability below 1e-12.
    max_participations: a record that has taken part this often is passed over. Default: no cap.

  Returns:
    A `Sampler`; its state is the number of participations of every record, int32 [population], if there
    is a cap, else empty.

  Raises:
    ValueError: if an argument is out of range.

  >>> sampler = poisson(60_000, 0.01)
  >>> sampler.capacity, sampler.expected_size
  (779, 600.0)
  >>> sample, _ = sampler.sample(jax.random.key(0), sampler.init())
  >>> sample.indices.shape, int(sample.size) == int(sample.weights.sum())
  ((779,), True)
  """
  _validate.integer(1, population=population)
  _validate.probability(probability=probability)
  _validate.positive(probability=probability)
  if capacity is None:
    overflows = partial(_overflow_probability, population, probability)
    capacity = bisect.bisect_left(range(population), True, lo=1, key=lambda slots: overflows(slots) < _NEGLIGIBLE)
  _validate.integer(1, capacity=capacity)
  capacity = min(capacity, population)
  if max_participations is not None:
    _validate.integer(1, max_participations=max_participations)

  def init():
    return () if max_participations is None else jnp.zeros(population, jnp.int32)

  def sample(key, state):
    chosen = random.bernoulli(key, probability, (population,))
    if max_participations is not None:
      chosen &= state < max_participations
    total = jnp.minimum(jnp.sum(chosen, dtype=jnp.int32), capacity)
    (indices,) = jnp.nonzero(chosen, size=capacity, fill_value=0)
    weights = (jnp.arange(capacity) < total).astype(jnp.float32)
    if max_participations is not None:
      state = state + chosen.astype(jnp.int32)
    return Sample(indices.astype(jnp.int32), weights, total), state

  overflow = _overflow_probability(population, probability, capacity)
  return Sampler(
    init=init,
    sample=sample,
    event=PoissonSampling(random.realised_probability(probability), overflow, population),
    expected_size=population * probability,
    capacity=capacity,
    max_participations=max_participations,
  )


def _overflow_probability(population: int, probability: float, capacity: int) -> float:
  """P(Bin(N, q) > capacity) = I_q(capacity + 1, N - capacity)."""
  return 0.0 if capacity >= population else float(special.betainc(capacity + 1, population - capacity, probability))
