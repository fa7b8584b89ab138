"""Samplers for correlated noise: groups take turns, so a record's rounds are far apart."""

import hashlib
from collections.abc import Callable, Iterable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from jdp import _validate, random
from jdp._arguments import checked
from jdp.events import CyclicPoissonSampling, MinSeparationSampling
from jdp.events.sampling import SamplingEvent
from jdp.random import draws
from jdp.random.words import words
from jdp.sampling import registry
from jdp.sampling.base import Sample, Sampler, check_population, first_members, pack, slots_for


class CyclicState(NamedTuple):
  """Whose turn it is. All of it is public.

  A resumed run keeps its groups, as they are part of the state: with other groups a record's rounds
  might be closer than the event says.

  Attributes:
    order: int32 [N + capacity], the records by group, then padding.
    starts: int32 [b + 1], where each group begins in that order, and where the last one ends.
    position: int32 scalar, the number of the next round, from 0.
  """

  order: jax.Array
  starts: jax.Array
  position: jax.Array


@checked
def groups_by_identity(identities: Iterable[str], num_groups: int) -> np.ndarray:
  """The group of each record, by a digest of its own identity: int32 [N].

  No record's group depends on who else is present. So these groups are for add/remove. Their sizes
  differ.

  Args:
    identities: the records' identities, in their order, such as public names of users.
    num_groups: b, a whole number >= 1.

  Raises:
    ValueError: if num_groups is not a whole number in [1, 2^31).

  >>> groups_by_identity(["ann", "bob", "eve"], 4).tolist()
  [1, 0, 1]
  """
  _validate.integer(1, num_groups=num_groups)
  _validate.in_range(1, 2**31 - 1, num_groups=num_groups)
  digests = (hashlib.blake2b(str(name).encode(), digest_size=16).digest() for name in identities)
  return np.array([int.from_bytes(digest, "big") % num_groups for digest in digests], np.int32)


@checked
def min_separation(
  population: int,
  separation: int,
  max_participations: int,
  *,
  groups: ArrayLike | None = None,
  shuffle_key: jax.Array | None = None,
) -> Sampler:
  """Groups of records take turns: round t takes the whole group t mod b. Each has up to k turns.

  Formal guarantee: the event is a `MinSeparationSampling`. A record is in at most k rounds, any two
  of them at least b apart, and nothing drawn later can change that. After b k rounds samples are
  empty.

  A record that drops out of some of its rounds, or whose data arrive late, contributes nothing to
  them. The guarantee covers this: the record keeps the pattern, and moves no other. A record that
  is not among the N when the run begins is refused, by the check of the population: putting it into
  a group of equal size would move another record.

  Args:
    population: N, a public constant below 2^31.
    separation: b, the number of groups.
    max_participations: k. A run of n rounds needs ceil(n / b).
    groups: the group of each record, whole numbers in [0, b), of shape [N]. Each must follow from
      the record's own identity or coin alone (`groups_by_identity`). The event then says so, and
      the bound holds under add/remove too.
    shuffle_key: a key that does not depend on the data, for random groups of equal size, the same
      for the whole run. Default: record i is in group i mod b.

  Returns:
    A `Sampler` with a `CyclicState`. The capacity is the size of the largest group.

  Raises:
    ValueError: if an argument is out of range, or there are both groups and a key.

  >>> sampler = min_separation(10, 4, 2)
  >>> state = sampler.init()
  >>> for key in jax.random.split(jax.random.key(0), 5):
  ...   sample, state = sampler.sample(key, state)
  >>> sample.indices.tolist(), sample.weights.tolist(), int(state.position)
  ([0, 4, 8], [1.0, 1.0, 1.0], 5)
  """
  _validate.integer(1, separation=separation, max_participations=max_participations)
  _validate.in_range(1, 2**31 - 1, separation=separation, max_participations=max_participations)
  placed = _place(population, separation, groups, shuffle_key)
  capacity = placed.largest

  def draw(key: jax.Array, group: jax.Array, state: CyclicState) -> Sample:
    open_turns = state.position // separation < max_participations
    size = jnp.where(open_turns, _size(state, group), 0)
    return first_members(_members(state, group, capacity), size, population)

  def event(position: jax.Array) -> SamplingEvent:
    return MinSeparationSampling(
      separation, max_participations, population, position, groups is not None
    )

  return _sampler(placed, draw, event, population / separation, capacity, max_participations)


