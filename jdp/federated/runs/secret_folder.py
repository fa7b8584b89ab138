"""The secret folder of a run: its owner alone has access, and one process at a time.

It holds how far the run's ledger had grown, so a ledger that was shortened is noticed.
"""

import fcntl
import json
import os
import pathlib
import stat
from typing import IO

from jdp._files import open_regular, read_bytes
from jdp.federated.runs.whole_files import write
from jdp.ledger.durable import LedgerMark

_OTHERS = 0o077
_MARK = "ledger_mark.json"


def hold(secret: pathlib.Path) -> IO[bytes]:
  """Locks a secret folder against other processes, and closes it to other users.

  The lock is held until the returned file is closed or the process ends.

  Raises:
    ValueError: if another process holds the lock. Also if the folder is a link, is another user's,
      or was open to others, who may have read or changed what is in it. Also if it holds links.
  """
  _check_folder(secret)
  # Not truncated: if this is a hard link to another file, that file keeps its content.
  descriptor = open_regular(secret / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
  file = open(descriptor, "r+b")  # noqa: SIM115  # The caller closes it.
  try:
    _lock(file, secret)
    close_to_others(secret)
  except BaseException:
    file.close()
    raise
  return file


def _check_folder(secret: pathlib.Path) -> None:
  """Refuses a folder that another user may have prepared, or may read."""
  found = os.lstat(secret)
  problem = None
  if not stat.S_ISDIR(found.st_mode):
    problem = "a link or a file"
  elif found.st_uid != os.geteuid():
    problem = f"one of user {found.st_uid}"
  elif stat.S_IMODE(found.st_mode) & _OTHERS:
    problem = f"one of mode {stat.S_IMODE(found.st_mode):04o}"
  if problem:
    raise ValueError(
      f"Expected a folder to which its owner alone has access in {secret}, got {problem}: others "
      "may know the run's noise; name another work directory. If nobody has used it, remove it."
    )


def _lock(file: IO[bytes], secret: pathlib.Path) -> None:
  try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    raise ValueError(
      f"Expected no other process in the run of {secret}, got one; wait for it to end."
    ) from None


def close_to_others(folder: pathlib.Path) -> None:
  """Takes the permissions of others off a folder and all that is in it.

  Raises:
    ValueError: if something in it is a link, a device or a pipe, or another user's.
  """
  for path in (folder, *folder.rglob("*")):
    found = path.lstat()
    is_folder = stat.S_ISDIR(found.st_mode)
    is_file = stat.S_ISREG(found.st_mode) and found.st_nlink == 1
    if not (is_folder or is_file) or found.st_uid != os.geteuid():
      raise ValueError(
        f"Expected files and folders of the run's owner in {folder}, got {path}, which is another "
        "user's, a link, a device or a pipe; remove it, or put the file itself there."
      )
    wanted = 0o700 if is_folder else 0o600
    if stat.S_IMODE(found.st_mode) != wanted:
      path.chmod(wanted)


def keep_mark(secret: pathlib.Path, mark: LedgerMark) -> None:
  """Writes down how far the run's ledger has grown. The mark is on disk when this returns.

  It is called after every block of rounds, before the block's result is used. An older copy of the
  ledger's folder does not restore it.
  """
  write(secret / _MARK, json.dumps(mark._asdict()).encode(), mode=0o600)


def kept_mark(secret: pathlib.Path) -> LedgerMark | None:
  """The mark that was written last; None if no round was done yet.

  Raises:
    ValueError: if the file is damaged.
  """
  path = secret / _MARK
  if not path.exists():
    return None
  try:
    mark = LedgerMark(**json.loads(read_bytes(path)))
  except (TypeError, ValueError) as error:
    raise ValueError(
      f"Expected in {path} how far the run's ledger had grown, got a damaged file; restore it from "
      "a copy. Without it, rounds that were removed from the ledger's end would not be noticed."
    ) from error
  return mark
