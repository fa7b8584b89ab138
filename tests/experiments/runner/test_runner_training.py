"""Runs that survive interruption, and keep to their budget: with a trivial algorithm whose events
change.
"""

import dataclasses
import itertools
import os
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.runner import files
from experiments.runner.runs.costs import central_epsilon
from experiments.runner.runs.training import Run, TrainingOptions, train_run
from jdp import ledger, random
from jdp.events import GaussianSum, NonPrivate, PoissonSampling, Round
from jdp.federated import FederatedAlgorithm
from jdp.federated.runs.checkpoints import Checkpoints

DELTA = 1e-5
OPTIONS = TrainingOptions(num_rounds=7, eval_every=3, diagnostics=True)


class State(NamedTuple):
  round: jax.Array
  params: jax.Array


def step(noise_key, data_key, state, clients):
  noise = random.normal(jax.random.fold_in(noise_key, state.round), state.params.shape)
  clip_norm = 1 / (1 + state.round.astype(jnp.float32))
  event = Round(PoissonSampling(0.1), GaussianSum(clip_norm, 2 * clip_norm))
  return State(state.round + 1, state.params + noise), (event,), {"size": state.round}


ALGORITHM = FederatedAlgorithm(lambda params: State(jnp.int32(0), params), step)


def make_run(**changes):
  run = Run(
    name="example/0",
    algorithm=ALGORITHM,
    params=jnp.zeros(3),
    clients=np.zeros((1, 1)),
    noise_key=random.seeded_key(5),
    data_key=jax.random.key(0),
    evaluate=lambda params: {"mean": params.mean()},
    delta=DELTA,
    max_epsilon=None,
  )
  return run._replace(**changes)


def go(tmp_path, run, options=OPTIONS, report=lambda *_: None):
  return train_run(run, tmp_path / "run", tmp_path / "secret", options, report)


def rows(tmp_path, name="metrics"):
  return files.read_rows(tmp_path / "run" / f"{name}.jsonl")


def everything(tmp_path, outcome):
  files = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
  return (
    files,
    np.asarray(outcome.params).tobytes(),
    outcome.ledger,
    outcome.metrics,
    outcome.stopped,
  )


def ledger_of(events):
  return ledger.Ledger().extend((event, 1) for event in events)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
  path = tmp_path_factory.mktemp("uninterrupted")
  return everything(path, go(path, make_run()))


def test_what_a_run_leaves(tmp_path):
  news = []
  outcome = go(tmp_path, make_run(), report=lambda rounds, message: news.append((rounds, message)))
  assert [row["round"] for row in rows(tmp_path)] == [0, 3, 6, 7]
  assert [float(event.query.clip_norm) for event in outcome.ledger] == [
    float(np.float32(1) / n) for n in range(1, 8)
  ]
  assert ledger.load(tmp_path / "run/ledger.jsonl") == outcome.ledger
  for row in rows(tmp_path):
    spent = ledger_of(itertools.islice(outcome.ledger, row["round"]))
    assert row["central_epsilon"] == central_epsilon(spent, DELTA)
  assert rows(tmp_path) == outcome.metrics
  assert outcome.metrics[-1]["mean"] == float(outcome.params.mean())
  assert rows(tmp_path, "diagnostics") == [
    {"round": 3, "size": 1},
    {"round": 6, "size": 4},
    {"round": 7, "size": 6},
  ]
  assert [rounds for rounds, _ in news] == [0, 3, 3, 1]
  assert news[1][1].startswith("example/0 (NOT PRIVATE): round 3/7, mean ")


PRIOR = ledger.Ledger().append(Round(PoissonSampling(1.0), GaussianSum(1.0, 6.0)), count=2)


def test_what_was_released_before_is_counted_from_the_first_row(tmp_path):
  outcome = go(tmp_path, make_run(prior=PRIOR))
  assert list(outcome.ledger)[:2] == list(PRIOR)
  assert ledger.load(tmp_path / "run/ledger.jsonl") == outcome.ledger
  for row in rows(tmp_path):
    spent = ledger_of(itertools.islice(outcome.ledger, 2 + row["round"]))
    assert (
      row["central_epsilon"] == central_epsilon(spent, DELTA) >= central_epsilon(PRIOR, DELTA) > 0
    )


def test_what_was_released_before_is_on_disk_before_anything(tmp_path):
  seen = []

  def evaluate(params):
    seen.append(len(ledger.load(tmp_path / "run/ledger.jsonl")))
    return {"mean": params.mean()}

  go(tmp_path, make_run(prior=PRIOR, evaluate=evaluate))
  assert seen == [2, 2 + 3, 2 + 6, 2 + 7]


@pytest.mark.parametrize("affordable", [0, 1, 5])
def test_a_budget_counts_what_was_released_before(tmp_path, affordable, uninterrupted):
  spent = PRIOR.extend((event, 1) for event in list(uninterrupted[2])[:affordable])
  outcome = go(tmp_path, make_run(prior=PRIOR, max_epsilon=central_epsilon(spent, DELTA)))
  assert (outcome.ledger, outcome.metrics[-1]["round"], outcome.stopped) == (
    spent,
    affordable,
    True,
  )


def test_diagnostics_are_off_unless_asked_for(tmp_path):
  go(tmp_path, make_run(), dataclasses.replace(OPTIONS, diagnostics=False))
  kept = {"ledger.jsonl", "metrics.jsonl", "params.npz"}
  assert {path.name for path in (tmp_path / "run").iterdir()} == kept


def test_no_guarantee_is_null(tmp_path):
  def in_the_clear(*arguments):
    state, (event,), _ = step(*arguments)
    return state, (dataclasses.replace(event, query=NonPrivate()),), None

  no_diagnostics = dataclasses.replace(OPTIONS, diagnostics=False)
  go(tmp_path, make_run(algorithm=ALGORITHM._replace(round=in_the_clear)), no_diagnostics)
  assert [row["central_epsilon"] for row in rows(tmp_path)] == [0.0, None, None, None]


