"""Private federated learning of a language model, from public text: a run from end to end, and what
is refused.
"""

import jax
import pytest

from experiments.private_federated import __main__ as private_federated
from experiments.runner import launch
from experiments.runner.runs.workdir import Workdir
from jdp import ledger
from jdp.events import LocalRelease, Round
from tests.experiments import runs
from tests.experiments.texts import WORDS, write_users

EXPERIMENT = private_federated.EXPERIMENT
TINY = {"dataset": "movies_small", "tokens_per_user": 60, "public_passes": 8, "cohort_size": 4}
TINY |= {
  "pseudo_users": 12,
  "num_rounds": 1,
  "seeds": 1,
  "noise_multiplier": 1e-3,
  "local_training": "sgd",
  "local_batch_size": 8,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  return write_users(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def finished(folder, tmp_path_factory):
  path = tmp_path_factory.mktemp("private_federated") / "run"
  given = {"data_dir": folder, "baselines": ("none",), "epsilon_directions": (500.0,)}
  return runs.run(EXPERIMENT, path, **TINY, **given)


def test_all_rows_begin_with_the_model_of_the_public_text(finished, folder):
  options = launch.options.resolve(
    private_federated.PrivateFederatedOptions, {**TINY, "data_dir": folder}
  )
  # The start that the run has kept.
  task = private_federated.load_problem(options).completed(Workdir(finished.path))
  start = float(task.evaluate(task.init(jax.random.key(0)))["accuracy_top1"])
  assert start > 2 / len(WORDS)  # more than the two likeliest words
  for setting in ("none", "local_500"):
    first, last = finished.rows(f"{setting}/0")
    assert (first["round"], first["accuracy_top1"]) == (0, pytest.approx(start))
    assert last["round"] == 1
  lines = finished.report.splitlines()
  header, before = (
    next(line for line in lines if line.startswith(f"| {name}")).split("|")
    for name in ("run", "before")
  )
  cells = {name.strip(): cell.strip() for name, cell in zip(header, before, strict=True)}
  assert (cells["run"], cells["central ε"]) == ("before the first round", "")
  assert (cells["AccuracyTop1"], cells["perplexity"]) == (
    f"{100 * start:.1f} %",
    f"{first['perplexity']:.4g}",
  )


def test_the_report_says_what_one_user_is(finished):
  guaranteed = finished.report.split("## What was guaranteed\n\n")[1]
  assert guaranteed.startswith("**One user is a piece of 60 consecutive tokens")


def test_a_language_model_is_released_as_a_classifier_is(finished):
  none, local = finished.results["summary"]
  assert (none["central"], none["local"]) == (None, None)
  spent = ledger.load(finished.path / "local_500/0/ledger.jsonl")
  assert [type(event) for event in spent] == [Round, LocalRelease]
  assert local["release"]["direction"] == pytest.approx(500, abs=1e-6)
  assert 0 <= local["accuracy_top1"]["mean"] <= 1


def test_the_report_is_about_words(finished):
  report = finished.report
  parts = ("## Head words", "(head_words.png)", "## The three likeliest next words")
  for text in ("| AccuracyTop1 |", "LSTM with tied embeddings", *parts):
    assert text in report
  assert (finished.path / "head_words.png").exists()
  assert "test accuracy" not in report
  assert "1710.06963" not in report  # Its published table belongs to another experiment.


@pytest.mark.parametrize(
  ("given", "message"),
  [
    ({"dataset": "movies"}, "Expected --data_dir for movies, got none"),
    (
      {"dataset": "modules", "model": "cnn"},
      "Expected --model only with --dataset=digits or mnist",
    ),
    (
      {"dataset": "digits", "public_passes": 1},
      "Expected --public_users and --public_passes together",
    ),
    (
      {"dataset": "modules", "public_text": "modules"},
      "Expected --public_text=users with --dataset=modules",
    ),
    (
      {"dataset": "movies", "public_text": "modules", "public_share": 0.2},
      "Expected --public_share only with .*=users",
    ),
    ({"dataset": "modules", "unroll": 7}, "Expected tokens_per_user to be a multiple of unroll=7"),
  ],
)
def test_bad_flags_are_refused_before_anything_is_written(tmp_path, given, message):
  with pytest.raises(ValueError, match=message):
    runs.prepare(EXPERIMENT, tmp_path / "run", **given)
  assert list(tmp_path.iterdir()) == []
