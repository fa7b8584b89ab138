"""The experiment of correlated noise: its strategies and samplers, and a run from end to end, whole
and resumed.
"""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

from experiments.correlated_noise import __main__ as correlated_noise
from experiments.correlated_noise import report as correlated_report
from experiments.correlated_noise.options import STRATEGIES
from experiments.correlated_noise.report import measure
from experiments.correlated_noise.strategies import AMPLIFIED, make_sampler
from experiments.correlated_noise.strategies import make_strategy as make
from experiments.runner import launch
from experiments.runner.runs import sweep
from jdp import accounting, ledger, queries
from jdp import matrix_factorization as mf
from jdp.guarantees import Unit
from tests.experiments import runs

EXPERIMENT = correlated_noise.EXPERIMENT
TINY = {
  "num_rounds": 6,
  "eval_every": 3,
  "cohort_size": 48,
  "examples_per_user": 10,
  "target_epsilon": 8.0,
  "bands": 2,
  "buffers": 1,
  "seeds": 1,
}
run = functools.partial(runs.run, EXPERIMENT)


def options(**given):
  return launch.options.resolve(correlated_noise.CorrelatedNoiseOptions, given, TINY)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_users_rounds_are_as_the_noise_has_it(name):
  """Both samplers keep a user's rounds apart for as long as the strategy has bands."""
  chosen = options(num_rounds=12)
  turns = make_sampler(make(name, chosen, 143), chosen, 143)
  assert turns.event(turns.init()).min_separation == 2
  assert turns.max_participations == 6
  if name in AMPLIFIED:
    chosen = options(num_rounds=12, participation="coins")
    strategy = make(name, chosen, 143)
    coins = make_sampler(strategy, chosen, 143)
    assert coins.event(coins.init()).num_groups == strategy.bands
    assert coins.expected_size == pytest.approx(48)
    # No sample outgrows its slots, so any target can be met.
    assert coins.event(coins.init()).overflow_probability == 0


@pytest.mark.parametrize(
  ("given", "message"),
  [
    ({"participation": "coins", "runs": ("tree",)}, "got tree: only strategies of few bands"),
    ({"participation": "coins", "runs": ("banded",), "bands": 3}, "--bands of at most 2"),
    ({"participation": "coins", "runs": ("banded",), "participation_cap": 2}, "leave it out"),
    ({"cohort_size": 144}, "at most 143 users"),
  ],
)
def test_what_does_not_fit_is_refused(given, message, tmp_path):
  with pytest.raises(ValueError, match=message):
    runs.prepare(EXPERIMENT, tmp_path / "run", **TINY | given)


def test_the_measured_error_is_that_of_the_theory():
  """2,000 coordinates tell a deviation to 8 % by 5 of their errors."""
  strategy = mf.square_root_toeplitz(8)
  query = queries.average(queries.correlated_gaussian_sum(1.0, 3.0, strategy), 2.0)
  theory = 1.5 * np.sqrt(strategy.squared_errors())
  np.testing.assert_allclose(measure(query, jnp.zeros(2000), 8).errors, theory, rtol=0.08)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
  path = tmp_path_factory.mktemp("correlated_noise") / "run"
  return run(path, runs=("none", "tree", "banded_inverse"), noise_seed=3, **TINY)


def test_results_follow_from_ledgers(finished):
  path = finished.path
  none, *rows = finished.results["summary"]
  assert none["central"] is None
  assert [row["memory"] for row in rows] == [3, 0]
  for row in rows:
    spent = ledger.load(path / row["setting"] / "0" / "ledger.jsonl")
    assert [int(event.query.index) for event, _ in spent.entries] == list(range(6))
    assert row["central"]["epsilon"] == accounting.epsilon(spent, 143**-1.1) <= 8.0
    assert row["central"]["epsilon"] > 7.9
    # Noise over sensitivity is the one multiplier that the target asks for.
    assert row["multiplier"] / row["sensitivity"] == pytest.approx(
      rows[0]["multiplier"] / rows[0]["sensitivity"], rel=2e-3
    )
    assert row["measured_error"] == pytest.approx(row["error"], rel=0.14)  # 650 numbers
  assert "at most 3 times, in rounds at least 2 apart" in finished.out
  theory = finished.report.split("## By theory")[1].split("## ")[0]
  (line,) = (line for line in theory.splitlines() if line.startswith("| tree"))
  # In closed form: less than by Renyi divergences, but by no more than 15 %.
  assert 0.85 * rows[0]["error"] < float(line.split("|")[5]) < rows[0]["error"]
  assert {"accuracy_over_rounds.png", "noise_of_the_model.png", "report.md"} <= {
    file.name for file in path.iterdir()
  }


def test_the_report_says_what_one_user_is_and_what_is_not_covered():
  said = correlated_report.guaranteed(options(), {Unit.USER: "a piece of 20 tokens"}, [], [])
  assert said.startswith("**One user is a piece of 20 tokens.**\n\n")
  assert "public text, where there is any" in said


def test_a_resumed_run_gives_the_same_results(finished, tmp_path, monkeypatch):
  count = [0]

  def interrupted(*args):
    count[0] += 1
    if count[0] == 2:
      raise KeyboardInterrupt
    return finish(*args)

  finish = sweep._finish
  monkeypatch.setattr(sweep, "_finish", interrupted)
  path = tmp_path / "run"
  with pytest.raises(KeyboardInterrupt):
    run(path, runs=("none", "tree", "banded_inverse"), noise_seed=3, **TINY)
  run(path, resume=True)
  for setting in ("tree", "banded_inverse"):
    first, again = (
      dict(np.load(folder / setting / "0" / "params.npz")) for folder in (finished.path, path)
    )
    for name, value in first.items():
      np.testing.assert_array_equal(value, again[name])
