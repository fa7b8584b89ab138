"""What neighbouring data sets release, as probabilities of outcomes, and what epsilon they show.

It shares no code with `jdp.accounting`. Each release is written down as it happens to one record,
while all others contribute nothing (or the opposite, to a sample of a fixed size): a table of
outcomes with their probabilities under both data sets. Continuous noise falls into cells, which is
post-processing. So the epsilon found is attained, but for what rounding losses to a lattice does.
"""

import itertools
import math
from typing import NamedTuple

import numpy as np
import scipy.stats

from jdp import events

SPACING, _LARGEST = 1e-3, 60.0
_CELLS, _CELLS_OF_TWO, _CELLS_OF_THREE = 4000, 600, 150


class Outcomes(NamedTuple):
  """Probabilities of the same outcomes, with the record and without it (or with another).

  Attributes:
    there: with it.
    gone: without.
    none: where neither is in the sample. None: as `gone`.
  """

  there: np.ndarray
  gone: np.ndarray
  none: np.ndarray | None = None

  def times(self, other):
    """Of two independent releases."""
    pairs = zip(self[:2], other[:2], strict=True)
    return Outcomes(*(np.multiply.outer(a, b).ravel() for a, b in pairs))

  def mixed(self, q):
    """Of a record that is in the sample with probability q, while nobody sees whether."""
    none = self.gone if self.none is None else self.none
    return Outcomes(*(q * law + (1 - q) * none for law in self[:2]))

  def shown(self, q):
    """Of one in it with that probability, while its coin is seen."""
    out = [1 - q]
    return Outcomes(np.append(q * self.there, out), np.append(q * self.gone, out))


def cells(law, shift, cells, replaced=False):
  """The outcomes of a continuous law, centred on 0, and moved by `shift` (and by half of it)."""
  reach = float(law.isf(1e-13))
  ends = np.linspace(-reach, reach + shift, cells)

  def masses(at):
    below, above = law.cdf(ends - at), law.sf(ends - at)
    inner = np.where(ends[:-1] < at, np.diff(below), -np.diff(above))
    return np.concatenate([[below[0]], inner, [above[-1]]])

  return Outcomes(masses(shift), masses(0.0), masses(shift / 2) if replaced else None)


def integers(pmf, shift, reach):
  x = np.arange(-reach, reach + shift + 1)
  return Outcomes(pmf(x - shift), pmf(x))


def discrete_gaussian(stddev):
  support = np.arange(-40 * math.ceil(stddev + 1), 40 * math.ceil(stddev + 1) + 1)
  total = np.exp(-(support**2) / 2 / stddev**2).sum()
  return lambda x: np.exp(-(x.astype(float) ** 2) / 2 / stddev**2) / total


def answers(same, values):
  """A true answer with probability `same`, and each of the others alike."""
  rest = (1 - same) / (values - 1)
  first, second = np.full(values, rest), np.full(values, rest)
  first[0] = second[1] = same
  return first, second


def release(query, relation, number=_CELLS):
  """The outcomes of one release of a record in the sample, and whether no data sets show more."""
  moved = 2 if relation == "replace_one" else 1

  def noised(law, bound):
    return cells(law, moved * bound, number, moved == 2)

  match query:
    case events.GaussianSum() | events.DistributedGaussianSum():
      return noised(scipy.stats.norm(0, query.stddev), query.clip_norm), True
    case events.LaplaceSum():
      return noised(scipy.stats.laplace(0, query.scale), query.clip_norm), True
    case events.WeightedAverage():
      bound = query.clip_norm / max(query.min_total_weight, 1.0)
      return noised(scipy.stats.norm(0, query.stddev), bound), False
    case events.ConcentratedRelease():
      return cells(scipy.stats.norm(0, (2 * query.rho) ** -0.5), 1.0, number), False
    case events.PureRelease():
      return Outcomes(*answers(1 / (1 + math.exp(-query.epsilon)), 2)), False
    case events.DiscreteGaussianSum():
      law = discrete_gaussian(query.share_stddev)
      return integers(law, moved, math.ceil(15 * query.share_stddev)), True
    case events.SkellamSum():
      mean = query.share_variance * query.num_shares / 2
      law = scipy.stats.skellam(mean, mean).pmf
      return integers(law, moved, math.ceil(9 * math.sqrt(2 * mean)) + 9), True
    case events.RandomizedResponse():
      same = 1 - query.noise + query.noise / query.num_values
      first, second = answers(same, query.num_values)
      if relation != "replace_one":
        second = np.full(query.num_values, 1 / query.num_values)
      return Outcomes(first, second), relation == "replace_one"
    case events.GroupedSums():
      found = [release(part, relation, _CELLS_OF_TWO) for part in query.parts]
      whole = found[0][0]
      for outcomes, _ in found[1:]:
        whole = whole.times(outcomes)
      return whole, all(exact for _, exact in found)


def allocated(batches, chosen, query, relation):
  """An epoch of which the record is in some rounds, all choices alike."""
  one, _ = release(query, relation, _CELLS_OF_TWO if batches == 2 else _CELLS_OF_THREE)
  choices = list(itertools.combinations(range(batches), chosen))
  there = sum(
    _product([one.there if place in taken else one.gone for place in range(batches)])
    for taken in choices
  )
  return Outcomes(there / len(choices), _product([one.gone] * batches))


def _product(parts):
  whole = parts[0]
  for part in parts[1:]:
    whole = np.multiply.outer(whole, part).ravel()
  return whole


def epsilon(counted, delta):
  """The epsilon at delta of counted releases together, in the worse direction."""
  return max(_epsilon(counted, delta, turned) for turned in (False, True))


def _epsilon(counted, delta, turned):
  half = round(_LARGEST / SPACING)
  size = scipy.fft.next_fast_len(2 * half, real=True)
  total, hidden = np.ones(size // 2 + 1, complex), 1.0
  for outcomes, count in counted:
    ours, theirs = outcomes[1::-1] if turned else outcomes[:2]
    both = (ours > 0) & (theirs > 0)
    loss = np.log(ours[both] / theirs[both])
    place = np.clip(loss / SPACING, -half, half - 1)
    below, share = np.floor(place).astype(int), place - np.floor(place)  # between two points
    masses = np.bincount(below % size, ours[both] * (1 - share), minlength=size)
    masses += np.bincount((below + 1) % size, ours[both] * share, minlength=size)
    hidden *= masses.sum() ** count  # else it shows an outcome that the other cannot
    total *= scipy.fft.rfft(masses) ** count
  masses = np.maximum(np.roll(scipy.fft.irfft(total, size), half), 0.0)
  losses = SPACING * (np.arange(size) - half)

  def excess(at):
    above = losses > at
    return (1 - hidden) + float(masses[above] @ -np.expm1(at - losses[above])) - delta

  if excess(0.0) <= 0:
    return 0.0
  return scipy.optimize.brentq(excess, 0.0, _LARGEST) if excess(_LARGEST) < 0 else math.inf
