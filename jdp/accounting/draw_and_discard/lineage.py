"""Descent and spread of the k instances of a Draw-and-Discard server.

Every server update draws one of k instances, and overwrites one of k with its updated copy. Both
are uniform, and independent of each other and of all data (arXiv 1807.04369, Algorithm 2). All
results here are exact for that sequential process without rejected updates. Delays of clients are
not covered.

There are two clocks: T server updates, and the updates along one instance's line of descent. The
line has fewer.
"""

import math

import numpy as np
import scipy

from jdp import _validate
from jdp._arguments import checked

_MOST_INSTANCES, MOST_UPDATES = 2048, 2**53
_MOST_ON_LINE, _MOST_WORK = 2**20, 10**10


@checked
def num_descendants(num_instances: int, updates: int) -> np.ndarray:
  """The distribution of the number of instances that descend from one user's update.

  They are counted `updates` server updates later. The number is a birth-death chain that starts
  at 1. With i descendants, it grows and it shrinks with probability i (k-i) / k^2 each: an update
  draws one of them and overwrites another instance, or the reverse. The result is exact. Lemma 4.2
  of arXiv 1807.04369 bounds the probability of 0 from below.

  Args:
    num_instances: The number k of instances. It lies in [1, 2048], as a matrix of k^2 numbers is
      made.
    updates: The number T of server updates after the user's own. From 0 to 2^53.

  Returns:
    The probability of each number of descendants from 0 to k. Shape `[k+1]`, float64. Relative
    errors are below 1e-9.

  Raises:
    ValueError: if an argument is out of range.

  >>> print(num_descendants(20, 100)[0].round(4))
  0.8168
  """
  _validate.integer(1, num_instances=num_instances)
  _validate.integer(0, updates=updates)
  _validate.in_range(1, _MOST_INSTANCES, num_instances=num_instances)
  _validate.in_range(0, MOST_UPDATES, updates=updates)
  i = np.arange(num_instances + 1)
  move = i * (num_instances - i) / num_instances**2
  step = np.diag(1 - 2 * move) + np.diag(move[:-1], 1) + np.diag(move[1:], -1)
  return np.linalg.matrix_power(step, updates)[1]  # the chain starts with one descendant


@checked
def probability_gone(num_instances: int, updates: float) -> float:
  """The probability that no instance descends from one user's update any more.

  Args:
    num_instances: The number k of instances. At least 1.
    updates: The number T of server updates after the user's own. math.inf gives the limit 1 - 1/k,
      as the mean number of descendants stays 1, and in the end it is 0 or k.

  Raises:
    ValueError: if an argument is out of range.

  >>> probability_gone(20, math.inf)
  0.95
  """
  if updates == math.inf:
    _validate.integer(1, num_instances=num_instances)
    return 1 - 1 / num_instances
  return float(num_descendants(num_instances, int(updates))[0])


