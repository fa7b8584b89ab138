"""The experiment of cohort sizes: its errors follow the theory, its noise the target."""

import contextlib
import io
import json

import pytest

from experiments.cohort_size.__main__ import EXPERIMENT
from experiments.runner import launch
from experiments.runner.launch import Location

EVERYBODY = 143
TINY = {
  "examples_per_user": 10,
  "cohort_sizes": (20, EVERYBODY),
  "num_rounds": 2,
  "eval_every": 2,
  "seeds": 1,
  "target_epsilon": 8.0,
  "max_update_norm": 0.5,
  "noise_seed": 3,
}


def run(path, **given):
  out = io.StringIO()
  with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
    launch.execute(launch.prepare(EXPERIMENT, {**TINY, **given}, Location(path=str(path))))
  return out.getvalue()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
  path = tmp_path_factory.mktemp("cohort_size") / "run"
  out = run(path)
  content = json.loads((path / "results.json").read_text())
  return path, out, {(row["run"], row["size"]): row for row in content["summary"]}, content


def test_every_size_spends_the_target(finished):
  rows = finished[2]
  for size in TINY["cohort_sizes"]:
    assert rows["none", size]["central"] is rows["clipped", size]["central"] is None
    for name in ("central", "local"):
      assert 7.9 < rows[name, size]["central"]["epsilon"] <= 8.0
    assert rows["local", size]["release"] is not None
  assert rows["central", EVERYBODY]["z"] > rows["central", 20]["z"]


def test_errors_are_those_of_noise_and_of_the_choice_of_the_cohort(finished):
  """Five rounds of 650 coordinates tell a noise to 6 % by five of their errors (1.2 %).

  Rounds of everybody have no other error. Smaller cohorts add at most S over the root of the size.
  """
  rows = finished[2]
  errors = {key: row["error"] for key, row in rows.items()}
  assert errors["none", EVERYBODY]["measured"] < 1e-5
  assert errors["clipped", EVERYBODY]["measured"] < 1e-5
  central = errors["central", EVERYBODY]
  assert central["measured"] == pytest.approx(central["noise"], rel=0.06)
  chosen = errors["central", 20]
  upper = (chosen["noise"] ** 2 + TINY["max_update_norm"] ** 2 / 20) ** 0.5
  assert 0.94 * chosen["noise"] < chosen["measured"] < 1.06 * upper
  for size in TINY["cohort_sizes"]:
    assert errors["local", size]["measured"] > errors["central", size]["measured"]


def test_the_report_has_the_tables_and_says_what_is_not_private(finished):
  path, out, _, content = finished
  for heading in ("Accuracy", "Error of a round's average", "Processor time of a round"):
    assert f"## {heading}\n\n| cohort | no privacy " in out
  assert any("averages with that of all users" in reason for reason in content["not_private"])
  assert {"accuracy_against_cohort.png", "error_against_cohort.png", "report.md"} <= {
    file.name for file in path.iterdir()
  }


def test_a_cohort_larger_than_the_population_is_refused(tmp_path):
  with pytest.raises(ValueError, match="at most 143 users, got 144"):
    launch.prepare(
      EXPERIMENT, {**TINY, "cohort_sizes": (20, 144)}, Location(path=str(tmp_path / "run"))
    )
