"""The cost of sums of integer vectors with discrete noise.

A record moves the sum by an integer vector of L2 norm at most S and L1 norm at most s. Integers x
have |x| <= x^2, so s <= min(sqrt(d), S) S. Reducing a released sum modulo 2^b, or unwrapping it, is
post-processing.
"""

import math
import sys

import numpy as np

from jdp.accounting.renyi.conversions import below_chords

_MOST = 2**53  # above it a whole number is not a float64
_LARGEST_VARIANCE = 1e150  # more noise counts as this: its divergences would round to zero


def discrete_gaussian_rho(
  l2: float, l1: float, share_stddev: float, num_shares: int, dim: int
) -> float:
  """The rho of zCDP of a sum with `num_shares` independent discrete Gaussians on each coordinate.

  With one share, rho is S^2 / (2 sigma^2) (arXiv 2004.00010, Theorem 4, for each coordinate, and
  composition). A sum of n is not a discrete Gaussian. Its law is within a factor of e^tau of the
  discrete Gaussian of variance n sigma^2 everywhere, with

      tau = 10 sum_{k=1}^{n-1} e^(-2 pi^2 sigma^2 k / (k+1)).

  Then rho is half of the smaller of

      S^2 / (n sigma^2) + 2 tau s / (sqrt(n) sigma) + tau^2 d,
      (S / (sqrt(n) sigma) + tau sqrt(d))^2

  (arXiv 2102.06387, Proposition 14, for sigma >= 1/2). From sigma = 2 on, tau is below 1e-15 n.

  Args:
    l2: S >= 0.
    l1: s >= 0.
    share_stddev: sigma >= 0 of one share. At 0 rho is infinite. Below 1/2 it is infinite if there
      are several shares.
    num_shares: n >= 0. At 0, and beyond 2^53, rho is infinite.
    dim: d >= 1. Beyond 2^53 rho is infinite.

  >>> print(f"{discrete_gaussian_rho(10.0, 100.0, 5.0, 100, 1000):.6f}")
  0.020000
  """
  if (
    num_shares == 0
    or share_stddev == 0
    or (num_shares > 1 and share_stddev < 0.5)
    or max(num_shares, dim) > _MOST
  ):
    return math.inf
  tau, scale = inflation(share_stddev, num_shares), math.sqrt(num_shares) * share_stddev
  # Products overflow to infinity, where powers raise.
  distance, spread = l2 / scale, tau * math.sqrt(dim)
  apart = distance * distance + 2 * tau * (l1 / scale if tau else 0.0) + spread * spread
  least = min(apart, (distance + spread) * (distance + spread)) / 2
  # A release that moves is never free, even where its cost underflows.
  return max(least, sys.float_info.min) if l2 else least


def inflation(share_stddev: float, num_shares: int) -> float:
  """tau of `discrete_gaussian_rho`.

  At most 1e5 terms are added. The others are bounded by the last of them.
  """
  terms = min(num_shares - 1, 10**5)
  k = np.arange(1, terms + 1)
  exponents = -2 * np.square(math.pi * min(share_stddev, 1e100)) * k / (k + 1)
  rest = (num_shares - 1 - terms) * math.exp(exponents[-1]) if num_shares - 1 > terms else 0.0
  return 10 * (float(np.sum(np.exp(exponents))) + rest)


def skellam_rdp(
  l2: np.ndarray, l1: np.ndarray, variance: np.ndarray, orders: np.ndarray
) -> np.ndarray:
  """The Renyi divergences of sums with Skellam noise, [E] and [A] to [E, A].

  The noise has variance v on each coordinate. At whole orders a the divergence is at most

      a S^2 / (2 v) + min(((2a - 1) S^2 + 6 s) / (4 v^2), 3 s / (2 v))

  (arXiv 2110.04995, Corollary 4.1 with scale 1). Between whole orders the chord is above it.

  Args:
    l2: S >= 0 of each sum.
    l1: s >= 0 of each sum.
    variance: v >= 0 of each sum; 0 costs infinity.
    orders: a > 1.
  """
  l2, l1, v = l2[:, None], l1[:, None], np.minimum(variance[:, None], _LARGEST_VARIANCE)

  def log_moments(a: np.ndarray) -> np.ndarray:
    # In this form nothing overflows but what is infinite.
    squared, absolute = np.square(l2 / np.sqrt(v)), l1 / v
    second = np.minimum(((2 * a - 1) * squared / v + 6 * absolute / v) / 4, 1.5 * absolute)
    return (a - 1) * (a * squared / 2 + second)

  with np.errstate(divide="ignore", over="ignore", under="ignore", invalid="ignore"):
    least = np.where(l2 > 0, sys.float_info.min, 0.0)
    divergence = np.maximum(below_chords(log_moments, orders), least)
  return np.where(v > 0, divergence, math.inf)
