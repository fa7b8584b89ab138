"""A file that grows by whole pieces. Each is on disk before the writer goes on."""

import contextlib
import fcntl
import os
import pathlib

from jdp._files import open_regular


class AppendOnlyFile:
  """A file that grows at its end, with one writer.

  Its writer knows how much of it counts. Anything beyond that was left by a failed write. The lock
  (flock) is held until the file is closed or the process ends. A child process inherits the lock,
  but may not write: it cannot know what its parent adds.

  Args:
    path: The file. It is made if missing.

  Raises:
    BlockingIOError: if another writer has the file open.
    ValueError: if the path leads to a symbolic link, a folder, a device or a pipe.
  """

  def __init__(self, path: pathlib.Path):
    self._path, self._process = path, os.getpid()
    self._descriptor = open_regular(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW)
    try:
      self._lock()
      self.check()
    except BaseException:
      self.close()
      raise

  def _lock(self) -> None:
    """Makes this the only writer of the file."""
    try:
      fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
      raise BlockingIOError(
        error.errno,
        f"Expected to be the only writer of {self._path}, got a file that another has open; stop "
        "that one.",
      ) from None

  def check(self) -> None:
    """Refuses calls from another process, and a file that is no longer at its path.

    Raises:
      OSError: if the file was removed, or another took its place. Also in a child of the process
        that opened it.
    """
    if os.getpid() != self._process:
      raise OSError(
        f"Expected the process that opened {self._path}, got a child of it, whose lines it would "
        "overwrite; let that process write, or open the file in the child alone."
      )
    held = os.fstat(self._descriptor)
    with contextlib.suppress(FileNotFoundError):
      named = os.stat(self._path)
      if (named.st_dev, named.st_ino) == (held.st_dev, held.st_ino):
        return
    raise OSError(
      f"Expected {self._path} to be the file that was opened, got it removed or replaced; restore "
      "it, as what it held cannot be counted without it."
    )

  def append(self, data: bytes, *, size: int) -> None:
    """Writes after the first `size` bytes, which count, and returns when all is on disk.

    If that fails, the file is cut to `size` bytes again. If even that fails, the next call cuts the
    file first.

    Raises:
      OSError: if it fails. Also if the file was removed, replaced or shortened.
    """
    self.check()
    self._cut(size)
    try:
      rest = memoryview(data)
      while rest:
        rest = rest[os.write(self._descriptor, rest) :]
      os.fsync(self._descriptor)
    except BaseException:
      with contextlib.suppress(OSError):
        self._cut(size)
      raise

  def _cut(self, size: int) -> None:
    """Makes the file `size` bytes long."""
    found = os.fstat(self._descriptor).st_size
    if found < size:
      raise OSError(
        f"Expected at least {size} bytes in {self._path}, got {found}: it was shortened while "
        "open; restore it, as what it held cannot be counted without it."
      )
    if found > size:
      os.ftruncate(self._descriptor, size)

  def close(self) -> None:
    """Closes the file; another writer may open it."""
    descriptor, self._descriptor = self._descriptor, -1
    if descriptor >= 0:
      os.close(descriptor)
