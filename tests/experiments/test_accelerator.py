"""The smallest run on an accelerator, on whatever device there is."""

import json
import subprocess
import sys

import pytest


def ran(*arguments):
  """What the program prints."""
  command = [sys.executable, "-m", "experiments.benchmarks.accelerator", *map(str, arguments)]
  return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
def test_the_smallest_run_checks_and_measures_and_prints_its_table(tmp_path):
  path = tmp_path / "found.jsonl"
  printed = ran("--smallest", "--rounds=1", f"--json={path}")
  rows = [json.loads(line) for line in path.read_text().splitlines()]
  checks = [row for row in rows if row["part"] == "checks"]
  assert len(checks) == 8
  assert all(row["holds"] and row["error"] <= row["most"] for row in checks)
  timed = [row for row in rows if row["part"] != "checks"]
  assert {row["part"] for row in timed} == {"draws", "PrivUnit", "cohorts"}
  assert all(row["rate"] > 0 and row["machine"]["devices"] for row in timed)
  assert ran(f"--table={path}").strip() in printed
