"""Warnings that follow from the clients' data: for whoever runs the program, and nobody else.

They depend on protected data and nothing makes them private, so they are written to the standard
error of this process alone: to no file of a run, no log and no result. No value of the data is in
them. Each warning is printed once per process.
"""

import dataclasses
import sys
from collections.abc import Mapping
from functools import cache, partial
from typing import Any

import jax
import numpy as np

from jdp.data.clients import Examples
from jdp.data.packed import PackedUsers
from jdp.data.sources.source_users import SourceUsers
from jdp.models.base import Loss
from jdp.models.losses import CrossEntropy

PyTree = Any
_SEEN = 100  # examples, whatever the data hold
_LARGEST_SCALED = 10.0
_NEARLY_ALL, _HARDLY_ANY = 0.99, 0.01


def with_warnings(loss: Loss, clients: PyTree) -> Loss:
  """The same loss; warns of inputs that are not scaled, and of labels beyond the model's classes.

  It looks at 100 examples in NumPy arrays, evenly spaced. Data that lie elsewhere are not read, as
  that would copy them. Labels are compared when the loss is traced, which tells the classes.

  Args:
    loss: its classes are known if it is `jdp.models.cross_entropy`.
    clients: single examples, or users.
  """
  seen = _some_examples(clients)
  if seen is None:
    return loss
  inputs, labels = seen.inputs, seen.labels
  if _holds(inputs, "f") and not np.max(np.abs(inputs)) <= _LARGEST_SCALED:
    _say(
      f"inputs are beyond {_LARGEST_SCALED:g} in size, as raw pixels are. Their gradients are "
      "long, and clipping leaves little of them. Scale inputs to about [-1, 1], by public numbers."
    )
  if isinstance(loss, CrossEntropy) and _holds(labels, "iu"):
    return dataclasses.replace(
      loss, tell=partial(_compare_labels, int(labels.min()), int(labels.max()))
    )
  return loss


def _holds(values: PyTree, kinds: str) -> bool:
  """Whether `values` is a non-empty NumPy array whose dtype kind is one of `kinds`."""
  return isinstance(values, np.ndarray) and values.dtype.kind in kinds and values.size > 0


def _compare_labels(least: int, largest: int, num_classes: int) -> None:
  if not 0 <= least <= largest < num_classes:
    _say(
      f"labels are beyond the model's {num_classes} classes. Such an example has no loss, and "
      "teaches nothing but that it is of no class. Give the model more outputs, or mend the labels."
    )


def warn_of_clipping(diagnostics: Mapping[str, np.ndarray] | None) -> None:
  """Warns of a clip norm that clips nearly all updates, or hardly any.

  Args:
    diagnostics: those of some rounds. Without the share "clipped" there is no warning.
  """
  share = np.mean((diagnostics or {}).get("clipped", 0.5))
  if share >= _NEARLY_ALL:
    _say(
      "the clip norm clips nearly all updates: of each, the direction alone counts. A larger one "
      "keeps their lengths, with more noise."
    )
  if share <= _HARDLY_ANY:
    _say("the clip norm clips hardly any update. A smaller one has less noise.")


def _some_examples(clients: PyTree) -> Examples | None:
  """Some examples, without padding. None if there are none on the host."""
  if isinstance(clients, SourceUsers):
    data = clients.seen
  else:
    data = clients.examples if isinstance(clients, PackedUsers) else clients
  on_host = all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(data))
  if not (isinstance(data, Examples) and on_host and data.mask.size):
    return None
  axes = data.mask.shape
  rows = np.unravel_index(
    np.unique(np.linspace(0, data.mask.size - 1, _SEEN, dtype=np.int64)), axes
  )
  kept = tuple(axis[data.mask[rows] > 0] for axis in rows)
  return jax.tree.map(lambda leaf: leaf[kept], data)


@cache
def _say(sentence: str) -> None:
  """Writes a warning to the console, once."""
  print(
    f"jdp: Warning: {sentence} (Seen in protected data, so this is for your console alone: it is "
    "in no file of the run. Do not publish it.)",
    file=sys.stderr,
  )
