"""Callbacks of a run: every evaluation once, in order, with the numbers of the metrics."""

import csv
import sys
import types

import jax
import pytest

from jdp import models
from jdp.federated import callbacks
from jdp.federated.runs.training import Progress
from jdp.ledger import Ledger

ROWS = [
  {"round": 0, "accuracy": 0.1, "central_epsilon": None},
  {"round": 5, "accuracy": 0.25, "central_epsilon": 1.5},
  {"round": 10, "accuracy": 0.5, "central_epsilon": 2.0},
]
RUN = [
  Progress(
    row["round"], 10, {"w": jax.numpy.float32(number)}, row, Ledger(), None, ROWS[: number + 1]
  )
  for number, row in enumerate(ROWS)
]


def feed(callback, run=RUN):
  for progress in run:
    callback(progress)


@pytest.mark.parametrize("begun", [0, 2])
def test_a_csv_file_holds_every_evaluation(tmp_path, begun):
  """Also those from before a run was resumed."""
  feed(callbacks.csv_file(tmp_path / "metrics.csv"), RUN[begun:])
  with open(tmp_path / "metrics.csv") as file:
    rows = list(csv.DictReader(file))
  assert [row["accuracy"] for row in rows] == ["0.1", "0.25", "0.5"]
  assert [row["central_epsilon"] for row in rows] == ["", "1.5", "2.0"]


@pytest.mark.parametrize("begun", [0, 1])
def test_tensorboard_gets_each_scalar_at_its_round(tmp_path, monkeypatch, begun):
  """Also those from before a run was resumed."""
  written = []
  writer = types.SimpleNamespace(add_scalar=lambda *scalar: written.append(scalar))
  fake = types.SimpleNamespace(SummaryWriter=lambda folder, flush_secs: writer)
  monkeypatch.setitem(sys.modules, "tensorboardX", fake)
  feed(callbacks.tensorboard(tmp_path), RUN[begun:])
  assert written == [
    ("accuracy", 0.1, 0), ("accuracy", 0.25, 5), ("central_epsilon", 1.5, 5),
    ("accuracy", 0.5, 10), ("central_epsilon", 2.0, 10),
  ]  # fmt: skip


@pytest.mark.parametrize(
  ("metric", "largest", "kept"), [("accuracy", True, 2), ("accuracy", False, 0)]
)
def test_the_best_parameters_are_kept(tmp_path, metric, largest, kept):
  file = tmp_path / "best.npz"
  feed(callbacks.best_params(file, metric, largest=largest))
  like = {"w": jax.ShapeDtypeStruct((), jax.numpy.float32)}
  assert models.load_params(file, like)["w"] == kept
  feed(callbacks.best_params(file, metric, largest=largest), RUN[:1])
  assert models.load_params(file, like)["w"] == 0


def test_a_trace_is_of_the_second_block(tmp_path, monkeypatch):
  calls = []
  monkeypatch.setattr(jax.profiler, "start_trace", calls.append)
  monkeypatch.setattr(jax.profiler, "stop_trace", lambda: calls.append("stop"))
  feed(callbacks.profile(tmp_path), RUN[:2])
  assert calls == [str(tmp_path)]
  feed(callbacks.profile(tmp_path))
  assert calls[1:] == [str(tmp_path), "stop"]


def test_the_clock_tells_compiling_from_rounds(capsys, monkeypatch):
  times = iter([0.0, 7.5, 9.5])
  monkeypatch.setattr(callbacks.time, "monotonic", lambda: next(times))
  run = [*RUN[:2], RUN[2]._replace(round=9)]
  feed(callbacks.wall_clock(), run)
  assert capsys.readouterr().err.splitlines() == [
    "round 0 of 10: compiling",
    "round 5 of 10: 7.5 s for 5 rounds, with compiling",
    "round 9 of 10: 0.5 s a round, about 0 s left",
  ]


def test_without_its_package_a_writer_says_what_to_install(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, "tensorboardX", None)
  with pytest.raises(ImportError, match="pip install tensorboardX"):
    callbacks.tensorboard(tmp_path)


def test_lines_in_a_pipe_and_a_bar_on_a_terminal(capsys, monkeypatch):
  feed(callbacks.progress_bar())
  lines = capsys.readouterr().err.splitlines()
  assert lines[1] == "round 5 of 10: accuracy 0.25, central_epsilon 1.5"
  assert len(lines) == 3
  monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
  feed(callbacks.progress_bar())
  assert "10/10" in capsys.readouterr().err


@pytest.mark.slow
def test_train_calls_them(tmp_path):
  from jdp import queries
  from jdp.federated import train
  from tests.helpers.toy_rounds import towards_own_values

  train(
    towards_own_values(queries.gaussian_sum(1.0, 1.0), 20),
    jax.numpy.float32(0), jax.numpy.ones(20), num_rounds=4, evaluate_every=2,
    callbacks=[callbacks.csv_file(tmp_path / "metrics.csv")], delta=1e-5,
    evaluate=lambda value: {"error": abs(value - 1)},
  )  # fmt: skip
  assert len((tmp_path / "metrics.csv").read_text().splitlines()) == 1 + 3
