"""The form of a sampler, and the functions that samplers are made of."""

import bisect
import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax import lax
from jax.typing import ArrayLike

from jdp import _validate, random
from jdp._loop_carries import vary_like
from jdp.events.sampling import SamplingEvent
from jdp.random.words import words

T = TypeVar("T")

# The probability of an overflow in a round. Over 10^6 rounds at epsilon = 20, where accounting
# multiplies it by 1 + e^20, it adds up to less than a millionth of delta = 1e-12.
_NEGLIGIBLE = 1e-33
_BLOCK = 128  # records searched at a time for the members of a small sample


@partial(
  jax.tree_util.register_dataclass,
  data_fields=["indices", "weights", "size"],
  meta_fields=["population"],
)
@dataclasses.dataclass(frozen=True)
class Sample:
  """A round's members, a pytree.

  Attributes:
    indices: int32 [capacity], the record in each slot, below `population`. Members come first.
    weights: float32 [capacity], 1 for a member, 0 for padding.
    size: int32 scalar, the number of members. Private, unless the policy fixes it.
    population: the number of records that the sample was drawn from, public and static. Code that
      joins the sample with data refuses any other number of records. Otherwise an index past the
      end would silently stand for the last record.
  """

  indices: jax.Array
  weights: jax.Array
  size: jax.Array
  population: int


class Sampler(NamedTuple):
  """A sampling policy as pure functions.

  Attributes:
    init: () -> state.
    sample: (key, state) -> (Sample, state).
    event: state -> the event of the round that `sample` draws from that state, for the ledger.
    population: the number of records, public. Every sample has the same population.
    expected_size: the expected number of members, public.
    capacity: the number of slots, public.
    max_participations: the most rounds of a run that one record takes part in, or None.
  """

  init: Callable[[], Any]
  sample: Callable[[jax.Array, Any], tuple[Sample, Any]]
  event: Callable[[Any], SamplingEvent]
  population: int
  expected_size: float
  capacity: int
  max_participations: int | None = None


def check_population(population: int) -> None:
  """Refuses a number of records that is not a whole number within the range of int32 indices."""
  _validate.integer(1, population=population)
  _validate.in_range(1, 2**31 - 1, population=population)


def first_members(indices: jax.Array, size: jax.Array, population: int) -> Sample:
  """The sample of a population whose first `size` slots are members."""
  member = jnp.arange(indices.size, dtype=np.int32) < size
  indices = jnp.where(member, indices, np.int32(0))
  return Sample(indices, member.astype(np.float32), size, population)


def pack(chosen: jax.Array, capacity: int) -> Sample:
  """The sample of the first `capacity` records that are chosen, bool [population].

  Other chosen records are dropped.
  """
  if capacity * _BLOCK > chosen.size:
    (indices,) = jnp.nonzero(chosen, size=capacity, fill_value=0)
    size = jnp.minimum(jnp.sum(chosen, dtype=np.int32), capacity)
    return first_members(indices.astype(np.int32), size, chosen.size)
  # A running count of all records is slow on CPU: count by blocks, then look into the blocks that
  # hold members. The coins are neither padded nor written to memory: XLA fuses their draw with the
  # count.
  whole = chosen.size - chosen.size % _BLOCK
  counts = jnp.sum(chosen[:whole].reshape(-1, _BLOCK), axis=1, dtype=np.int32)
  ends = jnp.cumsum(jnp.append(counts, jnp.sum(chosen[whole:], dtype=np.int32)))
  slots = jnp.arange(capacity, dtype=np.int32)
  block = jnp.minimum(jnp.searchsorted(ends, slots, side="right"), ends.size - 1).astype(np.int32)
  places = block[:, None] * _BLOCK + jnp.arange(_BLOCK, dtype=np.int32)[None]
  inside = jnp.cumsum(chosen.at[places].get(mode="fill", fill_value=False), axis=1, dtype=np.int32)
  place = jnp.sum(inside <= (slots - ends[block] + inside[:, -1])[:, None], axis=1, dtype=np.int32)
  return first_members(block * _BLOCK + place, jnp.minimum(ends[-1], capacity), chosen.size)