@checked
def cyclic_poisson(
  population: int,
  num_groups: int,
  probability: float,
  *,
  groups: ArrayLike | None = None,
  shuffle_key: jax.Array | None = None,
  capacity: int | None = None,
) -> Sampler:
  """Groups take turns, and each member of the round's group takes part by its own coin.

  Formal guarantee: the event is a `CyclicPoissonSampling`. Round t has only members of group t mod
  b, each independently with probability p. The coins come from the round's key, which must be
  secret (`jdp.random.secure_key`), and are drawn like those of `poisson`. Records that drop out or
  arrive late are covered as for `min_separation`. A sample larger than the capacity is covered as
  for `poisson`.

  Args:
    population: N, a public constant below 2^31.
    num_groups: b.
    probability: p in (0, 1], the rate within the group. The mean sample has p N / b records.
    groups: as for `min_separation`.
    shuffle_key: as for `min_separation`.
    capacity: the number of slots of a sample. Default: the least number that a sample of the
      largest group outgrows with a probability below 1e-33, which no plan notices.

  Returns:
    A `Sampler` with a `CyclicState`.

  Raises:
    ValueError: if an argument is out of range, or there are both groups and a key.

  >>> sampler = cyclic_poisson(60_000, 10, 0.1)
  >>> sampler.capacity, sampler.expected_size
  (898, 600.0)
  """
  _validate.probability(probability=probability)
  _validate.positive(probability=probability)
  placed = _place(population, num_groups, groups, shuffle_key)
  largest = placed.largest
  capacity, overflow = slots_for(largest, probability, capacity)

  def draw(key: jax.Array, group: jax.Array, state: CyclicState) -> Sample:
    present = jnp.arange(largest, dtype=np.int32) < _size(state, group)
    chosen = random.bernoulli(key, probability, (largest,)) & present
    slots = pack(chosen, capacity)
    members = _members(state, group, largest)[slots.indices]
    return first_members(members, slots.size, population)

  rate = draws.realised_probability(probability)

  def event(position: jax.Array) -> SamplingEvent:
    return CyclicPoissonSampling(
      num_groups, rate, population, position, groups is not None, overflow
    )

  expected_size = probability * population / num_groups
  return _sampler(placed, draw, event, expected_size, capacity)


class _Placed(NamedTuple):
  """Records in their groups.

  Attributes:
    order: int32 [N], the records by group.
    starts: as for `CyclicState`.
  """

  order: np.ndarray
  starts: np.ndarray

  @property
  def largest(self) -> int:
    """The size of the largest group, at least 1."""
    return int(np.max(np.diff(self.starts)))


def _place(
  population: int, num_groups: int, groups: ArrayLike | None, shuffle_key: jax.Array | None
) -> _Placed:
  """Puts the records into groups: the given groups, or equal ones by number or at random."""
  check_population(population)
  _validate.integer(1, num_groups=num_groups)
  _validate.in_range(1, 2**31 - 1, num_groups=num_groups)
  if groups is not None and shuffle_key is not None:
    raise ValueError("Expected groups or a shuffle_key, got both; leave one out.")
  if groups is None:
    numbers = np.arange(population) % num_groups
    if shuffle_key is not None:
      numbers = numbers[_order(shuffle_key, population)]
  else:
    numbers = np.asarray(groups)
    whole = np.issubdtype(numbers.dtype, np.integer) and numbers.shape == (population,)
    if not whole or numbers.min() < 0 or numbers.max() >= num_groups:
      raise ValueError(
        f"Expected groups to be {population} whole numbers in [0, {num_groups}), got others; give "
        "every record its group, as groups_by_identity does."
      )
  ends = np.cumsum(np.bincount(numbers, minlength=num_groups))
  order = np.argsort(numbers, kind="stable")
  return _Placed(order.astype(np.int32), np.append(0, ends).astype(np.int32))


def _order(key: jax.Array, size: int) -> np.ndarray:
  """An order of `size` records, uniform except for ties of 64-bit words."""
  high, low = (np.asarray(word, np.uint64) for word in words(key, (size,)))
  return np.argsort(high << np.uint64(32) | low, kind="stable")


def _size(state: CyclicState, group: jax.Array) -> jax.Array:
  """How many records a group has."""
  return state.starts[group + 1] - state.starts[group]


def _members(state: CyclicState, group: jax.Array, length: int) -> jax.Array:
  """The records of a group, followed by others up to `length`: int32 [length]."""
  return lax.dynamic_slice(state.order, (state.starts[group],), (length,))


def _sampler(
  placed: _Placed,
  draw: Callable[[jax.Array, jax.Array, CyclicState], Sample],
  event: Callable[[jax.Array], SamplingEvent],
  expected_size: float,
  capacity: int,
  max_participations: int | None = None,
) -> Sampler:
  """A sampler of groups that take turns.

  Args:
    placed: the records in their groups.
    draw: (key, group, state) -> the sample of a round.
    event: position -> the round's event.
    expected_size: as for `Sampler`.
    capacity: as for `Sampler`.
    max_participations: as for `Sampler`.
  """

  def sample(key, state):
    group = state.position % (len(state.starts) - 1)
    return draw(key, group, state), state._replace(position=state.position + 1)

  return Sampler(
    init=lambda: CyclicState(
      jnp.asarray(np.pad(placed.order, (0, placed.largest))),
      jnp.asarray(placed.starts),
      jnp.int32(0),
    ),
    sample=sample,
    event=lambda state: event(state.position),
    population=len(placed.order),
    expected_size=expected_size,
    capacity=capacity,
    max_participations=max_participations,
  )


def _half_of_groups(population: int, size: float) -> Sampler:
  """About half of the round's group takes part. Groups are as large as that needs."""
  num_groups = max(1, round(population / (2 * size)))
  return cyclic_poisson(population, num_groups, min(1.0, size * num_groups / population))


registry.register(
  "min_separation",
  lambda population, size: min_separation(population, round(population / size), 3),
  factory=min_separation,
)
registry.register("cyclic_poisson", _half_of_groups, factory=cyclic_poisson)
