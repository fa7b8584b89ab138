"""Labelled data sets in their standard formats."""

import importlib.util
import math
import os
import pathlib
from typing import NamedTuple

import numpy as np

from jdp import _distribution
from jdp._arguments import checked
from jdp.data.casts import whole_numbers
from jdp.data.clients import Examples, examples
from jdp.data.files import inner_folder, open_data, plain_or_gzipped, read_arrays, size_limit


class Dataset(NamedTuple):
  """A classification data set.

  Attributes:
    train: the training examples.
    test: the test examples.
    num_classes: number of labels.
    train_groups: the natural user (writer) of each training example, int [n], or None.
  """

  train: Examples
  test: Examples
  num_classes: int
  train_groups: np.ndarray | None = None

  @property
  def input_shape(self) -> tuple[int, ...]:
    """The shape of one input."""
    return self.train.inputs.shape[1:]


def digits() -> Dataset:
  """The 1,797 images of 8 x 8 pixels that come with scikit-learn.

  Every fifth image is a test image.

  >>> data = digits()
  >>> data.train.inputs.shape, data.test.inputs.shape
  ((1437, 8, 8), (360, 8, 8))
  """
  # Reads the file alone: importing scikit-learn takes seconds.
  package = importlib.util.find_spec("sklearn")
  if package is None:
    install = _distribution.install("experiments")
    raise ImportError(f"Expected scikit-learn for the digits; run: {install}.")
  path = pathlib.Path(str(package.origin)).parent / "datasets/data/digits.csv.gz"
  table = np.loadtxt(path, delimiter=",")
  images, labels = table[:, :-1].reshape(-1, 8, 8) / 16.0, table[:, -1].astype(int)
  # Every fifth image: deterministic, and a public rule that looks at no value.
  is_test = np.arange(len(labels)) % 5 == 0
  train, test = (examples(images[part], labels[part], 10) for part in (~is_test, is_test))
  return Dataset(train, test, 10)


@checked
def mnist(data_dir: str | pathlib.Path) -> Dataset:
  """MNIST from files in IDX format: 60,000 and 10,000 images of 28 x 28 pixels.

  Args:
    data_dir: the folder that holds `train-images-idx3-ubyte` and so on, gzip'd or not. It may hold
      a folder "mnist" with them instead. If `mnist_writer_ids.npz` lies beside them, the writers
      are the groups. Its arrays are `train_writer` and `test_writer`.

  Raises:
    FileNotFoundError: if a file is missing. The message says which, and where it belongs.
    ValueError: if a file is not in IDX format, a label is not a digit, or the files disagree in
      length or shape. Also if there is not one writer, a whole number, for each training image.
  """
  folder = inner_folder(data_dir, "mnist")
  train, test = (_labelled_images(folder, part) for part in ("train", "t10k"))
  if train.inputs.shape[1:] != test.inputs.shape[1:]:
    raise ValueError(
      f"Expected images of one size in {folder}, got {train.inputs.shape[1:]} for training and "
      f"{test.inputs.shape[1:]} for the test; fetch them again."
    )
  writers = folder / "mnist_writer_ids.npz"
  groups = _writers(writers, len(train.labels)) if os.path.exists(writers) else None
  return Dataset(train, test, 10, groups)


def read_idx(path: pathlib.Path) -> np.ndarray:
  """The array of unsigned bytes in an IDX file, gzip'd if its name ends in .gz.

  It reads no more than the header announces, and no more than `jdp.data.files.size_limit` of a
  gzip'd file.

  Raises:
    ValueError: if the file is not such a file, or holds less or more than its header says.
  """
  with open_data(path) as file:
    # Header: two zero bytes, the type (8: unsigned bytes), the rank, and the sizes in big-endian.
    magic = file.read(4)
    if len(magic) < 4 or magic[:3] != b"\x00\x00\x08":
      got = f"header {magic.hex()}" if magic[:2] == b"\x00\x00" else "another file"
      raise ValueError(f"Expected an IDX file of unsigned bytes in {path}, got {got}.")
    rank = magic[3]
    sizes = file.read(4 * rank)
    if len(sizes) < 4 * rank:
      raise ValueError(
        f"Expected {4 * rank} bytes of sizes in {path}, got {len(sizes)}; fetch it again."
      )
    shape = np.frombuffer(sizes, ">u4").tolist()
    expected = math.prod(shape)
    # One byte more than expected, so that surplus bytes are noticed.
    data = file.read(min(expected, size_limit(path)) + 1)
  if len(data) != expected:
    got = f"{len(data)} or more" if len(data) > expected else f"{len(data)}"
    raise ValueError(f"Expected {expected} bytes of data in {path}, got {got}; fetch it again.")
  return np.frombuffer(data, np.uint8).reshape(shape)


def _labelled_images(folder: pathlib.Path, part: str) -> Examples:
  """The images and labels of a part of MNIST, "train" or "t10k"."""
  names = (f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte")
  paths = [plain_or_gzipped(folder, name, "MNIST's IDX") for name in names]
  images, labels = map(read_idx, paths)
  if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels) or not len(images):
    raise ValueError(
      f"Expected images [n, rows, columns] and their labels [n], n > 0, in {paths[0]} and "
      f"{paths[1].name}, got shapes {images.shape} and {labels.shape}; fetch both again."
    )
  return examples(images / np.float32(255), labels, 10)


def _writers(path: pathlib.Path, count: int) -> np.ndarray:
  """The writers of the training images, int64 [count]."""
  arrays = read_arrays(path)
  if "train_writer" not in arrays:
    raise ValueError(f"Expected an array train_writer in {path}, got others; fetch it again.")
  groups = whole_numbers("writers", arrays["train_writer"], dtype=np.int64)
  if groups.shape != (count,):
    raise ValueError(
      f"Expected a writer for each of {count} images in {path}, got shape {groups.shape}."
    )
  return groups
