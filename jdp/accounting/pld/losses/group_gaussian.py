"""The pair of a Poisson sample that each of k records of a group is in with probability q.

The number J of members that take part is binomial. The mixture of N(J, z^2) against N(0, z^2)
dominates the removal of the group, the reverse its addition (arXiv 2401.10294: mixtures of
Gaussians). With x in units of the noise, the loss of a removal is

  L(x) = log sum_j P(J = j) e^(j x / z - j^2 / (2 z^2)),

which increases. Newton's method finds the x where it has a given value. This x is then moved until
L is on the safe side of that value by more than its rounding errors, so that no loss of a cell is
above the cell's upper edge. Hence the pair serves upper bounds alone.
"""

import math

import numpy as np
import scipy

from jdp.accounting.pld.losses.pairs import UNIT, Cells, Pair, normal_masses

_FARTHEST = 38.0  # noise, in standard deviations, that is looked at
_TABLE = 8001
_STEPS = 8  # of Newton's method, and of moving


def group_gaussian(q: float, z: float, size: float, *, removed: bool) -> Pair:
  """The pair of one round, when a group is removed or added.

  Args:
    q: the probability of each member, in (0, 1).
    z: the noise multiplier for one record.
    size: the size of the group; time grows with it.
    removed: the direction.
  """
  members = np.arange(int(size) + 1)
  log_weights = scipy.stats.binom.logpmf(members, int(size), q)
  shifts = members / z
  loss = _loss(log_weights, shifts)

  def cells(edges):
    x = _where(loss, edges if removed else -edges[::-1], shifts[-1], -1.0 if removed else 1.0)
    none, none_error = normal_masses(x)
    mixed, mixed_error = np.zeros_like(none), np.zeros_like(none)
    for weight, shift in zip(np.exp(log_weights), shifts, strict=True):
      mass, error = normal_masses(x - shift)
      mixed += weight * mass
      mixed_error += weight * (error + 64 * UNIT * (1 + size) * mass)
    if removed:
      return Cells(mixed, none, mixed_error, none_error)
    return Cells(none[::-1], mixed[::-1], none_error[::-1], mixed_error[::-1])

  x = np.arange(-14.0, 14.0 + shifts[-1], max(0.02, min(0.2, 0.3 * z / int(size))))
  log_p = -x * x / 2
  if removed:
    exponents = log_weights - np.square(x[:, None] - shifts) / 2
    log_p = scipy.special.logsumexp(exponents, axis=1)
  log_p = log_p - scipy.special.logsumexp(log_p)
  losses = loss(x)[0]
  return Pair(losses, log_p, cells) if removed else Pair(-losses[::-1], log_p[::-1], cells)


def _loss(log_weights, shifts):
  """The function x [N] -> the loss of a removal, and its slope."""

  def loss(x):
    exponents = log_weights + shifts * x[:, None] - shifts * shifts / 2
    top = exponents.max(axis=1)
    parts = np.exp(exponents - top[:, None])
    total = parts.sum(axis=1)
    return top + np.log(total), (parts * shifts).sum(axis=1) / total

  return loss


def _where(loss, edges, farthest_shift, side):
  """Points x [N] whose loss is just above the edges (side 1) or just below them (side -1)."""
  table = np.linspace(-_FARTHEST, _FARTHEST + 2 * farthest_shift, _TABLE)
  values = loss(table)[0]
  x = np.interp(edges, values, table)
  for _ in range(_STEPS):
    value, slope = loss(x)
    step = np.nan_to_num((value - edges) / np.maximum(slope, 1e-300))
    x = np.clip(x - np.clip(step, -0.1, 0.1), table[0], table[-1])
  margin = 64 * UNIT * (1 + np.abs(edges) + farthest_shift * (np.abs(x) + farthest_shift))
  for number in range(_STEPS):
    value, slope = loss(x)
    wrong = side * (value - edges) < margin
    x = np.where(wrong, x + side * 2.0**number * margin / np.maximum(slope, 1e-300), x)
  wrong = side * (loss(x)[0] - edges) < margin
  # Points too far out for the table, or where the loss is too flat, go all the way to the side.
  x = np.where(wrong | ~np.isfinite(x), side * math.inf, x)
  x = np.clip(x, -1e6, 1e6)
  return np.minimum.accumulate(x[::-1])[::-1] if side < 0 else np.maximum.accumulate(x)
