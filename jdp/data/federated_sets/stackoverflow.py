"""StackOverflow: the questions and answers of 342,477 people, as TensorFlow Federated has them."""

import pathlib

from jdp import _validate
from jdp._arguments import checked
from jdp.data.federated_sets.tff import read_tff
from jdp.data.files import first_file
from jdp.data.text import UserText


@checked
def stackoverflow(
  path: str | pathlib.Path, *, split: str = "train", max_users: int | None = None
) -> list[UserText]:
  """The users of StackOverflow's next-word task, from TensorFlow Federated's SQLite file.

  Give their texts to `jdp.data.text_users`, with the words of public text.

  Args:
    path: `stackoverflow.sqlite`, decompressed.
    split: "train", "heldout" (other users) or "test" (a later time).
    max_users: so many users, the first by name. None: all, which takes tens of GB.

  Returns:
    The users by name, each with its sentences.

  Raises:
    FileNotFoundError: if there is no such file.
    ValueError: if it is another file, or its text is no UTF-8.
  """
  _validate.one_of(("train", "heldout", "test"), split=split)
  if max_users is not None:
    _validate.integer(1, max_users=max_users)
  path = first_file([pathlib.Path(path)], f"Expected stackoverflow.sqlite at {path}; put it there.")
  users = []
  for user, examples in read_tff(path, split, max_users):
    try:
      sentences = tuple(example["tokens"][0].decode() for example in examples)
    except (KeyError, IndexError, AttributeError, UnicodeDecodeError):
      raise ValueError(
        f"Expected a sentence in UTF-8 as every example's tokens in {path}, got others; fetch it "
        "again."
      ) from None
    users.append(UserText(user, sentences))
  return users
