"""Files of data, read within a limit. Error messages quote nothing of their content."""

import gzip
import io
import os
import pathlib
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np

from jdp import _files

_COMPRESSED = (".gz", ".npz")
_LARGEST_RATIO = 32  # text and images compress 2 to 10 times, zeros 1,000 times
_ALWAYS_ALLOWED = 2**26  # bytes: 64 MiB
_CHUNK = 2**17


def first_file(candidates: Sequence[pathlib.Path], missing: str) -> pathlib.Path:
  """The first path that is a file.

  Raises:
    FileNotFoundError: if none is; `missing` is the message.
  """
  for path in candidates:
    if os.path.isfile(path):  # also False for names that are too long, for which pathlib may raise
      return path
  raise FileNotFoundError(missing)


def inner_folder(data_dir: str | pathlib.Path, name: str) -> pathlib.Path:
  """The folder of this name in `data_dir`, or `data_dir` itself if there is none."""
  folder = pathlib.Path(data_dir)
  return folder / name if os.path.isdir(folder / name) else folder


def plain_or_gzipped(folder: pathlib.Path, name: str, whose: str) -> pathlib.Path:
  """The path of a data set's file of this name in a folder, gzip'd or not.

  Raises:
    FileNotFoundError: if there is none. The message says whose files belong there.
  """
  return first_file(
    [folder / name, folder / f"{name}.gz"],
    f"Expected {name} or {name}.gz in {folder}; put {whose} files there, or name another folder.",
  )


def size_limit(path: pathlib.Path) -> int:
  """How many bytes of data may be read from a file.

  If the file is compressed: 32 for each of its bytes, but at least 64 MiB. Otherwise its size.
  """
  size = path.stat().st_size
  return max(_ALWAYS_ALLOWED, _LARGEST_RATIO * size) if path.suffix in _COMPRESSED else size


def open_data(path: pathlib.Path) -> BinaryIO:
  """A file's bytes, decompressed if its name ends in .gz. Close it after use.

  Raises:
    ValueError: if the file cannot be read. For gzip'd files, reading raises it as well: if the
      file is damaged, or holds more than `size_limit`.
  """
  try:
    file = _files.open_to_read(path)
  except OSError as error:
    raise ValueError(
      f"Expected a file that can be read in {path}, got: {error.strerror}; mend it."
    ) from error
  return file if path.suffix != ".gz" else io.BufferedReader(_Decompressed(file, path), _CHUNK)


class _Decompressed(io.RawIOBase):
  """The data of a gzip file, decompressed as it is read, up to the limit."""

  def __init__(self, file: BinaryIO, path: pathlib.Path):
    self._file, self._data = file, gzip.GzipFile(fileobj=file)
    self._path, self._limit = path, size_limit(path)
    self._num_read = 0

  def readable(self) -> bool:
    """Always."""
    return True

  def readinto(self, buffer: Any) -> int:
    """Reads at most a chunk, even if the buffer is larger."""
    try:
      count = self._data.readinto(memoryview(buffer)[:_CHUNK])
    except (OSError, EOFError, zlib.error):
      # `from None`, as the causes quote bytes of the file, or a checksum of them.
      raise ValueError(
        f"Expected a whole gzip file in {self._path}, got one that is damaged or cut short after "
        f"{self._num_read} bytes of data; fetch it again."
      ) from None
    self._num_read += count
    if self._num_read > self._limit:
      raise ValueError(
        f"Expected at most {self._limit} bytes of data in {self._path}, got more; decompress the "
        "file yourself if you trust it, and give it without .gz."
      )
    return count

  def close(self) -> None:
    """Closes the file as well."""
    self._file.close()
    super().close()


def lines(path: pathlib.Path) -> Iterator[str]:
  """The lines of a text in UTF-8, with their ends; see `open_data`.

  Raises:
    ValueError: also if a line is not UTF-8. The message says which.
  """
  with open_data(path) as file:
    for number, line in enumerate(file, 1):
      try:
        text = line.decode()
      except UnicodeDecodeError:
        raise ValueError(
          f"Expected UTF-8 text in line {number} of {path}, got other bytes; mend the file."
        ) from None
      yield text


def read_arrays(path: pathlib.Path) -> dict[str, np.ndarray]:
  """The arrays of an npz file, by name.

  Raises:
    ValueError: if it is not such a file, is damaged, or holds more than `size_limit`. Also if it
      holds Python objects.
  """
  with open_data(path) as file:
    return _files.read_arrays(file, path, limit=size_limit(path))
