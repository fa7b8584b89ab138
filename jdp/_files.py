"""Files: read without taking more memory than they are long, and written whole or not at all."""

import errno
import io
import math
import os
import pathlib
import stat
import zipfile
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np


def open_regular(path: str | os.PathLike, flags: int = os.O_RDONLY, mode: int = 0o666) -> int:
  """Opens a regular file, as `os.open`. A child process does not inherit it by exec.

  Raises:
    ValueError: if the path leads to another kind of file. A device may have no end, and a FIFO no
      writer.
  """
  try:
    # A FIFO would make the call wait for another process.
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, mode)
  except OSError as error:
    if error.errno == errno.ELOOP and flags & os.O_NOFOLLOW:
      raise ValueError(
        f"Expected a file in {path}, got a symbolic link; put the file itself there."
      ) from None
    if error.errno not in (errno.ENXIO, errno.EISDIR):  # a socket, or a FIFO without a reader
      raise
    descriptor = -1
  if descriptor < 0 or not stat.S_ISREG(os.fstat(descriptor).st_mode):
    if descriptor >= 0:
      os.close(descriptor)
    raise ValueError(
      f"Expected path {path} of a file, got a folder, a device or a pipe; save it as a file."
    )
  return descriptor


def open_to_read(path: str | os.PathLike) -> BinaryIO:
  """The bytes of a regular file. Close it after use.

  Raises:
    ValueError: as for `open_regular`.
  """
  return open(open_regular(path), "rb")


def read_bytes(path: str | os.PathLike) -> bytes:
  """All bytes of a regular file.

  Raises:
    ValueError: as for `open_regular`.
  """
  with open_to_read(path) as file:
    return file.read()


def write(path: pathlib.Path, content: bytes, *, mode: int = 0o666) -> None:
  """Writes a file at once: a reader sees the old content or the new, never a part.

  Args:
    path: the file, replaced if it exists.
    content: its bytes, on disk before the name points to them.
    mode: permissions, minus the process's umask. 0o600 is for secrets.
  """
  temporary = path.with_name(path.name + ".tmp")
  temporary.unlink(missing_ok=True)  # may be left by a killed process, and would keep its mode
  with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
    file.write(content)
    file.flush()
    os.fsync(file.fileno())
  # Only a file that is completely on disk gets the name.
  os.replace(temporary, path)


def write_arrays(path: pathlib.Path, arrays: Mapping[str, Any]) -> None:
  """Writes an npz file at once, like `write`; `read_arrays` reads it."""
  content = io.BytesIO()
  np.savez(content, **arrays)
  write(path, content.getvalue())


def read_arrays(file: BinaryIO, name: Any, *, limit: int | None = None) -> dict[str, np.ndarray]:
  """The arrays of an npz file, by name.

  An array's size is compared with that of its data before it is made.

  Args:
    file: the open file, such as from `open_to_read`.
    name: the file's name, for messages.
    limit: how many bytes of data it may hold, decompressed. None: the file's length, as `np.savez`
      does not compress.

  Raises:
    ValueError: if it is not such a file, is damaged, claims to hold more, or holds Python objects.
  """
  limit = file.seek(0, os.SEEK_END) if limit is None else limit
  try:
    with zipfile.ZipFile(file) as archive:
      members = archive.infolist()
      if (size := sum(member.file_size for member in members)) <= limit:
        return {member.filename.removesuffix(".npy"): _array(archive, member) for member in members}
  except Exception:  # zipfile and NumPy raise a dozen types, some of which quote the file.
    raise ValueError(
      f"Expected a whole npz file of numbers in {name}, got a damaged or another one; fetch it "
      "again."
    ) from None
  raise ValueError(
    f"Expected at most {limit} bytes of data in {name}, got {size}; save it with np.savez, which "
    "does not compress."
  )


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
  """A member of an npz file."""
  with archive.open(member) as file:
    version = np.lib.format.read_magic(file)
    shape, _, dtype = _HEADERS[version](file)
    announced, found = math.prod(shape) * dtype.itemsize, member.file_size - file.tell()
  if not dtype.itemsize or dtype.hasobject or announced != found:
    raise ValueError(f"a header of {announced} bytes, and {found} bytes")
  with archive.open(member) as file:
    return np.lib.format.read_array(file, allow_pickle=False)


_HEADERS: dict[Any, Any] = {
  (1, 0): np.lib.format.read_array_header_1_0,
  (2, 0): np.lib.format.read_array_header_2_0,
}
