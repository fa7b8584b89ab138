"""Where a composition is computed: tilt, window and spacing, from what is asked and how exactly.

All of it comes from sketches, and certifies nothing: a bad plan gives wide bounds, not wrong ones.

* The tilt is the saddle point: with K the log of E e^(tilt L) under P, summed over all losses,
  delta at eps is about e^(K - tilt eps) / (tilt (1 + tilt) sd sqrt(2 pi)) where K' = eps. Weighted
  by e^(tilt L), losses near eps are the likely ones, so that a transform's rounding errors are
  small against delta, not against 1 (arXiv 2208.09595).
* The window holds all but a tiny part of the tilted mass, by Chernoff's inequality.
* The spacing: from the lower to the upper measure a loss's variance grows by spacing^2 / 2 or so,
  which moves eps by (1 + tilt) / 2 times as much.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jdp.accounting.pld.discretise import Lattice
from jdp.accounting.pld.pairs import Pair

_NATS = 15.0  # -log of the mass outside the window, for a tolerance of 1e-3
_LEAST_POINTS, _MOST_POINTS = 2**14, 2**20
_MOST_DIVISORS = 2**11  # of a discrete term's spacing that are tried
_MOST_TILTED = 1000.0  # the logarithm of the range of tilts in the window
_LEAST_SPACING = 1e-10  # below it rounding errors of losses are felt
_LARGEST = 600.0  # a loss whose exponential is safely a float64
_SQRT_2PI = math.sqrt(2 * math.pi)


class Term(NamedTuple):
  """A pair, and how often it is composed."""

  pair: Pair
  repeated: int


class Window(NamedTuple):
  """Which losses of a composition are computed, and how they are tilted.

  Attributes:
    tilt: >= 0.
    low: the lowest loss.
    high: the highest.
    steps: what Chernoff's inequality takes from the tilt below the window, and adds above it.
  """

  tilt: float
  low: float
  high: float
  steps: tuple[float, float]


class Plan(NamedTuple):
  """Where a composition is computed.

  Attributes:
    window: of the composition.
    lattices: of each term, of one spacing.
    centre: the mean of the tilted composition.
  """

  window: Window
  lattices: tuple[Lattice, ...]
  centre: float


class Moments(NamedTuple):
  """Of the sum of all terms' losses, for each tilt: log E e^(tilt L), tilted mean and variance."""

  log: np.ndarray
  mean: np.ndarray
  variance: np.ndarray


def plan(
  terms: Sequence[Term], tolerance: float, *, delta: float | None = None, epsilon: float = 0.0
) -> Plan | None:
  """The plan for eps at `delta`, or for delta at `epsilon`; None if it would take too many points.

  Args:
    terms: the composition.
    tolerance: the width of bounds on eps, relative, that the spacing aims at.
    delta: in (0, 1).
    epsilon: >= 0; asked if delta is None.
  """
  tilt = _saddle(terms, delta, epsilon)
  at = moments(terms, np.array([tilt]))
  centre, deviation = float(at.mean[0]), math.sqrt(max(float(at.variance[0]), 1e-300))
  asked = centre if delta is not None else epsilon
  nats = _NATS - 2 * math.log(tolerance / 1e-3)
  window = _window(terms, tilt, deviation, nats, None if delta is not None else epsilon)
  width, composed = window.high - window.low, sum(term.repeated for term in terms)
  spacing = math.sqrt(3 * tolerance * max(asked, deviation) / (composed * (1 + tilt)))
  spacing = min(spacing, width / _LEAST_POINTS)
  if not _LEAST_SPACING * (1 + abs(centre)) < spacing < math.inf:
    return None
  spacing = _aligned(terms, spacing)
  if not width <= min(_MOST_POINTS * spacing, _MOST_TILTED / max(tilt, 1e-3)):
    return None
  log_likely = min(0.0, float(at.log[0]) - tilt * asked)
  least = math.exp(-nats) / composed / 10
  lattices = tuple(_lattice(term.pair, tilt, spacing, least, log_likely) for term in terms)
  return Plan(window, lattices, centre) if all(map(_is_tame, lattices)) else None


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


