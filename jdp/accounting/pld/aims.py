"""What a plan aims at, by sketches of the losses: the saddle point, and what is rare.

* Losses count as infinite if they are so large that a run has one with a probability below a small
  share of delta. With long tails (a small sampling probability), no tilt would suit all losses.
* The saddle point: with K the log of E e^(tilt L) under P, summed over all losses, delta at eps is
  about e^(K - tilt eps) / (tilt (1 + tilt) sd sqrt(2 pi)) where K' = eps. Weights e^(tilt L) make
  losses near eps the likely ones, so that a transform's rounding errors are small compared with
  delta, not with 1 (arXiv 2208.09595).
* The spacing: from the lower to the upper measure a loss's variance grows by spacing^2 / 2 or so,
  which moves eps by (1 + tilt) / 2 times as much.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jdp.accounting.pld.discretise import sums_from
from jdp.accounting.pld.losses.pairs import LARGEST_LOSS, Pair

RARE = 0.05  # the probability of rare losses, over delta times the tolerance
_SQRT_2PI = math.sqrt(2 * math.pi)


class Term(NamedTuple):
  """A pair, and how often it is composed."""

  pair: Pair
  repeated: int


class Aim(NamedTuple):
  """What a plan aims at.

  Attributes:
    terms: the terms, without their rare losses.
    saddle: the tilt.
    epsilon: the epsilon that is asked for, at least roughly.
    log_error: log of the accepted error in delta.
    deviations: standard deviations of the losses, untilted and tilted.
    widest: the widest spacing that is fine enough.
  """

  terms: list[Term]
  saddle: float
  epsilon: float
  log_error: float
  deviations: tuple[float, float]
  widest: float


class Moments(NamedTuple):
  """For the sum of all terms' losses, at each tilt: log E e^(tilt L), tilted mean and variance."""

  log: np.ndarray
  mean: np.ndarray
  variance: np.ndarray


def aim(terms: Sequence[Term], tolerance: float, delta: float | None, epsilon: float | None) -> Aim:
  """What the plan of these arguments aims at."""
  log_delta = _log_of_one(terms, epsilon or 0.0) if delta is None else math.log(delta)
  log_error = log_delta + math.log(tolerance)
  terms = [_without_rare(term, log_error + math.log(RARE)) for term in terms]
  saddle = _saddle(terms, delta, epsilon)
  at = moments(terms, np.array([0.0, saddle]))
  deviation, tilted = np.sqrt(np.maximum(at.variance, 1e-300)).tolist()
  asked = max(float(at.mean[1]), _loss_of_one(terms, log_delta)) if epsilon is None else epsilon
  composed = sum(term.repeated for term in terms)
  error = tolerance * max(asked, min(deviation, tilted))
  widest = math.sqrt(3 * error / (composed * (1 + saddle)))
  return Aim(terms, saddle, asked, log_error, (deviation, tilted), widest)


def moments(terms: Sequence[Term], tilts: np.ndarray) -> Moments:
  """The moments [A] of the sketches at tilts [A]."""
  total = np.zeros((3, len(tilts)))
  for (losses, log_p, *_), count in terms:
    exponent = log_p + tilts[:, None] * losses
    top = exponent.max(axis=1)
    weights = np.exp(exponent - top[:, None])
    mass = weights.sum(axis=1)
    weights *= losses
    mean = weights.sum(axis=1) / mass
    weights *= losses
    variance = weights.sum(axis=1) / mass - mean**2
    total += count * np.stack([np.log(mass) + top, mean, variance])
  return Moments(*total)


def _without_rare(term: Term, log_mass: float) -> Term:
  """A term without its largest losses: a run has one with at most this probability."""
  losses, log_p = term.pair.losses, term.pair.log_p
  above = sums_from(np.exp(log_p))
  kept = slice(max(int(np.sum(term.repeated * above > bounded_exp(log_mass))), 2))
  return Term(term.pair._replace(losses=losses[kept], log_p=log_p[kept]), term.repeated)


def _log_of_one(terms: Sequence[Term], epsilon: float) -> float:
  """A rough log of delta at eps, as if one loss alone had to exceed eps."""
  total = 0.0
  for (losses, log_p, *_), count in terms:
    total += count * float(np.exp(log_p) @ np.maximum(-np.expm1(epsilon - losses), 0.0))
  return min(math.log(max(total, 1e-300)), -1e-3)


def _loss_of_one(terms: Sequence[Term], log_delta: float) -> float:
  """A rough eps at delta, as if one loss alone had to exceed eps."""
  found = [0.0]
  for (losses, log_p, *_), count in terms:
    p, q = np.exp(log_p), np.exp(np.minimum(log_p - losses, LARGEST_LOSS))
    scale = np.exp(np.minimum(losses, LARGEST_LOSS))
    over = count * (sums_from(p) - scale * sums_from(q)) > bounded_exp(log_delta)
    found += losses[over][-1:].tolist()
  return max(found)


def _saddle(terms, delta, epsilon):
  deviation = math.sqrt(max(float(moments(terms, np.zeros(1)).variance[0]), 1e-300))
  tilts = np.geomspace(min(1e-3, 0.01 / deviation), max(100.0, 60 / deviation), 40)
  for _ in range(2):
    log, mean, variance = moments(terms, tilts)
    deviations = np.sqrt(np.maximum(variance, 0.0))
    if epsilon is not None:
      distance = mean - epsilon
    else:
      log_delta = log - tilts * mean - np.log1p(tilts * (1 + tilts) * deviations * _SQRT_2PI)
      distance = math.log(delta) - log_delta
    first = int(np.argmax(distance > 0))
    if not distance[first] > 0:  # The largest loss alone has more probability than delta.
      return float(tilts[np.argmax(tilts * deviations)])
    if first == 0:
      return 0.0
    tilts = np.geomspace(tilts[first - 1], tilts[first], 12)
  return float(tilts[first - 1])


def bounded_exp(value: float) -> float:
  """e^value, with the value limited so that the result is a float above 0 and finite."""
  return math.exp(min(max(value, -700.0), 700.0))
