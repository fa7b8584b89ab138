"""What a run of correlated integers costs, exactly: sums over all values that its rounds take.

A client's rows of one coordinate are a vector of integers, one for each round. The program
tabulates the probability of each vector, takes the sums that the server sees of it, and convolves
the clients. It knows nothing of the proof.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import scipy

from jdp.queries.distributed.correlated_integer_sums import CorrelatedIntegers

Rounding = Callable[[np.ndarray, np.ndarray, float], np.ndarray]


class Client(NamedTuple):
  """One client's rounds.

  Attributes:
    present: whether it reports, for each round.
    variances: of what its row has and no earlier one, for each round, in units of the grid.
  """

  present: Sequence[bool] | np.ndarray
  variances: Sequence[float] | np.ndarray


def by_discrete_gaussian(fractions: np.ndarray, values: np.ndarray, variance: float) -> np.ndarray:
  """P(row = value) for each fraction and value, of discrete Gaussians about the fractions."""
  weights = np.exp(-((values - fractions[..., None]) ** 2) / (2 * variance))
  return weights / weights.sum(axis=-1, keepdims=True)


def by_nearest(fractions: np.ndarray, values: np.ndarray, variance: float) -> np.ndarray:
  """The same of a discrete Gaussian about zero, plus the integer next to the fraction."""
  return by_discrete_gaussian(np.round(fractions), values, variance)


def sums(
  clients: Sequence[Client],
  coefficients: Sequence[float] | np.ndarray,
  *,
  width: int,
  rounding: Rounding = by_discrete_gaussian,
) -> np.ndarray:
  """P(the sums of all rounds), float64 [2 width + 1, ...] with an axis for each round.

  Sums beyond `width` wrap around; take it so large that they hardly occur.
  """
  values = np.arange(-width, width + 1)
  spectrum: float | np.ndarray = 1.0
  for client in clients:
    rows = _rows(client, coefficients, values, rounding)
    spectrum = spectrum * np.fft.fftn(np.fft.ifftshift(_seen(rows, client.present)))
  found = np.real(np.fft.fftshift(np.fft.ifftn(spectrum)))
  return np.maximum(found, 0.0)


def _rows(
  client: Client, coefficients: Sequence[float] | np.ndarray, values: np.ndarray, rounding: Rounding
) -> np.ndarray:
  """P(rows of all rounds), with an axis for each round."""
  probability = np.ones(())
  for number, variance in enumerate(client.variances):
    fractions = np.zeros((1,) * number)
    for lag in range(1, number + 1):
      earlier = values.reshape([-1 if axis == number - lag else 1 for axis in range(number)])
      fractions = fractions - coefficients[lag] * earlier
    probability = probability[..., None] * rounding(fractions, values, variance)
  return probability


def _seen(rows: np.ndarray, present: Sequence[bool] | np.ndarray) -> np.ndarray:
  """P(what a client adds to each round's sum): what it missed is added to its next report."""
  middle = rows.shape[0] // 2
  nothing = np.arange(rows.shape[0]) == middle
  for number, here in enumerate(present):
    if here:
      continue
    later = next((t for t in range(number + 1, len(present)) if present[t]), None)
    if later is None:
      rows = rows.sum(axis=number, keepdims=True)
    else:  # shear: the later axis takes the value of this one along
      moved = [
        np.roll(rows.take([place], axis=number), place - middle, axis=later)
        for place in range(rows.shape[number])
      ]
      rows = np.sum(moved, axis=0)
    shape = [-1 if axis == number else 1 for axis in range(rows.ndim)]
    rows = rows * nothing.reshape(shape)
  return rows


def delta(probabilities: np.ndarray, moved: Sequence[int], epsilon: float) -> float:
  """The delta of a neighbour who moves the sums by so much."""
  other = np.roll(probabilities, moved, axis=tuple(range(probabilities.ndim)))
  return float(np.maximum(probabilities - np.exp(epsilon) * other, 0.0).sum())


def epsilon(probabilities: np.ndarray, moves: Sequence[Sequence[int]], target: float) -> float:
  """The least epsilon for the delta, of the neighbours who move the sums by one of `moves`."""

  def excess(value):
    return max(delta(probabilities, moved, value) for moved in moves) - target

  return float(scipy.optimize.brentq(excess, 0.0, 700.0, xtol=1e-9)) if excess(0.0) > 0 else 0.0


def moves(num_rounds: int, norm: int) -> list[tuple[int, ...]]:
  """All ways to move each round's sum by -norm, 0 or norm, up to the sign of all, without none."""
  signs = itertools.product((0, 1, -1), repeat=num_rounds)
  first = ((move, next(filter(None, move), 0)) for move in signs)
  return [tuple(norm * sign for sign in move) for move, leading in first if leading == 1]


def cost_of_a_run(
  query: CorrelatedIntegers,
  num_clients: int,
  missing: Sequence[tuple[int, int]],
  target: float,
  *,
  width: int,
) -> tuple[float, int]:
  """The exact epsilon of a run on one number, and by how much its records move a sum.

  Args:
    query: of one number.
    num_clients: n.
    missing: pairs of a client and a round that it misses.
    target: delta.
    width: as for `sums`.
  """
  present = np.ones((num_clients, query.plan.num_rounds), bool)
  for client, number in missing:
    present[client, number] = False
  fewest = np.minimum.accumulate(present.sum(axis=0))
  variances = (query.stddevs[num_clients - fewest] / query.grid.spacing) ** 2
  norm = math.floor(query.grid.l2_norm)
  clients = [Client(here, variances) for here in present]
  found = sums(clients, query.strategy.coefficients, width=width)
  return epsilon(found, moves(query.plan.num_rounds, norm), target), norm
