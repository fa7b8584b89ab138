"""FEMNIST: characters written by 3,500 people (arXiv 1812.01097)."""

import pathlib
from collections.abc import Iterable, Iterator

import numpy as np

from jdp import _validate
from jdp._arguments import checked
from jdp.data.federated_sets.leaf import read_leaf
from jdp.data.federated_sets.tff import Feature, read_tff
from jdp.data.files import first_file
from jdp.data.packed import PackedUsers
from jdp.data.user_tables import clients_from_pairs

_SHAPE, _CLASSES, _DIGITS = (28, 28), 62, 10
_LEAF = (".json", ".json.gz")
_Pairs = Iterable[tuple[np.ndarray, np.ndarray]]


@checked
def femnist(
  path: str | pathlib.Path,
  *,
  split: str = "train",
  digits_only: bool = False,
  max_users: int | None = None,
) -> PackedUsers:
  """The writers of FEMNIST, from LEAF's JSON files or TensorFlow Federated's SQLite file.

  Args:
    path: LEAF's file, its folder of files, or the folder with its folders "train" and "test". Or
      TensorFlow Federated's `emnist_all.sqlite`, decompressed.
    split: "train" or "test", which have the same writers.
    digits_only: whether the characters are the ten digits. Otherwise there are 62 classes.
    max_users: so many writers, the first by name in an SQLite file, and in the files' order in
      LEAF's. None: all, which takes 2 GB.

  Returns:
    The writers with images float32 [28, 28], white 1 and black 0 as distributed, and their classes.

  Raises:
    FileNotFoundError: if there is no such file.
    ValueError: if a file is another, or holds other images or classes.
  """
  _validate.one_of(("train", "test"), split=split)
  if max_users is not None:
    _validate.integer(1, max_users=max_users)
  path = pathlib.Path(path)
  files = _leaf_files(path, split)
  if files:
    pairs: _Pairs = [(user.inputs, user.labels) for user in read_leaf(files)[:max_users]]
  else:
    missing = f"Expected FEMNIST's files at {path}; put emnist_all.sqlite or LEAF's files there."
    name = f"{'digits_only' if digits_only else 'all'}_{split}"
    pairs = _arrays_of_tff(read_tff(first_file([path], missing), name, max_users))
  try:
    users = list(_checked(pairs, digits_only))
    return clients_from_pairs(users, num_classes=_DIGITS if digits_only else _CLASSES)
  except _OtherImages:
    raise ValueError(
      f"Expected images of {_SHAPE} with their classes in {path}, got others; fetch it again."
    ) from None


class _OtherImages(Exception):  # noqa: N818  # It never leaves this module.
  """Arrays that are no images of this set."""


def _leaf_files(path: pathlib.Path, split: str) -> list[pathlib.Path]:
  """LEAF's files of a split; none if the path is another file."""
  if path.is_dir():
    folder = path / split if (path / split).is_dir() else path
    return sorted(file for file in folder.iterdir() if file.name.endswith(_LEAF))
  return [path] if path.name.endswith(_LEAF) and path.is_file() else []


def _arrays_of_tff(users: Iterator[tuple[str, list[dict[str, Feature]]]]) -> _Pairs:
  for _, examples in users:
    try:
      yield tuple(np.stack([example[name] for example in examples]) for name in ("pixels", "label"))  # type: ignore[misc]
    except (KeyError, ValueError):
      raise _OtherImages from None


def _checked(pairs: _Pairs, digits_only: bool) -> Iterator[tuple[np.ndarray, np.ndarray]]:
  """Each writer's images and classes; of digits alone if asked for, less the writers of none."""
  for images, classes in pairs:
    classes = classes.reshape(len(classes), -1)
    if images[0].size != 28 * 28 or classes.shape[1] != 1 or images.ndim > 3:
      raise _OtherImages
    if not np.all((classes >= 0) & (classes < _CLASSES)):
      raise _OtherImages
    kept = classes[:, 0] < _DIGITS if digits_only else np.ones(len(classes), bool)
    if np.any(kept):
      yield images.reshape(-1, *_SHAPE)[kept].astype(np.float32), classes[kept, 0]
