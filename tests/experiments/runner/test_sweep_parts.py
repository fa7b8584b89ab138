"""A sweep cut into parts, and merged: the same files and the same report as in one piece."""

import dataclasses
import shutil

import hypothesis
import hypothesis.strategies as st
import pytest

from experiments.dp_fedavg.__main__ import EXPERIMENT
from experiments.draw_and_discard.__main__ import DrawAndDiscardOptions
from experiments.runner import launch
from experiments.runner.launch import Location
from experiments.runner.options import resolve
from experiments.runner.reports import plots
from experiments.runner.runs import sweep
from experiments.runner.runs.sweep_parts import own_runs

FLAGS = {
  "runs": ("none", "private"),
  "vary": ("clip_norm=0.5,1",),
  "local_training": "gradient",
  "num_rounds": 4,
  "eval_every": 2,
  "seeds": 2,
  "noise_seed": 3,
}
PARTS = [f"{number}/4" for number in range(1, 5)]


class Killed(BaseException):
  pass


def go(path, given=FLAGS, **place):
  launch.execute(launch.prepare(EXPERIMENT, given, Location("smoke", str(path), **place)))


def merge(parts, path, given=None):
  go(path, given or {}, merge=str(parts))


def files(folder):
  return {
    str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()
  }


@pytest.fixture(scope="module", autouse=True)
def _without_plots():
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(plots, "save", lambda *_: None)
    yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
  """The folder of four parts. The first was killed in its second run, and resumed."""
  folder, made = tmp_path_factory.mktemp("parts"), sweep.train_run

  def killed(run, *rest):
    if run.name == "private_1/0":
      raise Killed
    return made(run, *rest)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(sweep, "train_run", killed)
    with pytest.raises(Killed):
      go(folder / "1", {**FLAGS, "part": "1/4"})
  assert (folder / "1/none/0/result.json").exists()
  with pytest.raises(ValueError, match="got none of part 1/4: private_1/0; of part 2/4: none/1,"):
    merge(folder, folder.parent / "early")
  go(folder / "1", {}, resume=True)
  for part in PARTS[1:]:
    go(folder / part[0], {**FLAGS, "part": part})
  return folder


@pytest.fixture
def parts(finished, tmp_path):
  return shutil.copytree(finished, tmp_path / "parts")


def test_merged_parts_are_the_sweep_in_one_piece(finished, tmp_path):
  go(tmp_path / "whole")
  merge(finished, tmp_path / "merged")
  whole = files(tmp_path / "whole")
  assert files(tmp_path / "merged") == whole
  assert {"report.md", "results.json", "private_0.5/1/params.npz"} <= set(whole)
  assert not (tmp_path / "merged.secret").exists()
  for part in PARTS:
    assert not {"report.md", "results.json"} & set(files(finished / part[0]))
  go(tmp_path / "merged", {}, resume=True)  # It is a finished run like any other.
  assert files(tmp_path / "merged") == whole


def refused(parts, message, **given):
  with pytest.raises(ValueError, match=message):
    merge(parts, parts.parent / "merged", given)
  assert not (parts.parent / "merged").exists()


def test_a_missing_part_or_run_is_named(parts):
  shutil.move(parts / "3", parts.parent)
  refused(
    parts, r"Expected all 6 runs of the sweep in .*, got none of part 3/4: private_0.5/0; run"
  )
  (parts / "2/none/1/result.json").unlink()
  refused(parts, r"got none of part 2/4: none/1; of part 3/4: private_0.5/0; run these parts")


def test_what_is_no_part_of_the_sweep_is_refused(parts):
  refused(parts, "Expected --seeds=2, with which the run was begun, got 3", seeds=3)
  shutil.copytree(parts / "3", parts / "again")
  refused(parts, "Expected each part once in .*, got part 3/4 in .*/3 and in .*/again, each with")
  shutil.rmtree(parts / "again")
  shutil.rmtree(parts / "3")
  go(parts / "3", {**FLAGS, "part": "3/4", "server_learning_rate": 0.5})
  refused(
    parts, "Expected --server_learning_rate=1.0 in .*/3, as in .*/1, got 0.5; merge the parts"
  )
  shutil.rmtree(parts)
  refused(parts, "Expected work directories of parts in .*, got none; name their folder")


def test_a_changed_file_of_a_part_is_refused(parts):
  path = parts / "2/private_1/1/metrics.jsonl"
  path.write_text(path.read_text().replace("0.", "1."))
  with pytest.raises(ValueError, match=r"Expected .*metrics.jsonl as its run left it, got a file"):
    merge(parts, parts.parent / "merged")


@hypothesis.given(st.integers(0, 300), st.integers(1, 40))
def test_parts_are_disjoint_balanced_and_all(num_runs, count):
  own = [list(own_runs(f"{number}/{count}", num_runs)) for number in range(1, count + 1)]
  assert sorted(run for runs in own for run in runs) == list(range(num_runs))
  assert max(map(len, own)) - min(map(len, own)) <= 1


@pytest.mark.parametrize(
  ("given", "message"),
  [
    ({"part": "0/4"}, "Expected --part as in 3/20, the third of twenty, got 0/4"),
    ({"part": "5/4"}, "Expected --part as in 3/20, the third of twenty, got 5/4"),
    ({"part": "1"}, "Expected --part as in 3/20, the third of twenty, got 1"),
    ({"part": "1/4", "select": "private"}, "Expected no --part with --select=private, which all"),
    ({"part": "1/4", "layout": "fastest"}, "Expected no --part with --layout=fastest, which all"),
    (
      {"part": "1/4", "dataset": "modules", "vocabulary": "private"},
      "Expected no --part with --vocabulary=private, which all runs share",
    ),
  ],
)
def test_what_cannot_be_cut_is_refused(given, message):
  with pytest.raises(ValueError, match=message):
    resolve(EXPERIMENT.options_type, given, {"noise_multiplier": 1.0})


def test_a_task_without_a_sweep_is_not_cut():
  options = resolve(DrawAndDiscardOptions, {"task": "variance"})
  with pytest.raises(ValueError, match="Expected no --part with --task=variance"):
    dataclasses.replace(options, part="1/2")


def test_a_merge_is_not_resumed(tmp_path):
  place = Location("smoke", str(tmp_path / "merged"), resume=True, merge=str(tmp_path))
  with pytest.raises(ValueError, match="Expected --merge without --resume, got both"):
    launch.prepare(EXPERIMENT, {}, place)
