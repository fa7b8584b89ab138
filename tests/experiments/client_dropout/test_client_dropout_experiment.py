"""The client-dropout experiment: its tables against known values, its noise, and a run from end to
end.
"""

import functools
import math
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.client_dropout import __main__ as client_dropout
from experiments.client_dropout import errors, masked, privacy
from experiments.client_dropout.settings import LABELS, make_noise_plan, query_of
from jdp import accounting, ledger
from jdp.federated.runs.run_folder import LEDGER
from tests.experiments import runs

TINY = {
  "num_rounds": 3,
  "eval_every": 3,
  "examples_per_user": 20,
  "local_batch_size": 20,
  "chunk_size": 1,
}
run = functools.partial(runs.run, client_dropout.EXPERIMENT, **TINY)


def row_of(results, name):
  return next(row for row in results["runs"] if row["setting"] == name)


@pytest.mark.parametrize(
  ("rate", "expected"), [(0.0, 1.000), (0.1, 1.060), (0.2, 1.1305), (0.3, 1.217), (0.5, 1.465)]
)
def test_epsilons_of_the_published_setting(rate, expected):
  assert privacy.epsilon("no calibration", "server", rate) == pytest.approx(
    expected, rel=2e-4, abs=5e-4
  )
  assert privacy.possible_rounds("no calibration", "server", rate) == round(1500 * (1 - rate))
  for name, observer in (("calibration inside", "server"), ("calibration outside", "model")):
    assert privacy.epsilon(name, observer, rate) == pytest.approx(1.0, abs=5e-4)
    assert privacy.possible_rounds(name, observer, rate) == 1500
  assert privacy.epsilon("calibration outside", "server", rate) == privacy.epsilon(
    "no calibration", "server", rate
  )
  assert privacy.epsilon("central noise", "server", rate) == math.inf


def test_losses_during_the_calibration_and_dishonest_clients():
  during = privacy.epsilon("calibration inside", "server", 0.3, later=0.5)
  multiplier = privacy.Z * (0.7 + 350 * (1 / 700 - 1 / 1000)) ** 0.5
  assert during == pytest.approx(
    accounting.gaussian_epsilon(multiplier / 1500**0.5, 1e-5), rel=1e-6
  )
  dishonest = privacy.epsilon("calibration inside", "server", 0.3, dishonest=0.5)
  assert dishonest == pytest.approx(privacy.epsilon("no calibration", "server", 0.5), rel=1e-6)


@pytest.mark.slow
def test_several_dropout_models_are_settings_of_their_own(tmp_path):
  finished = run(
    tmp_path / "run",
    schemes=("uncalibrated",),
    dropouts=(0.3,),
    dropout_models=("bursty", "by_size"),
    burst_clients=30,
    partition="dirichlet",
    min_clients=40,
    average_errors=True,
    num_rounds=2,
    eval_every=2,
  )
  results = finished.results
  labels = {row["setting"]: row["label"] for row in results["summary"]}
  assert labels == {
    "uncalibrated_bursty_0.3": "no calibration (30 % lost, in bursts)",
    "uncalibrated_by_size_0.3": "no calibration (30 % lost, by size)",
  }
  assert "Survivors and their average" in finished.report
  assert results["not_private"] == ["the errors of survivors' averages"]


