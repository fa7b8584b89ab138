"""The conformance binary: jdp passes, every fault is found, and libraries may be missing."""

import importlib.util
import pathlib
import typing

import pytest

from experiments.conformance import __main__ as binary
from experiments.conformance import adapters, broken, results
from experiments.conformance.adapters import jdp_parts
from experiments.runner import files
from jdp import conformance
from jdp.conformance import Aggregate, Clip, MatrixStrategy, Noise, Release, Sampling
from jdp.conformance.protocol import Plan
from jdp.conformance.suite import check_part
from jdp.events.sampling import SamplingEvent
from jdp.mechanisms import registry as mechanisms
from jdp.queries import registry as queries
from tests.experiments import runs

README = pathlib.Path(binary.__file__).parent / "README.md"


def run(tmp_path, **given):
  """The report, and the path of the findings."""
  finished = runs.run(binary.EXPERIMENT, tmp_path / "run", **given)
  return finished.report, finished.path / "findings.json"


@pytest.mark.slow
def test_jdp_passes_what_costs_little(tmp_path):
  report, findings = run(
    tmp_path, task=("libraries",), parts=("Clip", "Accountant", "Calibration", "MatrixStrategy")
  )
  assert "What fails" not in report
  (found,) = files.read_json(findings)["libraries"].values()
  assert results.failures(found) == []
  assert results.total(found, "failed") == 0
  assert results.total(found, "passed") > 50


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Aggregate, Noise, Sampling])
def test_jdp_passes(kind):
  """At an error of 1e-6 for each check that draws."""
  parts = [part for part in adapters.implementation("jdp").parts if isinstance(part, kind)]
  assert len(parts) >= 6
  assert not [found for part in parts for found in conformance.failures(check_part(part))]


def test_everything_registered_is_audited():
  parts = list(jdp_parts._releases())
  assert {type(part) for part in parts} == {Release}
  audited = {part.call for part in parts}
  assert {f"mechanism {name}" for name in mechanisms.registered()} <= audited
  assert {f"query {name}" for name in queries.registered()} - audited == {"query no_privacy"}
  laws = {type(part.law) for part in jdp_parts._samplings()}
  assert laws == set(typing.get_args(SamplingEvent))
  (relation,) = jdp_parts._mechanism("laplace")
  assert relation == "replace one"


FAULTS = broken.faults()


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_found_and_nobody_else_accused(name):
  fault = FAULTS[name]
  assert conformance.failures(check_part(fault.broken))
  assert not conformance.failures(check_part(fault.sound))


def test_faults_that_are_missed_are_named(tmp_path, monkeypatch):
  sound = Clip("clip", lambda record: 0 * record, 1.0)
  right = broken.faults()["a record of NaN passes the clipping"].sound
  monkeypatch.setattr(broken, "faults", lambda: {"none": broken.Fault(right, sound)})
  report, _ = run(tmp_path, task=("faults",))
  assert "NOT FOUND: none." in report
  assert "WRONGLY FAILED without the fault: none." in report


def test_the_readme_shows_the_results_that_the_command_wrote():
  """`python -m experiments.conformance.results` prints the tables for the README."""
  found = files.read_json(results.PATH)
  assert results.tables(found) in README.read_text()
  assert found["faults"] == {"tried": list(FAULTS), "missed": [], "accused": []}
  assert f"all {len(FAULTS)} faults are found" in README.read_text()
  assert {"jdp"} <= set(found["libraries"]) <= set(adapters.LIBRARIES)
  assert results.total(found["libraries"]["jdp"], "failed") == 0


def test_results_are_taken_over_by_kinds_of_parts_and_dropped_with_their_version():
  def of(version, **parts):
    return {"libraries": {"own": {"version": version, "parts": parts}}}

  old = of("1", Clip={"failed": 1}, Noise={"failed": 2})
  assert results.merged(old, of("1", Clip={"failed": 0})) == of(
    "1", Clip={"failed": 0}, Noise={"failed": 2}
  )
  assert results.merged(old, of("2", Clip={})) == of("2", Clip={})
  assert results.merged(old, {"faults": {}}) == {**old, "faults": {}}


def test_libraries_that_are_not_installed_are_left_out(tmp_path, monkeypatch):
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
  report, findings = run(tmp_path, task=("libraries",), libraries=("pfl", "opacus"))
  assert report.count("not installed") == 2
  found = files.read_json(findings)
  assert {own["version"] for own in found["libraries"].values()} == {"not installed"}


def test_dp_accounting_is_checked_where_it_is_installed():
  parts = adapters.implementation("dp_accounting").parts
  pld = next(part for part in parts if part.call.endswith("PLDAccountant(ADD_OR_REMOVE_ONE)"))
  plan = Plan(1.0, 1, 1e-5)
  assert pld.epsilon(plan, 1.0) == pytest.approx(4.3775, rel=1e-3)


def test_a_matrix_with_rows_for_columns_is_refuted_by_its_witness():
  fault = FAULTS["row norms are taken for column norms"]
  assert isinstance(fault.broken, MatrixStrategy)
  ((found,),) = [conformance.failures(check_part(fault.broken))]
  assert found.witness.inputs == "one record in rounds 0, 4, 8 of 12"
  assert found.witness.expected == "C G moves by <= 1.733"
