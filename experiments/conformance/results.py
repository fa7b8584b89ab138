"""The results that the README shows, kept in `results.json`.

    python -m experiments.conformance.results WORKDIR...

takes over what these runs found, a library and a kind of part at a time, and prints the README's
tables. Without a work directory it prints them alone.
"""

import pathlib
import sys
from collections.abc import Mapping, Sequence

from experiments.runner import files
from experiments.runner.files import Json, Row
from experiments.runner.reports.tables import table
from jdp.conformance.protocol import Finding, Verdict

PATH = pathlib.Path(__file__).parent / "results.json"
FINDINGS = "findings.json"
Results = Mapping[str, Json]


def of_part(findings: Sequence[Finding], seconds: float) -> Row:
  """What was found about all parts of one kind: counts, processor time, failures with witnesses."""
  return {
    **{verdict.value: sum(own.verdict is verdict for own in findings) for verdict in Verdict},
    "processor seconds": round(seconds, 1),
    "failures": [
      {
        "call": own.call,
        "check": own.check,
        "given": own.witness.inputs,
        "expected": own.witness.expected,
        "got": own.witness.got,
        "consequence": own.witness.consequence,
      }
      for own in findings
      if own.witness
    ],
  }


def merged(old: Results, new: Results) -> Row:
  """The old results, with those kinds of parts that are in the new ones taken from there.

  Parts of another version of a library are dropped.

  >>> old = {"libraries": {"own": {"version": "1", "parts": {"Clip": {}, "Noise": {"failed": 1}}}}}
  >>> new = {"libraries": {"own": {"version": "1", "parts": {"Noise": {"failed": 0}}}}}
  >>> merged(old, new)["libraries"]["own"]["parts"]
  {'Clip': {}, 'Noise': {'failed': 0}}
  """
  libraries = dict(old.get("libraries", {}))
  for name, own in new.get("libraries", {}).items():
    before = libraries.get(name, own)
    kept = before["parts"] if before["version"] == own["version"] else {}
    libraries[name] = {"version": own["version"], "parts": {**kept, **own["parts"]}}
  return {**old, **new, "libraries": libraries}


def counts_table(results: Results) -> str:
  """How many checks each library passes and fails, and what they take."""
  header = ["library", "version", *(verdict.value for verdict in Verdict), "processor seconds"]
  rows = (
    [name, own["version"], *(f"{total(own, column):.0f}" for column in header[2:])]
    for name, own in results["libraries"].items()
  )
  return table(header, rows)


def total(library: Results, column: str) -> float:
  """A number of a library, over all kinds of its parts."""
  return sum(part[column] for part in library["parts"].values())


def failures(library: Results) -> list[dict[str, str]]:
  """The failures of a library, over all kinds of its parts."""
  return [own for part in library["parts"].values() for own in part["failures"]]


def failures_table(failed: Sequence[Mapping[str, str]]) -> str:
  """Failures, each with its witness and what it means."""
  header = ["call", "check", "given", "expected", "got", "consequence"]
  return table(header, (cells([own[column] for column in header]) for own in failed))


def cells(words: Sequence[str]) -> list[str]:
  """Cells of a table: a bar would end one."""
  return [word.replace("|", "\\|") for word in words]


def tables(results: Results) -> str:
  """The README's tables: counts, then all failures."""
  failed = [
    {**own, "call": f"{own['call']} ({name} {library['version']})"}
    for name, library in results["libraries"].items()
    for own in failures(library)
  ]
  return f"{counts_table(results)}\n\n{failures_table(failed)}"


def main(folders: Sequence[str]) -> None:
  """Takes over the findings of work directories, and prints the tables."""
  results = files.read_json(PATH) if PATH.exists() else {"libraries": {}}
  for folder in folders:
    results = merged(results, files.read_json(pathlib.Path(folder) / FINDINGS))
  if folders:
    files.write_json(PATH, results)
  print(tables(results))


if __name__ == "__main__":
  main(sys.argv[1:])
