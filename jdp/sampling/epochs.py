"""Samplers that give every record one round of each epoch."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jdp import _validate
from jdp._arguments import checked
from jdp._loop_carries import vary_like
from jdp.events import BallsInBins, ShuffledBatches
from jdp.events.sampling import SamplingEvent
from jdp.sampling import registry
from jdp.sampling.base import (
  Sample,
  Sampler,
  check_population,
  first_members,
  integers_below,
  pack,
  permutation,
  slots_for,
)


class EpochState(NamedTuple):
  """Where a run is in its epoch.

  Attributes:
    assignment: int32, the epoch's random assignment of records to rounds. It is secret, as the
      sample is.
    position: int32 scalar, the number of the next round within its epoch. It is public.
  """

  assignment: jax.Array
  position: jax.Array


@checked
def shuffled(population: int, batch_size: int, *, keep_partial: bool = False) -> Sampler:
  """The batches of a shuffled epoch, one batch a round.

  Each epoch puts the records in a fresh uniform order and cuts it into batches.

  Formal guarantee: the event is a `ShuffledBatches`. No amplification is claimed. A record is in at
  most one batch of an epoch, so a whole epoch costs one unsampled release. This holds under
  zero-out and replace-one. It holds under add/remove by the uniform order and the public number of
  batches. An unfinished epoch counts as a whole one.

  If B divides N, no record sits out, so none could replace a removed one. The last batch would then
  be short. So the event says that a partial batch is kept, which costs more under add/remove.

  The order is exactly uniform, for ideal random bits. Records are sorted by 64-bit words, and all
  words are drawn again if two are equal (once in 4e7 epochs of a million records).

  Args:
    population: N, a public constant below 2^31.
    batch_size: B in [1, N].
    keep_partial: whether the N mod B records left over make a last, smaller batch. If False, they
      sit the epoch out.

  Returns:
    A `Sampler` with an `EpochState`. Its assignment holds the records of all batches in order.
    Batches have a public size. `expected_size` is its mean over an epoch.

  Raises:
    ValueError: if an argument is out of range.

  >>> sampler = shuffled(10, 4)
  >>> state, seen = sampler.init(), []
  >>> for key in jax.random.split(jax.random.key(0), 2):
  ...   print(sampler.event(state).starts_epoch)
  ...   sample, state = sampler.sample(key, state)
  ...   seen += sample.indices.tolist()
  True
  False
  >>> len(set(seen))
  8
  """
  check_population(population)
  _validate.integer(1, batch_size=batch_size)
  if batch_size > population:
    raise ValueError(f"Expected batch_size <= population, got {batch_size} > {population}.")
  num_batches = -(-population // batch_size) if keep_partial else population // batch_size
  num_slots = num_batches * batch_size
  covered = min(population, num_slots)

  def assign(key):
    return jnp.pad(permutation(key, population)[:num_slots], (0, num_slots - covered))

  def batch(assignment, position):
    start = position * batch_size
    slots = lax.dynamic_slice(assignment, (start,), (batch_size,))
    return first_members(slots, jnp.minimum(batch_size, covered - start), population)

  # Without one of exactly num_slots records, the last batch would be short as well.
  short_without_one = keep_partial or population == num_slots
  event = partial(
    ShuffledBatches, num_batches, keeps_partial=short_without_one, population=population
  )
  return _sampler(
    assign, batch, event, num_slots, num_batches, population, covered / num_batches, batch_size
  )


@checked
def balls_in_bins(population: int, num_batches: int, *, capacity: int | None = None) -> Sampler:
  """Each record picks one round of every epoch, uniformly and independently of the others.

  Formal guarantee: the event is a `BallsInBins`. A record is in at most one round of an epoch,
  whatever the others picked. So a whole epoch costs one unsampled release, under add/remove,
  zero-out or replace-one. An unfinished epoch counts as a whole one. For Gaussian sums under
  add/remove or zero-out it is charged less, as the picks are not seen. For k of t rounds, see
  `random_allocation`.

  A sample larger than the capacity loses the members with the highest numbers, whatever they hold.
  The event holds the probability of such a loss. The accountant adds it to delta for each round.

  The picks are exactly uniform, for ideal random bits: no float takes part in them.

  Args:
    population: N, a public constant below 2^31.
    num_batches: the number of rounds of an epoch, public, below 2^31.
    capacity: the number of slots of a sample. Default: the least number that a round's members
      outgrow with a probability below 1e-33, which no plan notices.

  Returns:
    A `Sampler` with an `EpochState`. Its assignment holds the round that each record picked, int32
    [population].

  Raises:
    ValueError: if an argument is out of range.

  >>> sampler = balls_in_bins(60_000, 100)
  >>> sampler.capacity, sampler.expected_size
  (916, 600.0)
  """
  check_population(population)
  _validate.integer(1, num_batches=num_batches)
  _validate.in_range(1, 2**31 - 1, num_batches=num_batches)
  capacity, overflow = slots_for(population, 1 / num_batches, capacity)

  def assign(key):
    return integers_below(key, num_batches, population)

  def batch(assignment, position):
    return pack(assignment == position, capacity)

  event = partial(BallsInBins, num_batches, overflow_probability=overflow, population=population)
  return _sampler(
    assign, batch, event, population, num_batches, population, population / num_batches, capacity
  )


def _sampler(
  assign: Callable[[jax.Array], jax.Array],
  batch: Callable[[jax.Array, jax.Array], Sample],
  event: Callable[..., SamplingEvent],
  assignment_size: int,
  num_batches: int,
  population: int,
  expected_size: float,
  capacity: int,
) -> Sampler:
  """A sampler that assigns records to rounds at the beginning of each epoch.

  Args:
    assign: key -> assignment.
    batch: (assignment, position) -> the sample of a round.
    event: takes `starts_epoch` and returns the round's event.
    assignment_size: the length of the assignment, int32 [assignment_size].
    num_batches: the number of rounds of an epoch.
    population: as for `Sampler`.
    expected_size: as for `Sampler`.
    capacity: as for `Sampler`.
  """

  def sample(key, state):
    kept = vary_like(state.assignment, key)
    assignment = lax.cond(
      state.position == 0, lambda key: vary_like(assign(key), kept), lambda key: kept, key
    )
    return batch(assignment, state.position), EpochState(
      assignment, (state.position + 1) % num_batches
    )

  return Sampler(
    init=lambda: EpochState(jnp.zeros(assignment_size, jnp.int32), jnp.int32(0)),
    sample=sample,
    event=lambda state: event(starts_epoch=state.position == 0),
    population=population,
    expected_size=expected_size,
    capacity=capacity,
  )


registry.register(
  "shuffled", lambda population, size: shuffled(population, round(size)), factory=shuffled
)
registry.register(
  "balls_in_bins",
  lambda population, size: balls_in_bins(population, round(population / size)),
  factory=balls_in_bins,
)
