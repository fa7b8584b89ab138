"""Closed forms of PrivUnit's report when it is sent as the number of a candidate.

N candidates are independent and uniform on the sphere. A cap of share q holds K ~ Bin(N, q) of
them. Whoever knows all candidates sees one of N numbers. The distribution of that number has a
threshold j and a ratio R = e^epsilon. With probability N / (N + (R-1) j) the number is uniform.
Else it is that of a candidate in the cap with probability min(K, j) / j, or of one outside it. So

    pi(K) = (K + (R-1) min(K, j)) / (N + (R-1) j)

is the probability of the cap, and p = E pi(K). Proofs are in `docs/theory/compressed_reports.md`.
Everything is float64 on the host.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import scipy

from jdp import _validate
from jdp._arguments import checked
from jdp.accounting.local.cap_shares import log_height_of, log_share
from jdp.accounting.local.priv_unit import Cap, cap_of, optimal_cap
from jdp.accounting.local.threshold import MIN_EPSILON

MAX_BITS = 30
_MAX_EPSILON = 100.0  # far above the epsilons for which 30 bits are enough
# The margin below the epsilon asked for, as in `priv_unit`.
_SAFETY = 5e-10
# By default the squared error is at most this much larger than that of PrivUnit at the same
# epsilon.
_EXCESS = 0.05


class IndexLaw(NamedTuple):
  """The distribution of the number that is sent.

  Attributes:
    cap: the cap of PrivUnit, whose report has the distribution of the candidate sent. Its epsilon
      is what a report costs against an observer who does not know the other candidates.
    num_candidates: N.
    threshold: j.
    epsilon: log R, what a report costs against an observer who knows all candidates.
  """

  cap: Cap
  num_candidates: int
  threshold: int
  epsilon: float

  @property
  def uniform(self) -> float:
    """The probability of a number that depends on no input."""
    return 1 / (1 + math.expm1(self.epsilon) * self.threshold / self.num_candidates)


@checked
def compress(cap: Cap, num_candidates: int) -> IndexLaw:
  """The law of least epsilon whose candidate is distributed as PrivUnit's report (Statement 9.3).

  Args:
    cap: the constants of PrivUnit.
    num_candidates: N. From 2 to 2^30.

  Raises:
    ValueError: if there are so few candidates that no epsilon is enough.

  >>> from jdp.accounting.local.priv_unit import optimal_cap
  >>> cap = optimal_cap(1000, 8.0)
  >>> [round(compress(cap, 2**bits).epsilon, 3) for bits in (12, 14, 16, 18)]
  [8.619, 8.275, 8.13, 8.064]
  """
  _check_count(num_candidates)
  q = math.exp(cap.log_q)
  j = _least_threshold(num_candidates, q, lambda _: cap.p)
  gain = _capped_mean(num_candidates, q, j) - cap.p * j
  if not gain > 0:
    raise ValueError(
      f"Expected more candidates for a cap with {q:.3g} of the sphere and p = {cap.p:.6g}, got "
      f"{num_candidates}; take more bits."
    )
  return IndexLaw(cap, num_candidates, j, math.log1p(num_candidates * (cap.p - q) / gain))


@checked
def best_law(dim: int, epsilon: float, num_candidates: int) -> IndexLaw:
  """The law of least squared error at epsilon, over all caps.

  Args:
    dim: the dimension d. From 2 to 1e9.
    epsilon: the budget. In [1e-3, 100].
    num_candidates: N. From 2 to 2^30.

  Raises:
    ValueError: if an argument is out of range.

  >>> law = best_law(1000, 8.0, 2**15)
  >>> round(law.epsilon, 6), round(law.cap.epsilon, 3), round(1 / law.cap.m**2 - 1, 2)
  (8.0, 7.829, 137.03)
  """
  _validate.in_range(MIN_EPSILON, _MAX_EPSILON, epsilon=epsilon)
  _check_count(num_candidates)
  start, epsilon = optimal_cap(dim, epsilon), epsilon * (1 - _SAFETY)

  def law_at(x):
    gamma = -math.expm1(-math.exp(x))
    q = math.exp(float(log_share(dim, gamma, log_height_of(gamma))[0]))
    j, p = _largest_share(num_candidates, q, epsilon)
    return gamma, j, p, p - q

  def error(x):
    gamma, _, p, advantage = law_at(x)
    # `cap_of` refuses p = 1 and p <= q. A large error keeps the search away from both.
    return -cap_of(dim, gamma, p).log_m if 1e-9 * p < advantage and p < 1 else 1e6

  # gamma is 1 - exp(-e^x). Fewer candidates make the best cap wider.
  x = math.log(-math.log1p(-min(start.gamma, 1 - 1e-16)))
  x = scipy.optimize.minimize_scalar(error, bounds=(x - 3, x + 0.2), method="bounded").x
  gamma, j, p, _ = law_at(x)
  return IndexLaw(cap_of(dim, gamma, p), num_candidates, j, epsilon)


@checked
def shortest_law(dim: int, epsilon: float) -> IndexLaw:
  """`best_law` for the fewest bits with a squared error of at most 1.05 times PrivUnit's.

  Raises:
    ValueError: if an argument is out of range, or 30 bits are too few.

  >>> [shortest_law(1000, epsilon).num_candidates for epsilon in (1.0, 4.0, 8.0)]
  [2048, 4096, 32768]
  """
  allowed = (1 + _EXCESS) * math.expm1(-2 * optimal_cap(dim, epsilon).log_m)
  for bits in range(5, MAX_BITS + 1):
    law = best_law(dim, epsilon, 2**bits)
    if math.expm1(-2 * law.cap.log_m) <= allowed:
      return law
  raise ValueError(
    f"Expected an epsilon that 2^{MAX_BITS} candidates are enough for, got {epsilon} in {dim} "
    "dimensions; take a smaller epsilon, or priv_unit, which sends the vector itself."
  )


@checked
def information(cap: Cap) -> float:
  """The bits that a report of PrivUnit tells about a uniform input: no code for it is shorter.

  It is the divergence of the report's distribution from the uniform one, in bits. The expected
  length of any code is at least this, even if both sides share randomness (P. Harsha, R. Jain,
  D. McAllester, J. Radhakrishnan, "The communication complexity of correlation", IEEE Trans. Inf.
  Theory 56(1), 2010).

  >>> round(information(optimal_cap(1000, 8.0)), 2)
  7.07
  """
  log_p, log_rest = -math.log1p(math.exp(-cap.logit_p)), -math.log1p(math.exp(cap.logit_p))
  inside = math.exp(log_p) * (log_p - cap.log_q)
  outside = math.exp(log_rest) * (log_rest - math.log1p(-math.exp(cap.log_q)))
  return (inside + outside) / math.log(2)


def _largest_share(n: int, q: float, epsilon: float) -> tuple[int, float]:
  """The threshold with the largest E pi(K) for a cap of share q, and that mean."""
  surplus = math.expm1(epsilon)

  def share(j: int) -> float:
    return (n * q + surplus * _capped_mean(n, q, j)) / (n + surplus * j)

  j = _least_threshold(n, q, share)
  return j, share(j)


def _least_threshold(n: int, q: float, target: Callable[[int], float]) -> int:
  """The least j >= 1 with P(K > j) <= target(j), whose two sides cross only once."""
  low, high = 1, n
  while low < high:
    j = (low + high) // 2
    low, high = (j + 1, high) if _above(n, q, j) > target(j) else (low, j)
  return low


def _capped_mean(n: int, q: float, j: int) -> float:
  """E min(K, j) for K ~ Bin(n, q)."""
  return n * q * (1 - _above(n - 1, q, j - 2)) + j * _above(n, q, j - 1)


def _above(n: int, q: float, k: int) -> float:
  """P(K > k) for K ~ Bin(n, q)."""
  return 1.0 if k < 0 else 0.0 if k >= n else float(scipy.special.betainc(k + 1, n - k, q))


def _check_count(num_candidates: int) -> None:
  _validate.in_range(2, 2**MAX_BITS, num_candidates=num_candidates)
  _validate.integer(2, num_candidates=num_candidates)
