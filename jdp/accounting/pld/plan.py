"""Where a composition is computed: tilt, window and spacing, from what is asked and how exactly.

All of it comes from sketches, and certifies nothing: a bad plan gives wide bounds, not wrong ones.

* Losses so large that a run has one with less than a small share of delta count as infinite. Where
  losses have long tails (a small sampling probability), no tilt would be right for them all.
* The saddle point: with K the log of E e^(tilt L) under P, summed over all losses, delta at eps is
  about e^(K - tilt eps) / (tilt (1 + tilt) sd sqrt(2 pi)) where K' = eps. Weighted by e^(tilt L),
  losses near eps are the likely ones, so that a transform's rounding errors are small against
  delta, not against 1 (arXiv 2208.09595).
* The window is the narrowest one, over this tilt and smaller ones, outside of which is but a small
  share of delta by Chernoff's inequality, as `bounds` counts it.
* The spacing: from the lower to the upper measure a loss's variance grows by spacing^2 / 2 or so,
  which moves eps by (1 + tilt) / 2 times as much.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jdp.accounting.pld.discretise import Lattice, sums_from
from jdp.accounting.pld.pairs import LARGEST_LOSS, Pair

# Errors of delta, over delta and the tolerance: rare losses, what is outside, rounding errors.
_RARE, _OUTSIDE, _ROUNDED = 0.05, 2e-4, 0.2
_TILTS = np.geomspace(1.0, 0.1, 8)  # that are tried, in units of the saddle point
_ROUNDING = 1e-14  # a transform's error over its largest mass, for each loss: a guess
_LEAST_POINTS, _MOST_POINTS = 2**14, 2**20
_COARSER = 20.0  # times the spacing asked for, that is still of use
_ORDINARY = 5e-4  # the tolerance of so few points
_MOST_DIVISORS = 2**11  # of a discrete term's spacing that are tried
_STEPPED = 2.0  # Chernoff's inequality may take from the tilt, or add, over the spacing
_MOST_STEPS = 100.0  # of these in the tilt
_MOST_TILTED = 1000.0  # the logarithm of the range of tilts in the window
_LEAST_SPACING = 1e-10  # below it rounding errors of losses are felt
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
    epsilon: that it is for, at least about.
    is_fine: whether the lattices are as fine as the tolerance asks for.
  """

  window: Window
  lattices: tuple[Lattice, ...]
  epsilon: float
  is_fine: bool


class Aim(NamedTuple):
  """What a plan aims at.

  Attributes:
    terms: without their rare losses.
    saddle: the tilt.
    epsilon: that is asked for, at least about.
    log_error: of the error in delta.
    deviations: of the losses, as they are and tilted.
    widest: the widest spacing that is fine enough.
  """

  terms: list[Term]
  saddle: float
  epsilon: float
  log_error: float
  deviations: tuple[float, float]
  widest: float


class Moments(NamedTuple):
  """Of the sum of all terms' losses, for each tilt: log E e^(tilt L), tilted mean and variance."""

  log: np.ndarray
  mean: np.ndarray
  variance: np.ndarray


def plan(
  terms: Sequence[Term],
  tolerance: float,
  *,
  delta: float | None = None,
  epsilon: float | None = None,
) -> Plan | None:
  """The plan for eps at `delta`, or for delta at `epsilon`; None if it would take too many points.

  Args:
    terms: the composition.
    tolerance: the width of bounds on eps, relative, that the spacing aims at.
    delta: in (0, 1), or about that at `epsilon`; None: not known.
    epsilon: >= 0, or about that at `delta`; None: not known.
  """
  terms, saddle, asked, log_error, (deviation, _), widest = aim(terms, tolerance, delta, epsilon)
  composed = sum(term.repeated for term in terms)
  most_step = math.inf
  for _ in range(2):
    window = _window(terms, saddle, asked, log_error, deviation, most_step)
    width = window.high - window.low
    spacing = min(widest, width / _LEAST_POINTS * math.sqrt(tolerance / _ORDINARY))
    spacing = max(spacing, _LEAST_SPACING * (1 + abs(asked)))
    # Sketches end where the measures on the lattice go on for some points.
    most_step = _STEPPED / spacing
    if not saddle < _MOST_STEPS * most_step:  # also where the spacing is no finite number
      return None
    if max(window.steps) <= most_step:
      break
  spacing = _aligned(terms, spacing)
  # A lattice of too few points for the tolerance may still be better than divergences.
  least = width / _MOST_POINTS
  if not (least <= _COARSER * spacing and width <= _MOST_TILTED / max(window.tilt, 1e-3)):
    return None
  is_fine, spacing = least <= spacing, max(spacing, least)
  (log_mass,) = moments(terms, np.array([window.tilt])).log.tolist()
  least = _OUTSIDE / composed / 10 * min(_exp(log_error - log_mass + window.tilt * asked), 1.0)
  lattices = tuple(lattice(term.pair, window.tilt, spacing, least) for term in terms)
  return Plan(window, lattices, asked, is_fine) if all(map(is_tame, lattices)) else None


