"""The report on whole runs with correlated noise; `tests.audits.test_correlated_runs` has them."""

import pytest

from experiments.audit import correlated_runs
from experiments.audit.__main__ import EXPERIMENT
from tests.experiments import runs
from tests.experiments.report_tables import rows


@pytest.mark.slow
def test_the_table_of_runs_has_sound_and_broken_ones(tmp_path, monkeypatch):
  monkeypatch.setattr(
    correlated_runs, "SOUND", {"banded_toeplitz": correlated_runs.SOUND["banded_toeplitz"]}
  )
  report = runs.run(EXPERIMENT, tmp_path / "run", task=("runs",), num_runs=2000).report
  table = rows(report)[2:]
  assert [row[0] for row in table] == ["banded_toeplitz", "banded, rows for columns"]
  assert 0 < float(table[0][2]) < float(table[0][1].split()[0])
  assert "No stated epsilon is refuted." in report
  assert "NOT FOUND: banded, rows for columns." in report  # of so few runs
