"""The experiment of cohort sizes: its errors follow the theory, its noise the target."""

import pytest

from experiments.cohort_size.__main__ import EXPERIMENT
from tests.experiments import runs

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


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
  return runs.run(EXPERIMENT, tmp_path_factory.mktemp("cohort_size") / "run", **TINY)


@pytest.fixture(scope="module")
def rows(finished):
  return {(row["run"], row["size"]): row for row in finished.results["summary"]}


def test_every_size_spends_the_target(rows):
  for size in TINY["cohort_sizes"]:
    assert rows["none", size]["central"] is rows["clipped", size]["central"] is None
    for name in ("central", "local"):
      assert 7.9 < rows[name, size]["central"]["epsilon"] <= 8.0
    assert rows["local", size]["release"] is not None
  assert rows["central", EVERYBODY]["z"] > rows["central", 20]["z"]


def test_errors_are_those_of_noise_and_of_the_choice_of_the_cohort(rows):
  """Five rounds of 650 coordinates tell a noise to 6 % by five of their errors (1.2 %).

  Rounds of everybody have no other error. Smaller cohorts add at most S over the root of the size.
  """
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
  for heading in ("Accuracy", "Error of a round's average", "Processor time of a round"):
    assert f"## {heading}\n\n| cohort | no privacy " in finished.out
  assert any(
    "averages with that of all users" in reason for reason in finished.results["not_private"]
  )
  assert {"accuracy_against_cohort.png", "error_against_cohort.png", "report.md"} <= {
    file.name for file in finished.path.iterdir()
  }


def test_a_cohort_larger_than_the_population_is_refused(tmp_path):
  with pytest.raises(ValueError, match="at most 143 users, got 144"):
    runs.prepare(EXPERIMENT, tmp_path / "run", **TINY | {"cohort_sizes": (20, 144)})
