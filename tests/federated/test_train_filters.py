"""Runs whose noise is chosen from earlier releases: a filter's budget, and no other epsilon."""

import dataclasses

import jax.numpy as jnp
import pytest

from jdp import accounting, ledger, queries
from jdp.events import GaussianSum, PoissonSampling, Round
from jdp.federated import train
from jdp.numerics import vectors
from jdp.queries.gaussian import add_noise, weighted
from tests.helpers.small_runs import InterruptedRunError
from tests.helpers.toy_rounds import interrupt_at, towards_own_values


def adaptive_sum():
  """A sum of which the next round's noise follows from this round's result."""

  def preprocess(key, state, record, weight):
    return weighted(vectors.clip(record, 1.0), weight)

  def finalize(key, sigma, total):
    result = add_noise(key, total, sigma)
    event = GaussianSum(1.0, sigma, adaptive=True)
    return result, event, jnp.where(result > 30, sigma * 1.2, sigma * 0.9)

  return queries.SumQuery(lambda record: jnp.float32(6.0), preprocess, finalize, takes_pairs=True)


def go(query=None, **options):
  algorithm = towards_own_values(query or adaptive_sum(), 100)
  options = {"num_rounds": 60, "evaluate_every": 7, **options}
  return train(algorithm, jnp.float32(0), jnp.full(100, 0.7), **options)


def test_a_run_stops_before_the_round_that_its_filter_does_not_admit(tmp_path):
  budget = accounting.renyi_filter(3.0, 1e-5)
  result = go(privacy_filter=budget, workdir=tmp_path / "run")
  assert result.stopped
  assert 3 < len(result.ledger) < 60
  assert result.metrics[-1]["round"] == len(result.ledger)
  assert {row["central_epsilon"] for row in result.metrics} == {3.0}  # not what was spent
  assert 0.5 < budget.spent(result.ledger) <= 1
  assert len({event.query.stddev for event in result.ledger}) > 3
  last = list(result.ledger)[-1]
  least = GaussianSum(1.0, 0.9 * last.query.stddev)  # what followed had so much noise, or more
  assert not budget.admits(result.ledger, dataclasses.replace(last, query=least))
  assert ledger.load(tmp_path / "run/ledger.jsonl") == result.ledger
  with pytest.raises(ValueError, match="renyi_filter or gaussian_filter, whose budget"):
    accounting.epsilon(result.ledger, 1e-5)


@pytest.mark.slow
def test_a_run_that_is_stopped_early_has_the_budget_and_records_what_happened():
  budget = accounting.renyi_filter(3.0, 1e-5)
  result = go(
    privacy_filter=budget, early_stop=lambda rows: rows[-1]["round"] >= 1, evaluate_every=2
  )
  assert (result.stopped, result.stopped_early, len(result.ledger)) == (False, True, 2)
  assert result.metrics[-1]["central_epsilon"] == 3.0


@pytest.mark.parametrize("options", [{}, {"max_epsilon": 3.0}, {"early_stop": lambda rows: True}])
def test_without_a_filter_no_epsilon_is_stated_and_no_round_is_released(tmp_path, options):
  seen = []
  with pytest.raises(ValueError, match="renyi_filter or gaussian_filter"):
    go(delta=1e-5, workdir=tmp_path / "run", callbacks=[seen.append], **options)
  assert [progress.round for progress in seen] == [0]
  assert not len(ledger.load(tmp_path / "run/ledger.jsonl"))


@pytest.mark.slow
def test_rounds_that_were_fixed_beforehand_may_be_filtered_too():
  budget = accounting.renyi_filter(3.0, 1e-5)
  result = go(queries.gaussian_sum(1.0, 6.0), privacy_filter=budget, num_rounds=100)
  assert result.stopped
  assert accounting.epsilon(result.ledger, 1e-5) <= 3.0
  assert not budget.admits(result.ledger, next(iter(result.ledger)))


@pytest.mark.parametrize("options", [{"delta": 1e-5}, {"delta": 1e-5, "max_epsilon": 1.0}])
def test_a_filter_has_its_own_budget(options):
  with pytest.raises(ValueError, match="leave them out"):
    go(privacy_filter=accounting.renyi_filter(3.0, 1e-5), **options)


@pytest.mark.slow
def test_rounds_of_a_run_that_may_be_stopped_early_have_no_epsilon_of_their_own():
  """How many there are follows from what they released: the ledger holds no others."""
  budget = accounting.renyi_filter(3.0, 1e-5)
  result = go(
    queries.gaussian_sum(1.0, 6.0),
    privacy_filter=budget,
    early_stop=lambda rows: rows[-1]["round"] >= 1,
    evaluate_every=2,
  )
  assert len(result.ledger) == 2
  assert budget.spent(result.ledger) <= 1
  with pytest.raises(ValueError, match="renyi_filter or gaussian_filter, whose budget"):
    accounting.epsilon(result.ledger, 1e-5)


@pytest.mark.parametrize("observer", ["server", "clients"])
def test_a_filter_for_who_does_not_see_the_models_states_no_epsilon_of_them(observer):
  # With such a release before, the run's own rounds would cost this filter nothing.
  seen = Round(PoissonSampling(1.0), GaussianSum(1.0, 30.0), observer=observer)
  budget = accounting.renyi_filter(0.5, 1e-5, observer=observer)
  with pytest.raises(ValueError, match="Expected a privacy_filter whose observer is model, got"):
    go(privacy_filter=budget, prior=ledger.Ledger().append(seen))


def test_what_happened_before_counts():
  budget = accounting.renyi_filter(0.5, 1e-5)
  prior = ledger.subsampled_gaussian(0.5, 1.0, 100)
  result = go(privacy_filter=budget, prior=prior)
  assert result.stopped
  assert len(result.ledger) == 100
  assert result.metrics[-1]["central_epsilon"] is None


def test_a_run_keeps_to_the_budget_that_it_began_with(tmp_path):
  """Whoever may raise the budget after a look at the models has none."""
  begun = accounting.renyi_filter(3.0, 1e-5)
  options = {"num_rounds": 4, "evaluate_every": 1, "workdir": tmp_path / "run"}
  with pytest.raises(InterruptedRunError):
    go(privacy_filter=begun, callbacks=[interrupt_at(1)], **options)
  others = [
    accounting.renyi_filter(6.0, 1e-5),
    accounting.renyi_filter(3.0, 1e-4),
    accounting.renyi_filter(3.0, 1e-5, order=20.0),
    accounting.renyi_filter(3.0, 1e-5, relation="zero_out"),
    accounting.gaussian_filter(3.0, 1e-5),
    None,
  ]
  for other in others:
    with pytest.raises(ValueError, match="Expected the budget that the run"):
      go(privacy_filter=other, **options)
  # The same one, made anew, goes on.
  result = go(privacy_filter=accounting.renyi_filter(3.0, 1e-5), **options)
  assert len(result.ledger) == 4


@pytest.mark.slow
def test_a_run_without_a_filter_gets_none_later(tmp_path):
  options = {"num_rounds": 2, "evaluate_every": 1, "workdir": tmp_path / "run"}
  with pytest.raises(InterruptedRunError):
    go(queries.gaussian_sum(1.0, 6.0), callbacks=[interrupt_at(1)], **options)
  with pytest.raises(
    ValueError, match=r"was begun with, none, got a privacy_filter with epsilon 3"
  ):
    go(queries.gaussian_sum(1.0, 6.0), privacy_filter=accounting.renyi_filter(3.0, 1e-5), **options)
