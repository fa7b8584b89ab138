"""FEMNIST: characters written by 3,500 people (arXiv 1812.01097)."""

import pathlib
from collections.abc import Sequence

import numpy as np

from jdp import _validate
from jdp._arguments import checked
from jdp.data.federated_sets.leaf import leaf_users
from jdp.data.federated_sets.tff import Feature, tff_users
from jdp.data.files import first_file, inner_folder
from jdp.data.sources.on_disk import UsersOnDisk

_SHAPE, _CLASSES, _DIGITS = (28, 28), 62, 10
_LARGEST = np.finfo(np.float32).max
_LEAF = (".json", ".json.gz")
_Pair = tuple[np.ndarray, np.ndarray]


@checked
def femnist(
  path: str | pathlib.Path, *, split: str = "train", digits_only: bool = False
) -> UsersOnDisk:
  """The writers of FEMNIST, from LEAF's JSON files or TensorFlow Federated's SQLite file.

  Args:
    path: LEAF's file, its folder of files, or the folder with its folders "train" and "test". Or
      TensorFlow Federated's `emnist_all.sqlite`, decompressed.
    split: "train" or "test", which have the same writers.
    digits_only: whether the characters are the ten digits. Otherwise there are 62 classes. In
      LEAF's files, a writer without digits stays as a writer without examples.

  Returns:
    The writers, ordered by name for an SQLite file, and as in the files for LEAF's. Each is
    (images, classes), read when it is asked for: float32 [n, 28, 28], white 1 and black 0 as
    distributed, and int32 [n].

  Raises:
    FileNotFoundError: if there is no such file.
    ValueError: if a file has another format, or holds other images or classes. Reading a writer
      raises it as well.

  >>> import json, tempfile
  >>> written = {"ann": {"x": [[0.5] * 784, [1.0] * 784], "y": [3, 40]}}
  >>> with tempfile.TemporaryDirectory() as folder:
  ...   path = pathlib.Path(folder, "all_data_0.json")
  ...   _ = path.write_text(json.dumps({"user_data": written}))
  ...   writers = femnist(path, digits_only=True)
  ...   writers.names, writers[0][0].shape, writers[0][1]
  (('ann',), (1, 28, 28), array([3], dtype=int32))
  """
  _validate.one_of(("train", "test"), split=split)
  path = pathlib.Path(path)
  files = _leaf_files(path, split)
  if files:
    writers = leaf_users(files)
  else:
    missing = f"Expected FEMNIST's files at {path}; put emnist_all.sqlite or LEAF's files there."
    name = f"{'digits_only' if digits_only else 'all'}_{split}"
    writers = tff_users(first_file([path], missing), name, ("pixels", "label"))

  def read(number: int) -> _Pair:
    found = writers[number]
    try:
      images, classes = found if files else _stacked(found)
      return _checked(images, classes, digits_only)
    except (KeyError, ValueError):
      raise ValueError(
        f"Expected images of {_SHAPE} with their classes in {path}, got others; fetch it again."
      ) from None

  read(0)  # refuses another kind of file at once
  return UsersOnDisk(writers.names, read)


def _leaf_files(path: pathlib.Path, split: str) -> list[pathlib.Path]:
  """LEAF's files of a split; none if the path is another kind of file."""
  if path.is_dir():
    files = inner_folder(path, split).iterdir()
    return sorted(file for file in files if file.name.endswith(_LEAF))
  return [path] if path.name.endswith(_LEAF) and path.is_file() else []


def _stacked(examples: Sequence[dict[str, Feature]]) -> _Pair:
  """A writer's images and classes. Raises KeyError or ValueError if they are not arrays alike."""
  pixels, label = (np.stack([own[name] for own in examples]) for name in ("pixels", "label"))
  return pixels, label


def _checked(images: np.ndarray, classes: np.ndarray, digits_only: bool) -> _Pair:
  """A writer's images and classes; only those of digits if asked for.

  Raises:
    ValueError: if they are not those of this set.
  """
  classes = classes.reshape(len(classes), -1)
  fits = images[0].size == 28 * 28 and classes.shape[1] == 1 and images.ndim <= 3
  if not (fits and images.dtype.kind in "fi" and np.all(np.abs(images) <= _LARGEST)):
    raise ValueError("other images")
  if classes.dtype.kind not in "fi" or not np.all(np.isin(classes, range(_CLASSES))):
    raise ValueError("other classes")
  kept = classes[:, 0] < (_DIGITS if digits_only else _CLASSES)
  return (
    images.reshape(-1, *_SHAPE)[kept].astype(np.float32),
    classes[kept, 0].astype(np.int32),
  )
