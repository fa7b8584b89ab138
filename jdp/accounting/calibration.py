"""The least noise that meets a privacy target."""

import functools
import math

from scipy import optimize

from jdp import _validate
from jdp.accounting.accountant import epsilon
from jdp.ledger import subsampled_gaussian

# In log z: below _LOW the search asks whether any noise is needed, above _HIGH it gives up.
_LOW, _HIGH, _STRIDE, _STEP = math.log(0.1), math.log(1e9), math.log(4), 1e-4


def calibrate_noise_multiplier(
  target_epsilon: float, delta: float, sampling_probability: float, num_rounds: int, *, accountant: str = "rdp"
) -> float:
  """The least noise multiplier with which a run of Poisson-subsampled Gaussian sums meets a privacy target.

  The run is (target_epsilon, delta)-DP under add/remove and under zero-out.
  The z returned meets the target, and 0.999 z does not.

  Args:
    target_epsilon: > 0, finite.
    delta: in (0, 1).
    sampling_probability: q in (0, 1].
    num_rounds: whole, >= 1.
    accountant: as for `epsilon`.

  Returns:
    z = stddev / clip norm of each round's sum.

  Raises:
    ValueError: if an argument is out of range; if the accountant cannot prove
      so small an epsilon at this delta, however large the noise; or if delta is
      so large that no noise is needed.

  >>> round(calibrate_noise_multiplier(2.0, 1e-6, sampling_probability=0.001, num_rounds=5000), 3)
  0.735
  """
  _validate.positive(target_epsilon=target_epsilon, delta=delta, sampling_probability=sampling_probability)
  _validate.probability(delta=delta, sampling_probability=sampling_probability)
  _validate.integer(1, num_rounds=num_rounds)

  @functools.cache
  def surplus(log_noise):
    run = subsampled_gaussian(sampling_probability, math.exp(log_noise), num_rounds)
    return math.log(min(max(epsilon(run, delta, accountant=accountant) / target_epsilon, 1e-3), 1e3))

  sampled = -math.expm1(num_rounds * math.log1p(-sampling_probability)) if sampling_probability < 1 else 1.0
  low, high = 0.0, 0.0
  while surplus(high) > 0:
    low, high = high, high + _STRIDE
    if high > _HIGH:
      raise ValueError(
        f"Expected a target_epsilon that the {accountant} accountant can prove at delta={delta}, got {target_epsilon}; "
        "raise one of the two."
      )
  while surplus(low) <= 0:
    low, high = low - _STRIDE, low
    if low < _LOW and delta >= sampled:
      raise ValueError(
        f"Expected delta below {sampled:.3g}, the probability that a record is ever sampled, got {delta}: with such a "
        "delta no noise is needed; choose a smaller one."
      )
  log_noise = optimize.brentq(surplus, low, high, xtol=_STEP) + 2 * _STEP
  while surplus(log_noise) > 0:  # The search over orders leaves a ripple.
    log_noise += _STEP
  return math.exp(log_noise)
