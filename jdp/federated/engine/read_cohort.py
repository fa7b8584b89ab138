"""The data of a round's members only, as read for that round."""

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jdp.data.clients import Examples
from jdp.sampling import Sample

PyTree = Any


class DrawnSample(NamedTuple):
  """A round's sample, drawn before the round.

  Attributes:
    round: int32 scalar, the round's number.
    sample: its members.
    sampler_state: the sampler's state after the round.
  """

  round: jax.Array
  sample: Sample
  sampler_state: PyTree

  def of(self, number: jax.Array) -> Sample:
    """The sample if it was drawn for this round, else an empty one."""
    same = number == self.round
    weights, size = jnp.where(same, self.sample.weights, 0), jnp.where(same, self.sample.size, 0)
    return dataclasses.replace(self.sample, weights=weights, size=size)


@partial(
  jax.tree_util.register_dataclass,
  data_fields=["examples", "numbers", "identities", "drawn"],
  meta_fields=["num_devices", "num_clients"],
)
@dataclasses.dataclass(frozen=True)
class ReadCohort:
  """The members of one sample, dealt out over devices as `dealt` does. A pytree.

  Its shapes follow from the sampler's slots and a user's declared rows, not from who is in it.

  Attributes:
    examples: with leading axes [devices, slots of a device, examples of a user].
    numbers: int32 [devices, slots], the client in each slot; -1 in an empty one.
    identities: two words for each client, uint32 [devices, slots] each. Empty: the client's number
      takes their place.
    num_devices: static.
    num_clients: the size of the population that the sample was drawn from, static.
    drawn: the sample as drawn. None: the round draws it again.
  """

  examples: Examples
  numbers: jax.Array
  identities: tuple[jax.Array, ...]
  num_devices: int
  num_clients: int
  drawn: DrawnSample | None = None

  def user(self, slot: jax.Array) -> Examples:
    """The examples of the client in one of this device's slots."""
    return jax.tree.map(lambda x: x[0, slot], self.examples)

  def own(self, sample: Sample, device: jax.Array) -> Sample:
    """This device's members, numbered by their slots on this device.

    If a slot's client in the sample is not the one that was read, nobody takes part there.
    """
    own = dealt(sample, device, self.num_devices)
    slots = jnp.arange(own.indices.shape[0], dtype=jnp.int32)
    read = self.numbers[0].at[slots].get(mode="fill", fill_value=-1)
    weights = jnp.where(read == own.indices, own.weights, 0.0)
    return dataclasses.replace(own, indices=slots, weights=weights)


def dealt(sample: Sample, device: jax.Array, num_devices: int) -> Sample:
  """One device's members: the sample's slots are dealt out like cards, one to each in turn.

  Members come first in a sample, so no device has two more of them than another.
  """
  slots = device + num_devices * jnp.arange(sample.indices.shape[0], dtype=jnp.int32)
  weights = sample.weights.at[slots].get(mode="fill", fill_value=0)
  size = jnp.maximum(0, (sample.size - device + num_devices - 1) // num_devices)
  return Sample(sample.indices[slots], weights, size, sample.population)
