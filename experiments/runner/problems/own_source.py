"""The users that `--source` names: one's own, read from where they are."""

import jax
import jax.numpy as jnp

from experiments.runner.problems import own_model
from jdp import data
from jdp.data.sources.source_users import SourceUsers

HELP = (
  "package.module:factory of your own. It returns (source, (test inputs, test labels), number of "
  "classes): len(source) users, and source[i] gives (inputs, labels) of user i "
  "(jdp.data.clients_from_source). Test data are public, or of nobody in the source."
)


def check_name(**names: str) -> None:
  """Refuses what is not an import path."""
  for option, name in names.items():
    if not own_model.PATH.fullmatch(name):
      raise ValueError(f"Expected {option} to be package.module:factory, got {name!r:.60}.")


def open_source(name: str | None, max_examples: int) -> tuple[SourceUsers, data.Examples, int]:
  """The users, the test examples and the number of classes, checked before anything is written.

  Raises:
    ValueError: if the factory cannot be imported, fails, or returns something else.
  """
  if name is None:
    raise ValueError("Expected --source with --dataset=source, got none; name one of yours.")
  try:
    source, (inputs, labels), num_classes = own_model.imported(name)()
    test = data.examples(inputs, labels, num_classes)
    users = data.clients_from_source(source, max_examples=max_examples, num_classes=num_classes)
  except Exception as error:  # whatever a user's own code raises
    raise ValueError(
      f"Expected --source={name} to return (source, (test inputs, test labels), number of "
      f"classes), got {type(error).__name__} from it; call it in Python to see where."
    ) from error
  if test.inputs.shape[1:] != users.seen.inputs.shape[1:]:
    raise ValueError(
      f"Expected test inputs of shape {users.seen.inputs.shape[1:]} from --source={name}, as its "
      f"users' are, got {test.inputs.shape[1:]}."
    )
  return users, jax.tree.map(jnp.asarray, test), num_classes
