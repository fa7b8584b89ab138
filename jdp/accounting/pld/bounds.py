"""Hockey sticks of a composition, from below and above, and the epsilon for each delta.

delta(eps) is the sum over losses s > eps of p_s (1 - e^(eps - s)), p_s = tilted_s e^(log_scale -
tilt s). The tilted masses' rounding errors have weights e^(-tilt (s - eps)) (1 - e^(eps - s)),
times e^(log_scale - tilt eps). The sum of the weights' squares, over points a spacing h apart, is
at most 1 + 1 / (2 h tilt (1 + 2 tilt) (1 + tilt)): an integral and the largest term.
"""

import math
from typing import NamedTuple

import numpy as np

from jdp.accounting.pld.compose import LatticeComposition
from jdp.accounting.pld.discretise import sums_from
from jdp.accounting.pld.losses.pairs import UNIT

_BLOCK = 100.0  # nats across a block: e^100 and e^-100 neither overflow nor underflow


class Stick(NamedTuple):
  """A bound on delta as a function of eps.

  Between points it is scale (mass - e^(eps - point) weight) + slack, with mass and weight taken at
  the next point up, and slack at the next point down.

  Attributes:
    losses: the points, float64 [N].
    mass: sums over losses from each point on, float64 [N], times e^(tilt (centre - loss)).
    weight: the same with a further e^(point - loss).
    slack: what errors add to, or take from, the bound at each point, float64 [N].
    scale: the factor of everything except the slack.
    is_upper: whether it is an upper bound.
  """

  losses: np.ndarray
  mass: np.ndarray
  weight: np.ndarray
  slack: np.ndarray
  scale: float
  is_upper: bool

  def at_points(self) -> np.ndarray:
    """The bound at each point, where the point itself contributes nothing."""
    return self.scale * (self.mass - self.weight) + self.slack

  def delta(self, epsilon: float) -> float:
    """The bound at one eps (for upper bounds only); NaN below the window."""
    return float(self.deltas(np.array([epsilon]))[0])

  def deltas(self, epsilons: np.ndarray) -> np.ndarray:
    """The bounds [N] at some eps [N] (for upper bounds only); NaN below the window."""
    after = np.searchsorted(self.losses, epsilons, side="right")
    inside = np.minimum(after, len(self.losses) - 1)
    values = self.mass[inside] - np.exp(epsilons - self.losses[inside]) * self.weight[inside]
    values = np.where(after < len(self.losses), self.scale * values, 0.0)
    return np.where(after > 0, values + self.slack[np.maximum(after, 1) - 1], math.nan)

  def epsilon(self, delta: float) -> float:
    """Where the bound falls to delta; infinity if it does not.

    If it is never above delta, an upper bound has fallen before the window, and the window's start
    is returned. A lower bound may have fallen anywhere, and minus infinity is returned.
    """
    bound = self.at_points()
    # NaN counts on the safe side.
    over = np.flatnonzero(~(bound <= delta) if self.is_upper else bound > delta)
    if not len(over):
      return float(self.losses[0]) if self.is_upper else -math.inf
    last = int(over[-1])
    if last + 1 == len(self.losses):
      return math.inf if self.is_upper else float(self.losses[last])
    rest = self.scale * self.mass[last + 1] + self.slack[last] - delta
    share = rest / (self.scale * self.weight[last + 1])
    if not share < math.inf:
      return float(self.losses[last + self.is_upper])
    root = self.losses[last + 1] + math.log(share) if share > 0 else -math.inf
    return float(np.clip(root, self.losses[last], self.losses[last + 1]))


def upper(composition: LatticeComposition) -> Stick:
  """The hockey stick of the composition, at most; what wraps around only adds to it."""
  # An upper bound on the untilted mass above the window. 1.001 covers rounding errors.
  log_mass = composition.log_scale - composition.window.tilt * composition.losses[-1]
  beyond = composition.outside[1] * _exp(log_mass)
  return _stick(composition, 1.0, 1.001 * (composition.infinite + beyond), 0.0)


def lower(composition: LatticeComposition) -> Stick:
  """The hockey stick of the composition, at least.

  Mass from below the window wraps to its top, where the weights are small: beyond half the way to
  it they are at most e^(-tilt way / 2), and the rest comes from as far below. Mass from above wraps
  first to where the weights are 0.
  """
  losses, (tilt, *_, (step_below, step_above)) = composition.losses, composition.window
  half, above = (losses[-1] - losses) / 2, losses - losses[0]
  from_below, from_above = composition.outside
  # The largest weight e^(-tilt u) (1 - e^-u) over u >= 0.
  most = math.exp(tilt * math.log(tilt / (1 + tilt))) / (1 + tilt) if tilt else 1.0
  wrapped = np.minimum(np.exp(-tilt * half), most) + np.exp(-step_below * half) * most
  wrapped = from_below * wrapped + from_above * np.exp(-step_above * above) * most
  return _stick(composition, -1.0, 0.0, -wrapped)


def _stick(composition, sign, extra, wrapped):
  tilt, losses = composition.window.tilt, composition.losses + sign * composition.rounding
  centre, number = float(losses[len(losses) // 2]), len(losses)
  spacing = float(losses[-1] - losses[0]) / (number - 1)  # as exact as the losses
  # Long arrays are reused, because they take most of an accountant's memory.
  decay = losses - centre
  decay = np.exp(np.multiply(decay, -tilt, out=decay), out=decay)
  values = composition.tilted * decay
  mass = sums_from(values)
  weight = _discounted(values, spacing)
  squares = 2 * spacing * tilt * (1 + 2 * tilt) * (1 + tilt)
  norm = math.sqrt(min(number, 1 + 1 / squares) if squares else number)
  rounding = np.abs(weight, out=values)
  rounding += np.abs(mass)
  rounding *= sign * 2 * UNIT * number
  scale = _exp(composition.log_scale + sign * composition.rounding - tilt * centre)
  errors = decay
  errors *= sign * norm * composition.error + wrapped
  errors += rounding
  errors *= scale
  return Stick(losses, mass, weight, extra + errors, scale, sign > 0)


def _discounted(values: np.ndarray, spacing: float) -> np.ndarray:
  """The sums of values from each point on, times e^(-distance), block by block."""
  size = max(min(int(_BLOCK / spacing), len(values)), 1)
  blocks = np.pad(values, (0, -len(values) % size)).reshape(-1, size)
  decay = np.exp(-spacing * np.arange(size))
  sums = np.cumsum((blocks * decay)[:, ::-1], axis=1)[:, ::-1] / decay
  to_next, beyond = np.exp(spacing * np.arange(-size, 0)), 0.0
  for block in sums[::-1]:
    block += beyond * to_next
    beyond = block[0]
  return sums.ravel()[: len(values)]


def _exp(value):
  return math.exp(value) if value < 700 else math.inf  # float64 ends at e^709
