"""Renyi divergences in closed form, for pure DP, randomised response, Laplace noise and zCDP.

With A = E_Q (P/Q)^a the divergence of order a is log(A) / (a - 1). A - 1 may be far smaller than A,
so every function below computes it as a sum or product of non-negative terms. All take parameters
[E] and orders [A] to float64 [E, A]. An infinite parameter has an infinite divergence.
"""

import numpy as np
import scipy

from jdp.accounting.renyi.binomial_sums import log_expm1


def pure(epsilon: np.ndarray, orders: np.ndarray) -> np.ndarray:
  """The largest divergence of any epsilon-DP release: that of randomised response on one bit.

  Every pair of distributions whose likelihood ratios lie in [e^-epsilon, e^epsilon] is a
  post-processing of that response's (arXiv 1311.0776). Its divergence is that of arXiv 1605.02065,
  Proposition 3.3.

  >>> print(pure(np.array([1.0, 1e-6]), np.array([2.0, 1e9])))
  [[7.35325664e-01 1.00000000e+00]
   [1.00000000e-12 9.99306853e-07]]
  """
  return _binary(epsilon[:, None], scipy.special.log_expit(epsilon)[:, None], orders)


def randomized_response(
  noise: np.ndarray, num_values: np.ndarray, orders: np.ndarray
) -> np.ndarray:
  """The divergence between the responses to two of `num_values` values.

  `noise` is that of `RandomizedResponse`.
  """
  with np.errstate(divide="ignore"):
    log_kept = np.log1p(-noise * (1 - 1 / num_values))
  return _binary(response_epsilon(noise, num_values)[:, None], log_kept[:, None], orders)


def response_epsilon(noise: np.ndarray, num_values: np.ndarray) -> np.ndarray:
  """The epsilon of randomised response, log(1 + k (1 - p) / p), [E]."""
  with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
    return np.where(noise == 1, 0.0, np.log1p(num_values * ((1 - noise) / noise)))


def null_response_epsilon(noise: np.ndarray, num_values: np.ndarray) -> np.ndarray:
  """The epsilon of randomised response against a uniform answer, [E].

  The true value is k (1 - p) + p times as likely as in a uniform answer, any other one p times.
  """
  with np.errstate(divide="ignore", over="ignore"):
    return np.maximum(np.log(num_values * (1 - noise) + noise), -np.log(noise))


def laplace(epsilon: np.ndarray, orders: np.ndarray) -> np.ndarray:
  """The divergence between Laplace distributions whose centres are `epsilon` scales apart.

  Source: arXiv 1702.07476, Proposition 6. It also bounds the divergence of a vector that moves by
  an L1 distance of `epsilon` scales. The divergence of one coordinate is convex in its share of the
  distance, and zero at zero. So all coordinates together cost no more than one coordinate that
  moves by the whole distance.
  """
  with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
    e, a = epsilon[:, None], orders
    rise = np.log(a) + _log_second_order((a - 1) * e)
    fall = np.log(a - 1) + _log_second_order(-a * e)
    return np.logaddexp(0.0, np.logaddexp(rise, fall) - np.log(2 * a - 1)) / (a - 1)


def concentrated(rho: np.ndarray, orders: np.ndarray) -> np.ndarray:
  """The divergence that rho-zCDP allows: rho a (arXiv 1605.02065, Definition 1.1)."""
  return rho[:, None] * orders


def _binary(epsilon: np.ndarray, log_kept: np.ndarray, a: np.ndarray) -> np.ndarray:
  """The divergence of distributions that are equal except at two outputs.

  The probabilities of these two, u and u e^-epsilon, change places. log_kept is log u.

      A - 1 = u (e^((a-1) epsilon) - 1) (1 - e^(-a epsilon))
  """
  with np.errstate(over="ignore", divide="ignore"):
    log_excess = log_kept + log_expm1((a - 1) * epsilon) + np.log(-np.expm1(-a * epsilon))
    return np.logaddexp(0.0, log_excess) / (a - 1)


def _log_second_order(x: np.ndarray) -> np.ndarray:
  """log(e^x - 1 - x), which is log(x^2/2) + log 1F1(1; 3; x)."""
  # e^x - 1 - x cancels near zero, its series does not. Clipping keeps branches finite elsewhere.
  near = np.clip(x, -1.0, 1.0)
  small = 2 * np.log(np.abs(x)) - np.log(2) + np.log(scipy.special.hyp1f1(1, 3, near))
  far = np.clip(x, 1.0, 700.0)  # beyond 700 the logarithm below is zero
  large = x + np.log1p(-(1 + far) * np.exp(-far))
  negative = np.log(np.expm1(x) - x)
  return np.where(np.abs(x) <= 1, small, np.where(x > 0, large, negative))
