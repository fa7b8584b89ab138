"""Random allocation: every record has the same number of rounds of each epoch, chosen at random."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jdp import _validate
from jdp._arguments import checked
from jdp.events import RandomAllocation
from jdp.sampling import registry
from jdp.sampling.base import Sampler, check_population, integers_below, pack, slots_for


class AllocationState(NamedTuple):
  """Where a run is in its epoch.

  Attributes:
    left: int32 [population], how many of the epoch's further rounds each record takes part in. It
      is secret, as the sample is.
    position: int32 scalar, the number of the next round within its epoch. It is public.
  """

  left: jax.Array
  position: jax.Array


@checked
def random_allocation(
  population: int, num_batches: int, participations: int, *, capacity: int | None = None
) -> Sampler:
  """Each record takes part in k of the t rounds of every epoch, a uniformly random subset.

  Formal guarantee: the event is a `RandomAllocation`, analysed under add/remove, zero-out or
  replace-one. An epoch costs at most k unsampled releases. For Gaussian sums under add/remove or
  zero-out it is charged less, as the subsets are not seen (arXiv 2502.08202). The rounds of an
  unfinished epoch count as the whole of it. Records choose independently of each other, so nobody's
  rounds change when one leaves.

  A record that is still to take part in r of the n rounds left takes part in the next one with
  probability r / n. Subsets are exactly uniform, for ideal random bits: the coins are whole
  numbers. A sample larger than the capacity loses the members with the highest numbers, whatever
  they hold. The event holds the probability of such a loss, and the accountant adds it to delta.

  Args:
    population: N, a public constant below 2^31.
    num_batches: t, the number of rounds of an epoch, public, below 2^31.
    participations: k in [1, t].
    capacity: the number of slots of a sample. Default: the least number that a round's members
      outgrow with a probability below 1e-33, which no plan notices.

  Returns:
    A `Sampler` with an `AllocationState`.

  Raises:
    ValueError: if an argument is out of range.

  >>> sampler = random_allocation(60_000, 300, 3)
  >>> sampler.capacity, sampler.expected_size
  (916, 600.0)
  """
  check_population(population)
  _validate.in_range(1, 2**31 - 1, num_batches=num_batches)
  later = RandomAllocation(num_batches, participations, False, population=population)
  probability = participations / num_batches
  capacity, overflow = slots_for(population, probability, capacity)
  later = dataclasses.replace(later, overflow_probability=overflow)

  def sample(key, state):
    left = jnp.where(state.position == 0, np.int32(participations), state.left)
    chosen = integers_below(key, num_batches - state.position, population) < left
    position = (state.position + 1) % num_batches
    return pack(chosen, capacity), AllocationState(left - chosen.astype(np.int32), position)

  return Sampler(
    init=lambda: AllocationState(jnp.zeros(population, jnp.int32), jnp.int32(0)),
    sample=sample,
    event=lambda state: dataclasses.replace(later, starts_epoch=state.position == 0),
    population=population,
    expected_size=population * probability,
    capacity=capacity,
  )


registry.register(
  "random_allocation",
  lambda population, size: random_allocation(population, round(2 * population / size), 2),
  factory=random_allocation,
)
