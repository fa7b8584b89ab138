"""The audit's binary: its tables hold the mechanisms and runs asked for, and nothing stated is refuted."""

import re

import absl.logging
import pytest

from experiments import audit as binary
from experiments.runner import launch
from experiments.runner.launch import Location

EXPERIMENT = launch.Experiment("audit", binary.Options, binary.prepare)


@pytest.fixture(scope="module", autouse=True)
def _quiet():
  absl.logging.set_verbosity(absl.logging.ERROR)


def run(tmp_path, **given):
  launch.execute(launch.prepare(EXPERIMENT, given, Location(path=str(tmp_path / "run"))))
  return (tmp_path / "run" / "report.md").read_text()


def rows(report):
  """The cells of every table row, headers too."""
  return [[cell.strip() for cell in line.strip("|").split("|")] for line in re.findall(r"^\|.*\|$", report, re.M)]


def test_mechanisms_are_below_what_they_state(tmp_path):
  names = ("scalar_dp", "laplace", "gaussian")
  report = run(tmp_path, task=("local",), mechanisms=names, epsilons=(1.0, 2.0), dim=6, num_samples=4000)
  table = rows(report)[2:]
  assert [row[0] for row in table] == 2 * list(names)
  for _, stated, bound, *_, trials in table:
    assert 0 < float(bound) < float(stated.split()[0])
    assert trials == "2000"
  assert "No stated epsilon is refuted." in report
  assert (tmp_path / "run" / "local_audit.png").stat().st_size > 10_000


def test_canaries_in_a_run(tmp_path):
  report = run(tmp_path, task=("central",), noise_multipliers=(0.5,), num_rounds=2, num_canaries=100, num_guesses=40)
  ((z, stated, bound, right, *estimates),) = rows(report)[2:]
  assert z == "0.5"
  assert 1.0 < float(bound) < float(stated)
  assert right == "40 of 40"
  assert all(float(x) > 0 for x in estimates)


@pytest.mark.parametrize("name", binary.MECHANISMS)
def test_every_mechanism_states_the_epsilon_asked_for(name):
  assert binary.MECHANISMS[name](2.0, 6).guarantee.epsilon == pytest.approx(2.0, rel=1e-8)


@pytest.mark.parametrize(
  ("given", "message"),
  [
    ({"num_samples": 100}, "Expected --num_samples of at least 10920, 200 e.epsilon, got 100"),
    ({"num_canaries": 651}, "Expected --num_guesses <= --num_canaries <= 650"),
    ({"num_guesses": 301}, "Expected --num_guesses <= --num_canaries <= 650"),
  ],
)
def test_refusals_come_before_anything_is_written(tmp_path, given, message):
  with pytest.raises(ValueError, match=message):
    run(tmp_path, **given)
  assert not (tmp_path / "run").exists()
