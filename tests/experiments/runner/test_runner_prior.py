"""Whose cost a warm start is: an earlier run's, of the same users and words, or nobody's."""

import dataclasses
import json
import math
import pathlib

import numpy as np
import pytest

from experiments.dp_fedavg import __main__ as dp_fedavg
from experiments.runner import options
from experiments.runner.problems.prior import load_start
from experiments.runner.problems.private_words import private_words
from experiments.runner.problems.problem_options import USERS, ProblemOptions
from experiments.runner.runs.results import LINK
from experiments.runner.runs.workdir import Workdir
from jdp import accounting
from jdp.events import GaussianSum, PoissonSampling, Round
from jdp.ledger import Ledger, load_file
from jdp.models import save_params

PARAMS = {"w": np.ones(3, np.float32)}
SPENT = Ledger().append(Round(PoissonSampling(0.1), GaussianSum(1.0, 2.0)), count=5)
IMAGES = {"dataset": "mnist", "data_dir": "a"}
TEXT = {"dataset": "movies", "data_dir": "a"}
ARRAYS = {"dataset": "arrays", "data_file": "a.npz"}
SOURCE = {"dataset": "source", "source": "mine:users", "examples_per_user": 5}
OTHER = {
  "dataset": "digits",
  "data_dir": "b",
  "data_file": "b.npz",
  "source": "other:users",
  "data_seed": 1,
  "partition": "writer",
  "concentration": 0.5,
  "examples_per_user": 7,
  "num_users": 9,
  "validation_share": 0.5,
  "public_users": 5,
  "public_text": "modules",
  "public_share": 0.2,
  "test_share": 0.2,
  "tokens_per_user": 400,
  "equal_users": False,
  "pseudo_users": 30,
  "unroll": 20,
}
# The model, the words, the test's length, and what is learnt from public users' text.
NOT_ABOUT_USERS = {
  *("vocabulary", "vocabulary_size", "vocabulary_noise_multiplier", "vocabulary_words_per_user"),
  *("model", "language_model", "embedding_size", "hidden_size", "num_layers", "num_heads"),
  *("test_tokens", "public_passes", "public_optimizer", "public_learning_rate"),
}


def resolve(given):
  return options.resolve(dp_fedavg.DPFedAvgOptions, {"noise_multiplier": 1.0, **given})


def earlier_run(folder, given):
  """A run with these flags; the path of its parameters."""
  run = folder / "private" / "0"
  run.mkdir(parents=True)
  save_params(run / "params.npz", PARAMS)
  SPENT.save(run / "ledger.jsonl")
  (folder / "flags.json").write_text(json.dumps({"flags": vars(resolve(given))}))
  return str(run / "params.npz")


def load(path, given):
  chosen = resolve({"warm_start": path, **given})
  return load_start(path, PARAMS, chosen, public=chosen.warm_start_public)


def test_every_option_of_a_task_says_who_its_users_are_or_is_known_not_to():
  names = {field.name for field in dataclasses.fields(ProblemOptions)}
  assert set(USERS) - {"data_seed"} == names - NOT_ABOUT_USERS
  assert set(OTHER) == set(USERS)


@pytest.mark.parametrize("given", [IMAGES, TEXT], ids=["images", "text"])
def test_a_run_of_the_same_users_is_counted(tmp_path, given):
  params, spent = load(earlier_run(tmp_path, given), {**given, "num_rounds": 3, "max_epsilon": 1e3})
  np.testing.assert_array_equal(params["w"], PARAMS["w"])
  assert spent == SPENT


def test_a_run_whose_ledger_says_that_its_key_is_known_released_in_the_clear(tmp_path):
  """Whatever its flags say: it need not have been made by a binary."""
  path = earlier_run(tmp_path, IMAGES)
  (event, count), *_ = SPENT.entries
  Ledger().append(dataclasses.replace(event, key_exposed=True), count=count).save(
    f"{path[:-10]}ledger.jsonl"
  )
  _, spent = load(path, IMAGES)
  assert spent.caveats
  assert accounting.epsilon(spent, 1e-5) == math.inf > accounting.epsilon(SPENT, 1e-5)