def test_a_diverged_model_is_named(tmp_path):
  run = make_run(evaluate=lambda params: {"perplexity": jnp.inf})
  with pytest.raises(
    ValueError, match=f"Expected finite metrics of {run.name}, got perplexity = inf: .* diverged"
  ):
    go(tmp_path, run)


def test_events_are_on_disk_before_the_model_is_used(tmp_path, monkeypatch):
  seen, save = [], Checkpoints.save

  def recorded(*_):
    seen.append(len(ledger.load(tmp_path / "run/ledger.jsonl")))
    return {}

  def save_recorded(self, done, state):
    recorded()
    assert int(state[0].round) == done == seen[-1]
    save(self, done, state)

  monkeypatch.setattr(Checkpoints, "save", save_recorded)
  go(tmp_path, make_run(evaluate=recorded))
  assert seen == [0, 3, 3, 6, 6, 7, 7]


# A process that is killed while it opens its ledger closes no file either.
leaves_files_open = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Interrupted(BaseException):
  pass


def go_up_to(number, monkeypatch, folder, run):
  """The outcome; or None, if the run is interrupted before its `number`-th commit to disk."""
  left = itertools.count(number, -1)
  with monkeypatch.context() as patch:
    for name in ("fsync", "replace", "rename"):
      original = getattr(os, name)

      def commit(*arguments, original=original, **options):
        if next(left) == 1:
          raise Interrupted
        return original(*arguments, **options)

      patch.setattr(os, name, commit)
    try:
      outcome = go(folder, run)
    except Interrupted:
      return None
    assert next(left) >= 1, "an interruption was caught"
    return outcome


@leaves_files_open
def test_a_run_interrupted_at_any_commit_ends_the_same(tmp_path, monkeypatch):
  run = make_run(prior=PRIOR)
  uninterrupted = everything(tmp_path / "whole", go(tmp_path / "whole", run))
  for number in itertools.count(1):
    folder = tmp_path / str(number)
    if go_up_to(number, monkeypatch, folder, run):
      break
    assert everything(folder, go(folder, run)) == uninterrupted
  # A commit of the ledger's header, 4 rows and 3 blocks, 3 rows of diagnostics and 3 checkpoints,
  # at the least.
  assert number > 1 + 2 * 4 + 3 + 2 * 3 + 3


@leaves_files_open
def test_a_run_interrupted_again_and_again_ends_the_same(tmp_path, monkeypatch, uninterrupted):
  run = make_run()
  for number in range(5, 100):
    if outcome := go_up_to(number, monkeypatch, tmp_path, run):
      break
  assert number > 6
  assert everything(tmp_path, outcome) == uninterrupted


@pytest.mark.parametrize("affordable", range(8))
def test_the_budget_stops_before_the_round_that_exceeds_it(tmp_path, affordable, uninterrupted):
  events = list(uninterrupted[2])
  costs = [central_epsilon(ledger_of(events[:n]), DELTA) for n in range(9)]
  run = make_run(max_epsilon=costs[affordable])
  outcome = go(tmp_path, run)
  assert list(outcome.ledger) == events[:affordable]
  assert list(ledger.load(tmp_path / "run/ledger.jsonl")) == events[:affordable]
  assert outcome.stopped == (affordable < 7)
  assert outcome.metrics[-1]["round"] == affordable
  assert outcome.metrics[-1]["central_epsilon"] <= costs[affordable]
  shorter = go(
    tmp_path / "shorter", make_run(), dataclasses.replace(OPTIONS, num_rounds=max(affordable, 1))
  )
  if affordable:
    np.testing.assert_array_equal(outcome.params, shorter.params)
  assert everything(tmp_path, go(tmp_path, run)) == everything(tmp_path, outcome)


def test_a_run_that_stops_early_costs_and_records_what_all_planned_rounds_cost(
  tmp_path, uninterrupted
):
  """Its metric never gains, so it ends at the second evaluation after the start."""
  run = make_run(evaluate=lambda params: {"headline": 0.5}, headline="headline")
  outcome = go(tmp_path, run, dataclasses.replace(OPTIONS, early_stop=2))
  assert (outcome.stopped_early, outcome.metrics[-1]["round"]) == (True, 6)
  events = list(uninterrupted[2])
  assert list(ledger.load(tmp_path / "run/ledger.jsonl")) == events
  everything_planned = central_epsilon(ledger_of(events), DELTA)
  assert outcome.metrics[-1]["central_epsilon"] == everything_planned


def test_an_early_stop_that_no_evaluation_could_cause_is_refused():
  with pytest.raises(ValueError, match="Expected --early_stop times --eval_every to be less than"):
    dataclasses.replace(OPTIONS, early_stop=3)


@leaves_files_open
def test_a_budget_holds_when_the_ledger_is_ahead_of_the_checkpoint(
  tmp_path, monkeypatch, uninterrupted
):
  events = list(uninterrupted[2])
  budget = central_epsilon(ledger_of(events[:5]), DELTA)
  run = make_run(max_epsilon=budget)
  expected = everything(tmp_path / "whole", go(tmp_path / "whole", run))
  for number in range(1, 60):
    folder = tmp_path / str(number)
    if go_up_to(number, monkeypatch, folder, run):
      break
    assert everything(folder, go(folder, run)) == expected
  assert number < 59


def test_a_ledger_of_another_key_is_refused(tmp_path):
  go(tmp_path, make_run())
  with pytest.raises(ValueError, match="Expected the key of noise that the run"):
    go(tmp_path, make_run(noise_key=random.seeded_key(6)))
