"""Ledgers of whole epochs in which rounds are drawn, and their hockey sticks by quadrature."""

import math

import numpy as np
import scipy

from jdp import accounting
from jdp.events import BallsInBins, GaussianSum, RandomAllocation, Round
from jdp.ledger import Ledger


def epochs(rounds, taken, z, number=1, relation="add_remove", query=None):
  """So many epochs, of whose rounds a record is in `taken`."""
  samplings = (RandomAllocation(rounds, taken, starts) for starts in (True, False))
  return _of_samplings(samplings, rounds, query or GaussianSum(1.0, z), number, relation)


def bins(rounds, z, number=1, relation="add_remove"):
  """The same by balls in bins, of which a record is in one round."""
  samplings = (BallsInBins(rounds, starts) for starts in (True, False))
  return _of_samplings(samplings, rounds, GaussianSum(1.0, z), number, relation)


def _of_samplings(samplings, rounds, query, number, relation):
  first, later = (Round(sampling, query, relation) for sampling in samplings)
  return Ledger().extend([(first, 1), (later, rounds - 1)] * number)


def tight(run, delta=1e-3, **scope):
  """Epsilon by loss distributions."""
  return accounting.epsilon(run, delta, accountant="pld", **scope)


def call(z, strike):
  """E (R - strike)_+ of one ratio R under Q, elementwise (Black and Scholes)."""
  positive = np.maximum(strike, 1e-300)
  t = -0.5 / z - np.log(positive) * z
  value = scipy.special.ndtr(t + 1 / z) - positive * scipy.special.ndtr(t)
  return np.where(strike > 0, value, 1 - strike)


def sticks(rounds, taken, z, epsilon, points):
  """The hockey sticks (removal, addition) at e^epsilon: a rule in all dimensions but one.

  The likelihood ratio is the mean of the products of `taken` of the rounds' ratios: linear in the
  last one, over which the integral is closed.
  """
  x = np.linspace(-9.0, 9.0 + 1 / z, points)
  weights = np.exp(-x * x / 2) / math.sqrt(2 * math.pi) * (x[1] - x[0])
  ratio = np.exp(x / z - 0.5 / z / z)
  sums, mass = [np.ones(1), *[np.zeros(1)] * taken], np.ones(1)  # elementary symmetric sums
  for _ in range(rounds - 1):
    fewer = [np.zeros(1), *sums[:-1]]
    sums = [
      (np.reshape(a, (-1, 1)) + np.reshape(b, (-1, 1)) * ratio).ravel()
      for a, b in zip(sums, fewer, strict=True)
    ]
    mass = np.multiply.outer(mass, weights).ravel()
  number, constant, slope = math.comb(rounds, taken), sums[taken], sums[taken - 1]
  above = (number * math.exp(epsilon) - constant) / slope
  below = (number * math.exp(-epsilon) - constant) / slope
  puts = np.where(below > 0, call(z, below) - 1 + below, 0.0)
  removal, addition = mass @ (slope * call(z, above)), mass @ (slope * puts)
  return removal / number, math.exp(epsilon) * addition / number
