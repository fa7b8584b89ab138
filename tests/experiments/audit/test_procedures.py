"""Audited training procedures: bounds below what is stated, and faults that are found."""

import pathlib
import types

import jax
import pytest

from experiments.audit import broken_procedures, procedure_audits, procedure_report
from experiments.audit.procedure_audits import Row
from experiments.audit.procedures import PROCEDURES, adversaries, subject
from jdp import conformance

FOLDER = pathlib.Path(procedure_report.__file__).parent
OPTIONS = types.SimpleNamespace(
  num_runs=8000, one_run_canaries=400, delta=1e-5, confidence=0.999, central_confidence=0.95, seed=0
)


def test_the_committed_results_hold_all_procedures():
  sound, broken = procedure_report.load(FOLDER / "results" / procedure_report.RESULTS)
  adversaries_of_instances = [row.name for row in sound[len(PROCEDURES) :]]
  assert [row.name for row in sound[: len(PROCEDURES)]] == list(PROCEDURES)
  assert [name.split()[-1] for name in adversaries_of_instances] == ["I", "II", "III"]
  assert [row.name for row in broken] == list(broken_procedures.BROKEN)
  assert not any(map(procedure_report.is_refuted, sound))
  assert all(map(procedure_report.is_refuted, broken))
  # What is asked of an audit whose analysis is tight.
  assert all(row.proved > 0.6 * row.stated for row in sound)


def test_a_bound_of_any_kind_refutes():
  row = Row("own", 0.1, 1.0, 0.9, strict_stated=4.0, gaussian=3.9)
  assert not procedure_report.is_refuted(row)
  for excess in ({"proved": 1.1}, {"last_model": 1.1}, {"learned": 1.1}, {"one_run": 4.1}):
    assert procedure_report.is_refuted(row._replace(**excess)), excess
  assert not procedure_report.is_refuted(row._replace(one_run_gaussian=2.0))


def test_tables_round_against_the_audit():
  row = Row(
    "own", 0.1, 1.00001, 0.99999, strict_delta=1e-5, strict_stated=4.00001, gaussian=3.99999
  )
  text = procedure_report.tables([row], [row])
  assert text.count("1.001") == 2  # stated, in the first table and the last
  assert text.count("0.9999") == 2
  assert "4.001" in text
  assert "3.999 " in text
  assert "99.9 %" in text


@pytest.mark.slow
def test_a_procedure_is_below_what_it_states_in_many_runs_and_in_one():
  """Each bound holds with probability 99.9 %, on a fixed key."""
  procedure = PROCEDURES["FedAvg"]
  own = subject(procedure)
  found = procedure_audits.from_many_runs(own, procedure, jax.random.key(1), OPTIONS, 0.999)
  for name in ("proved", "last_model", "learned"):
    assert 0.5 * own.epsilon < found[name] < own.epsilon, name
  once = procedure_audits.from_one_run(own, procedure, jax.random.key(2), OPTIONS, 0.95)
  assert 0.99 * own.epsilon < once["certified"] <= own.epsilon
  assert 0.7 * once["strict_stated"] < found["gaussian"] < once["strict_stated"]
  assert 0 < once["one_run"] < once["one_run_gaussian"] < once["strict_stated"]


@pytest.mark.slow
def test_a_fault_is_found():
  """Half of the sensitivity: the bound is more than twice what is stated."""
  case = broken_procedures.BROKEN["replace-one, by the sensitivity of zero-out"]
  found = conformance.audit(
    broken_procedures.subject(*case), jax.random.key(0), num_samples=8000, confidence=0.999
  )
  assert found.bound > 2 * found.epsilon


@pytest.mark.slow
def test_the_second_adversary_sees_as_much_as_the_first():
  """Equal instances hide nothing: whichever was replaced is the one that differs."""
  for name, own in adversaries(2.0).items():
    found = conformance.audit(own, jax.random.key(4), num_samples=8000, confidence=0.999)
    assert 0.6 * own.epsilon < found.bound <= own.epsilon, name
