"""Learned scores find what no projection shows, and their bounds hold however they were learned."""

import numpy as np
import pytest

from jdp.accounting import gaussian_epsilon
from jdp.audits.bounds import epsilon_bound, quick_epsilon_bound
from jdp.audits.learned_scores import audit_releases, learned_score
from jdp.audits.scores import audit_scores

CONFIDENCE, RUNS, DELTA = 0.95, 2000, 0.05


def bounds(shift, runs):
  rng = np.random.default_rng(11)
  exact, quick = (own(CONFIDENCE, DELTA) for own in (epsilon_bound, quick_epsilon_bound))

  def bound(hits, *others):
    """Quick for the many events of a choice, exact for the one that is measured."""
    return (quick if np.ndim(hits) else exact)(hits, *others)

  return np.array(
    [
      audit_releases(rng.normal(shift, size=(200, 2)), rng.normal(size=(200, 2)), bound).bound
      for _ in range(runs)
    ]
  )


@pytest.mark.slow
@pytest.mark.parametrize("shift", [0.0, 0.7])
def test_at_most_a_twentieth_of_the_bounds_lie_above_the_truth(shift):
  truth = gaussian_epsilon(1 / (2**0.5 * shift), DELTA) if shift else 0.0
  assert np.mean(bounds(shift, RUNS) > truth) <= 1 - CONFIDENCE


def test_the_score_is_nearly_the_likelihood_ratio():
  rng = np.random.default_rng(1)
  weights = np.array([1.0, -0.5, 0.0])
  score = learned_score(rng.normal(size=(20_000, 3)) + weights, rng.normal(size=(20_000, 3)))
  fresh = rng.normal(size=(1000, 3))
  exact = fresh @ weights - weights @ weights / 2
  assert np.corrcoef(score(fresh), exact)[0, 1] > 0.995
  assert np.std(score(fresh) - exact) < 0.1


def test_a_difference_of_spread_is_found():
  rng = np.random.default_rng(2)
  quiet, loud = (rng.normal(scale=scale, size=(8000, 3)) for scale in (1.0, 2.0))
  bound = epsilon_bound(CONFIDENCE, 0.1)
  assert audit_releases(quiet, loud, bound).bound > 1.5
  assert audit_scores(quiet[:, 0], loud[:, 0], bound).bound < 0.9


def test_what_is_not_finite_tells():
  rng = np.random.default_rng(3)
  first, second = rng.normal(size=(2, 4000, 2))
  first[:2000:2, 1] = np.nan  # of both halves
  first[2000::2, 1] = np.inf
  assert audit_releases(first, second, epsilon_bound(CONFIDENCE)).bound > 3.0


@pytest.mark.parametrize(
  ("first", "second", "message"),
  [
    (np.zeros((3, 1)), np.zeros((9, 1)), "number of releases in first"),
    (np.zeros((9, 1)), np.zeros((9, 2)), "Expected releases of as many numbers, got 1"),
    (np.zeros((9, 0)), np.zeros((9, 0)), "Expected first to be an array of numbers"),
  ],
)
def test_refusals(first, second, message):
  with pytest.raises(ValueError, match=message):
    audit_releases(first, second, epsilon_bound(0.9))
