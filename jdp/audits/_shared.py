"""What the bounds of audits share."""

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy
from numpy.typing import ArrayLike

from jdp import _validate

Bound = Callable[[ArrayLike, int, ArrayLike, int], np.ndarray]
"""(hits, trials, false hits, false trials) -> lower bounds on the loss, elementwise.

The event was seen `hits` times in `trials` outputs on one input. It was seen `false hits` times in
`false trials` outputs on the other.
"""

Limits = Callable[[Any, Any, float], tuple[np.ndarray, np.ndarray]]
"""(successes, trials, error) -> lower and upper confidence limits of a probability."""


def epsilon_bound_by(limits: Limits, error: float, delta: float) -> Bound:
  """The bound log((P - delta) / Q), by the lower limit of P and the upper limit of Q."""

  def bound(hits, trials, false_hits, false_trials):
    low, high = limits(hits, trials, error)[0], limits(false_hits, false_trials, error)[1]
    return np.maximum(log_or_minus_inf(low - delta) - np.log(high), 0.0)

  return bound


def gaussian_bound_by(limits: Limits, error: float) -> Bound:
  """The bound Phi^-1(P) - Phi^-1(Q), by the lower limit of P and the upper limit of Q."""
  ndtri = scipy.special.ndtri

  def bound(hits, trials, false_hits, false_trials):
    low, high = limits(hits, trials, error)[0], limits(false_hits, false_trials, error)[1]
    # A limit of 0 for P, or of 1 for Q, says nothing: the bound is 0 there, not -inf.
    informative = (low > 0) & (high < 1)
    return np.where(informative, np.maximum(ndtri(low) - ndtri(high), 0.0), 0.0)

  return bound


def log_or_minus_inf(x: np.ndarray) -> np.ndarray:
  """log x, and -inf where x is not positive."""
  return np.log(np.maximum(x, 0.0), out=np.full(np.shape(x), -np.inf), where=np.asarray(x) > 0)


def error_probability(confidence: float) -> float:
  """1 - confidence; refuses a confidence outside (0, 1)."""
  if not 0 < confidence < 1:
    raise ValueError(f"Expected confidence in (0, 1), got {confidence}.")
  return 1 - confidence


def check_delta(delta: float) -> None:
  """Refuses a delta outside [0, 1)."""
  if not 0 <= delta < 1:
    raise ValueError(f"Expected delta in [0, 1), got {delta}.")


def check_counts(num_canaries: int, num_guesses: int, num_correct: int) -> None:
  """Refuses numbers of canaries, guesses and right guesses that do not fit together."""
  _validate.in_range(1, 2**53, num_canaries=num_canaries)
  _validate.integer(0, num_guesses=num_guesses, num_correct=num_correct)
  if not num_correct <= num_guesses <= num_canaries:
    raise ValueError(
      f"Expected num_correct <= num_guesses <= num_canaries, got {num_correct}, {num_guesses} and "
      f"{num_canaries}."
    )


def checked_scores(name: str, values: ArrayLike) -> np.ndarray:
  """The scores as float64; refuses NaN, and fewer than two."""
  values = np.asarray(values, np.float64)
  if not (values.ndim == 1 and values.size >= 2 and not np.any(np.isnan(values))):
    raise ValueError(
      f"Expected {name} to be at least two scores, none of them NaN, got shape {values.shape}."
    )
  return values
