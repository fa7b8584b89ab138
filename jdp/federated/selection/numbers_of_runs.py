"""Draws the number of runs of a private selection (`jdp.events.BestOfRuns`)."""

import math

import jax
import numpy as np
import scipy

from jdp import _validate, random
from jdp.accounting.renyi.repeated_runs import log_gamma

MOST_MEAN = 1000.0
_WORDS = 4
_NEGLIGIBLE = -100.0  # log of a probability below the resolution of the words
_ROUNDED_UP = 2e-9  # raises log gamma above its true value: fewer runs cost no more


def number_of_runs(key: jax.Array, mean_runs: float, shape: float) -> int:
  """Draws K, which depends on nothing but the key.

  The distribution function is inverted at a uniform number of 128 bits. Probabilities have relative
  errors of some 1e-9, and those below 2^-128 are lost.

  Args:
    key: consumed.
    mean_runs: E K, in [1, 1000].
    shape: in [0, 1000], or infinity for Poisson.

  Raises:
    ValueError: if a number is out of range.
  """
  first, beyond = survival(mean_runs, shape)
  words = np.asarray(random.bits(key, (_WORDS,))).astype(np.uint32).tobytes()
  # The middle of one of 2^128 equal intervals, so never 0.
  uniform = (int.from_bytes(words, "little") + 0.5) / 2.0 ** (32 * _WORDS)
  return first + int(np.count_nonzero(beyond > uniform))


def survival(mean_runs: float, shape: float) -> tuple[int, np.ndarray]:
  """(the least number of runs k, P(K > k + i) for i = 0, 1, ... as far as it matters)."""
  _validate.in_range(1.0, MOST_MEAN, mean_runs=mean_runs)
  if shape != math.inf:
    _validate.in_range(0.0, 1000.0, shape=shape)
  poisson = shape == math.inf
  log_g = 0.0 if poisson else min(log_gamma(mean_runs, shape) + _ROUNDED_UP, 0.0)
  if not poisson and log_g == 0:
    return 1, np.zeros(1)
  size, first = 64, 0 if poisson else 1
  while True:
    number = np.arange(first, first + size, dtype=float)
    log_p = _log_weights(number, mean_runs, shape, log_g)
    if log_p[-1] - np.max(log_p) < _NEGLIGIBLE:
      break
    size *= 2
  p = np.exp(log_p - scipy.special.logsumexp(log_p))
  return first, np.append(np.cumsum(p[:0:-1])[::-1], 0.0)


def _log_weights(number: np.ndarray, mean: float, shape: float, log_g: float) -> np.ndarray:
  """Log probabilities of the numbers, up to a common factor."""
  if shape == math.inf:
    return number * math.log(mean) - scipy.special.gammaln(number + 1)
  decay = number * math.log(-math.expm1(log_g))
  if shape == 0:
    return decay - np.log(number)
  return decay + scipy.special.gammaln(number + shape) - scipy.special.gammaln(number + 1)
