"""The report of the conformance kit: counts, failures with their witnesses, and all checks."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from experiments.conformance import results
from experiments.runner.reports.parts import Part
from experiments.runner.reports.tables import table
from jdp.conformance.protocol import Finding, Verdict


class Hunted(NamedTuple):
  """What the kit said about a fault.

  Attributes:
    fault: its name.
    found: the failures of the broken part.
    accused: the failures of the part without the fault.
  """

  fault: str
  found: list[Finding]
  accused: list[Finding]


def library_parts(
  found: results.Results, findings: Mapping[str, Sequence[Finding]], error: float
) -> Iterator[Part]:
  """A table of all libraries, then each library's failures and checks."""
  text = f"""{results.counts_table(found)}

A check that draws fails a correct implementation with probability at most {error:g}. Other checks
draw nothing. "Not applicable" are parts that a library lacks or that are not wrapped, and checks
that a part cannot be put to."""
  yield Part("Libraries", text)
  for name, own in found["libraries"].items():
    failed = results.failures(own)
    if failed:
      title = f"What fails: {name} {own['version']}"
      yield Part(title, f"{_verdict(own)}\n\n{results.failures_table(failed)}")
    if findings[name]:
      yield Part(f"All checks: {name}", _checks_table(findings[name]), printed=False)


def faults_part(hunted: Sequence[Hunted], error: float) -> Part:
  """The table of faults made on purpose, and which check found each."""
  missed = [own.fault for own in hunted if not own.found]
  accused = [own.fault for own in hunted if own.accused]
  rows = (
    [own.fault, found.check, witness.inputs, witness.expected, witness.got]
    for own in hunted
    for found in own.found[:1]
    if (witness := found.witness)  # which every failure has
  )
  text = f"""{table(["fault", "found by", "given", "expected", "got"], map(results.cells, rows))}

{_found(missed, len(hunted))} {_acquitted(accused)} A check fails a correct implementation with
probability at most {error:g}."""
  return Part("Faults made on purpose", text)


def _checks_table(findings: Sequence[Finding]) -> str:
  return table(
    ["part", "call", "check", "verdict", "note"],
    (
      results.cells([found.part, found.call, found.check, found.verdict.value, found.note])
      for found in findings
    ),
  )


def _verdict(library: results.Results) -> str:
  failed, passed = (
    round(results.total(library, own.value)) for own in (Verdict.FAILED, Verdict.PASSED)
  )
  return f"{failed} of {failed + passed} checks fail."


def _found(missed: Sequence[str], number: int) -> str:
  return f"NOT FOUND: {'; '.join(missed)}." if missed else f"All {number} faults are found."


def _acquitted(accused: Sequence[str]) -> str:
  if accused:
    return f"WRONGLY FAILED without the fault: {'; '.join(accused)}."
  return "Without its fault, each implementation passes."
