"""The exact privacy of one Gaussian release, for every epsilon.

One release of noise multiplier z = stddev / sensitivity is (epsilon, delta)-DP if and only if

    delta >= Phi(1/(2z) - epsilon z) - e^epsilon Phi(-1/(2z) - epsilon z)

(Balle and Wang, arXiv 1805.06530, Theorem 8). Let x = epsilon z - 1/(2z), phi the normal density
and R(x) = Phi(-x)/phi(x) Mills's ratio. Then the right side is phi(x) (R(x) - R(x + 1/z)). Nothing
overflows in this form.
"""

import math

import scipy

from jdp import _validate
from jdp._arguments import checked

# Relative safety margin of the results. It exceeds the error of the formulas here.
_SAFETY = 1e-9
# The range of z. Outside it, differences of Mills's ratio lose more than the margin covers.
_LEAST, _LARGEST = 1e-4, 1e4
_FAR = 40.0  # x from which the normal density underflows


@checked
def gaussian_epsilon(noise_multiplier: float, delta: float) -> float:
  """The least epsilon of one Gaussian release at a given delta.

  Args:
    noise_multiplier: z = stddev / sensitivity, in [1e-4, 1e4].
    delta: in [1e-100, 1).

  Returns:
    epsilon >= 0, at most a relative 1e-9 above the least. It is 0 if delta covers the whole
    distance between the two normal distributions.

  Raises:
    ValueError: if an argument is out of range.

  >>> print(f"{gaussian_epsilon(4.0, 1e-5):.6f}")
  0.926342
  """
  _validate.in_range(_LEAST, _LARGEST, noise_multiplier=noise_multiplier)
  log_delta = checked_log(delta)
  if _log_delta(noise_multiplier, 0.0) <= log_delta:
    return 0.0
  # At this epsilon P(privacy loss > epsilon) is already below delta.
  highest = (0.5 / noise_multiplier - scipy.special.ndtri_exp(log_delta)) / noise_multiplier

  def surplus(epsilon: float) -> float:
    return _log_delta(noise_multiplier, epsilon) - log_delta

  found = scipy.optimize.brentq(surplus, 0.0, highest, xtol=1e-300, rtol=1e-14)
  return found * (1 + _SAFETY)


@checked
def gaussian_noise_multiplier(epsilon: float, delta: float) -> float:
  """The least noise multiplier whose Gaussian release is (epsilon, delta)-DP.

  Multiply it by the sensitivity to get the standard deviation.

  Args:
    epsilon: > 0, for example 0.1 or 1000. No bound such as epsilon <= 1 is needed.
    delta: in [1e-100, 1).

  Returns:
    z, at most a relative 1e-9 above the least.

  Raises:
    ValueError: if an argument is out of range or z would be outside [1e-4, 1e4].

  >>> z = gaussian_noise_multiplier(2.0, 1e-6)
  >>> print(f"{z:.6f}", gaussian_epsilon(z, 1e-6) <= 2.0)
  2.230476 True
  """
  _validate.positive(epsilon=epsilon)
  log_delta = checked_log(delta)

  def surplus(log_z: float) -> float:
    return _log_delta(math.exp(log_z), epsilon) - log_delta

  lowest, highest = math.log(_LEAST), math.log(_LARGEST)
  if not surplus(lowest) > 0 >= surplus(highest):
    raise ValueError(
      f"Expected a noise multiplier between {_LEAST:g} and {_LARGEST:g}, got epsilon = {epsilon} "
      f"and delta = {delta}, which need one outside; choose others."
    )
  return math.exp(scipy.optimize.brentq(surplus, lowest, highest, xtol=1e-14)) * (1 + 2 * _SAFETY)


def _log_delta(z: float, epsilon: float) -> float:
  """log of the least delta, for z in the range above and epsilon >= 0."""
  x = epsilon * z - 0.5 / z
  if x > _FAR:
    # An upper bound that underflows; the difference below would lose all its digits.
    return -0.5 * x * x
  if x < -1:
    # Mills's ratio may overflow here. The two terms differ by much, so their plain difference 1 -
    # Phi(x) - phi(x) R(x + 1/z) is accurate.
    density = math.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    return math.log1p(-float(scipy.special.ndtr(x)) - density * _mills(x + 1 / z))
  return -0.5 * x * x - 0.5 * math.log(2 * math.pi) + math.log(_mills(x) - _mills(x + 1 / z))


def _mills(x: float) -> float:
  """R(x) = Phi(-x)/phi(x)."""
  return math.sqrt(math.pi / 2) * float(scipy.special.erfcx(x / math.sqrt(2)))


def checked_log(delta: float) -> float:
  """log(delta) of a delta in [1e-100, 1); refuses others."""
  if not 1e-100 <= delta < 1:
    raise ValueError(f"Expected delta in [1e-100, 1), got {delta}; choose one within.")
  return math.log(delta)
