"""What every registered sum query's event says is what the release costs; a new event joins by
three calls.

The audits' bounds hold together with probability 99.9 %, on fixed keys. Half of the stated epsilon
must be refuted under one relation at least: Renyi accounting of one round states up to 1.6 times
the true one.
"""

import dataclasses
import functools
import math
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jdp import accounting, conformance, events, queries
from jdp.accounting import dominating_pairs, registration
from jdp.accounting.families.base import DominatingPair
from jdp.accounting.families.gaussian import GAUSSIAN
from jdp.conformance.queries import query_subjects, registered_query_subjects
from jdp.conformance.reference_queries import audited
from jdp.events import GaussianSum, PoissonSampling, Round
from jdp.guarantees import Relation
from jdp.ledger import Ledger, load
from jdp.numerics.compensated import rounded
from jdp.queries import gaussian_sum, registry, weighted_average

NAMES = list(audited())
ERROR = 1e-3 / (3 * len(NAMES))
VICTIM = np.array([50.0, 0.0], np.float32)


def audits(subjects, count=40_000):
  return [
    conformance.audit(subject, jax.random.key(7), num_samples=count, confidence=1 - ERROR)
    for subject in subjects.values()
  ]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_stated_epsilon_is_not_refuted_and_half_of_it_is(name):
  found = audits(registered_query_subjects(name))
  assert not any(own.refuted for own in found), list(map(str, found))
  assert max(own.bound / own.epsilon for own in found) > 0.5 or name == "no_privacy", list(
    map(str, found)
  )


PLAIN = gaussian_sum(1.0, 1.0)


def releasing(change, query=PLAIN):
  """The query that releases what `change` makes of (result, event, total): a result, an event."""

  def finalize(key, state, total):
    result, event, state = query.finalize(key, state, total)
    return *change(result, event, total), state

  return query._replace(finalize=finalize)


@pytest.mark.slow
def test_an_event_that_states_twice_the_noise_is_refuted():
  query = releasing(lambda result, event, total: (result, GaussianSum(1.0, 2.0)))
  assert all(found.refuted for found in audits(query_subjects(query, VICTIM)))


@pytest.mark.slow
def test_a_run_that_counts_one_participation_of_three_is_refuted():
  """As it would be with norms of rows for those of columns."""

  def of_one(result, event, total):
    squared = event.largest_column_norm**2
    return result, dataclasses.replace(event, squared_sensitivity=squared)

  query = releasing(of_one, registry.registered()["correlated_run"].make())
  found = audits(query_subjects(query, VICTIM))
  assert all(own.refuted for own in found), list(map(str, found))


@pytest.mark.slow
def test_a_query_that_does_not_clip_is_refuted():
  query = PLAIN._replace(preprocess=lambda key, state, record, weight: record * weight)
  assert all(found.refuted for found in audits(query_subjects(query, VICTIM), 2000))


@pytest.mark.slow
def test_an_event_that_tells_the_sum_is_refuted():

  def telling(result, event, total):
    return result, GaussianSum(1.0, 1.0 - 1e-3 * jnp.abs(rounded(total)[0]))

  subjects = query_subjects(releasing(telling), VICTIM)
  assert all(found.refuted for found in audits(subjects, 2000))


@pytest.mark.slow
def test_a_query_that_tells_who_is_there_is_refuted_under_zero_out():
  """The null record has no weight: it adds nothing to a count either."""

  def telling(result, event, total):
    return result + 100 * rounded(total.weight), GaussianSum(1.0, 1.0)

  query = releasing(telling, weighted_average(1.0, 1.0, min_total_weight=1.0))
  subjects = query_subjects(query, VICTIM)
  assert audits({"zero-out": subjects[Relation.ZERO_OUT]}, 2000)[0].refuted