def aim(terms: Sequence[Term], tolerance: float, delta: float | None, epsilon: float | None) -> Aim:
  """What the plan of these arguments aims at."""
  log_delta = _log_of_one(terms, epsilon or 0.0) if delta is None else math.log(delta)
  log_error = log_delta + math.log(tolerance)
  terms = [_without_rare(term, log_error + math.log(_RARE)) for term in terms]
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
  """A term without its largest losses, of which a run has one with this probability."""
  losses, log_p = term.pair.losses, term.pair.log_p
  above = sums_from(np.exp(log_p))
  kept = slice(max(int(np.sum(term.repeated * above > _exp(log_mass))), 2))
  return Term(term.pair._replace(losses=losses[kept], log_p=log_p[kept]), term.repeated)


def _log_of_one(terms: Sequence[Term], epsilon: float) -> float:
  """The log of delta at eps, at least about, as one loss alone makes it."""
  total = 0.0
  for (losses, log_p, *_), count in terms:
    total += count * float(np.exp(log_p) @ np.maximum(-np.expm1(epsilon - losses), 0.0))
  return min(math.log(max(total, 1e-300)), -1e-3)


def _loss_of_one(terms: Sequence[Term], log_delta: float) -> float:
  """The eps at delta, at least about, as one loss alone makes it."""
  found = [0.0]
  for (losses, log_p, *_), count in terms:
    p, q = np.exp(log_p), np.exp(np.minimum(log_p - losses, LARGEST_LOSS))
    scale = np.exp(np.minimum(losses, LARGEST_LOSS))
    over = count * (sums_from(p) - scale * sums_from(q)) > _exp(log_delta)
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


def _window(
  terms: Sequence[Term],
  saddle: float,
  asked: float,
  log_error: float,
  deviation: float,
  most_step: float,
) -> Window:
  """The narrowest window at whose ends errors in delta at `asked` are small."""
  steps = np.geomspace(0.02 * (saddle + 0.5 / deviation), saddle + 40 / deviation, 32)
  tried = saddle * _TILTS if saddle else np.zeros(1)
  ends = [tried - most_step, tried + most_step] if most_step < math.inf else []
  tilts = np.concatenate([tried, saddle - steps, saddle + steps, *ends])
  logs = moments(terms, tilts).log
  precise = logs[: len(tried)] - tried * asked
  composed = sum(term.repeated for term in terms)
  # Where delta falls by tilt * eps times as much, relatively, its errors may be larger.
  most = log_error + math.log(_ROUNDED * (1 + saddle * asked) / (_ROUNDING * composed))
  log_error += math.log(_OUTSIDE)
  windows = [
    _window_at(float(tilt), tilts, logs, asked, log_error, most_step)
    for tilt, log in zip(tried, precise, strict=True)
    if log <= max(most, precise.min())
  ]
  return min(windows, key=lambda window: window.high - window.low)


def _window_at(
  tilt: float, tilts: np.ndarray, logs: np.ndarray, asked: float, log_error: float, most_step: float
) -> Window:
  """The window of one tilt, by the moments at others.

  The conditions are those of `bounds`: on what is above the window, on what wraps from below it
  (half the way to its top), and on what wraps from above it (to below eps, and beyond).
  """
  near = np.abs(tilts - tilt) <= most_step * (1 + 1e-9)
  over, under = near & (tilts > tilt), near & (tilts < tilt)
  up, down = tilts[over] - tilt, tilt - tilts[under]
  log_up, log_down, spare = logs[over], logs[under], log_error + tilt * asked
  least = (log_up - log_error) / tilts[over]
  high = max(float(least.min()), asked)
  lows = (spare + np.minimum(tilt, down) * (high - asked) / 2 - log_down) / down
  low = min(float(lows.max()), asked)
  highs = np.maximum(least, (log_up - spare) / up - asked + low)
  step_below, step_above = down[np.argmax(lows)], up[np.argmin(highs)]
  return Window(tilt, low, max(float(highs.min()), asked), (float(step_below), float(step_above)))


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


def lattice(pair: Pair, tilt: float, spacing: float, least: float) -> Lattice:
  """A lattice for one term: what is below is unlikely, tilted."""
  losses, log_p = pair.losses, pair.log_p
  offset = float(losses[0]) if pair.step else _bulk(pair, spacing)
  exponent = log_p + tilt * losses
  tilted = np.exp(exponent - exponent.max())
  kept = losses[np.cumsum(tilted) > least * tilted.sum()]
  first = math.floor((float(kept[0]) - offset) / spacing) - 2
  last = math.ceil((float(kept[-1]) - offset) / spacing) + 2
  return Lattice(offset, spacing, first, max(last, first + 8))


def _bulk(pair, spacing):
  """Where most probability is, if in one cell: the lattice should hold it, as an atom; else 0."""
  cells = pair.cells(np.array([-0.5, 0.5]) * spacing)
  return float(np.log(cells.p[1] / cells.q[1])) if cells.p[1] > 0.5 else 0.0


def is_tame(found: Lattice) -> bool:
  """Whether exponentials of its losses are numbers, and it is no longer than a computer holds."""
  small = max(map(abs, found.ends())) <= LARGEST_LOSS
  return small and found.last - found.first <= 4 * _MOST_POINTS


def _exp(value: float) -> float:
  return math.exp(min(max(value, -700.0), 700.0))
