"""A sweep that is paid for: its event, its plan, what it keeps secret, and how it is resumed."""

import dataclasses
import json
import math

import jax.numpy as jnp
import numpy as np
import pytest

from jdp import accounting, ledger, queries, random, sampling
from jdp.events import GaussianSum, PoissonSampling, Round
from jdp.federated import private_sweep
from jdp.federated.selection import private_selection
from jdp.federated.selection.private_selection import best_run, plan_sweep
from jdp.ledger import Ledger
from tests.helpers.toy_rounds import towards_own_values

USERS = jnp.linspace(0.2, 0.8, 40)
OTHERS = jnp.linspace(0.0, 1.0, 10)
ROUNDS = 3
RUNS = {"mean_runs": 4.0, "shape": 1.0}


def moving(rate, clip_norm=1.0, noise=2.0):
  """A value that moves towards the users' mean."""
  query = queries.gaussian_sum(clip_norm, noise * clip_norm)
  return towards_own_values(query, len(USERS), rate=rate)._replace(num_rounds=ROUNDS)


SETTINGS = {"slow": moving(0.01), "fast": moving(0.5, clip_norm=2.0)}
START = jnp.float32(0)


def keys(seed=1):
  return random.seeded_key(seed), random.seeded_key(2)


def near(value, own):
  return {"near": 1 - jnp.abs(own - value)}


# Planned once: what follows shares its compiled programs.
PLANNED = plan_sweep(SETTINGS, START, USERS, near, score_noise=1.0, validation=None, **RUNS)


def run_events(clip_norm=1.0, noise=2.0):
  sampling_event = sampling.poisson(40, 0.5)
  event = Round(sampling_event.event(sampling_event.init()), GaussianSum(clip_norm, noise))
  return Ledger().append(event, count=ROUNDS)


SCORE = Ledger().append(Round(PoissonSampling(1.0, population=40), GaussianSum(1.0, 1.0)))


@pytest.fixture
def trained(monkeypatch):
  """The names of the settings of all runs that are made, in order; each may be stopped."""
  made, stop = [], []
  names = {algorithm.round: name for name, algorithm in SETTINGS.items()}
  train = private_selection.train

  def noted(algorithm, *given, **options):
    if stop and len(made) == stop[0]:
      raise KeyboardInterrupt
    made.append((names[algorithm.round], options["noise_key"]))
    return train(algorithm, *given, **options)

  monkeypatch.setattr(private_selection, "train", noted)
  return made, stop


@pytest.fixture
def planned_before(monkeypatch):
  """Sweeps with PLANNED's arguments take it as it is: nothing is compiled again."""
  monkeypatch.setattr(private_selection, "plan_sweep", lambda *given, **options: PLANNED)


def sweep(**options):
  given = dict(zip(("noise_key", "data_key"), keys(), strict=True))
  return private_sweep(
    SETTINGS, START, USERS, near, score_noise=1.0, **given, **{**RUNS, **options}
  )


def test_the_event_is_that_of_best_of_runs_by_hand():
  """Recorded two ways: by the sweep, which looks at no data, and from ledgers written by hand."""
  runs = [run_events() + SCORE, run_events(2.0, 4.0) + SCORE]
  by_hand = accounting.best_of_runs(*runs, **RUNS)
  assert PLANNED.event == by_hand
  cost = accounting.epsilon(Ledger().append(PLANNED.event), 1e-3)
  assert cost == pytest.approx(accounting.selection_epsilon(runs[0], 1e-3, **RUNS), rel=1e-3)
  # Gaussian sums of multipliers 2 and 1, the first of samples, in the place of the score's own.
  single = ledger.subsampled_gaussian(0.5, 2.0, ROUNDS)
  assert accounting.epsilon(single, 1e-3) < accounting.epsilon(runs[0], 1e-3) < cost


def test_users_who_train_are_no_other_users():
  """They would be charged for one of both, the runs or the score."""
  with pytest.raises(ValueError, match="validation of other users than clients"):
    plan_sweep(SETTINGS, START, USERS, near, score_noise=1.0, validation=USERS, **RUNS)


def test_other_users_who_score_cost_the_larger_of_both():
  own = plan_sweep(
    {"slow": SETTINGS["slow"]}, START, USERS, near, score_noise=0.5, validation=OTHERS, **RUNS
  )
  score = Ledger().append(Round(PoissonSampling(1.0, population=10), GaussianSum(1.0, 0.5)))
  assert own.event == accounting.best_of_runs(run_events(), score, **RUNS)
  cost = accounting.epsilon(Ledger().append(own.event), 1e-3)
  dearer = max(accounting.selection_epsilon(one, 1e-3, **RUNS) for one in (run_events(), score))
  assert cost == pytest.approx(dearer, rel=1e-3)
  assert own.judges is OTHERS


