"""Three processes that resume one run at once: one goes on, the others say why they do not."""

import os
import pathlib
import subprocess
import sys
import time

import pytest

from tests.helpers.small_runs import ROUNDS

ROOT = pathlib.Path(__file__).parents[2]
RESUME = """
import pathlib, sys, time
from tests.helpers import small_runs
folder = pathlib.Path(sys.argv[1])

def wait(progress):
  while not (folder.parent / "others ended").exists():
    time.sleep(0.02)

try:
  print(len(small_runs.go(folder, callbacks=[wait]).ledger))
except ValueError as error:
  sys.exit(str(error))
"""


@pytest.mark.slow
def test_of_three_processes_one_goes_on(tmp_path, record):
  environment = {**os.environ, "PYTHONPATH": str(ROOT)}
  command = [sys.executable, "-c", RESUME, str(tmp_path / "run")]

  def begin():
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=environment, **pipes)

  first = [sys.executable, "-c", RESUME.replace("callbacks=[wait]", "stop_at=4")]
  subprocess.run([*first, command[-1]], env=environment, capture_output=True, check=False)
  processes = [begin() for _ in range(3)]
  limit = time.monotonic() + 120
  while sum(process.poll() is None for process in processes) > 1 and time.monotonic() < limit:
    time.sleep(0.05)
  (tmp_path / "others ended").touch()
  ended = [(*process.communicate(timeout=120), process.returncode) for process in processes]
  refused = [error for _, error, code in ended if code == 1]
  assert sorted(code for *_, code in ended) == [0, 1, 1], ended
  assert all("Expected no other process in the run of" in error for error in refused)
  assert [out for out, _, code in ended if code == 0] == [f"{ROUNDS}\n"]
  record("three processes at once", "", 1, 2)
