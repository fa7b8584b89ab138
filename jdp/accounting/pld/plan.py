"""Where a composition is computed: tilt, window and spacing, from what is asked and how exactly.

All of it comes from sketches, and certifies nothing: a bad plan gives wide bounds, not wrong ones.
The tilt and the spacing follow from what is asked (`aims`). The window is the narrowest one, over
that tilt and smaller ones, that leaves only a small share of delta outside. That share is bounded
by Chernoff's inequality, and counted as in `bounds`.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jdp.accounting.pld.aims import Term, aim, bounded_exp, moments
from jdp.accounting.pld.discretise import Lattice
from jdp.accounting.pld.losses.pairs import LARGEST_LOSS, Pair

# Allowed errors of delta, over delta times the tolerance: by what is outside, by rounding.
_OUTSIDE, _ROUNDED = 2e-4, 0.2
_TILTS = np.geomspace(1.0, 0.1, 8)  # the tilts that are tried, in units of the saddle point
_ROUNDING = 1e-14  # a transform's error over its largest mass, for each loss: a guess
_LEAST_POINTS, _MOST_POINTS = 2**14, 2**20
_COARSER = 20.0  # a spacing up to this many times the one asked for is still useful
_ORDINARY = 5e-4  # the tolerance at which a window has at least `_LEAST_POINTS`
_MOST_DIVISORS = 2**11  # divisors of a discrete term's spacing that are tried
_STEPPED = 2.0  # the largest step of Chernoff's inequality from the tilt, times the spacing
_MOST_STEPS = 100.0  # the largest tilt, in such steps
_MOST_TILTED = 1000.0  # the largest tilt times width of the window: the log range of its weights
_LEAST_SPACING = 1e-10  # below it rounding errors of losses matter


class Window(NamedTuple):
  """Which losses of a composition are computed, and how they are tilted.

  Attributes:
    tilt: >= 0.
    low: the lowest loss.
    high: the highest loss.
    steps: what Chernoff's inequality takes from the tilt below the window, and adds above it.
  """

  tilt: float
  low: float
  high: float
  steps: tuple[float, float]


class Plan(NamedTuple):
  """Where a composition is computed.

  Attributes:
    window: the window of the composition.
    lattices: one for each term, all of one spacing.
    epsilon: the epsilon that it is for, at least roughly.
    is_fine: whether the lattices are as fine as the tolerance asks for.
  """

  window: Window
  lattices: tuple[Lattice, ...]
  epsilon: float
  is_fine: bool


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
    tolerance: the relative width of the bounds on eps that the spacing aims at.
    delta: in (0, 1), or roughly the delta at `epsilon`. None: not known.
    epsilon: >= 0, or roughly the eps at `delta`. None: not known.
  """
  terms, saddle, asked, log_error, (deviation, _), widest = aim(terms, tolerance, delta, epsilon)
  composed = sum(term.repeated for term in terms)
  most_step = math.inf
  for _ in range(2):
    window = _window(terms, saddle, asked, log_error, deviation, most_step)
    width = window.high - window.low
    spacing = min(widest, width / _LEAST_POINTS * math.sqrt(tolerance / _ORDINARY))
    spacing = max(spacing, _LEAST_SPACING * (1 + abs(asked)))
    # Sketches end some points before the measures on the lattice do, so steps must be limited.
    most_step = _STEPPED / spacing
    if not saddle < _MOST_STEPS * most_step:  # also where the spacing is not a finite number
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
  least = (
    _OUTSIDE / composed / 10 * min(bounded_exp(log_error - log_mass + window.tilt * asked), 1.0)
  )
  lattices = tuple(lattice(term.pair, window.tilt, spacing, least) for term in terms)
  return Plan(window, lattices, asked, is_fine) if all(map(is_tame, lattices)) else None


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


def likely(terms: Sequence[Term], steps: np.ndarray, nats: float) -> Window:
  """The window outside of which there is e^-nats on either side, by Chernoff's inequality.

  The steps that are tried are in units of one over the standard deviation.
  """
  variance = float(moments(terms, np.zeros(1)).variance[0])
  steps = steps / math.sqrt(max(variance, 1e-300))
  highs = (moments(terms, steps).log + nats) / steps
  lows = -(moments(terms, -steps).log + nats) / steps
  chosen = float(steps[np.argmax(lows)]), float(steps[np.argmin(highs)])
  return Window(0.0, float(lows.max()), float(highs.min()), chosen)


def _aligned(terms, spacing):
  """A spacing, not much smaller, such that the discrete terms' own are nearly multiples of it."""
  # A step far below the spacing would need a far smaller spacing, so it is left out.
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
  """A lattice for one term. Its sketch has a share of at most `least` below, tilted."""
  losses, log_p = pair.losses, pair.log_p
  offset = float(losses[0]) if pair.step else _bulk(pair, spacing)
  exponent = log_p + tilt * losses
  tilted = np.exp(exponent - exponent.max())
  kept = losses[np.cumsum(tilted) > least * tilted.sum()]
  first = math.floor((float(kept[0]) - offset) / spacing) - 2
  last = math.ceil((float(kept[-1]) - offset) / spacing) + 2
  return Lattice(offset, spacing, first, max(last, first + 8))


def _bulk(pair, spacing):
  """The loss of the cell around 0 if it has most probability, to be an atom's point; else 0."""
  cells = pair.cells(np.array([-0.5, 0.5]) * spacing)
  return float(np.log(cells.p[1] / cells.q[1])) if cells.p[1] > 0.5 else 0.0


def is_tame(found: Lattice) -> bool:
  """Whether exponentials of its losses are finite, and it fits into memory."""
  small = max(map(abs, found.ends())) <= LARGEST_LOSS
  return small and found.last - found.first <= 4 * _MOST_POINTS
