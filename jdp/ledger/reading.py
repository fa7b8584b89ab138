"""Ledger files, read as values."""

import itertools
import os
import pathlib

from jdp.ledger.file_format import read_records
from jdp.ledger.json_form import entries_from_json
from jdp.ledger.value import Ledger


def load(path: str | os.PathLike) -> Ledger:
  """Reads a file that `Ledger.save` or a `DurableLedger` wrote.

  A last line without its end is torn: the writer was killed while writing it. It is left out, as
  its round's result was never used. Any other damage, or a file without a header, raises
  ValueError.
  """
  records, _ = read_records(pathlib.Path(path))
  if not records:
    raise ValueError(f"Expected a jdp-ledger file in {path}, got a file without its header.")
  return Ledger().extend(
    itertools.chain.from_iterable(entries_from_json(r["entries"]) for r in records[1:])
  )
