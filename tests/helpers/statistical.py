"""Assertions about random samples that state both of their error rates.

A right sampler fails an assertion with probability `FALSE_FAILURE` (over its keys; the tests run on
fixed ones). Every assertion is told the smallest error that it must catch, and first checks,
without looking at the sample, that it would miss such an error with probability at most `MISS`: a
test with too few draws fails.
"""

import math

import numpy as np
from scipy import stats

FALSE_FAILURE = 1e-6
MISS = 1e-3


def assert_mean(samples, expected, *, stddev, catches):
  """The mean of the samples (first axis) is `expected`, entry by entry.

  Args:
    samples: [n, ...].
    expected: the true mean, [...].
    stddev: the true standard deviation of one sample (or an upper bound), a number or [...].
    catches: an error of this size in any one entry is caught.
  """
  samples = np.asarray(samples, np.float64)
  error = np.broadcast_to(np.asarray(stddev, np.float64), samples.shape[1:]) / math.sqrt(
    len(samples)
  )
  threshold = stats.norm.isf(FALSE_FAILURE / 2 / max(1, error.size)) * error
  _require_power(np.max(stats.norm.sf((catches - threshold) / error)))
  off = np.abs(samples.mean(axis=0) - expected)
  assert np.all(off <= threshold), (
    f"a mean is off by {np.max(off):.3g}, allowed {np.max(threshold):.3g}"
  )


def assert_normal_stddev(samples, expected, *, catches):
  """Independent N(0, expected^2) samples have that standard deviation; a relative error of
  `catches` is caught.
  """
  squares = np.sum((np.asarray(samples, np.float64) / expected) ** 2)
  law = stats.chi2(np.size(samples))
  low, high = law.ppf(FALSE_FAILURE / 2), law.isf(FALSE_FAILURE / 2)
  _require_power(max(law.cdf(high / (1 + catches) ** 2), law.sf(low / (1 - catches) ** 2)))
  ratio = math.sqrt(squares / np.size(samples))
  assert low <= squares <= high, f"stddev is {ratio:.4f} times the expected {expected:.6g}"


def assert_proportion(successes, trials, expected, *, catches):
  """`successes` of `trials` coins of bias `expected`; a relative error of `catches` in the bias is
  caught.
  """
  low, high = stats.binom.ppf([FALSE_FAILURE / 2, 1 - FALSE_FAILURE / 2], trials, expected)
  too_many = stats.binom.cdf(high, trials, min(1.0, expected * (1 + catches)))
  _require_power(max(too_many, stats.binom.sf(low - 1, trials, expected * (1 - catches))))
  assert low <= int(successes) <= high, (
    f"{successes} of {trials}, expected between {low:.0f} and {high:.0f}"
  )


def assert_frequencies(counts, expected, *, catches):
  """Counts of categories come from the distribution `expected` (chi-square); the distribution
  `catches` in its place is caught.

  Neighbouring categories expected fewer than ten times are taken together.
  """
  total, edges, mass = np.sum(counts), [0], 0.0
  for category, probability in enumerate(expected[:-1], 1):
    mass += total * probability
    if mass >= 10:
      edges, mass = [*edges, category], 0.0
  if total * np.sum(expected[edges[-1] :]) < 10:
    edges.pop()
  counts, law, other = (
    np.add.reduceat(np.asarray(x, np.float64), edges) for x in (counts, expected, catches)
  )
  critical = stats.chi2.isf(FALSE_FAILURE, len(law) - 1)
  _require_power(stats.ncx2.cdf(critical, len(law) - 1, total * np.sum((other - law) ** 2 / law)))
  statistic = np.sum((counts - total * law) ** 2 / (total * law))
  assert statistic <= critical, f"chi-square {statistic:.1f} on {len(law) - 1} degrees of freedom"


def assert_uncorrelated(columns, *, catches):
  """Independent standardised columns [n, k]: no two of them are correlated; a correlation of
  `catches` is caught.
  """
  columns = np.asarray(columns, np.float64)
  n, k = columns.shape
  threshold = stats.norm.isf(FALSE_FAILURE / (k * (k - 1))) / math.sqrt(n)
  _require_power(stats.norm.sf((catches - threshold) * math.sqrt(n)))
  correlations = np.abs(columns.T @ columns / n)[np.triu_indices(k, 1)]
  assert np.all(correlations <= threshold), (
    f"correlation {correlations.max():.4f}, allowed {threshold:.4f}"
  )


def _require_power(miss):
  assert miss <= MISS, (
    f"too few samples: the error to be caught would be missed with probability {miss:.2g}"
  )
