"""Labelled data sets in their standard formats."""

import gzip
import pathlib
import zlib
from typing import NamedTuple

import numpy as np

from jdp import _validate
from jdp._arguments import checked
from jdp.data.casts import whole_numbers
from jdp.data.clients import Examples, examples


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
  try:
    from sklearn import datasets  # here, since it takes a second to import
  except ImportError as error:
    raise ImportError(
      "Expected scikit-learn for the digits; run: pip install 'jdp[experiments]'."
    ) from error
  bunch = datasets.load_digits()
  images, labels = bunch.images / 16.0, bunch.target
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
    ValueError: if a file is not in IDX format, or a label is no digit. Also unless there is one
      writer, a whole number, for each training image.
  """
  folder = pathlib.Path(data_dir)
  if (folder / "mnist").is_dir():
    folder = folder / "mnist"

  def load(part):
    images = read_idx(_idx_file(folder, f"{part}-images-idx3-ubyte")) / np.float32(255)
    return examples(images, read_idx(_idx_file(folder, f"{part}-labels-idx1-ubyte")), 10)

  train, writers = load("train"), folder / "mnist_writer_ids.npz"
  groups = _writers(writers, len(train.labels)) if writers.exists() else None
  return Dataset(train, load("t10k"), 10, groups)


@checked
def load(name: str, data_dir: str | pathlib.Path | None = None) -> Dataset:
  """The data set of a given name: "digits" (needs no file) or "mnist" (from data_dir)."""
  _validate.one_of(("digits", "mnist"), name=name)
  if name == "digits":
    return digits()
  if data_dir is None:
    raise ValueError("Expected --data_dir for mnist, got none; name the folder with the IDX files.")
  return mnist(data_dir)


def read_idx(path: pathlib.Path) -> np.ndarray:
  """The array of unsigned bytes in an IDX file, gzip'd if its name ends in .gz.

  Raises:
    ValueError: if the file is no such file, or is incomplete.
  """
  content = path.read_bytes()
  if path.suffix == ".gz":
    try:
      content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
      raise ValueError(f"Expected a whole gzip file in {path}, got: {error}") from error
  if len(content) < 4 or content[:3] != b"\x00\x00\x08" or len(content) < 4 + 4 * content[3]:
    raise ValueError(
      f"Expected an IDX file of unsigned bytes in {path}, got header {content[:4].hex()}."
    )
  # Header: two zero bytes, the type (8: unsigned bytes), the rank, and the sizes in big-endian.
  rank = content[3]
  shape = np.frombuffer(content, ">i4", count=rank, offset=4)
  data = np.frombuffer(content, np.uint8, offset=4 + 4 * rank)
  if data.size != np.prod(shape):
    raise ValueError(
      f"Expected {np.prod(shape)} bytes of data in {path}, got {data.size}; fetch it again."
    )
  return data.reshape(shape)


def _writers(path: pathlib.Path, count: int) -> np.ndarray:
  """The writers of the training images, int64 [count]."""
  with np.load(path) as file:
    if "train_writer" not in file:
      raise ValueError(
        f"Expected an array train_writer in {path}, got {', '.join(file)}; fetch it again."
      )
    groups = whole_numbers("writers", file["train_writer"], dtype=np.int64)
  if groups.shape != (count,):
    raise ValueError(
      f"Expected a writer for each of {count} images in {path}, got shape {groups.shape}."
    )
  return groups


def _idx_file(folder: pathlib.Path, name: str) -> pathlib.Path:
  """The path of MNIST's file of this name, gzip'd or not."""
  for path in (folder / name, folder / f"{name}.gz"):
    if path.exists():
      return path
  raise FileNotFoundError(
    f"Expected {name} or {name}.gz in {folder}; put MNIST's IDX files there, or name another "
    "--data_dir."
  )
