"""Runs the conformance kit over libraries, and over implementations with faults to find.

There are two tasks:

* `--task=libraries` checks what is installed of `--libraries`: jdp, and others that state the same
  guarantees. Failures come with the inputs that show them.
* `--task=faults` checks implementations that are broken on purpose. The kit must find each fault,
  and pass the same implementation without it.
"""

import time
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from experiments.conformance import adapters, broken, results
from experiments.conformance import report as conformance_report
from experiments.conformance.options import ConformanceOptions
from experiments.conformance.report import Hunted
from experiments.runner import files
from experiments.runner.launch import Experiment, Work, launch
from experiments.runner.reports.parts import Part, write_report
from experiments.runner.runs.workdir import Workdir
from jdp import conformance
from jdp.conformance.protocol import Finding, Verdict
from jdp.conformance.suite import check_part


class Checked(NamedTuple):
  """A library as it was found.

  Attributes:
    library: its name.
    version: of it; "not installed" if it is not there.
    findings: those of each kind of part that was asked for.
    seconds: of processor time that each kind took.
  """

  library: str
  version: str
  findings: dict[str, list[Finding]]
  seconds: dict[str, float]


def prepare(options: ConformanceOptions) -> Work:
  """Returns the work; nothing is read beforehand."""

  def parts(workdir: Workdir) -> Iterator[Part]:
    found: dict[str, object] = {}
    if "libraries" in options.task:
      checked = [check_library(options, library) for library in options.libraries]
      found |= libraries_json(checked)
      every = {own.library: [f for kind in own.findings.values() for f in kind] for own in checked}
      yield from conformance_report.library_parts(found, every, options.error)
    if "faults" in options.task:
      hunted = hunt(options)
      found |= faults_json(hunted)
      yield conformance_report.faults_part(hunted, options.error)
    files.write_json(workdir.path / results.FINDINGS, found)

  return lambda workdir: write_report(workdir, "conformance", "Conformance", parts(workdir))


def check_library(options: ConformanceOptions, library: str) -> Checked:
  """All findings about a library; none if it is not installed."""
  if not adapters.is_installed(library):
    return Checked(library, "not installed", {}, {})
  whole, findings, seconds = adapters.implementation(library), {}, {}
  for kind in options.parts:
    begun = time.process_time()
    asked = whole._replace(parts=tuple(p for p in whole.parts if type(p).__name__ == kind))
    found = conformance.check_implementation(
      asked, seed=options.seed, error=options.error, report=_print_failure
    )
    # Kinds that were not asked for are no finding.
    findings[kind] = [own for own in found if own.part == kind]
    seconds[kind] = time.process_time() - begun
  return Checked(library, whole.version, findings, seconds)


def hunt(options: ConformanceOptions) -> list[Hunted]:
  """What the kit says about each fault, and about the same part without it."""
  check = partial(check_part, seed=options.seed, error=options.error)
  return [
    Hunted(name, *(conformance.failures(check(part)) for part in fault))
    for name, fault in broken.faults().items()
  ]


def libraries_json(checked: list[Checked]) -> dict[str, object]:
  """The counts of each library, and its failures with their witnesses, by kinds of parts."""
  libraries = {
    own.library: {
      "version": own.version,
      "parts": {
        kind: results.of_part(found, own.seconds[kind]) for kind, found in own.findings.items()
      },
    }
    for own in checked
  }
  return {"libraries": libraries}


def faults_json(hunted: list[Hunted]) -> dict[str, object]:
  """The names of all faults, of those that were missed, and of those found where there is none."""
  return {
    "faults": {
      "tried": [own.fault for own in hunted],
      "missed": [own.fault for own in hunted if not own.found],
      "accused": [own.fault for own in hunted if own.accused],
    }
  }


def _print_failure(found: Finding) -> None:
  if found.verdict is Verdict.FAILED:
    print(conformance.text_table([found]), flush=True)


EXPERIMENT = Experiment("conformance", ConformanceOptions, prepare)

if __name__ == "__main__":
  launch(EXPERIMENT)