@pytest.mark.slow
def test_an_event_from_outside_is_saved_accounted_for_and_audited(undone, tmp_path):
  @events.register
  class UniformlyScaledSum(events.GaussianSum):
    """A sum was released times a public factor, with Gaussian noise."""

    factor: float = 1.0

  missing = conformance.unaudited()
  assert [sentence.split(" ")[1] for sentence in missing] == ["UniformlyScaledSum"] * 2
  assert "has no analysis" in missing[0]
  assert "released by no query" in missing[1]
  ledger = Ledger().append(
    Round(PoissonSampling(0.5), UniformlyScaledSum(1.0, 2.0, factor=3.0)), count=4
  )
  ledger.save(tmp_path / "ledger.jsonl")
  loaded = load(tmp_path / "ledger.jsonl")
  with pytest.raises(
    ValueError, match="Expected a query that has an analysis, got UniformlyScaledSum"
  ):
    accounting.epsilon(loaded, 1e-5)

  def analysis(event, relation, declared):
    return dominating_pairs.dominating_pair(
      GaussianSum(event.clip_norm, event.stddev), relation, declared
    )

  accounting.register_query(UniformlyScaledSum, accounting.QueryAnalysis(analysis))
  assert loaded.entries == ledger.entries
  assert 0 < accounting.epsilon(loaded, 1e-5) < math.inf

  def scaled(result, event, total):
    return 3.0 * result, UniformlyScaledSum(event.clip_norm, event.stddev, factor=3.0)

  registry.register("uniformly scaled", lambda: releasing(scaled))
  assert conformance.unaudited() == []
  assert not any(
    found.refuted for found in audits(registered_query_subjects("uniformly scaled"), 4000)
  )


def test_everything_public_is_audited():
  assert conformance.unaudited(queries) == []


def test_a_query_that_is_not_registered_is_named(monkeypatch):
  entries = {
    name: own
    for name, own in registry.registered().items()
    if own.factory is not queries.discrete_sum
  }
  monkeypatch.setattr(registry, "_QUERIES", entries)
  assert conformance.unaudited(queries) == [
    "event DiscreteGaussianSum is released by no query: call queries.registry.register.",
    "jdp.queries.distributed.integer_sums.discrete_sum is the factory of no entry: register it.",
  ]


def test_a_relation_is_left_out_only_where_the_analysis_refuses_it(undone):
  """Accounting that fails is not a refusal: the relation would go unaudited."""

  @events.register
  class BadlyAnalysedSum(events.GaussianSum):
    """A Gaussian sum whose analysis makes no sense under one relation."""

  def analysis(event, relation, declared):
    if relation is Relation.ADD_REMOVE:
      raise ValueError("Expected relation zero_out or replace_one, got add_remove.")
    return DominatingPair(GAUSSIAN, (1.0, math.nan if relation is broken else 1.0))

  accounting.register_query(BadlyAnalysedSum, accounting.QueryAnalysis(analysis))
  query = releasing(
    lambda result, event, total: (result, BadlyAnalysedSum(event.clip_norm, event.stddev))
  )
  broken = None
  assert set(query_subjects(query, VICTIM)) == {Relation.ZERO_OUT, Relation.REPLACE_ONE}
  broken = Relation.REPLACE_ONE
  with pytest.raises(ValueError, match="mend the analysis of the query"):
    query_subjects(query, VICTIM)


def test_partials_and_functions_without_annotations_are_seen():
  module = types.ModuleType("factories")

  def silent(epsilon):
    return queries.gaussian_sum(1.0, epsilon)

  def loud(epsilon) -> queries.SumQuery:
    return silent(epsilon)

  silent.__module__ = loud.__module__ = "factories.own"
  module.silent, module.shorter = silent, functools.partial(functools.partial(loud), 1.0)
  module.registered, module.elsewhere = functools.partial(queries.gaussian_sum, 1.0), np.vectorize
  assert conformance.unaudited(module) == [
    "factories.own.loud is the factory of no entry: register it.",
    "factories.own.silent does not say what it returns: annotate it.",
  ]


def test_refusals(undone):
  with pytest.raises(
    ValueError, match="Expected a name that no query has, got 'average'; choose another"
  ):
    registry.register("average", lambda: PLAIN)
  with pytest.raises(ValueError, match="Expected the type of a query's event, got PoissonSampling"):
    accounting.register_query(
      PoissonSampling, accounting.QueryAnalysis(lambda *_: DominatingPair(GAUSSIAN, (1.0, 1.0)))
    )
  registration._QUERIES.pop(GaussianSum)
  with pytest.raises(
    ValueError, match="Expected an event that is accounted for under some relation"
  ):
    query_subjects(PLAIN, VICTIM)
