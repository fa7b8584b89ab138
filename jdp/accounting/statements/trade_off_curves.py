"""What an attacker gains from a run: trade-off curves, by privacy loss distributions.

An attacker sees all that an observer sees, knows all records but one, and guesses which of two
neighbouring data sets was used. Its false-positive rate a and true-positive rate b obey b <=
delta(eps) + e^eps a for every eps, with delta(eps) the hockey stick of that direction. The least of
these is the trade-off curve (arXiv 1905.02383; as 1 - b there). The upper bounds on
hockey sticks (`jdp.accounting.pld`) make it an upper bound: no attacker does better. It is not
claimed that one does as well.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy

from jdp import _validate
from jdp._arguments import checked
from jdp.accounting.composition import Composition
from jdp.accounting.observed import Observed, observed
from jdp.accounting.pld.profile import upper_sticks
from jdp.accounting.profiles import rdp_profile
from jdp.guarantees import rounded_up
from jdp.ledger import Ledger

FALSE_POSITIVE_RATES = (0.001, 0.01)
"""The rates at which reports state what an attacker gains."""

_RATES = tuple(np.geomspace(1e-3, 0.5, 12).tolist())  # where a run is compared with Gaussian ones
_NEAR = 0.05  # how far mu may vary along the curve of a run that is called near-Gaussian
_EPSILONS = np.append(0.0, np.geomspace(1e-3, 600.0, 80))  # asked of Renyi divergences


class AttackerGain(NamedTuple):
  """Upper bounds on what an attacker gains, over both directions of the relation.

  Attributes:
    advantage: the true-positive rate minus the false-positive rate, at the threshold best for it.
    true_positive_rates: the rates at `FALSE_POSITIVE_RATES`.
    mu: that of the least Gaussian trade-off curve above the bounds at 12 false-positive rates from
      .001 to .5. None if the run is not near-Gaussian: the mus that fit single rates then differ by
      more than 5 %. It describes the curve, and is not a guarantee between those rates.
  """

  advantage: float
  true_positive_rates: tuple[float, ...]
  mu: float | None

  def __str__(self) -> str:
    """The bounds in words, rounded up."""
    rates = " and ".join(
      f"{_percent(found)} of its targets at {_percent(allowed)} false alarms"
      for found, allowed in zip(self.true_positive_rates, FALSE_POSITIVE_RATES, strict=True)
    )
    mu = "" if self.mu is None else f"; near-Gaussian, mu = {rounded_up(self.mu, 3)}"
    return f"at most {rates}; advantage {_percent(self.advantage)}{mu}"


@checked
def trade_off(
  ledger: Ledger,
  false_positive_rates: Sequence[float],
  *,
  relation: str | None = None,
  observer: str | None = None,
) -> np.ndarray:
  """The largest true-positive rates that an attacker has at given false-positive rates.

  A positive is a guess that the record is in the data (or that it is one of two), or that it is
  not: the larger of the two rates counts. The module's docstring says what the attacker knows.
  Rates are upper bounds for any attacker, whatever its computing power.

  Args:
    ledger: what was done.
    false_positive_rates: [A], each in [0, 1].
    relation: add_remove, zero_out or replace_one. None: the only one that the events declare.
    observer: server, clients or model. None: the ledger's only one.

  Returns:
    The rates, float64 [A], not below the false-positive ones. Equal to them for an empty ledger.

  Raises:
    ValueError: as `jdp.accounting.epsilon`.

  >>> from jdp.ledger import subsampled_gaussian
  >>> run = subsampled_gaussian(0.01, 1.1, 1000)
  >>> trade_off(run, [0.001, 0.01, 0.1]).round(3).tolist()
  [0.003, 0.025, 0.179]
  """
  for rate in false_positive_rates:
    _validate.probability(false_positive_rates=rate)
  rates = np.array(false_positive_rates, float)
  if not ledger.entries or not len(rates):
    return rates
  with np.errstate(all="ignore"):
    directions = tangents(observed(ledger, relation, observer), float(np.min(rates)))
    return _true_positives(directions, rates)


@checked
def attacker_gain(
  ledger: Ledger, *, relation: str | None = None, observer: str | None = None
) -> AttackerGain:
  """What an attacker gains from a run, to be stated beside its epsilon.

  Args:
    ledger: what was done.
    relation: add_remove, zero_out or replace_one. None: the only one that the events declare.
    observer: server, clients or model. None: the ledger's only one.

  Raises:
    ValueError: as `jdp.accounting.epsilon`.

  >>> from jdp.ledger import subsampled_gaussian
  >>> print(attacker_gain(subsampled_gaussian(0.01, 1.1, 1000)))
  at most 0.337% of its targets at 0.1% false alarms and 2.54% of its targets at 1% false alarms; \
