"""The parts of an audit: its statistics, its choice of events, and how often its bounds are
wrong.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jdp import conformance
from jdp.audits.bounds import epsilon_bound, quick_epsilon_bound
from jdp.audits.scores import Outcomes, best_outcomes, best_threshold
from jdp.conformance import scores
from jdp.conformance.auditing import audit_all
from jdp.conformance.statistics import default_statistics, equal_values


def response(probability):
  """Randomised response on the sign of a value, which tells the truth with this probability."""

  def release(key, value):
    truth = jnp.nan_to_num(value) > 0
    return jnp.where(jax.random.bernoulli(key, probability), truth, ~truth).astype(jnp.int32)

  return release


def logit(probability):
  return float(np.log(probability / (1 - probability)))


@pytest.mark.slow
def test_bounds_are_wrong_no_more_often_than_stated():
  """100 audits at a confidence of 60 %: more than 64 wrong ones would have a probability below
  1e-6.
  """
  subject = conformance.release_subject(response(0.7), 1.0, -1.0, epsilon=logit(0.7))
  keys = jax.random.split(jax.random.key(0), 100)
  wrong = sum(
    conformance.audit(subject, key, num_samples=400, confidence=0.6).refuted for key in keys
  )
  assert 0 < wrong <= stats.binom.isf(1e-6, 100, 0.4) == 64


@pytest.mark.slow
def test_all_bounds_hold_with_one_confidence():
  subject = conformance.release_subject(response(0.7), 1.0, -1.0, epsilon=logit(0.7))
  seen = []
  found = audit_all(
    {"one": subject, "two": subject},
    jax.random.key(1),
    num_samples=400,
    confidence=0.9,
    report=lambda *own: seen.append(own),
  )
  assert seen == list(found.items())
  assert [own.confidence for own in found.values()] == [0.95, 0.95]
  assert len({own.hits for own in found.values()}) == 2  # each has reports of its own


@pytest.mark.slow
def test_what_an_audit_says():
  subject = conformance.release_subject(response(0.9), 1.0, -1.0, epsilon=1.0)
  found = conformance.audit(subject, jax.random.key(0), num_samples=1000)
  assert found.refuted
  assert str(found).startswith("epsilon 1 REFUTED: at least 1.8")
  assert not conformance.audit(
    subject._replace(epsilon=3.0), jax.random.key(0), num_samples=1000
  ).refuted


def test_reports_that_are_nan_for_some_inputs_only_tell():
  def release(key, value):
    return value * 0 + jax.random.normal(key)

  found = conformance.audit(
    conformance.release_subject(release, 1.0, -1.0, epsilon=1.0),
    jax.random.key(0),
    num_samples=1000,
  )
  assert found.refuted
  assert {"NaN", "infinite"} & set(found.pair)


@pytest.mark.slow
def test_delta_is_allowed_for():
  """A release that tells all with probability 5 %, and nothing otherwise, is (0, 0.05)-DP."""

  def release(key, value):
    return jnp.where(jax.random.bernoulli(key, 0.05), jnp.nan_to_num(value), 0.0)

  for delta, refuted in ((0.05, False), (0.03, True)):
    subject = conformance.release_subject(release, 1.0, -1.0, epsilon=0.01, delta=delta)
    assert conformance.audit(subject, jax.random.key(0), num_samples=20_000).refuted is refuted


@pytest.mark.slow
def test_residues_show_what_a_threshold_does_not():
  """Noise on whole numbers at one input, on halves at the other: the same lengths, near enough, at
  coarse noise.
  """

  def release(key, value):
    return jnp.round(jax.random.normal(key) * 1000) + jnp.where(value > 0, 0.5, 0.0)

  subject = conformance.release_subject(release, 1.0, -1.0, epsilon=0.1)
  found = conformance.audit(subject, jax.random.key(0), num_samples=4000)
  assert found.refuted
  assert found.statistic == "granularity"
  blind = {name: subject.statistics[name] for name in ("projection", "length")}
  assert not conformance.audit(
    subject._replace(statistics=blind), jax.random.key(0), num_samples=4000
  ).refuted


def test_quick_bounds_are_near_those_that_hold():
  hits, false_hits = np.meshgrid([50, 900, 5000, 9990], [3, 100, 2000])
  exact = epsilon_bound(1 - 1e-4, 0.001)(hits, 10_000, false_hits, 10_000)
  quick = quick_epsilon_bound(1 - 1e-4, 0.001)(hits, 10_000, false_hits, 10_000)
  np.testing.assert_allclose(quick, exact, atol=0.25)


def test_events_of_sorted_scores():
  first = np.repeat([0, 1, 2, 3], [10, 50, 100, 840])
  second = np.repeat([0, 1, 2, 3], [500, 300, 190, 10])
  bound = quick_epsilon_bound(0.99)
  found, event = best_outcomes(first, second, bound)
  assert event.values.tolist() == [3]
  assert found == bound(840, 1000, 10, 1000)
  assert event.count(second) == 10
  assert best_threshold(first.astype(float), second.astype(float), bound)[1].at_least == 3.0
  rare = np.arange(1000)
  assert best_outcomes(rare, rare, bound) == (0.0, Outcomes(pytest.approx(np.array([]))))


def test_scores_are_the_statistics_of_each_report_alone():
  """In programs that subjects share, for two directions of one shape; fewer scores are the first
  ones of more.
  """

  def release(key, value):
    return value + jnp.round(8 * jax.random.normal(key, (2,))) / 8  # exact in any program

  value, key = jnp.float32([0.5, -1.0]), jax.random.key(3)
  loop = [release(own, value) for own in scores._keys(key, 0)[:5]]
  for direction in ([1.0, 2.0], [-3.0, 0.5]):
    statistics = default_statistics(np.float32(direction)) | {"first": lambda report: report[0]}
    found = scores.scores(release, statistics, key, value, scores.AT_ONCE + 5)
    fewer = scores.scores(release, statistics, key, value, 5)
    for name, statistic in statistics.items():
      assert len(found[name]) == scores.AT_ONCE + 5
      alone = np.array([statistic(report) for report in loop])
      np.testing.assert_allclose(fewer[name], alone, rtol=1e-6)
      np.testing.assert_array_equal(fewer[name], found[name][:5])
    assert not set(found["first"][:5]) & set(found["first"][-5:])


def test_equal_reports_are_one_category():
  reports = [
    (jnp.float32([0.0, 1.0]), jnp.uint8(3)),
    (jnp.float32([1.0, 0.0]), jnp.uint8(3)),
    (jnp.float32([0.0, 1.0]), jnp.uint8(4)),
  ]
  categories = [int(equal_values(report)) for report in reports]
  assert len(set(categories)) == 3
  assert categories[0] == int(equal_values(reports[0]))