def _saddle(terms, delta, epsilon):
  deviation = math.sqrt(max(float(moments(terms, np.zeros(1)).variance[0]), 1e-300))
  tilts = np.geomspace(min(1e-3, 0.01 / deviation), max(100.0, 60 / deviation), 40)
  for _ in range(2):
    log, mean, variance = moments(terms, tilts)
    deviations = np.sqrt(np.maximum(variance, 0.0))
    if delta is None:
      distance = mean - epsilon
    else:
      log_delta = log - tilts * mean - np.log1p(tilts * (1 + tilts) * deviations * _SQRT_2PI)
      distance = math.log(delta) - log_delta
    first = int(np.argmax(distance > 0))
    if not distance[first] > 0:  # The largest loss alone has more probability than delta.
      return float(tilts[np.argmax(tilts * deviations)])
    if first == 0:
      return 0.0
    if mean[first] > 3 * max(mean[first - 1], deviations[first - 1]):
      break  # From here on a few large losses take over, at which nothing is gained.
    tilts = np.geomspace(tilts[first - 1], tilts[first], 12)
  return float(tilts[first - 1])


def _window(terms, tilt, deviation, nats, epsilon):
  """The window outside of which tilted losses have e^-nats or less, with `epsilon` (or 0) in it."""
  steps = np.geomspace(min(0.1 / deviation, 0.02 * (1 + tilt)), 40 / deviation, 32)
  tilts = np.concatenate([[tilt], tilt + steps, tilt - steps])
  logs = moments(terms, tilts).log
  above, below = np.split(logs[1:] - logs[0], 2)
  high, low = (above + nats) / steps, -(below + nats) / steps
  up, down = int(np.argmin(high)), int(np.argmax(low))
  lowest = low[down] if epsilon is None else min(low[down], epsilon)
  highest = max(high[up], epsilon or 0.0)
  return Window(tilt, float(lowest), float(highest), (float(steps[down]), float(steps[up])))


def _aligned(terms, spacing):
  """A spacing, not much smaller, of which the discrete terms' own are nearly multiples."""
  steps = {t.pair.step: t.repeated for t in terms if t.pair.step > spacing / 16}
  if not steps:
    return spacing
  heaviest = max(steps, key=lambda step: step * steps[step])
  least = math.ceil(heaviest / spacing)
  spacings = heaviest / np.arange(least, least + min(least, _MOST_DIVISORS) + 1)
  own, counts = np.array(list(steps)), np.array(list(steps.values()), float)
  parts = own[:, None] / spacings
  left_over = np.where(own[:, None] == heaviest, 0.0, parts - np.floor(parts))
  return float(spacings[np.argmin(np.sum(counts[:, None] * left_over * spacings, axis=0))])


def _lattice(pair, tilt, spacing, least, log_likely):
  """A lattice for one term: what is beyond is unlikely, tilted, and above as it is, too."""
  losses, log_p = pair.losses, pair.log_p
  offset = float(losses[0]) if pair.step else _bulk(pair, spacing)
  exponent = log_p + tilt * losses
  tilted = np.exp(exponent - exponent.max())
  tilted /= tilted.sum()
  below = np.cumsum(tilted) > least
  above = np.cumsum(tilted[::-1])[::-1] > least
  heavy = np.cumsum(np.exp(log_p)[::-1])[::-1] > least * math.exp(log_likely)
  kept = losses[np.flatnonzero(below & (above | heavy))]
  first = math.floor((float(kept[0]) - offset) / spacing) - 2
  last = math.ceil((float(kept[-1]) - offset) / spacing) + 2
  return Lattice(offset, spacing, first, max(last, first + 8))


def _bulk(pair, spacing):
  """Where most probability is, if in one cell: the lattice should hold it, as an atom; else 0."""
  cells = pair.cells(np.array([-0.5, 0.5]) * spacing)
  return float(np.log(cells.p[1] / cells.q[1])) if cells.p[1] > 0.5 else 0.0


def _is_tame(lattice):
  small = max(map(abs, lattice.ends())) <= _LARGEST
  return small and lattice.last - lattice.first <= 4 * _MOST_POINTS
