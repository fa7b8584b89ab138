"""CIFAR-10 in its binary version: 32 x 32 pixels in colour, of ten classes."""

import pathlib

import numpy as np

from jdp._arguments import checked
from jdp.data.clients import Examples, examples
from jdp.data.datasets import Dataset
from jdp.data.files import first_file, inner_folder, open_data, size_limit

_SHAPE, _CLASSES = (3, 32, 32), 10
_RECORD = 1 + 3 * 32 * 32  # bytes: the class, then the planes of red, green and blue


@checked
def cifar10(data_dir: str | pathlib.Path) -> Dataset:
  """CIFAR-10 (A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009).

  Args:
    data_dir: the folder that holds `data_batch_1.bin` to `data_batch_5.bin` and `test_batch.bin`,
      or a folder "cifar-10-batches-bin" with them. The training batches that exist are read; the
      first must exist.

  Returns:
    The images, float32 [32, 32, 3] in [0, 1].

  Raises:
    FileNotFoundError: if a file is missing.
    ValueError: if a file is not in that format, or a class is above 9.
  """
  folder = inner_folder(data_dir, "cifar-10-batches-bin")

  def needed(name: str) -> pathlib.Path:
    return first_file(
      [folder / name],
      f"Expected {name} in {folder}; put CIFAR-10's binary files there, or name another folder.",
    )

  further = [folder / f"data_batch_{number}.bin" for number in range(2, 6)]
  train = [needed("data_batch_1.bin"), *(path for path in further if path.is_file())]
  parts = [_read_batch(path) for path in train]
  return Dataset(
    Examples(*map(np.concatenate, zip(*parts, strict=True))),
    _read_batch(needed("test_batch.bin")),
    _CLASSES,
  )


def _read_batch(path: pathlib.Path) -> Examples:
  """The images of one file, with their classes."""
  with open_data(path) as file:
    content = np.frombuffer(file.read(size_limit(path) + 1), np.uint8)
  if not content.size or content.size % _RECORD or np.any(content[::_RECORD] >= _CLASSES):
    raise ValueError(
      f"Expected records of {_RECORD} bytes that begin with a class below {_CLASSES} in {path}, "
      f"got {content.size} bytes of another kind; fetch CIFAR-10's binary version."
    )
  records = content.reshape(-1, _RECORD)
  images = records[:, 1:].reshape(-1, *_SHAPE).transpose(0, 2, 3, 1)
  return examples(images / np.float32(255), records[:, 0], _CLASSES)
