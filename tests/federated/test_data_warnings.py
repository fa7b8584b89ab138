"""Warnings of what the data show: on the console alone, once, without a value of the data."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jdp import data, models, sampling
from jdp.federated import (
  data_warnings,
  dp_fedavg,
  dp_sgd,
  federated_averaging,
  fixed_denominator,
  flat_clipping,
  gradient_step,
  train,
)

MODEL = models.logistic_regression((3,), 4)
LOSS = models.cross_entropy(MODEL)
PLAN = {"clip_norm": 1.0, "num_rounds": 1, "noise_multiplier": 1.0}
INPUTS = np.linspace(-1, 1, 90, dtype=np.float32).reshape(30, 3)
LABELS = np.arange(30) % 4


@pytest.fixture(autouse=True)
def _nothing_said():
  data_warnings._say.cache_clear()


def said(capsys):
  lines = capsys.readouterr().err.splitlines()
  assert all("console alone" in line for line in lines)
  return [line.partition(" are ")[0].rpartition(" ")[2] for line in lines]


@pytest.mark.parametrize(
  ("inputs", "labels", "expected"),
  [
    (INPUTS, LABELS, []),
    (INPUTS * 255, LABELS * 13, ["inputs", "labels"]),
  ],
)
def test_unscaled_inputs_and_labels_beyond_the_classes_are_named_once(
  capsys, inputs, labels, expected
):
  examples = data.Examples(inputs, labels.astype(np.int32), np.ones(30, np.float32))
  users = data.pack(examples, np.split(np.arange(30), 3))
  for _ in range(2):
    for make, clients, size in (
      (dp_sgd, examples, "batch_size"),
      (dp_fedavg, users, "cohort_size"),
    ):
      algorithm = make(LOSS, clients, **{size: 3}, **PLAN)
      state = algorithm.init(MODEL.init(jax.random.key(0)))
      jax.eval_shape(algorithm.round, jax.random.key(1), jax.random.key(2), state, clients)
  assert said(capsys) == expected


@pytest.mark.parametrize("place", [jnp.asarray, lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype)])
def test_data_that_are_not_on_the_host_are_not_read(capsys, place):
  examples = jax.tree.map(place, data.examples(INPUTS * 255, LABELS * 13))
  dp_sgd(LOSS, examples, batch_size=3, **PLAN)
  assert said(capsys) == []


def test_padding_is_not_looked_at(capsys):
  padded = data.Examples(INPUTS * 255, LABELS.astype(np.int32) * 13, np.zeros(30, np.float32))
  dp_sgd(LOSS, padded, batch_size=3, **PLAN)
  assert said(capsys) == []


@pytest.mark.parametrize(
  ("shares", "word"), [([0.99, 1.0], "nearly all"), ([0.0], "hardly any"), ([0.5, 1.0], "")]
)
def test_a_clip_norm_that_clips_all_or_nobody_is_named(capsys, shares, word):
  for _ in range(2):
    data_warnings.warn_of_clipping({"clipped": np.array(shares)})
  data_warnings.warn_of_clipping(None)
  lines = capsys.readouterr().err.splitlines()
  assert len(lines) == bool(word)
  assert all(word in line for line in lines)


@pytest.mark.slow
def test_diagnostics_say_so_and_no_file_of_the_run_does(capsys, tmp_path):
  users = data.pack(data.examples(INPUTS, LABELS), np.split(np.arange(30), 10))
  algorithm = federated_averaging(
    gradient_step(LOSS, 1.0), fixed_denominator(flat_clipping(1e-3), 0.0, 10),
    sampling.poisson(10, 1.0), optax.sgd(1e-9), ghost_norms=True, diagnose=True,
  )  # fmt: skip
  train(algorithm, MODEL.init(jax.random.key(0)), users, num_rounds=1, workdir=tmp_path / "run")
  assert "nearly all" in capsys.readouterr().err
  files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
  assert files
  assert not any(b"Warning" in content for content in files)


@pytest.mark.parametrize(
  "examples",
  [
    data.Examples({"a": INPUTS * 255}, LABELS, np.ones(30, np.float32)),
    data.Examples(INPUTS[:, :0], LABELS, np.ones(30, np.float32)),
    data.Examples(INPUTS[:0], LABELS[:0], np.ones(0, np.float32)),
    data.Examples(INPUTS, np.full(30, np.nan), np.ones(30, np.float32)),
    data.Examples(INPUTS, np.full(30, "a"), np.ones(30, np.float32)),
  ],
)
def test_data_of_other_kinds_are_left_alone(capsys, examples):
  data_warnings.with_warnings(LOSS, examples)
  assert said(capsys) == []


def test_a_loss_that_warns_shows_no_value_of_the_data():
  examples = data.Examples(INPUTS, LABELS + 37, np.ones(30, np.float32))
  assert repr(data_warnings.with_warnings(LOSS, examples)) == repr(LOSS)
