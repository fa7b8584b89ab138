"""Dominating pairs (P, Q) of distributions, as privacy loss distributions are made from them.

The privacy loss is L = log dP/dQ, drawn from P. A pair is known here by the probabilities under P
and under Q that L is in an interval, each with a bound on its rounding error, and by a sketch of a
few hundred atoms, with which tails and spacings are planned (a sketch certifies nothing).

* Poisson-sampled Gaussian (arXiv 1908.10530, Section 3): (1-q) N(0, z^2) + q N(1, z^2) against N(0,
  z^2) when a record is removed, the reverse when one is added.
* Laplace: two distributions whose centres are eps scales apart; atoms at +-eps, a density between.
* Atoms: randomised response, of two values or of a value and a uniform answer; pure releases,
  which post-process one bit's response (arXiv 1311.0776).
* Releases of which a privacy profile alone is known, `of_profile`, or Renyi divergences, `renyi`.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy

from jdp.accounting.renyi.conversions import IMPROVED

UNIT = 2.0**-52
# Errors of SciPy's ndtr at t: a relative UNIT (8 + 2 t^2). Its documented peak is 3.4e-14 at 13.
FARTHEST = 38.0  # where ndtr is still a normal number
LARGEST_LOSS = 600.0
"""The largest loss of a pair. Its exponential is safely a float64."""
_SKETCH = 500  # atoms
# For pairs known by their divergences: orders, points, and minus log of the delta at the last one.
_ORDERS, _POINTS, _FARTHEST_NATS = 256, 4096, 700.0


class Cells(NamedTuple):
  """A pair's probabilities below, between and above N increasing edges, intervals closed above.

  Attributes:
    p: the probabilities under P, float64 [N + 1].
    q: those under Q.
    p_error: bounds on the rounding errors of p.
    q_error: bounds on those of q.
  """

  p: np.ndarray
  q: np.ndarray
  p_error: np.ndarray
  q_error: np.ndarray


class Pair(NamedTuple):
  """A dominating pair.

  Attributes:
    losses: the losses of the sketch's atoms, float64 [M].
    log_p: log of their probabilities under P.
    cells: edges [N] -> `Cells`.
    has_atoms: whether single losses have positive probabilities.
    step: 0, or a spacing: atoms are on `losses[0]` plus multiples of it.
  """

  losses: np.ndarray
  log_p: np.ndarray
  cells: Callable[[np.ndarray], Cells]
  has_atoms: bool = False
  step: float = 0.0


def sampled_gaussian(q: float, z: float, *, removed: bool) -> Pair:
  """The Poisson-sampled Gaussian, when a record is removed or added."""
  mean = 1 / z

  def loss(t):  # the loss of a removal
    exponent = mean * (t - mean / 2)
    return exponent if q == 1 else np.logaddexp(math.log1p(-q), math.log(q) + exponent)

  def quantile(edges):
    """Where the loss of a removal is that of the edges, in units of the noise."""
    if q == 1:
      return edges / mean + mean / 2
    with np.errstate(divide="ignore", invalid="ignore"):
      gain = np.where(edges > 700, np.inf, np.expm1(np.minimum(edges, 700))) / q + 1
      small = (np.log(np.maximum(gain, 0.0))) / mean + mean / 2
      return np.where(edges > 700, (edges - math.log(q)) / mean + mean / 2, small)

  def cells(edges):
    t = quantile(edges if removed else -edges[::-1])
    none, none_error = normal_masses(t)
    one, one_error = normal_masses(t - mean)
    mixed = (1 - q) * none + q * one
    mixed_error = (1 - q) * none_error + q * one_error + UNIT * (none + one)
    if removed:
      return Cells(mixed, none, mixed_error, none_error)
    return Cells(none[::-1], mixed[::-1], none_error[::-1], mixed_error[::-1])

  lowest, highest = (-14.0, 14 + mean + 24) if removed else (-FARTHEST, 14 + mean)
  t = np.arange(lowest, highest, max(min(0.2, 0.3 / mean), 0.02))
  log_p = -t * t / 2
  if removed:
    log_none = np.log1p(-q) + log_p if q < 1 else -np.inf
    log_p = np.logaddexp(log_none, math.log(q) - np.square(t - mean) / 2)
  log_p = normalised(log_p)
  return Pair(loss(t), log_p, cells) if removed else Pair(-loss(t)[::-1], log_p[::-1], cells)


def normal_masses(t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """The standard normal probabilities [N + 1] of the cells between non-decreasing points t [N], and
  error bounds.
  """
  tail = scipy.special.ndtr(-np.abs(t))
  # Phi(t), minus 1 from t = 0 on. In the error, t^2 is limited: infinity times a tail of 0 is NaN.
  signed = np.concatenate([[0.0], np.where(t < 0, tail, -tail), [0.0]])
  error = np.concatenate([[0.0], UNIT * (8 + 2 * np.minimum(t * t, 2000.0)) * tail, [0.0]])
  masses = np.diff(signed)
  masses[np.searchsorted(t, 0.0)] += 1.0
  return np.maximum(masses, 0.0), error[1:] + error[:-1]


def normalised(log_p: np.ndarray) -> np.ndarray:
  """A sketch of mass 1: many rounds of another mass would be misplanned."""
  return log_p - math.log(np.exp(log_p).sum())


def reverse(pair: Pair) -> Pair:
  """The reversed pair (Q, P) of a pair without atoms."""

  def cells(edges):
    found = pair.cells(-edges[::-1])
    return Cells(found.q[::-1], found.p[::-1], found.q_error[::-1], found.p_error[::-1])

  return Pair(-pair.losses[::-1], normalised((pair.log_p - pair.losses)[::-1]), cells)


def sketched(pair: Pair, starts: np.ndarray | None = None, least: float = 0.0) -> Pair:
  """The pair with a sketch of fewer atoms: those from one of the indices to the next are merged.

  No atom has less than the `least` mass. None: about 500 groups of equally many atoms.
  """
  starts = group_starts(len(pair.losses), _SKETCH) if starts is None else starts
  p = np.exp(pair.log_p)
  mass = np.maximum(np.add.reduceat(p, starts), least)
  losses = np.add.reduceat(p * pair.losses, starts) / mass
  return pair._replace(losses=losses, log_p=np.log(mass))


def group_starts(number: int, most: int) -> np.ndarray:
  """The first index of each group, if `number` indices are cut into at most `most` equal groups."""
  return np.arange(0, number, -(-number // most))


def mixture(parts: Sequence[tuple[float, Pair]]) -> Pair:
  """The pair of a release from one of several pairs, drawn at random, with which one it is."""

  def cells(edges):
    scaled = [[weight * part for part in pair.cells(edges)] for weight, pair in parts]
    p, q, p_error, q_error = (np.sum(several, axis=0) for several in zip(*scaled, strict=True))
    return Cells(p, q, p_error + 4 * UNIT * p, q_error + 4 * UNIT * q)

  with np.errstate(divide="ignore"):
    log_p = np.concatenate([np.log(weight) + pair.log_p for weight, pair in parts])
  losses = np.concatenate([pair.losses for _, pair in parts])
  shown = np.flatnonzero(log_p > -np.inf)
  order = shown[np.argsort(losses[shown])]
  has_atoms = any(pair.has_atoms for _, pair in parts)
  return Pair(losses[order], log_p[order], cells, has_atoms)


def laplace(epsilon: float) -> Pair:
  """Laplace distributions `epsilon` scales apart."""

  def cells(edges):
    inner = np.clip(edges, -epsilon, epsilon)
    low, high = np.concatenate([[-epsilon], inner]), np.concatenate([inner, [epsilon]])
    width = -0.5 * np.expm1((low - high) / 2)
    p, q = width * np.exp((high - epsilon) / 2), width * np.exp((-low - epsilon) / 2)
    for at, p_mass, q_mass in (
      (epsilon, 0.5, 0.5 * math.exp(-epsilon)),
      (-epsilon, 0.5 * math.exp(-epsilon), 0.5),
    ):
      where = np.searchsorted(edges, at)
      p[where] += p_mass
      q[where] += q_mass
    return Cells(p, q, 8 * UNIT * p, 8 * UNIT * q)

  between = np.linspace(-epsilon, epsilon, 201)
  inside = np.exp((between - epsilon) / 2) / 4 * (between[1] - between[0])
  inside[0], inside[-1] = 0.5 * math.exp(-epsilon), 0.5
  return Pair(between, normalised(np.log(inside)), cells, True, 2 * epsilon)


def atoms(losses: np.ndarray, p: np.ndarray, step: float = 0.0) -> Pair:
  """A pair whose loss has few values, given in increasing order."""
  q = p * np.exp(-losses)

  def cells(edges):
    where = np.searchsorted(edges, losses)
    by_p, by_q = (np.bincount(where, weights, minlength=len(edges) + 1) for weights in (p, q))
    return Cells(by_p, by_q, 8 * UNIT * by_p, 8 * UNIT * by_q)

  shown = (p > 0) & np.isfinite(losses)
  return Pair(losses[shown], np.log(p[shown]), cells, True, step)


def dense_atoms(losses: np.ndarray, p: np.ndarray) -> Pair:
  """The pair of atoms so dense that few of them make a sketch."""
  return sketched(atoms(losses, p), least=1e-300)._replace(has_atoms=False)


def pure(epsilon: float) -> Pair:
  """The response of one bit."""
  losses = np.array([-epsilon, epsilon])
  return atoms(losses, scipy.special.expit(losses), 2 * epsilon)


def randomized_response(noise: float, num_values: float, epsilon: float) -> Pair:
  """The response of one of several values; `epsilon` is its largest loss."""
  if num_values == 2:
    return pure(epsilon)
  other = noise / num_values
  p = np.array([other, (num_values - 2) * other, 1 - noise + other])
  return atoms(np.array([-epsilon, 0.0, epsilon]), p, epsilon)


def null_response(noise: float, num_values: float, *, removed: bool) -> Pair:
  """The response of one of several values against a uniform answer, or the reverse."""
  likelier = num_values * (1 - noise) + noise  # times as likely as in a uniform answer
  losses = np.log(np.array([noise, likelier]))
  if removed:
    p = np.array([(num_values - 1) * noise / num_values, likelier / num_values])
  else:
    losses, p = -losses[::-1], np.array([1.0, num_values - 1]) / num_values
  return atoms(losses, p, float(losses[1] - losses[0]))


def renyi(divergences: Callable[[np.ndarray], np.ndarray]) -> Pair:
  """A pair that dominates whatever has these Renyi divergences in both directions: orders [A] > 1
  -> [A].
  """
  return of_profile(renyi_profile(divergences))


def renyi_profile(
  divergences: Callable[[np.ndarray], np.ndarray],
) -> Callable[[np.ndarray], np.ndarray]:
  """Epsilons [N] -> log of the least delta over orders (arXiv 2004.00010, Proposition 12)."""
  orders = 1 + np.geomspace(1e-3, 2.0**20, _ORDERS)
  rdp = divergences(orders)

  def log_delta(epsilons: np.ndarray) -> np.ndarray:
    each: Any = epsilons[:, None]
    return np.min(IMPROVED.log_delta(orders, rdp, each), axis=-1)

  return log_delta


def of_profile(log_delta: Callable[[np.ndarray], np.ndarray]) -> Pair:
  """A pair that dominates whatever has this privacy profile in both directions: epsilons [N] >= 0
  -> log of a bound on delta [N].

  That is a bound u on the hockey stick at x = e^eps >= 1. The true stick is convex, so the convex
  minorant of u's values at some points is above the true one's there, and chords between the points
  are above it everywhere. Below 1 the stick is 1 - x + x u(1/x): losses of +-eps come in mirrored
  pairs. A chord from 1/x to x, of slope -(1 - u(x)) / (1 + x), closes the middle.
  """
  farthest = 1e-6
  while farthest < LARGEST_LOSS and log_delta(np.array([farthest]))[0] > -_FARTHEST_NATS:
    farthest *= 1.3
  losses = np.linspace(0, min(farthest, LARGEST_LOSS), _POINTS)
  x, bound = np.exp(losses), np.exp(np.minimum(log_delta(losses), 0.0))
  slopes = scipy.optimize.isotonic_regression(np.diff(bound) / np.diff(x), weights=np.diff(x)).x
  bound = bound[-1] - np.append(np.cumsum((slopes * np.diff(x))[::-1])[::-1], 0.0)
  slopes = np.append(slopes, 0.0)
  chords = -(1 - bound) / (1 + x)
  first = int(np.argmax(slopes >= chords))
  q = np.diff(slopes[first:], prepend=chords[first]) + 8 * UNIT * np.abs(slopes[first:])
  losses, p = losses[first:], x[first:] * q
  both = np.concatenate([-losses[::-1], losses, [np.inf]])
  return atoms(both, np.concatenate([q[::-1], p, bound[-1:]]))
