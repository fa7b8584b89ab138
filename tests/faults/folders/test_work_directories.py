"""Work directories of experiments after edits, damage and kills, with an experiment of no cost."""

import dataclasses
import json
import shutil

import jax.numpy as jnp
import pytest

from experiments.runner import launch
from experiments.runner.launch import Experiment, Location
from experiments.runner.options import from_json, option, resolve
from experiments.runner.runs import sweep
from experiments.runner.runs.training import TrainingOptions
from jdp import _validate
from jdp.federated.runs.whole_files import read_sealed, write_sealed
from tests.faults.failing_calls import fail_at
from tests.helpers.small_runs import ALGORITHM, CLIENTS, DELTA


@dataclasses.dataclass(frozen=True)
class Options(TrainingOptions):
  num_rounds: int = option(4, "Rounds.", check=_validate.positive)
  eval_every: int = option(2, "Rounds between evaluations.", check=_validate.positive)
  noise_multiplier: float | None = option(1.0, "z.", check=_validate.positive)
  names: tuple[str, ...] = option(("a", "b"), "Of settings.", choices=("a", "b", "c"))


def prepare(options):
  settings = [sweep.Setting(name, name, ALGORITHM) for name in options.names]
  made = sweep.Sweep(
    settings,
    lambda key: jnp.zeros(2),
    lambda params: {"first": params[0]},
    CLIENTS,
    1.0,
    DELTA,
  )
  return lambda folder: sweep.run_sweep(made, None, folder, options, report)


def report(finished):
  results.append(finished.results)


results = []
EXPERIMENT = Experiment("private_federated", Options, prepare)  # Its folder has a preset.


def start(path, *, resume=False):
  location = Location("smoke", str(path), resume)
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(launch.options, "read_flagfile", lambda *_: {})
    return launch.prepare(EXPERIMENT, {}, location)


def run(path, *, resume=False):
  launch.execute(start(path, resume=resume))
  return results[-1]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
  path = tmp_path_factory.mktemp("finished") / "run"
  run(path)
  return path


@pytest.fixture
def begun(tmp_path):
  """A work directory as it is before the first run."""
  start(tmp_path / "run").lock.close()
  return tmp_path / "run"


def edit(path, old, new):
  content = path.read_text()
  assert old in content
  path.write_text(content.replace(old, new))


@pytest.mark.parametrize(
  ("old", "new"),
  [
    ('"noise_multiplier": 1.0', '"noise_multiplier": 10.0'),
    ('"num_rounds": 4', '"num_rounds": 5'),
    ('"experiment"', '"experimend"'),
    ("{", "["),
    ('"digest"', '"digesu"'),
  ],
)
def test_edited_flags_are_refused(begun, old, new):
  edit(begun / "flags.json", old, new)
  with pytest.raises(ValueError, match=r"flags\.json as it was written, got a file that"):
    start(begun, resume=True)


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"noise_multiplier": -1.0}, "noise_multiplier to be a finite number > 0"),
    ({"noise_multiplier": "1"}, "--noise_multiplier to be float, got '1'"),
    ({"noise_multiplier": True}, "--noise_multiplier to be float, got True"),
    ({"num_rounds": 4.0}, "--num_rounds to be int, got 4.0"),
    ({"diagnostics": 1}, "--diagnostics to be bool, got 1"),
    ({"names": "ab"}, "--names to be a list of str, got 'ab'"),
    ({"names": ["a", 1]}, "--names to be a list of str"),
    ({"names": ["a", "d"]}, "--names to be one of a, b, c"),
    ({"names": ["a", "a"]}, "--names without repetitions"),
    ({"rounds": 4}, "Expected the options of Options, got others: rounds"),
    ({"num_rounds": None}, "Expected --num_rounds=4 beside the others, got None"),
  ],
)
def test_options_read_from_a_file_are_checked_as_flags_are(changes, message):
  made = dataclasses.asdict(resolve(Options, {}))
  assert from_json(Options, json.loads(json.dumps(made))) == resolve(Options, {})
  with pytest.raises(ValueError, match=message):
    from_json(Options, {**made, **changes})