@pytest.mark.usefixtures("planned_before")
def test_the_sweep_costs_what_was_planned_and_releases_the_best_alone(capfd, tmp_path, trained):
  """The seed makes runs of both settings. The fast one scores .3 more, and all noise is .05."""
  made, _ = trained
  folder = tmp_path / "run"
  found = sweep(workdir=folder)
  assert len(made) > 2
  assert [*found.ledger] == [PLANNED.event]
  assert found.ledger.caveats  # the keys are seeded
  assert found.setting == "fast"
  assert abs(found.params - 0.5) < 0.4  # of the fast setting; the slow one stays near 0
  # What may be published has the event, the setting and the model; nothing tells of other runs.
  assert {path.name for path in folder.iterdir()} == {
    "ledger.jsonl", "metrics.jsonl", "params.npz",
  }  # fmt: skip
  assert [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()] == [
    {"round": 1, "setting": "fast"}
  ]
  kept = ledger.load(folder / "ledger.jsonl")
  assert [*kept] == [*found.ledger]
  assert len(kept) == 1
  assert capfd.readouterr() == ("", "")
  assert "BestOfRuns" not in found.statement(1e-3)


@pytest.mark.usefixtures("planned_before")
def test_a_sweep_that_is_killed_goes_on_with_the_runs_that_were_drawn(tmp_path, trained):
  made, stop = trained
  whole = sweep()
  drawn = made.copy()
  made.clear()
  stop.append(len(drawn) - 1)
  with pytest.raises(KeyboardInterrupt):
    sweep(workdir=tmp_path / "run")
  # The event was on disk before any run.
  assert [*ledger.load(tmp_path / "run" / "ledger.jsonl")] == [PLANNED.event]
  assert not (tmp_path / "run" / "params.npz").exists()
  stop.clear()
  made.clear()
  resumed = sweep(workdir=tmp_path / "run")
  assert [name for name, _ in made] == [name for name, _ in drawn]
  assert all(bool(own == other) for (_, own), (_, other) in zip(made, drawn, strict=True))
  assert resumed[:2] == whole[:2]
  assert [*resumed.ledger] == [*whole.ledger]
  made.clear()
  with pytest.raises(ValueError, match="budget that the run run was begun with"):
    sweep(workdir=tmp_path / "run", mean_runs=5.0)
  # A finished sweep is not made again: another score would be a second choice, in no ledger.
  # NumPy's float64 begin the same run.
  again = private_sweep(
    SETTINGS, np.zeros(()), USERS, lambda value, own: {"far": 1 - near(value, own)["near"]},
    score_noise=1.0, workdir=tmp_path / "run", noise_key=keys()[0], data_key=keys()[1], **RUNS,
  )  # fmt: skip
  assert (again[:2], [*again.ledger], made) == (whole[:2], [*whole.ledger], [])


def test_what_is_drawn_depends_on_the_key_alone(trained):
  """Two data sets that differ in everything have the same number of runs and the same settings."""
  made, _ = trained
  sequences = set()
  for data in (USERS, USERS.at[0].set(math.nan), jnp.full(40, 1e30)):
    for seed in (1, 4):
      made.clear()
      best_run(PLANNED._replace(clients=data, judges=data), keys(seed))
      sequences.add(tuple(name for name, _ in made))
  assert len(sequences) == 2


def test_without_any_run_what_it_began_with_is_released(monkeypatch):
  monkeypatch.setattr(private_selection, "number_of_runs", lambda *given: 0)
  assert best_run(PLANNED, keys()) == (None, START)


def test_the_largest_noised_score_wins(monkeypatch):
  """The noise decides of equal scores: another setting for another key, in the same program."""
  monkeypatch.setattr(private_selection, "number_of_runs", lambda *given: 4)
  drawn = np.array([0, 1, 0, 1])
  monkeypatch.setattr(private_selection, "_uniform", lambda *given: drawn)
  values = iter([0.1, 0.4, 0.7, 0.3])
  averages = PLANNED.averages._replace(release=lambda *given: ([next(values)], ()))
  # Runs 0 and 2 are of the first setting, and come first: the third score is that of run 1.
  assert best_run(PLANNED._replace(averages=averages), keys())[0] == "fast"


@pytest.mark.slow
def test_events_that_follow_the_data_are_refused():
  """An event that states what only the data tell would be a release of its own."""
  honest = SETTINGS["slow"]

  def told(noise_key, data_key, state, clients):
    state, (event,), diagnostics = honest.round(noise_key, data_key, state, clients)
    stddev = 2.0 + 1e-3 * jnp.max(jnp.abs(clients))
    query = dataclasses.replace(event.query, stddev=stddev)
    return state, (dataclasses.replace(event, query=query),), diagnostics

  with pytest.raises(ValueError, match="events do not depend on data"):
    private_sweep(
      {"told": honest._replace(round=told)}, START, USERS, near, score_noise=4.0, **RUNS
    )


def test_bad_arguments_are_refused_before_anything_is_compiled():
  def sweep_of(settings=SETTINGS, score=near, **options):
    return private_sweep(settings, START, USERS, score, **{"score_noise": 4.0, **RUNS, **options})

  with pytest.raises(ValueError, match="score_noise"):
    sweep_of(score_noise=-1.0)
  with pytest.raises(ValueError, match="mean_runs"):
    sweep_of(mean_runs=0.0)
  with pytest.raises(ValueError, match="shape"):
    sweep_of(shape=-1.0)
  with pytest.raises(ValueError, match="at least one name"):
    sweep_of(settings={})
  with pytest.raises(ValueError, match="number of rounds, got None of slow"):
    sweep_of(settings={"slow": SETTINGS["slow"]._replace(num_rounds=None)})
  with pytest.raises(ValueError, match="one number, got a, b"):
    sweep_of(settings={"slow": SETTINGS["slow"]}, score=lambda v, own: {"a": own, "b": own})
