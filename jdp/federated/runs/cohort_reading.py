"""Reads the members of a round from a source, while the round before is computed."""

import concurrent.futures
import dataclasses
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jdp.data.clients import Examples
from jdp.data.sources.reading import in_thread
from jdp.data.sources.source_users import SourceUsers
from jdp.federated.engine.read_cohort import DrawnSample, ReadCohort
from jdp.federated.engine.rounds import FederatedAlgorithm
from jdp.federated.engine.sharded import AXIS, device_number
from jdp.federated.engine.shared_programs import shared
from jdp.sampling import Sample

PyTree = Any
Share = tuple[Examples, np.ndarray, tuple[np.ndarray, ...]]
Reading = concurrent.futures.Future[list[Share]]
_PATIENCE = 10.0  # seconds of waiting before a warning
_compiled = lru_cache(maxsize=8)(shared)  # The runs of a sweep over seeds are traced once.


def shapes_of(algorithm: FederatedAlgorithm, params: PyTree, clients: PyTree) -> PyTree:
  """The shapes of the clients' data as a round of one device takes them.

  Raises:
    ValueError: if the clients are those of a source, and the algorithm's rounds take all clients.
  """
  if not isinstance(clients, SourceUsers):
    return jax.eval_shape(lambda data: jax.tree.map(jnp.asarray, data), clients)
  return _cohort_shapes(algorithm, params, clients, 1)