def until_done(
  key: jax.Array, attempt: Callable[[jax.Array, T], tuple[T, jax.Array]], value: T
) -> T:
  """The last value of `value, done = attempt(fresh_key, value)`, repeated until done.

  Consumes the key.
  """
  # The key-reuse checker does not count fold_in as consumption: the split marks the key as spent.
  (key,) = jax.random.split(key, 1)

  def again(carry):
    step, value, _ = carry
    return step + 1, *attempt(jax.random.fold_in(key, step), value)

  begun = jnp.int32(0), *vary_like((value, jnp.bool(False)), key, value)
  return lax.while_loop(lambda carry: ~carry[2], again, begun)[1]


def integers(key: jax.Array, bound: int, size: int) -> jax.Array:
  """Exactly uniform integers below `bound`, with marks for failed draws: int32 [size].

  A word of 32 bits is reduced modulo the bound. Words at or above the largest multiple of the bound
  would make small numbers likelier. They become `bound`, and the caller draws them again.
  """
  word = random.bits(key, (size,))
  value = (word % np.uint32(bound)).astype(np.int32)
  fair = 2**32 - 2**32 % bound
  return value if fair == 2**32 else jnp.where(word < np.uint32(fair), value, np.int32(bound))


def integers_below(key: jax.Array, bound: ArrayLike, size: int) -> jax.Array:
  """Exactly uniform integers below a bound, which may be traced: int32 [size]. Consumes the key."""
  bound = jnp.asarray(bound).astype(np.uint32)
  rest = (np.uint32(0) - bound) % bound  # 2^32 modulo the bound

  def redraw(key, drawn):
    # Words at or above the largest multiple of the bound would make small numbers likelier: they
    # are drawn again.
    word = random.bits(key, (size,))
    fair = (rest == 0) | (word < np.uint32(0) - rest)
    value = jnp.where(drawn < 0, jnp.where(fair, (word % bound).astype(np.int32), -1), drawn)
    return value, jnp.all(value >= 0)

  return until_done(key, redraw, vary_like(jnp.full(size, -1, np.int32), bound))


def permutation(key: jax.Array, size: int) -> jax.Array:
  """A uniform order of `size` records: int32 [size]. Consumes the key."""

  def sort(key, _):
    high, low, order = lax.sort((*words(key, (size,)), lax.iota(np.int32, size)), num_keys=2)
    return order, ~jnp.any((high[1:] == high[:-1]) & (low[1:] == low[:-1]))

  return until_done(key, sort, jnp.zeros(size, np.int32))


def slots_for(population: int, probability: float, capacity: int | None) -> tuple[int, float]:
  """The slots of a Bin(population, probability) sample, and the probability that it outgrows them.

  A capacity of None means the least one of negligible overflow (`least_capacity`).
  """
  if capacity is None:
    capacity = least_capacity(population, probability)
  _validate.integer(1, capacity=capacity)
  capacity = min(capacity, population)
  return capacity, overflow_probability(population, probability, capacity)


def least_capacity(population: int, probability: float) -> int:
  """The least number of slots that a sample outgrows with probability below 1e-33.

  The sample has Bin(population, probability) members. This probability is negligible in any plan:
  it takes less than a millionth of any delta >= 1e-12, for up to 10^6 rounds and epsilon <= 20.
  """
  overflows = partial(overflow_probability, population, probability)
  return bisect.bisect_left(
    range(population), True, lo=1, key=lambda slots: overflows(slots) < _NEGLIGIBLE
  )


def overflow_probability(population: int, probability: float, capacity: int) -> float:
  """P(Bin(N, q) > capacity) = I_q(capacity + 1, N - capacity)."""
  return (
    0.0
    if capacity >= population
    else float(scipy.special.betainc(capacity + 1, population - capacity, probability))
  )
