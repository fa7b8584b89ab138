"""The epsilon that was asked for is that of the plan, of the run, and of its files."""

import itertools
import json

import jax.numpy as jnp
import pytest

from jdp import accounting, command_line, ledger, sampling
from jdp.events import GaussianSum, PoissonSampling, Round
from jdp.federated import dp_fedavg, train
from jdp.ledger import Ledger
from tests.helpers import planned_runs

USERS, DELTA = 60, 1e-6
CLIENTS = jnp.ones((USERS, 2))
NARROW = sampling.poisson(USERS, 0.5, capacity=48)  # outgrown once in a million rounds


def algorithm(num_rounds=20, **noise):
  return dp_fedavg(
    lambda params, examples: jnp.sum(params),
    CLIENTS,
    cohort_size=USERS // 2,
    clip_norm=1.0,
    num_rounds=num_rounds,
    local_update=lambda loss: lambda key, params, client, project: client,
    **noise,
  )


def run(made, **budget):
  return train(made, jnp.zeros(2), CLIENTS, **budget)


@pytest.mark.parametrize(
  ("population", "cohort", "rounds", "delta", "epsilon"),
  [
    (60_000, 600, 5000, 1e-6, 8.0),
    (10**6, 1000, 2000, 1e-8, 2.0),
    (10**6, 1000, 10**6, 1e-12, 20.0),
  ],
)
def test_default_slots_take_nothing_of_a_plans_epsilon(population, cohort, rounds, delta, epsilon):
  z = accounting.calibrate_noise_multiplier(epsilon, delta, cohort / population, rounds)

  def spent(sampled, count):
    event = Round(sampled, GaussianSum(1.0, z))
    return accounting.epsilon(Ledger().append(event, count=count), delta)

  drawn = sampling.poisson(population, cohort / population).event(())
  for count in (1, rounds):
    alone = spent(PoissonSampling(drawn.probability), count)
    assert alone <= spent(drawn, count) <= (1 + 1e-6) * alone
  assert 0.98 * epsilon < spent(drawn, rounds) <= epsilon


def test_a_run_has_the_epsilon_that_it_was_planned_for():
  """Some of the plans of `python -m tests.helpers.planned_runs`."""
  for plan in itertools.islice(planned_runs.random_plans(0), 8):
    assert planned_runs.kept(plan)


@pytest.mark.parametrize("accountant", ["tightest", "rdp"])
def test_plan_run_rows_and_files_state_one_epsilon(tmp_path, capsys, accountant):
  by = {"accountant": accountant}
  budget = {"delta": DELTA, "max_epsilon": 3.0, **by}
  result = run(
    algorithm(target_epsilon=3.0, delta=DELTA, **by),
    **budget,
    evaluate_every=5,
    workdir=tmp_path / "run",
  )
  spent = [
    accounting.epsilon(result.ledger.rounds(0, done), DELTA, **by) for done in (5, 10, 15, 20)
  ]
  assert not result.stopped
  assert 0.98 * 3 < spent[-1] <= 3.0
  assert [row["central_epsilon"] for row in result.metrics] == [0.0, *spent]
  path = tmp_path / "run" / "ledger.jsonl"
  assert accounting.epsilon(ledger.load(path), DELTA, **by) == spent[-1]
  command_line.main(
    ["epsilon", str(path), "--delta", str(DELTA), "--json", "--accountant", accountant]
  )
  assert json.loads(capsys.readouterr().out)["statements"][0]["epsilon"] == spent[-1]
  arguments = f"--population {USERS} --cohort 30 --rounds 20 --delta {DELTA} --epsilon 3"
  command_line.main(["plan", *arguments.split(), "--accountant", accountant])
  planned, found = map(float, capsys.readouterr().out.splitlines()[3].split()[2:5:2])
  event, _ = result.ledger.entries[0]
  assert planned == pytest.approx(event.query.stddev, rel=1e-5)
  assert found == pytest.approx(spent[-1], rel=1e-5)


@pytest.mark.parametrize("budget", [{}, {"max_epsilon": 8.0}])
def test_slots_that_cut_a_run_short_are_refused_before_it_starts(budget):
  reached = []
  with pytest.raises(
    ValueError,
    match=r"slots for the 20 rounds that the noise allows, got .* allow \d+: samples outgrow them",
  ):
    train(
      algorithm(noise_multiplier=4.0, sampler=NARROW),
      jnp.zeros(2),
      CLIENTS,
      delta=DELTA,
      callbacks=[reached.append],
      **budget,
    )
  assert not reached


@pytest.mark.slow
def test_a_budget_that_ends_a_run_for_its_noise_is_none_of_the_slots():
  tight = sampling.poisson(USERS, 0.5, capacity=58)
  result = run(algorithm(noise_multiplier=2.0, sampler=tight), delta=DELTA, max_epsilon=3.0)
  assert result.stopped
  assert 0 < result.metrics[-1]["round"] < 20


def test_a_row_without_an_epsilon_says_why():
  *_, row = run(algorithm(noise_multiplier=0.0), delta=DELTA).metrics
  assert row["central_epsilon"] is None
  assert "Nothing protects 20 of the releases" in row["no_central_epsilon"]
