"""Digests of the models that a run has released, by which repeated rounds are compared."""

import bisect
import os
import pathlib
import re
from typing import Any

from jdp._files import read_bytes
from jdp.federated.runs.digest import digest

PyTree = Any


class Released:
  """A file with a line for each evaluated round: its number, and the digest of its model.

  A round that is done again, with the same model, is not a second release. With another model, from
  another algorithm or machine, it would be a release that the ledger does not count.

  Args:
    path: the file, in a secret folder. It is made when the first line is written.
  """

  def __init__(self, path: pathlib.Path):
    self._path = path
    content = read_bytes(path) if path.exists() else b""
    # A line that a killed process left incomplete belongs to a round that was never released.
    self._known = dict(re.findall(rb"^(\d+) ([0-9a-f]{64})$", content, re.MULTILINE))
    self._before = sorted(map(int, self._known))

  def following(self, done: int) -> int | None:
    """The first round after `done` whose model was released before this was made, or None."""
    place = bisect.bisect(self._before, done)
    return self._before[place] if place < len(self._before) else None

  def check(self, done: int, params: PyTree) -> None:
    """Notes the model after `done` rounds, on disk when this returns, or compares it.

    Raises:
      ValueError: if another model was released after that round.
    """
    name, found = str(done).encode(), digest(params).encode()
    known = self._known.setdefault(name, found)
    if known != found:
      raise ValueError(
        f"Expected the model that was released after round {done} before, got another, "
        "which must not be released too; resume with the algorithm and on as many "
        f"devices as when it was released, or start anew in another folder. If {self._path} is "
        "damaged, remove it."
      )
    if known is found:
      self._write(b"\n" + name + b" " + found)

  def _write(self, line: bytes) -> None:
    with open(self._path, "ab", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
      file.write(line)
      file.flush()
      os.fsync(file.fileno())
