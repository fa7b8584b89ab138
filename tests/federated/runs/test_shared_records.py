"""Several processes train in one work directory: one of them writes, and all do the same."""

import json

import numpy as np
import pytest

from jdp.federated.runs import shared_records
from jdp.ledger import load_file
from jdp.models import load_params
from tests.helpers.processes import two_process_scripts
from tests.helpers.processes.two_processes_train import NUM_ROUNDS, divided


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  """The folder of both processes, and what each of them says."""
  folder = tmp_path_factory.mktemp("two")
  two_process_scripts.finish(two_process_scripts.start("two_processes_train.py", folder, devices=2))
  return folder, [json.loads((folder / f"{number}.json").read_text()) for number in range(2)]


@pytest.mark.slow
def test_two_processes_train_in_one_work_directory(run):
  """Also after an interruption, and an error of the first is an error of both."""
  folder, (first, second) = run
  assert first["interrupted"]
  assert second["interrupted"]
  assert first["resumed"] == second["resumed"]
  assert first["resumed"]["events"] == NUM_ROUNDS
  assert [row["round"] for row in first["resumed"]["metrics"]] == [0, 2, 4, 6, NUM_ROUNDS]
  assert not first["resumed"]["caveats"]
  book = load_file(folder / "run/ledger.jsonl")
  assert (len(book.ledger), book.closed) == (NUM_ROUNDS, True)
  assert not (folder / "nobody writes here").exists()
  assert first["refused"].startswith("Expected no further rounds in")
  assert second["refused"].startswith("Expected the first process to go on, got its error: Expec")


@pytest.mark.slow
def test_parameters_may_be_divided_over_two_processes(run, tmp_path):
  """The run, killed and resumed, has the bits of one device, in the files of the first too."""
  folder, (first, second) = run
  assert first["parts"] == second["parts"] == [[2, 4], [2, 4]]
  assert first["divided"] == second["divided"]
  alone = divided(None, tmp_path)
  np.testing.assert_array_equal(np.float32(first["divided"]["params"]), alone.params)
  assert first["divided"]["metrics"] == alone.metrics
  released = load_params(folder / "divided/params.npz", alone.params)
  np.testing.assert_array_equal(released, alone.params)


@pytest.mark.parametrize("content", [b"", b"ab", b"abcde", b"abcdef"])
def test_a_long_message_is_sent_in_parts(monkeypatch, content):
  sent = []

  def broadcast(words):
    sent.append(words)
    return words.astype(np.int32)

  monkeypatch.setattr(shared_records, "_PART", 3)
  monkeypatch.setattr(shared_records.multihost_utils, "broadcast_one_to_all", broadcast)
  assert shared_records.told(lambda: content) == content
  assert max(map(len, sent)) <= 3


def test_others_hear_of_a_failure_whatever_it_is(monkeypatch):
  """Else they would wait for a process that was told to exit."""
  heard = []
  monkeypatch.setattr(shared_records.multihost_utils, "process_allgather", heard.append)

  def leave():
    raise SystemExit(3)

  with pytest.raises(SystemExit):
    shared_records.together(leave)
  assert heard == [1]
