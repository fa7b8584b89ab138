"""Several processes train in one work directory: one of them writes, and all do the same."""

import json

import pytest

from jdp.federated.runs import shared_records
from jdp.ledger import load_file
from tests.helpers.processes import two_process_scripts
from tests.helpers.processes.two_processes_train import NUM_ROUNDS


@pytest.mark.slow
def test_two_processes_train_in_one_work_directory(tmp_path):
  """Also after an interruption, and an error of the first is an error of both."""
  two_process_scripts.finish(
    two_process_scripts.start("two_processes_train.py", tmp_path, devices=2)
  )
  first, second = (json.loads((tmp_path / f"{number}.json").read_text()) for number in range(2))
  assert first["interrupted"]
  assert second["interrupted"]
  assert first["resumed"] == second["resumed"]
  assert first["resumed"]["events"] == NUM_ROUNDS
  assert [row["round"] for row in first["resumed"]["metrics"]] == [0, 2, 4, 6, NUM_ROUNDS]
  assert not first["resumed"]["caveats"]
  book = load_file(tmp_path / "run/ledger.jsonl")
  assert (len(book.ledger), book.closed) == (NUM_ROUNDS, True)
  assert not (tmp_path / "nobody writes here").exists()
  assert first["refused"].startswith("Expected no further rounds in")
  assert second["refused"].startswith("Expected the first process to go on, got its error: Expec")


def test_others_hear_of_a_failure_whatever_it_is(monkeypatch):
  """Else they would wait for a process that was told to exit."""
  heard = []
  monkeypatch.setattr(shared_records.multihost_utils, "process_allgather", heard.append)

  def leave():
    raise SystemExit(3)

  with pytest.raises(SystemExit):
    shared_records.together(leave)
  assert heard == [1]