@checked
def updates_along_line(num_instances: int, updates: int, *, seen: int = 1) -> np.ndarray:
  """The distribution of the number of updates that hide one user's update from a later observer.

  The observer sees `seen` instances, T server updates later. The lines of the instances that
  descend from the user's update share a stem. It runs from that update to their last common
  ancestor (for a single descendant, to itself). All of them are made from the stem's end with noise
  that is independent of the user. So the number n of updates on the stem is what counts.

  Followed backward from what is seen, `a` lines remain. An update overwrote the end of a given one
  with probability 1/k. With probability (a-1)/k it was then drawn from another of the `a` lines. In
  that case the two meet, and the stem ends there. The user's update lies on each line with
  probability 1/k, since its slot is uniform and independent of all that follows.

  For each a and n, the code tracks the expected number of lines whose stem has n updates so far,
  counted while a lines remain: a linear recursion. For one instance seen, the binomial distribution
  solves it: given descent, n ~ Bin(T, 1/k). For more instances it takes time proportional to T.

  Args:
    num_instances: The number k of instances. At least 1.
    updates: The number T of server updates after the user's own. At least 0, and at most 2^20 on
      average along a line.
    seen: The number of instances seen. From 1 to k. They are chosen independently of their history.

  Returns:
    For each n = 0, 1, ... the probability that some instance seen descends from the user's update
    and that the stem has n further updates. Shape `[n]`, float64. Values of n that exceed the mean
    T/k by more than 12 standard deviations and 50 are left out. Together their probability is below
    1e-20. The sum is 1/k for one instance, and 1 - `probability_gone` for all.

  Raises:
    ValueError: if an argument is out of range.

  >>> one, every = updates_along_line(20, 400), updates_along_line(20, 400, seen=20)
  >>> print(one.sum().round(4), every.sum().round(4), (1 - probability_gone(20, 400)))
  0.05 0.0687 0.0687...
  >>> print(
  ...   (np.arange(one.size) @ one / one.sum()).round(2),
  ...   (np.arange(every.size) @ every / every.sum()).round(2),
  ... )
  20.0 ...
  """
  _validate.integer(1, num_instances=num_instances, seen=seen)
  _validate.integer(0, updates=updates)
  _validate.in_range(1, num_instances, seen=seen)
  _validate.in_range(1, MOST_UPDATES, num_instances=num_instances)
  _validate.in_range(0, _MOST_ON_LINE * num_instances, updates=updates)
  mean = updates / num_instances
  size = 1 + min(updates, math.ceil(mean + 12 * math.sqrt(mean) + 50))
  if seen == 1:
    # 1/k is the probability of descent.
    law = scipy.stats.binom.pmf(np.arange(size), updates, 1 / num_instances)
    return law / num_instances
  if updates * seen * size > _MOST_WORK:
    raise ValueError(
      f"Expected at most {_MOST_WORK:.0e} steps for {seen} instances seen, got "
      f"{updates * seen * size:.0e}; ask for fewer updates or instances."
    )
  lines = np.zeros((seen, size))
  lines[-1, 0] = seen
  for _ in range(updates):
    lines = _one_update_back(lines, num_instances)
  return lines.sum(axis=0) / num_instances


def _one_update_back(lines: np.ndarray, k: int) -> np.ndarray:
  """The expected numbers of lines [a - 1, n], one server update earlier."""
  a = np.arange(1.0, len(lines) + 1)[:, None]
  # An update lengthens a given line's stem if it overwrites that line's end (1/k) and is drawn from
  # none of the other a - 1 lines. Any two of the a lines may meet.
  extended, meeting = (k - a + 1) / k**2, a * (a - 1) / k**2
  earlier = (1 - extended - meeting) * lines
  earlier[:, 1:] += (extended * lines)[:, :-1]
  earlier[:-1] += ((a - 1) * (a - 2) / k**2 * lines)[1:]  # two other lines met
  # The line into which two lines merge has a new stem, with no updates so far.
  earlier[:-1, 0] += (meeting[:, 0] * lines.sum(axis=1) / a[:, 0])[1:]
  return earlier


@checked
def instance_variance(
  num_instances: int, noise_variance: float, *, updates: int = 0, initial: float | None = None
) -> float:
  """The expected sample variance (ddof=1) of one weight over the k instances.

  It is computed after `updates` server updates that add only noise, of variance s2 (arXiv
  1807.04369, Theorem 3.1). An update overwrites its own pre-image with probability 1/k, which adds
  s2/k on average. An update that overwrites another instance adds (s2 - 2V/(k-1))/k. So V becomes
  (1 - 2/k^2) V + s2/k on average, whose fixed point is k s2 / 2. From any other start the gap
  shrinks by the factor 1 - 2/k^2 per update.

  Args:
    num_instances: k >= 1. A single instance has no spread.
    noise_variance: s2 >= 0 per coordinate. For Laplace noise it is twice the scale squared.
    updates: T >= 0.
    initial: The sample variance at the start. None stands for the stationary variance. The initial
      instances must then have it: they are drawn around one mean with this variance, and no update
      changes it on average.

  Raises:
    ValueError: if an argument is out of range.

  >>> instance_variance(20, 2.0), instance_variance(20, 2.0, updates=200, initial=0.0)
  (20.0, 12.66...)
  """
  _validate.integer(1, num_instances=num_instances)
  _validate.integer(0, updates=updates)
  _validate.in_range(1, MOST_UPDATES, num_instances=num_instances)
  _validate.in_range(0, MOST_UPDATES, updates=updates)
  stationary = num_instances * noise_variance / 2 if num_instances > 1 else 0.0
  initial = stationary if initial is None else initial
  _validate.non_negative(
    noise_variance=noise_variance, initial=initial, stationary_variance=stationary
  )
  if num_instances == 1:
    return 0.0
  return stationary + (initial - stationary) * (1 - 2 / num_instances**2) ** updates
