"""Runs that are killed at random instants end as those that were never killed: the short form."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.slow
def test_killed_experiments_end_with_equal_bytes(tmp_path):
  environment = {**os.environ, "PYTHONPATH": str(ROOT)}
  environment.setdefault("JAX_COMPILATION_CACHE_DIR", str(tmp_path))
  environment.pop("XLA_FLAGS", None)
  command = [sys.executable, "-m", "tests.faults.kills", "--count=4"]
  command.append("--experiments=draw_and_discard")
  done = subprocess.run(
    command, env=environment, cwd=ROOT, text=True, capture_output=True, timeout=600, check=False
  )
  assert done.returncode == 0, done.stderr
  assert int(re.search(r"in all: (\d+) kills", done.stdout)[1]) >= 4
