"""The report of the conformance kit: counts, failures with their witnesses, and all checks."""

from collections.abc import Iterator, Sequence
from typing import Any

from experiments.runner.reports.parts import Part
from experiments.runner.reports.tables import table
from jdp.conformance import Finding, Verdict


def counts(findings: Sequence[Finding]) -> dict[str, int]:
  """How many findings there are of each verdict."""
  return {verdict.value: sum(found.verdict is verdict for found in findings) for verdict in Verdict}


def library_parts(checked: Sequence[Any], error: float) -> Iterator[Part]:
  """A table of all libraries, then each library's failures and checks."""
  text = f"""{counts_table(checked)}

A check that draws fails a correct implementation with probability at most {error:g}. Other checks
draw nothing. "Not applicable" are parts that a library lacks or that are not wrapped, and checks
that a part cannot be put to."""
  yield Part("Libraries", text)
  for own in checked:
    failed = [found for found in own.findings if found.witness]
    if failed:
      title = f"What fails: {own.library} {own.version}"
      yield Part(title, f"{_verdict(own.findings)}\n\n{failures_table(failed)}")
    if own.findings:
      yield Part(f"All checks: {own.library}", _checks_table(own.findings), printed=False)


def faults_part(hunted: Sequence[Any], error: float) -> Part:
  """The table of faults made on purpose, and which check found each."""
  missed = [own.fault for own in hunted if not own.found]
  accused = [own.fault for own in hunted if own.accused]
  rows = (
    [own.fault, found.check, found.witness.inputs, found.witness.expected, found.witness.got]
    for own in hunted
    for found in own.found[:1]
  )
  text = f"""{table(["fault", "found by", "given", "expected", "got"], map(_cells, rows))}

{_found(missed, len(hunted))} {_acquitted(accused)} A check fails a correct implementation with
probability at most {error:g}."""
  return Part("Faults made on purpose", text)


def counts_table(checked: Sequence[Any]) -> str:
  """How many checks each library passes and fails."""
  header = ["library", "version", *(verdict.value for verdict in Verdict)]
  return table(
    header,
    ([own.library, own.version, *map(str, counts(own.findings).values())] for own in checked),
  )


def failures_table(failed: Sequence[Finding]) -> str:
  """The failures of a library, each with its witness and what it means."""
  header = ["call", "check", "given", "expected", "got", "consequence"]
  return table(
    header, (_cells([found.call, found.check, *found.witness]) for found in failed if found.witness)
  )


def _checks_table(findings: Sequence[Finding]) -> str:
  return table(
    ["part", "call", "check", "verdict", "note"],
    (
      _cells([found.part, found.call, found.check, found.verdict.value, found.note])
      for found in findings
    ),
  )


def _verdict(findings: Sequence[Finding]) -> str:
  number = counts(findings)
  done = number[Verdict.PASSED.value] + number[Verdict.FAILED.value]
  return f"{number[Verdict.FAILED.value]} of {done} checks fail."


def _found(missed: Sequence[str], number: int) -> str:
  return f"NOT FOUND: {'; '.join(missed)}." if missed else f"All {number} faults are found."


def _acquitted(accused: Sequence[str]) -> str:
  if accused:
    return f"WRONGLY FAILED without the fault: {'; '.join(accused)}."
  return "Without its fault, each implementation passes."


def _cells(words: Sequence[str]) -> list[str]:
  """Cells of a table: a bar would end one."""
  return [word.replace("|", "\\|") for word in words]
