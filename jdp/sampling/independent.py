"""Poisson sampling."""

import jax.numpy as jnp

from jdp import _validate, random
from jdp._arguments import checked
from jdp.events import PoissonSampling
from jdp.random import draws
from jdp.sampling import registry
from jdp.sampling.base import Sampler, check_population, pack, slots_for


@checked
def poisson(
  population: int,
  probability: float,
  *,
  capacity: int | None = None,
  max_participations: int | None = None,
) -> Sampler:
  """Each of `population` records takes part independently with a given probability.

  Formal guarantee: the event is a `PoissonSampling`, analysed under add/remove or zero-out of a
  record. A sample larger than the capacity loses the members with the highest numbers, whatever
  they hold. The event holds the probability of such a loss, and the accountant adds it to delta.
  The coins are 64-bit integers compared with a threshold. The event records the probability that
  they realise.

  A participation cap keeps the amplification. Given everything released before, a record takes part
  with probability at most q, and the divergence of the round grows with q. The cap makes the total
  of a user's *local* releases a public number.

  Args:
    population: N, a public constant.
    probability: q in (0, 1].
    capacity: the number of slots of a sample. Default: the least number that a sample outgrows with
      a probability below 1e-33. This is negligible in any plan: it takes less than a millionth of
      any delta >= 1e-12, for 10^6 rounds and epsilon <= 20. Chunks without members are not
      computed.
    max_participations: a record that has taken part this often is passed over. Default: no cap.

  Returns:
    A `Sampler`. With a cap, its state is the number of participations of every record, int32
    [population]. Without a cap it is empty.

  Raises:
    ValueError: if an argument is out of range.

  >>> import jax
  >>> sampler = poisson(60_000, 0.01)
  >>> sampler.capacity, sampler.expected_size
  (916, 600.0)
  >>> sample, _ = sampler.sample(jax.random.key(0), sampler.init())
  >>> sample.indices.shape, int(sample.size) == int(sample.weights.sum())
  ((916,), True)
  """
  check_population(population)
  _validate.probability(probability=probability)
  _validate.positive(probability=probability)
  capacity, overflow = slots_for(population, probability, capacity)
  if max_participations is not None:
    _validate.integer(1, max_participations=max_participations)

  def init():
    return () if max_participations is None else jnp.zeros(population, jnp.int32)

  def sample(key, state):
    chosen = random.bernoulli(key, probability, (population,))
    if max_participations is not None:
      chosen &= state < max_participations
      state = state + chosen.astype(jnp.int32)
    return pack(chosen, capacity), state

  event = PoissonSampling(
    draws.realised_probability(probability), overflow, population, max_participations
  )
  return Sampler(
    init=init,
    sample=sample,
    event=lambda state: event,
    population=population,
    expected_size=population * probability,
    capacity=capacity,
    max_participations=max_participations,
  )


registry.register(
  "poisson", lambda population, size: poisson(population, size / population), factory=poisson
)