def test_a_ledger_that_may_have_lost_rounds_is_no_account_of_an_earlier_run(tmp_path):
  path = earlier_run(tmp_path, IMAGES)
  folder = pathlib.Path(path).parent
  (folder / "result.json").write_text(json.dumps({LINK: load_file(folder / "ledger.jsonl").link}))
  assert load(path, IMAGES)[1] == SPENT
  Ledger().extend(SPENT.rounds(0, 4).entries).save(folder / "ledger.jsonl")
  with pytest.raises(ValueError, match=r"Expected the ledger with link .*, got one with link"):
    load(path, IMAGES)
  *lines, _ = (folder / "ledger.jsonl").read_bytes().splitlines(keepends=True)
  (folder / "ledger.jsonl").write_bytes(b"".join(lines))
  with pytest.raises(ValueError, match=r"Expected the ledger of a finished run in .*not closed"):
    load(path, IMAGES)


@pytest.mark.parametrize("name", USERS)
def test_a_run_of_other_users_is_refused(tmp_path, name):
  of_images = name in USERS[: USERS.index("public_text")]
  own = {"data_file": ARRAYS, "source": SOURCE}
  now = own.get(name, IMAGES if of_images else TEXT)
  if name == "concentration":
    now = {**now, "partition": "dirichlet"}
  then = {**now, name: OTHER[name]}
  if name == "dataset":
    del then["data_dir"]  # digits have none
  with pytest.raises(
    ValueError, match=f"same users and words, .*--{name}=.*, got .*--{name}={OTHER[name]}"
  ):
    load(earlier_run(tmp_path, then), now)


def test_words_that_were_counted_privately_are_not_taken_for_public_ones(tmp_path):
  path = earlier_run(tmp_path, {**TEXT, "vocabulary": "private"})
  with pytest.raises(
    ValueError, match="same users and words, --vocabulary=public, got --vocabulary=private in"
  ):
    load(path, TEXT)


def test_a_ledger_without_flags_is_refused(tmp_path):
  path = earlier_run(tmp_path, IMAGES)
  (tmp_path / "flags.json").unlink()
  with pytest.raises(ValueError, match=r"Expected flags.json of the run that made --warm_start="):
    load(path, IMAGES)


PUBLIC = {"warm_start_public": True}
MODULES = {"public_text": "modules"}


@pytest.mark.parametrize(
  ("then", "now"),
  [
    ({"dataset": "digits"}, IMAGES),
    (None, IMAGES),
    ({"dataset": "modules", **MODULES}, {**TEXT, **MODULES}),
  ],
  ids=["images", "images of no run", "text with words of modules"],
)
def test_of_other_users_nothing_is_counted(tmp_path, then, now):
  path = earlier_run(tmp_path, then or IMAGES)
  if then is None:
    (tmp_path / "flags.json").unlink()
  _, spent = load(path, {**now, **PUBLIC})
  assert spent == Ledger()


@pytest.mark.parametrize(
  ("then", "now", "message"),
  [
    (
      {**IMAGES, "data_seed": 1},
      IMAGES,
      "a model of other users' data, got .*, of a run on mnist too",
    ),
    ({"dataset": "modules"}, TEXT, "Expected words of Python's docstrings"),
    ({"dataset": "modules", **MODULES}, TEXT, "Expected words of Python's docstrings"),
    ({"dataset": "modules"}, {**TEXT, **MODULES}, "Expected words of Python's docstrings"),
    (
      {"dataset": "modules", "vocabulary": "private", **MODULES},
      {**TEXT, **MODULES},
      "Expected words of Python's docstrings",
    ),
  ],
  ids=[
    "same data",
    "words of users",
    "other words here",
    "other words there",
    "words counted privately",
  ],
)
def test_a_public_start_that_cannot_be_one_is_refused(tmp_path, then, now, message):
  with pytest.raises(ValueError, match=message):
    load(earlier_run(tmp_path, then), {**now, **PUBLIC})


DAMAGED = [b"", b"3", b"[]", b"{}", b'{"flags": 3}', b'["a", 3]', b"\xff", b"[" * 10**5]


@pytest.mark.parametrize("content", DAMAGED)
def test_damaged_flags_of_an_earlier_run_are_refused(tmp_path, content):
  path = earlier_run(tmp_path, IMAGES)
  (tmp_path / "flags.json").write_bytes(content)
  with pytest.raises(ValueError, match=r"Expected the flags of a run in .*flags.json, got another"):
    load(path, IMAGES)


@pytest.mark.parametrize("content", DAMAGED)
def test_damaged_words_of_a_run_are_refused(tmp_path, content):
  (tmp_path / "vocabulary").mkdir()
  (tmp_path / "vocabulary" / "words.json").write_bytes(content)
  with pytest.raises(ValueError, match=r"Expected a list of words in .*words.json, got another"):
    private_words(Workdir(tmp_path), None, [], [], 1)
