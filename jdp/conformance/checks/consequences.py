"""What a fault means for a guarantee, in a sentence."""

import math

from jdp.accounting import gaussian_epsilon, gaussian_noise_multiplier
from jdp.guarantees import rounded_up

_STATED, _DELTA = 2.0, 1e-5
_MOST = 1e3  # the largest ratio whose cost is given as a number


def of_sensitivity(found: float, stated: float) -> str:
  """The consequence of a sensitivity above the stated one, or of noise too small by that factor.

  >>> of_sensitivity(2.0, stated=1.0)
  'A Gaussian release stated at epsilon 2 (delta 1e-05) really costs 4.4.'
  """
  ratio = found / stated if stated else math.inf
  if not ratio < _MOST:  # also for NaN
    return "No noise of the stated size hides this record."
  multiplier = gaussian_noise_multiplier(_STATED, _DELTA) / ratio
  cost = rounded_up(gaussian_epsilon(multiplier, _DELTA), 3)
  guarantee = f"epsilon {rounded_up(_STATED)} (delta {rounded_up(_DELTA)})"
  return f"A Gaussian release stated at {guarantee} really costs {cost}."
