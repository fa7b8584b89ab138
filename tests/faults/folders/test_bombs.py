"""Files that ask for more memory or time than they are worth are refused by a sentence."""

import json
import subprocess
import sys

import pytest


@pytest.mark.slow
def test_no_file_takes_a_hundred_megabytes_or_is_waited_for():
  command = [sys.executable, "-m", "tests.faults.folders.file_bombs"]
  found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
  assert len(found["outcomes"]) > 30
  wrong = {
    name: outcome
    for name, outcome in found["outcomes"].items()
    if not outcome.startswith("refused: Expected")
  }
  assert not wrong
  assert found["megabytes"] < 100
