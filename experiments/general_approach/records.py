"""The records that the runs share, of several kinds, and how rounds sample them."""

from collections.abc import Callable
from typing import NamedTuple

import jax

from jdp import data, sampling
from jdp.federated.iterative import Trained
from jdp.guarantees import Unit
from jdp.models.batch_norm import NormalisedModel


class Records(NamedTuple):
  """The data as records of one kind.

  Attributes:
    unit: what a record is.
    examples: `Examples` with leading axes [records, examples of a record].
  """

  unit: Unit
  examples: data.Examples

  def sampler(self, policy: str, batch_size: int) -> sampling.Sampler:
    """The sampler of the policy's name, of so many expected examples."""
    population, size = self.examples.labels.shape
    expected_size = batch_size / size
    if not 1 <= expected_size <= population:
      raise ValueError(
        f"Expected --batch_size to be from one record to all {population}, got {expected_size:g} "
        "records."
      )
    return sampling.registry.registered()[policy].make(population, expected_size)


class GroupsTask(NamedTuple):
  """What all runs share.

  Attributes:
    model: what is trained.
    init: key -> the server's values.
    evaluate: the server's values -> metrics, none of them private.
    records: the data, by kind: "example", or the name of a run with the records' size.
  """

  model: NormalisedModel
  init: Callable[[jax.Array], Trained]
  evaluate: Callable[[Trained], dict[str, jax.Array]]
  records: dict[str, Records]