advantage 14.1%
  """
  if not ledger.entries:
    return AttackerGain(0.0, FALSE_POSITIVE_RATES, 0.0)
  with np.errstate(all="ignore"):
    seen = observed(ledger, relation, observer)
    rates = np.array([*_RATES, *FALSE_POSITIVE_RATES])
    directions = tangents(seen, float(np.min(rates)))
    found = _true_positives(directions, rates)
    # Hockey sticks decrease: the value at epsilon = 0 is at most those at epsilons below.
    advantage = float(max(np.min(d[slope <= 1], initial=1.0) for d, slope in directions))
  mus = scipy.special.ndtri(found[: len(_RATES)]) - scipy.special.ndtri(_RATES)
  near = np.all(np.isfinite(mus)) and np.ptp(mus) <= _NEAR * np.max(mus)
  return AttackerGain(
    advantage, tuple(found[len(_RATES) :].tolist()), float(np.max(mus)) if near else None
  )


def _percent(rate: float) -> str:
  return f"{rounded_up(100 * rate, 3)}%"


def _true_positives(
  directions: Sequence[tuple[np.ndarray, np.ndarray]], rates: np.ndarray
) -> np.ndarray:
  """Upper bounds on the true-positive rates [A] at false-positive rates [A]."""
  found = rates.copy()
  for deltas, slopes in directions:
    least = np.array([np.min(deltas + slopes * rate) for rate in rates])
    found = np.maximum(found, np.minimum(least, 1.0))
  return found


def tangents(seen: Observed, rate: float) -> list[tuple[np.ndarray, np.ndarray]]:
  """For each direction, lines above its curve: delta [N] + slope [N] times the false-positive rate.

  Args:
    seen: what an observer saw.
    rate: the least rate at which the lines should be near the curve.
  """
  result = []
  for direction in _sticks(seen.joint, rate):
    epsilons, deltas = map(np.concatenate, zip(*direction, strict=True))
    slopes = np.exp(np.minimum(epsilons, 700.0))
    # Three parts of delta are not in the pairs: local releases' deltas, bounded noise, overflows.
    bounds = deltas + seen.delta + seen.rounds.cut
    bounds = bounds + seen.rounds.overflow * (1 + slopes) if seen.rounds.overflow else bounds
    result.append((np.where(np.isnan(bounds), np.inf, np.maximum(bounds, 0.0)), slopes))
  return result


def _sticks(composed: Composition, rate: float) -> list[list[tuple[np.ndarray, np.ndarray]]]:
  """For each direction, points (epsilons [N], upper bounds on delta [N]) of its hockey stick."""
  smallest = min(max(rate, 1e-40), 1e-3)
  number = 2 + int(-math.log10(smallest) / 5)
  sticks = upper_sticks(composed, np.geomspace(0.3, smallest, number).tolist())
  if not sticks or not all(sticks):
    return [[_by_divergences(composed)]]
  return [[(stick.losses, stick.at_points()) for stick in direction] for direction in sticks]


def _by_divergences(composed: Composition) -> tuple[np.ndarray, np.ndarray]:
  """The same for both directions, by Renyi divergences and basic composition."""
  bound, most = rdp_profile(composed), composed.max_loss
  deltas = [bound.delta(epsilon) if epsilon < most else 0.0 for epsilon in _EPSILONS]
  return _EPSILONS, np.array(deltas)
