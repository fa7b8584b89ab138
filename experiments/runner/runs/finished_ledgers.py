"""The ledgers of finished runs, as reports and later runs read them."""

import pathlib

from experiments.runner import files
from experiments.runner.runs.results import LINK, RESULT
from jdp.federated.runs.run_folder import LEDGER
from jdp.ledger import Ledger, load_file


def finished_ledger(folder: pathlib.Path) -> Ledger:
  """The ledger of a finished run, if it is the one that the run's result was stated for.

  Ledgers without links, as jdp once wrote them, are taken as they are. So is a ledger whose run
  left no result, if it is closed.

  Args:
    folder: of the run. It has the ledger, and the result beside it.

  Raises:
    ValueError: if the ledger is damaged, was not closed, or is another than the result's.
  """
  found = load_file(folder / LEDGER)
  if found.link is not None and not found.closed:
    raise ValueError(
      f"Expected the ledger of a finished run in {folder / LEDGER}, got one that is not closed: "
      "rounds may be missing at its end; finish the run with --resume, or restore the file."
    )
  result = folder / RESULT
  stated = files.read_json(result).get(LINK) if result.exists() else None
  if stated is not None and found.link != stated:
    raise ValueError(
      f"Expected the ledger with link {stated} in {folder / LEDGER}, for which {RESULT} beside it "
      f"was stated, got one with link {found.link}; restore both files from one copy."
    )
  return found.ledger
