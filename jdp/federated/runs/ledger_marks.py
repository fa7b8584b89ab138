"""How far a run's ledger had grown, kept beside its key: so a ledger that was shortened is noticed.

The mark is written after every block of rounds, before the block's result is used. It lies in the
secret folder. So it is not restored with an older copy of the folder that holds the ledger.
"""

import json
import pathlib

from jdp._files import read_bytes
from jdp.federated.runs.whole_files import write
from jdp.ledger import LedgerMark

_NAME = "ledger_mark.json"


def keep_mark(secret: pathlib.Path, mark: LedgerMark) -> None:
  """Writes the mark, on disk when this returns."""
  write(secret / _NAME, json.dumps(mark._asdict()).encode(), mode=0o600)


def kept_mark(secret: pathlib.Path) -> LedgerMark | None:
  """The mark that was written last; None if no round was done yet.

  Raises:
    ValueError: if the file is damaged.
  """
  path = secret / _NAME
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