def test_survivors_of_clients_that_differ_in_their_losses_are_biased():
  """Half of the clients are lost three times as often, and have another update."""
  n, rounds = 200, 2000
  updates = jnp.repeat(jnp.array([[1.0, 0.0], [1.0, 1.0]]), n // 2, axis=0)
  rates = np.repeat([0.1, 0.3], n // 2)
  present = jnp.asarray(np.random.default_rng(0).random((rounds, n)) > rates)
  found = errors.losses(updates, present)
  # Of the survivors 0.7 / 1.6 have the second one. To first order in 1 / n.
  bias = abs(0.7 / 1.6 - 0.5) / math.hypot(1.0, 0.5)
  # The mean over the rounds has a standard error of 0.0003; 1 / n adds 0.0001.
  assert found.bias == pytest.approx(bias, abs=0.002)
  assert found.error > found.bias
  independent = jnp.asarray(np.random.default_rng(1).random((rounds, n)) > 0.2)
  assert errors.losses(updates, independent).bias < 0.001
  assert abs(found.survivors.mean() - 0.8 * n) < 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["calibrated", "integers_calibrated"])
def test_the_measured_noise_is_that_of_the_plan(name):
  # That of `test_a_run_of_every_scheme`, so that one program measures both.
  options = client_dropout.ClientDropoutOptions(
    schemes=(name,),
    target_epsilon=4.0,
    num_rounds=3,
    min_clients=1,
    clip_norm=0.5,
    examples_per_user=20,
    partition="iid",
  )
  problem = client_dropout.classification(
    options, options.data_seed, arrange=client_dropout.grouped
  )
  plan = make_noise_plan(options, problem)
  query = query_of(options, problem, plan, name)
  n = problem.num_users
  present = jnp.stack([jnp.arange(n) < n // 2] * 2)
  updates = jax.tree.map(lambda x: jnp.zeros((n, *x.shape)), problem.init(jax.random.key(0)))
  # Of 650 weights: a standard error of 2.8 %.
  planned = plan.noise_multiplier if name == "calibrated" else plan.grid_stddev
  assert errors.noise_of(query, jax.random.key(1), updates, present) == pytest.approx(
    planned * options.clip_norm, rel=0.14
  )


def test_integers_get_the_noise_that_makes_them_cost_as_much():
  options = client_dropout.ClientDropoutOptions(schemes=("integers",), noise_multiplier=4.0)
  task = types.SimpleNamespace(num_users=100, dim=650)
  plan = make_noise_plan(options, task)
  bound = plan.grid.l2_norm * plan.grid.spacing
  assert plan.grid_stddev == pytest.approx(4.0 * bound, rel=1e-9)
  assert 1 < bound < 1.1


def test_a_run_of_every_scheme(tmp_path):
  path = tmp_path / "run"
  finished = run(
    path,
    schemes=("uncalibrated", "outside", "integers_calibrated"),
    dropouts=(0.3,),
    max_epsilon=4.0,
  )
  assert str(path / "report.md") in finished.out
  results = finished.results
  rows = {row["setting"]: row for row in results["summary"]}
  planned = results["noise_multiplier"]
  for name, row in rows.items():
    spent = ledger.load(path / name / "0" / LEDGER)
    assert row["server"] == accounting.epsilon(spent, 1e-5, observer="server")
    assert row["central"]["epsilon"] == accounting.epsilon(spent, 1e-5, observer="model")
  calibrated = rows["outside_0.3"]
  assert calibrated["multiplier"] == pytest.approx(planned, rel=1e-6)
  assert rows["integers_calibrated_0.3"]["multiplier"] == pytest.approx(planned, rel=1e-3)
  assert calibrated["server"] > calibrated["central"]["epsilon"]
  uncalibrated = rows["uncalibrated_0.3"]
  assert 0.5 * planned < uncalibrated["multiplier"] < 0.97 * planned
  assert uncalibrated["beside"] > uncalibrated["central"]["epsilon"]  # by Renyi divergences
  assert row_of(results, "uncalibrated_0.3")["stopped"]  # what is under-noised costs more
  for name in ("uncalibrated_0.3", "integers_calibrated_0.3"):
    assert rows[name]["server"] == rows[name]["central"]["epsilon"]
  for name in ("outside_0.3", "integers_calibrated_0.3"):
    assert not row_of(results, name)["stopped"]
  for text in (
    "1.060 → 1.000",
    "17.8 %",
    "Bits per weight",
    "Floats and integers",
    LABELS["outside"],
  ):
    assert text in finished.report


@pytest.mark.slow
def test_sums_that_open_under_masks_train_and_abandoned_rounds_cost_nothing(tmp_path):
  options = client_dropout.ClientDropoutOptions(
    noise_multiplier=1.0, examples_per_user=2, masked_clients=24, masked_rounds=2, min_clients=20
  )
  problem = client_dropout.classification(
    options, options.data_seed, arrange=client_dropout.grouped
  )
  opened, none = (
    masked.trained(options, problem, 1.0, tmp_path, (0.5, rate)) for rate in (0.0, 0.9)
  )
  assert opened["threshold"] == math.ceil(0.5 * masked.neighbours(24))
  assert (opened["opened"], none["opened"], none["epsilon"]) == (2, 0, 0.0)
  spent = ledger.load(tmp_path / f"masked_{opened['threshold']}_0.jsonl")
  assert opened["epsilon"] == accounting.epsilon(spent, 1e-5, observer="server")
  # Rounding to integers adds to the sensitivity: a little more than the Gaussian sum of floats.
  exact = accounting.gaussian_epsilon(1.0 / 2**0.5, 1e-5)
  assert exact < opened["epsilon"] < 1.5 * exact


@pytest.mark.parametrize(
  "given",
  [
    {"dropouts": (1.5,)},
    {"schemes": ("integers",), "modulus_bits": 3},
    {"dropout_models": ("bursty",), "dropouts": (0.9,), "mean_rounds": 2.0},
    {"target_epsilon": 1.0, "noise_multiplier": 1.0},
  ],
  ids=str,
)
def test_bad_options_are_refused_before_anything_is_written(tmp_path, given):
  with pytest.raises(ValueError, match="Expected"):
    run(tmp_path / "run", **given)
  assert not (tmp_path / "run").exists()
