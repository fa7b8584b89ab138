"""The result of a finished run, and whether its files are still as the run left them."""

import hashlib
import pathlib
from collections.abc import Mapping

from experiments.runner.files import Row
from experiments.runner.runs.costs import costs
from experiments.runner.runs.training import DIAGNOSTICS
from jdp._files import read_bytes
from jdp.federated.runs.run_folder import LEDGER, METRICS, PARAMS
from jdp.federated.runs.whole_files import read_sealed, write_sealed
from jdp.ledger import Ledger, load, load_file
from jdp.ledger.json_form import to_json

RESULT = "result.json"
LINK = "ledger_link"
"""The field of a result that keeps its ledger's last link, which stands for all of the ledger."""

_FILES = (LEDGER, METRICS, PARAMS, DIAGNOSTICS)


def cost(ledger: Ledger, delta: float, accountant: str) -> Row:
  """What a result says of a run's cost, as JSON data: its caveats and its `Costs`."""
  guarantees = costs(ledger, delta, accountant)._asdict()
  beside = guarantees.pop("beside")
  stated = {name: guarantee and to_json(guarantee) for name, guarantee in guarantees.items()}
  return {"not_private": list(ledger.caveats), "beside": beside, **stated}


def write_result(folder: pathlib.Path, content: Mapping[str, object]) -> None:
  """Writes the result of a run, with its ledger's link and digests of the files that it has left.

  Raises:
    ValueError: if its ledger or metrics are gone.
  """
  digests = _digests(folder)
  for name in (LEDGER, METRICS):
    if name not in digests:
      raise ValueError(
        f"Expected {folder / name}, which this run wrote, got none: it was removed meanwhile; "
        "restore it from a copy, and continue with --resume."
      )
  link = load_file(folder / LEDGER).link
  write_sealed(folder / RESULT, {**content, LINK: link, "files": digests})


def read_result(folder: pathlib.Path) -> Row:
  """The result of a finished run, without what is there to check it."""
  return {name: value for name, value in read_sealed(folder / RESULT).items() if name != "files"}


def check_finished(folder: pathlib.Path, delta: float, accountant: str) -> None:
  """Refuses a finished run whose files changed, or whose cost is not that of its ledger.

  Raises:
    ValueError: in either case.
  """
  result = read_sealed(folder / RESULT)
  found = _digests(folder)
  for name, written in result["files"].items():
    if found.get(name) != written:
      raise ValueError(
        f"Expected {folder / name} as its run left it, got a file that was changed, damaged or "
        "removed; restore it from a copy, or start anew in another folder."
      )
  found_cost = cost(load(folder / LEDGER), delta, accountant)
  if any(result[name] != value for name, value in found_cost.items()):
    raise ValueError(
      f"Expected in {folder / RESULT} the cost that {LEDGER} beside it has, got another; restore "
      "both from a copy, or start anew in another folder."
    )


def _digests(folder: pathlib.Path) -> dict[str, str]:
  """The SHA-256 hash of each file of a run, by its name."""
  return {
    name: hashlib.sha256(read_bytes(folder / name)).hexdigest()
    for name in _FILES
    if (folder / name).exists()
  }
