"""StackOverflow: questions and answers of 342,477 people, as TensorFlow Federated has them."""

import pathlib

from jdp import _validate
from jdp._arguments import checked
from jdp.data.federated_sets.tff import tff_users
from jdp.data.files import first_file
from jdp.data.sources.on_disk import UsersOnDisk
from jdp.data.text import UserText


@checked
def stackoverflow(path: str | pathlib.Path, *, split: str = "train") -> UsersOnDisk:
  """The users of StackOverflow's next-word task, from TensorFlow Federated's SQLite file.

  Give them to `jdp.data.text_source`, with the words of public text.

  Args:
    path: `stackoverflow.sqlite`, decompressed.
    split: "train", "heldout" (other users) or "test" (a later time).

  Returns:
    The users by name, each a `UserText` of its sentences, read when it is asked for.

  Raises:
    FileNotFoundError: if there is no such file.
    ValueError: if it is another kind of file, or its text is not UTF-8. Reading a user raises it as
      well.

  >>> import contextlib, sqlite3, tempfile
  >>> hello = "0a150a130a06746f6b656e7312090a070a0568656c6c6f"  # a tf.train.Example
  >>> user = "AS SELECT 'ann' AS client_id, 'heldout' AS split_name"
  >>> with tempfile.TemporaryDirectory() as folder:
  ...   path = pathlib.Path(folder, "stackoverflow.sqlite")
  ...   with contextlib.closing(sqlite3.connect(path)) as file:
  ...     _ = file.execute(f"CREATE TABLE client_metadata {user}, 1 AS num_examples")
  ...     _ = file.execute(f"CREATE TABLE examples {user}, x'{hello}' AS serialized_example_proto")
  ...   stackoverflow(path, split="heldout")[0]
  UserText(user='ann', text=('hello',))
  """
  _validate.one_of(("train", "heldout", "test"), split=split)
  path = first_file([pathlib.Path(path)], f"Expected stackoverflow.sqlite at {path}; put it there.")
  users = tff_users(path, split, ("tokens",))

  def read(number: int) -> UserText:
    try:
      sentences = tuple(example["tokens"][0].decode() for example in users[number])
    except (KeyError, IndexError, AttributeError, UnicodeDecodeError):
      raise ValueError(
        f"Expected a sentence in UTF-8 as every example's tokens in {path}, got others; fetch it "
        "again."
      ) from None
    return UserText(users.names[number], sentences)

  read(0)  # refuses another kind of file at once
  return UsersOnDisk(users.names, read)