def _cohort_shapes(
  algorithm: FederatedAlgorithm, params: PyTree, users: SourceUsers, num_devices: int
) -> ReadCohort:
  """The shapes of a cohort that is dealt out over `num_devices` devices."""
  if algorithm.sample is None:
    raise ValueError(
      "Expected an algorithm that can read its samples from a source, such as dp_fedavg, got one "
      "whose rounds take the data of all clients; give it those in memory (clients_from_pairs)."
    )
  sample = algorithm.sample

  def empty() -> ReadCohort:
    drawn = sample(jax.random.key(0), jnp.int32(0), algorithm.init(params).sampler)
    slots = num_devices, -(-drawn.sample.indices.shape[0] // num_devices)
    examples = jax.tree.map(
      lambda x: jnp.zeros((*slots, users.max_examples, *x.shape[1:]), x.dtype), users.seen
    )
    words = tuple(jnp.zeros(slots, np.uint32) for _ in users.identities)
    return ReadCohort(examples, jnp.zeros(slots, np.int32), words, num_devices, len(users), drawn)

  return jax.eval_shape(empty)


class _Ahead(NamedTuple):
  """What is being read: a round's number, its sample, and the members of it."""

  number: int
  drawn: DrawnSample
  shares: Reading


class CohortReader:
  """The cohorts of a run's rounds, read one ahead.

  Every process reads the members of its own devices alone.

  Args:
    algorithm: the algorithm whose rounds take the cohorts.
    params: the parameters that it begins with.
    users: all users of the source.
    noise_key: the run's key, on the devices that compute its rounds.
    num_rounds: the number of rounds in the whole run. Nothing is read for later rounds.
    mesh: the devices that compute a round. None: one.
  """

  def __init__(
    self,
    algorithm: FederatedAlgorithm,
    params: PyTree,
    users: SourceUsers,
    noise_key: jax.Array,
    num_rounds: int,
    mesh: Mesh | None,
  ):
    num_devices = mesh.shape[AXIS] if mesh else 1
    self.shapes = _cohort_shapes(algorithm, params, users, num_devices)
    self._draw = _compiled(algorithm.sample)
    self._users, self._key, self._num_rounds = users, noise_key, num_rounds
    self._sharding = NamedSharding(mesh, PartitionSpec(AXIS)) if mesh else None
    self._own = [0]
    if self._sharding:
      # Devices along other axes have the same number.
      here = self._sharding.addressable_devices_indices_map((num_devices,)).values()
      self._own = sorted(set(map(device_number, here)))
    self._lock = threading.Lock()  # A source is read for one round at a time.
    self._ahead: _Ahead | None = None
    self._waits, self._said = 0, False
    self._left = self._waited = self._computed = 0.0  # seconds

  def cohorts(self, first: int, count: int, sampler_state: PyTree) -> Iterator[ReadCohort]:
    """The cohorts of `count` rounds from round `first` on.

    Args:
      first: the round's number.
      count: how many rounds.
      sampler_state: the sampler's state before the first of them.

    Raises:
      ValueError: if the source fails (`SourceUsers.read`).
      RuntimeError: if it fails in another process.
    """
    for number in range(first, first + count):
      if self._ahead is None or self._ahead.number != number:
        self._ahead = self._begin(number, sampler_state)
      _, drawn, reading = self._ahead
      shares = self._wait(reading) if jax.process_count() == 1 else _together(self._wait, reading)
      self._ahead, sampler_state = None, drawn.sampler_state
      if number + 1 < self._num_rounds:
        # Begun before the round is computed: the device then draws the next sample first, and the
        # thread can read meanwhile.
        self._ahead = self._begin(number + 1, sampler_state)
      yield self._on_devices(shares, drawn)

  def samples(self, first: int, count: int, sampler_state: PyTree) -> Iterator[ReadCohort]:
    """`cohorts` without the data of their members, of whom none is read."""
    nobody = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), self._of_members)
    for number in range(first, first + count):
      drawn = self._draw(self._key, np.int32(number), sampler_state)
      yield dataclasses.replace(nobody, drawn=drawn)
      sampler_state = drawn.sampler_state

  @property
  def _of_members(self) -> ReadCohort:
    """The shapes of what is read."""
    return dataclasses.replace(self.shapes, drawn=None)

  def _begin(self, number: int, sampler_state: PyTree) -> _Ahead:
    """Draws a round's sample, and begins to read its members."""
    drawn = self._draw(self._key, np.int32(number), sampler_state)
    return _Ahead(number, drawn, in_thread(partial(self._read, drawn.sample)))

  def _read(self, sample: Sample) -> list[Share]:
    """What each of this process's devices takes: its members, in the rows of its slots."""
    indices, size = (np.asarray(x.addressable_data(0)) for x in (sample.indices, sample.size))
    members = indices[: int(size)]
    num_devices, slots = self.shapes.numbers.shape

    def share(device: int) -> Share:
      own = members[device::num_devices]
      numbers = np.full(slots, -1, np.int32)
      numbers[: len(own)] = own
      words = tuple(np.where(numbers < 0, 0, word[numbers]) for word in self._users.identities)
      return self._users.read(own, slots), numbers, words

    with self._lock:
      return [share(device) for device in self._own]

  def _wait(self, reading: Reading) -> list[Share]:
    """The result, once it is there. Warns once if the run waits for longer than it computes."""
    begun = time.monotonic()
    if self._waits > 1:  # The first round compiles.
      self._computed += begun - self._left
    self._waits += 1
    while not concurrent.futures.wait([reading], timeout=_PATIENCE).done:
      self._warn(self._waited + time.monotonic() - begun)
    self._left = time.monotonic()
    self._waited += self._left - begun
    self._warn(self._waited)
    return reading.result()

  def _warn(self, waited: float) -> None:
    if not self._said and waited > max(_PATIENCE, self._computed):
      self._said = True
      warnings.warn(
        f"The run has waited {waited:.0f} s for its source and computed for "
        f"{self._computed:.0f} s; read with more threads (num_threads), or from a faster disk.",
        stacklevel=2,
      )

  def _on_devices(self, shares: list[Share], drawn: DrawnSample) -> ReadCohort:
    """The cohort on the devices that compute it."""
    leaves, structure = jax.tree.flatten(self._of_members)
    parts = zip(*map(jax.tree.leaves, shares), strict=True)
    arrays = [self._array(like, part) for like, part in zip(leaves, parts, strict=True)]
    return dataclasses.replace(jax.tree.unflatten(structure, arrays), drawn=drawn)

  def _array(self, like: jax.Array, parts: tuple[np.ndarray, ...]) -> jax.Array:
    """An array with a leading axis of devices, made of the parts of this process's devices."""
    if self._sharding is None:
      (part,) = parts
      return jnp.asarray(part[None])
    own = dict(zip(self._own, parts, strict=True))
    return jax.make_array_from_callback(
      like.shape, self._sharding, lambda index: own[device_number(index)][None]
    )


def _together(wait: Callable[[Reading], list[Share]], reading: Reading) -> list[Share]:
  """What is read here, once every process has read its part, so none waits for another in vain."""
  from jdp.federated.runs import shared_records  # Slow to import.

  return shared_records.together(partial(wait, reading))
