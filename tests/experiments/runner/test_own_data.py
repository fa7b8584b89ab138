"""One's own data and model in the experiments: checked, and refused before anything is written."""

import importlib
import sys
import textwrap
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from experiments.runner import launch
from experiments.runner.problems import images
from jdp import data
from jdp.data.datasets import Dataset
from tests.experiments import runs

MODELS = """
import flax.linen as nn
import jax.numpy as jnp
from jdp import models

def good(input_shape, num_classes):
  return models.from_flax(nn.Dense(num_classes), input_shape)

def other_classes(input_shape, num_classes):
  return good(input_shape, 7)

def mixing(input_shape, num_classes):
  made = good(input_shape, num_classes)
  return made._replace(apply=lambda p, x: made.apply(p, x - jnp.mean(x, 0)[None]))

def stateful(input_shape, num_classes):
  net = nn.Sequential([nn.BatchNorm(use_running_average=True), nn.Dense(num_classes)])
  return models.from_flax(net, input_shape)

def deep(input_shape, num_classes):
  return models.Model(lambda key: {"w": jnp.ones((9, 2))}, lambda p, x: x @ p["w"])

def none(input_shape, num_classes):
  return None
"""

SOURCES = """
import numpy as np

def users():
  def examples(seed):
    rng = np.random.default_rng(seed)
    return rng.random((seed % 4, 4)), np.arange(seed % 4) % 3
  return [examples(seed) for seed in range(20)], examples(7), 3

def failing():
  class Source(list):
    reads = 0
    def __getitem__(self, number):
      self.reads += 1
      if self.reads > 40:
        raise OSError
      return super().__getitem__(number)
  source, test, num_classes = users()
  return Source(source), test, num_classes

def of_another_shape():
  source, (inputs, labels), num_classes = users()
  return source, (inputs[:, :2], labels), num_classes

def alone():
  return users()[0]
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
  """A folder with a module of models, and a file of arrays with and without users."""
  rng = np.random.default_rng(0)
  arrays = {
    "inputs": rng.random((30, 4)),
    "labels": np.arange(30) % 3,
    "test_inputs": rng.random((5, 4)),
    "test_labels": np.arange(5) % 3,
  }
  np.savez(tmp_path / "mine.npz", **arrays)
  np.savez(tmp_path / "users.npz", **arrays, users=np.repeat(np.arange(10), 3))
  (tmp_path / "own_models.py").write_text(textwrap.dedent(MODELS))
  (tmp_path / "own_sources.py").write_text(SOURCES)
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, "path", [*sys.path])
  yield tmp_path
  sys.modules.pop("own_models", None)
  sys.modules.pop("own_sources", None)


def prepare(name, *, resume=False, **given):
  experiment = importlib.import_module(f"experiments.{name}.__main__").EXPERIMENT
  path = str(given.pop("workdir", "run"))
  prepared = launch.prepare(experiment, given, launch.Location(path=path, resume=resume))
  prepared.lock.close()
  return prepared


@pytest.mark.sweep
@pytest.mark.parametrize(
  ("name", "given"),
  [
    ("private_federated", {"data_file": "users.npz", "partition": "writer"}),
    ("client_dropout", {"data_file": "mine.npz", "examples_per_user": 3}),
    ("draw_and_discard", {"data_file": "mine.npz", "examples_per_user": 3}),
  ],
)
def test_arrays_of_ones_own_are_taken(own, name, given):
  small = {"cohort_size": 5} if name == "private_federated" else {}
  prepare(name, dataset="arrays", **given, **small)
  assert (own / "run").exists()


def test_a_model_of_ones_own_is_taken(own):
  given = {"dataset": "arrays", "data_file": "mine.npz", "examples_per_user": 3, "cohort_size": 5}
  prepare("private_federated", model="own_models:good", **given)
  assert "own_models:good" in (own / "run/run.flags").read_text()


@pytest.mark.parametrize("change", ["edited", "removed", "none"])
def test_a_run_goes_on_with_the_code_of_the_model_that_it_was_begun_with(own, change):
  given = {"dataset": "arrays", "data_file": "mine.npz", "examples_per_user": 3, "cohort_size": 5}
  prepare("private_federated", model="own_models:good", **given)
  sys.modules.pop("own_models")
  module = own / "own_models.py"
  if change == "none":
    prepare("private_federated", resume=True)
    return
  if change == "removed":
    module.unlink()
  else:
    # Another model with the same parameters: nothing else would tell before a round is repeated.
    module.write_text(module.read_text().replace("Dense(num_classes)", "Dense(num_classes, True)"))
  message = "Expected to resume with the code of own_models:good .*; a repeated round could differ"
  with pytest.raises(ValueError, match=message):
    prepare("private_federated", resume=True)


@pytest.mark.parametrize(
  ("given", "message"),
  [
    ({"data_file": None}, "Expected data_file for arrays, got none"),
    ({"data_file": "users.npz"}, "Expected an array users in users.npz with --partition=writer"),
    ({"data_file": "mine.npz", "partition": "writer"}, "and no other, got none"),
    ({"model": "own_models"}, r"Expected --model to be logistic, cnn or package.module:factory"),
    ({"model": "own_models:other_classes"}, r"got outputs of shape \(7,\) for 3 classes"),
    ({"model": "own_models:mixing"}, "mixes the examples of a batch"),
    ({"model": "own_models:stateful"}, "statistics of batches"),
    ({"model": "own_models:deep"}, r"one that does not take inputs of shape \(4,\)"),
    ({"model": "own_models:none"}, "got NoneType; return"),
    ({"model": "own_models:absent"}, "AttributeError"),
    ({"model": "absent_module:good"}, "ModuleNotFoundError"),
  ],
)
def test_what_does_not_fit_is_a_sentence_before_anything_is_written(own, given, message):
  arguments = {"dataset": "arrays", "data_file": "mine.npz", "cohort_size": 5, **given}
  arguments = {name: value for name, value in arguments.items() if value is not None}
  with pytest.raises(ValueError, match=message):
    prepare("private_federated", **arguments)
  assert not (own / "run").exists()


SOURCE = {"dataset": "source", "examples_per_user": 2, "cohort_size": 5}
RUNS = {"runs": ("private",), "num_rounds": 6, "eval_every": 2, "seeds": 1, "noise_seed": 3}


def test_a_source_of_ones_own_is_read_and_when_it_fails_the_run_goes_on(own):
  experiment = importlib.import_module("experiments.dp_fedavg.__main__").EXPERIMENT
  runs.run(experiment, own / "whole", source="own_sources:users", **SOURCE, **RUNS)
  with pytest.raises(ValueError, match="got OSError from it; mend it"):
    runs.run(experiment, own / "mended", source="own_sources:failing", **SOURCE, **RUNS)
  module = own / "own_sources.py"
  module.write_text(module.read_text().replace("if self.reads > 40", "if False"))
  sys.modules.pop("own_sources")
  runs.run(experiment, own / "mended", resume=True)
  whole, mended = (
    [np.load(path) for path in sorted((own / name).rglob("params.npz"))]
    for name in ("whole", "mended")
  )
  assert whole
  for one, other in zip(whole, mended, strict=True):
    for name in one.files:
      np.testing.assert_array_equal(one[name], other[name])
  assert "n = 2, the declared bound on a user's examples" in (own / "whole/report.md").read_text()


@pytest.mark.parametrize(
  ("given", "message"),
  [
    ({"source": "own_sources"}, "Expected --source to be package.module:factory"),
    ({"source": None}, "Expected --source with --dataset=source, got none"),
    ({"source": "own_sources:alone"}, r"to return \(source, \(test inputs, test labels\), number"),
    ({"source": "own_sources:of_another_shape"}, r"Expected test inputs of shape \(4,\)"),
    ({"source": "own_sources:users", "examples_per_user": None}, "every user is padded to it"),
    ({"source": "own_sources:users", "runs": ("dp_sgd",)}, "whose unit is a user"),
    ({"source": "own_sources:users", "weights": "examples"}, "Expected --mean_weight"),
    (
      {"source": "own_sources:users", "select": "private"},
      "Expected users in memory with --select",
    ),
  ],
)
def test_what_is_no_source_is_refused_before_anything_is_written(own, given, message):
  with pytest.raises(ValueError, match=message):
    prepare("dp_fedavg", **{**SOURCE, "runs": ("private",), **given})
  assert not (own / "run").exists()


@pytest.mark.parametrize("users", [False, True], ids=["examples", "users"])
def test_settings_are_chosen_without_the_test_examples(own, users):
  """Data that differ in their test examples alone give the same held-out ones, of users who are
  not among the clients.
  """
  given = np.load(own / "users.npz")
  changed = {"test_inputs": np.zeros((2, 4)), "test_labels": np.zeros(2, int)}
  arrays = {name: given[name] for name in given if users or name != "users"}
  np.savez(own / "a.npz", **arrays)
  np.savez(own / "b.npz", **arrays | changed)
  values = {"dataset": "arrays", "data_dir": None, "validation_share": 0.3}
  one, other = (
    images.load_dataset(
      SimpleNamespace(**values, data_file=own / f"{name}.npz"), data_seed=3, by_user=users
    )
    for name in "ab"
  )
  np.testing.assert_array_equal(one.test.inputs, other.test.inputs)
  rows = [tuple(row) for row in np.concatenate([one.train.inputs, one.test.inputs])]
  assert sorted(rows) == sorted(map(tuple, given["inputs"].astype(np.float32)))
  assert 0 < len(one.test.labels) < len(rows)
  if users:
    rows = map(tuple, given["inputs"].astype(np.float32))
    who = dict(zip(rows, given["users"], strict=True))
    assert not set(one.train_groups) & {who[tuple(row)] for row in one.test.inputs}


@pytest.mark.parametrize("by_user", [False, True], ids=["examples", "users"])
def test_who_is_held_out_depends_on_nobody_else(by_user):
  """Without the last user, all others stay where they were: trained on, or held out."""
  groups = np.repeat(np.arange(400), 1 if not by_user else 3)
  inputs = np.arange(len(groups), dtype=np.float32)[:, None]
  examples = data.Examples(inputs, groups % 2, np.ones(len(groups), np.float32))
  whole = Dataset(examples, jax.tree.map(lambda x: x[:1], examples), 2, groups)
  fewer = whole._replace(
    train=jax.tree.map(lambda x: x[groups < 399], whole.train), train_groups=groups[groups < 399]
  )
  parts = [images.without_test(each, 0.25, 7, by_user=by_user) for each in (whole, fewer)]
  trained, held = (
    [set(getattr(part, name).inputs[:, 0].tolist()) for part in parts] for name in ("train", "test")
  )
  last = set(inputs[groups == 399, 0].tolist())
  assert trained[0] - last == trained[1]
  assert held[0] - last == held[1]
  # Of 400 fair coins of 1/4, 60 to 140 fall so but for once in 200,000 keys.
  assert 60 <= len({groups[int(row)] for row in held[0]}) <= 140
