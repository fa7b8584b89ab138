"""The pair of a Gaussian sum of a sample of fixed size, of a record that is replaced or zeroed.

Statement 2.3. In units of the noise, a zeroed record moves the sum by s, a replaced one by s + a.
Under replace-one a is 0. For one direction, that of a record against none:

* Losses above 0 are those of (1-q) N(-a) + q N(s) against (1-q) N(-a) + q N(0): the record's own
  value is s, and who sits in its place is opposite. The loss at t increases where it is above 0:

    log((1-q) v + q u) - log((1-q) v + q),   u = e^(s t - s^2 / 2),   v = e^(-a t - a^2 / 2).

  It is e where s t - s^2 / 2 = log(e^e + (1/q - 1) (e^e - 1) v). The difference of both sides is
  concave in t, so Newton's method from below its root stays there, and converges.
* Losses below 0 are those of a Poisson sample's addition: who sits in its place is equal to it.
* An atom at 0 has the rest.

The other direction is the reverse. Under replace-one it is the same. Data sets whose other records
are all equal attain each half, but not both with one pair: `attained` takes the opposite ones.
"""

import math

import numpy as np
import scipy

from jdp.accounting.pld.losses.pairs import (
  UNIT,
  Cells,
  Pair,
  atoms,
  normal_masses,
  normalised,
  reverse,
  sampled_gaussian,
  sketched,
)

_FARTHEST = 38.0  # noise, in standard deviations
_NEWTON = 6  # steps: the first error is below log 2 / s, and an error e becomes at most s e^2 / 8
_CELLS = 2**14


def fixed_size_gaussian(q: float, z_replaced: float, z: float, *, removed: bool) -> Pair:
  """The pair of one round.

  Args:
    q: the sample's share of the records, in (0, 1).
    z_replaced: the noise multiplier of a replaced record.
    z: the multiplier of the record in question, from `z_replaced` to twice as much: the same if it
      is replaced, more if it is zeroed.
    removed: the direction.
  """
  shift = 1 / z
  other = min(max(1 / z_replaced - shift, 0.0), shift)
  opposite, removal = _opposite(q, shift, other), sampled_gaussian(q, z, removed=True)
  high, low = (opposite, reverse(removal)) if removed else (removal, reverse(opposite))
  rest = math.erf(shift / 2 * math.sqrt(0.5)) + math.erf((shift / 2 + other) * math.sqrt(0.5))
  rest *= (1 - q) / 2

  def cells(edges):
    above = high.cells(np.concatenate([[0.0], np.maximum(edges, 0.0)]))
    below = low.cells(np.concatenate([np.minimum(edges, 0.0), [0.0]]))
    has_above, has_below = np.append(edges > 0, True), np.insert(edges < 0, 0, True)
    parts = [
      has_above * up[1:] + has_below * down[:-1] for up, down in zip(above, below, strict=True)
    ]
    at_zero = np.searchsorted(edges, 0.0)
    for part, value in zip(parts, (rest, rest, 8 * UNIT * rest, 8 * UNIT * rest), strict=True):
      part[at_zero] += value
    return Cells(*parts)

  up, down = high.losses > 0, low.losses < 0
  losses = np.concatenate([low.losses[down], [0.0], high.losses[up]])
  log_p = np.concatenate([low.log_p[down], [math.log(rest)], high.log_p[up]])
  return Pair(losses, normalised(log_p), cells, True)


def attained(q: float, z_replaced: float, z: float, *, removed: bool) -> Pair:
  """A pair that existing data sets attain: a record is zeroed among opposite ones, or put in among
  equal ones. It is for lower bounds alone.

  Outcomes are merged in small cells, which is post-processing.
  """
  shift = 1 / z
  other = 1 / z_replaced - shift
  if not (removed and other > 0):
    return sampled_gaussian(q, z, removed=True)
  points = np.linspace(-14.0 - other, _FARTHEST + shift, _CELLS)
  (p, p_error), (q_mass, q_error) = _masses(q, shift, other, points)
  shown = (p > 2 * p_error) & (q_mass > 2 * q_error) & (p > 1e-300) & (q_mass > 1e-300)
  p, p_error, q_mass, q_error = (part[shown] for part in (p, p_error, q_mass, q_error))
  losses = np.log((p - p_error) / (q_mass + q_error)) * (1 - 4 * UNIT) - 4 * UNIT
  kept = (q_mass - q_error) * np.exp(losses) * (1 - 8 * UNIT)
  order = np.argsort(losses)
  return sketched(atoms(losses[order], kept[order]))._replace(has_atoms=False)


def _masses(q, shift, other, points):
  """The masses between points on the record's side and on the other, with error bounds."""
  (absent, absent_error), zero, one = (
    normal_masses(points - centre) for centre in (-other, 0.0, shift)
  )
  found = []
  for mass, error in (one, zero):
    mixed = (1 - q) * absent + q * mass
    found.append((mixed, (1 - q) * absent_error + q * error + 4 * UNIT * mixed))
  return found


def _opposite(q: float, shift: float, other: float) -> Pair:
  """The pair of which the losses above 0 count; no edge may be below 0."""
  log_q, log_rest = math.log(q), math.log1p(-q)

  def loss(t):
    sits_out = log_rest - other * (t + other / 2)
    return np.logaddexp(sits_out, log_q + shift * (t - shift / 2)) - np.logaddexp(sits_out, log_q)

  def quantile(edges):
    with np.errstate(divide="ignore"):
      gain = log_rest - log_q + edges + np.log(-np.expm1(-edges))
    # The logarithm of a sum is above that of each term.
    t = np.maximum(
      edges / shift + shift / 2,
      (gain + shift * shift / 2 - other * other / 2) / (shift + other),
    )
    for _ in range(_NEWTON):
      term = gain - other * (t + other / 2)
      missing = np.logaddexp(edges, term) - shift * (t - shift / 2)
      t = t + missing / (shift + other * scipy.special.expit(term - edges))
    return t

  def cells(edges):
    t = quantile(edges)
    (p, p_error), (q_mass, q_error) = _masses(q, shift, other, t)
    # Errors of t, expressed as errors of the loss.
    off = 64 * UNIT * (1 + edges + (shift + other) * (t + shift + other))
    off = np.append(off, off[-1])
    return Cells(p, q_mass, p_error + off * p, q_error + off * q_mass)

  t = np.arange(-14.0, _FARTHEST + shift, max(min(0.2, 0.3 / (shift + other)), 0.02))
  log_p = np.logaddexp(log_rest - np.square(t + other) / 2, log_q - np.square(t - shift) / 2)
  return Pair(loss(t), normalised(log_p), cells)