@pytest.mark.parametrize(
  ("file", "old", "new", "message"),
  [
    ("a/0/result.json", '"epsilon": ', '"epsilon": 0', "result.json as it was written"),
    ("b/0/metrics.jsonl", '"first": ', '"first": 1', "metrics.jsonl as its run left it"),
    ("b/0/ledger.jsonl", '"add_remove"', '"zero_out"', "ledger.jsonl as its run left it"),
  ],
)
def test_edited_results_are_refused(finished, tmp_path, file, old, new, message):
  path = copied_public(finished, tmp_path)
  edit(path / file, old, new)
  with pytest.raises(ValueError, match=message):
    run(path, resume=True)


@pytest.mark.parametrize("name", ["ledger.jsonl", "metrics.jsonl", "params.npz"])
@pytest.mark.parametrize("damage", ["removed", "cut"])
def test_a_finished_run_with_a_damaged_file_is_refused(finished, tmp_path, name, damage):
  path = copied_public(finished, tmp_path)
  file = path / "a/0" / name
  if damage == "removed":
    file.unlink()
  else:
    file.write_bytes(file.read_bytes()[:-40])
  with pytest.raises(ValueError, match=f"{name} as its run left it, got a file that was changed"):
    run(path, resume=True)


def test_a_result_with_another_cost_than_its_ledger_is_refused(finished, tmp_path):
  """Also if the file was sealed again."""
  path = copied_public(finished, tmp_path)
  file = path / "a/0/result.json"
  content = read_sealed(file)
  content["central"]["epsilon"] /= 2
  write_sealed(file, content)
  with pytest.raises(ValueError, match=r"the cost that ledger\.jsonl beside it has, got another"):
    run(path, resume=True)


def test_a_finished_run_says_the_same_again(finished):
  assert run(finished, resume=True) == run(finished, resume=True) == results[0]


def copied_public(finished, target):
  return shutil.copytree(finished, target / "run")


class Killed(BaseException):
  pass


def test_a_start_that_is_killed_at_any_commit_can_be_repeated(tmp_path, monkeypatch):
  for number in range(1, 100):
    path = tmp_path / str(number)
    with monkeypatch.context() as patch:
      fail_at(patch, number, Killed())
      try:
        start(path).lock.close()
        break
      except Killed:
        pass
    begun = (path / "flags.json").exists()
    if not begun:
      with pytest.raises(ValueError, match=r"no run was started there; leave out --resume"):
        start(path, resume=True)
    start(path, resume=begun).lock.close()
  assert number > 6


def test_what_another_run_left_is_not_taken_over(begun):
  (begun / "flags.json").unlink()
  with pytest.raises(ValueError, match=r"Expected a missing or empty --workdir.*; name another"):
    start(begun)
  with pytest.raises(ValueError, match=r"got none beside other files; restore it from a copy"):
    start(begun, resume=True)
  (begun / "run.flags").unlink()
  (begun.with_name("run.secret") / "noise_key").touch()
  with pytest.raises(ValueError, match=r"Expected no .*run\.secret, got one left by another run"):
    start(begun)


def test_a_ledger_that_is_removed_while_the_run_goes_on_is_no_success(tmp_path, monkeypatch):
  path = tmp_path / "run"

  finish = sweep.train_run

  def train_and_remove(trained, folder, *rest):
    outcome = finish(trained, folder, *rest)
    (folder / "ledger.jsonl").unlink()
    return outcome

  monkeypatch.setattr(sweep, "train_run", train_and_remove)
  with pytest.raises(ValueError, match=r"ledger.jsonl, which this run wrote, got none"):
    run(path)
  assert path.with_name("run.secret").exists()
  monkeypatch.undo()
  with pytest.raises(ValueError, match="Expected a ledger that holds round 3"):
    run(path, resume=True)
