"""Audits of releases for which no statistic is known, by a likelihood ratio that is learned.

A classifier learns from half of the releases to tell the two inputs apart. Its log odds estimate
the log of the likelihood ratio, which is the best score there is. The other half is audited by this
score, which took no part in the choice. So the bound holds however badly the classifier learned.
"""

from collections.abc import Callable

import numpy as np
import scipy

from jdp import _validate
from jdp._arguments import Rows, checked
from jdp.audits.bounds import Bound
from jdp.audits.scores import ScoreAudit, audit_scores

Score = Callable[[np.ndarray], np.ndarray]
"""Releases [n, numbers] -> scores [n], larger for releases that look like the first input's."""

_RIDGE = 1e-3  # penalty in the mean loss: weights of features that tell nothing stay small
_STEPS = 12
_LARGEST = 30.0  # standard deviations: what lies farther counts as this


@checked
def learned_score(first: Rows, second: Rows) -> Score:
  """The log odds that a logistic regression on the numbers and their squares finds.

  With normal releases of any means and variances these features are all that the likelihood ratio
  needs, except for products of two numbers.

  Args:
    first: [n, numbers], releases on one input. NaN and infinities count as large numbers.
    second: [n', numbers], releases on the other.

  Raises:
    ValueError: if the releases differ in their numbers, or there are none of either kind.

  >>> rng = np.random.default_rng(0)
  >>> score = learned_score(rng.normal(1.0, size=(2000, 3)), rng.normal(0.0, size=(2000, 3)))
  >>> bool(score(np.ones((1, 3))) > 0 > score(np.zeros((1, 3))))
  True
  """
  first, second = _rows("first", first), _rows("second", second)
  if first.shape[1] != second.shape[1]:
    raise ValueError(
      f"Expected releases of as many numbers, got {first.shape[1]} in first and {second.shape[1]} "
      "in second."
    )
  both = np.concatenate([first, second])
  center, scale = np.median(both, axis=0), np.std(both, axis=0)
  scale = np.where((scale > 0) & np.isfinite(scale), scale, 1.0)

  def features(releases: np.ndarray) -> np.ndarray:
    x = np.clip((releases - center) / scale, -_LARGEST, _LARGEST)
    return np.concatenate([x, np.square(x), np.ones((len(x), 1))], axis=1)

  labels = np.repeat([1.0, 0.0], [len(first), len(second)])
  weights = _fit(features(both), labels)
  return lambda releases: features(_rows("releases", releases)) @ weights


@checked
def audit_releases(first: Rows, second: Rows, bound: Bound) -> ScoreAudit:
  """An audit by a learned score: half of the releases learns it, and the other half is audited.

  Args:
    first: [n, numbers], independent releases on one input, in the order they were drawn, n >= 4.
    second: [n', numbers], the same on the other input.
    bound: `epsilon_bound` or `gaussian_bound`. Its confidence is the audit's, whatever was learned.

  Raises:
    ValueError: if there are fewer than four releases of either kind, or their numbers differ.

  >>> from jdp.audits.bounds import epsilon_bound
  >>> rng = np.random.default_rng(0)
  >>> quiet, loud = (rng.normal(scale=scale, size=(20_000, 2)) for scale in (1.0, 2.0))
  >>> audit_releases(quiet, loud, epsilon_bound(0.99, delta=0.1)).bound > 0.5
  True
  """
  for name, releases in (("first", first), ("second", second)):
    _validate.integer(4, **{f"the number of releases in {name}": len(releases)})
  (own, new), (other, other_new) = (
    np.split(np.asarray(releases), [len(releases) // 2]) for releases in (first, second)
  )
  score = learned_score(own, other)
  return audit_scores(score(new), score(other_new), bound)


def _rows(name: str, releases: np.ndarray) -> np.ndarray:
  """Releases as finite float64 [n, numbers]."""
  rows = np.asarray(releases, np.float64)
  if not rows.size:
    raise ValueError(f"Expected {name} to hold releases with numbers, got shape {rows.shape}.")
  return np.nan_to_num(rows.reshape(len(rows), -1), nan=1e30, posinf=1e30, neginf=-1e30)


def _fit(features: np.ndarray, labels: np.ndarray) -> np.ndarray:
  """The weights of a ridge logistic regression, by Newton's method."""
  count, width = features.shape
  weights = np.zeros(width)
  for _ in range(_STEPS):
    odds = scipy.special.expit(features @ weights)
    gradient = features.T @ (odds - labels) / count + _RIDGE * weights
    curvature = (features.T * (odds * (1 - odds))) @ features / count + _RIDGE * np.eye(width)
    weights = weights - np.linalg.solve(curvature, gradient)
  return weights
