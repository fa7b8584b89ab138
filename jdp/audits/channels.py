"""Exact audits: the epsilon of a mechanism whose output distribution is known.

They draw no samples, and have no error except rounding. A mechanism on finitely many inputs and
outcomes is a channel: a matrix of probabilities, one row for each input. Its epsilon is found from
the matrix alone, independently of `jdp.accounting`'s analyses.

Mechanisms with other outputs are reduced to a channel, in one of two ways:

* by cells within which the likelihood ratio is constant, which loses nothing;
* by small cells, which is post-processing and loses little.

Either way the result is never above the true epsilon.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy

from jdp import _validate
from jdp._arguments import Matrix, Vector, checked
from jdp.accounting.local.priv_unit import MAX_DIM
from jdp.accounting.local.scalar_dp import MAX_LEVELS
from jdp.audits._shared import Bound, check_delta

_LENGTHS = 1000  # quantiles of the noise's length that probabilities are averaged over


@checked
def channel_epsilon(channel: Matrix, delta: float = 0.0) -> float:
  """The least epsilon for which a channel is (epsilon, delta)-DP, for any two of its inputs.

  An event needs the epsilon log((P - delta) / Q). By Neyman and Pearson's lemma the event that
  needs the largest one consists of the outcomes with the largest likelihood ratios.

  Args:
    channel: [inputs, outcomes], probabilities. Every row sums to 1.
    delta: in [0, 1).

  Returns:
    epsilon >= 0. It is infinite if an event with probability above delta on one input is impossible
    on another.

  Raises:
    ValueError: if the channel is not such a matrix, or delta is out of range.

  >>> round(channel_epsilon([[0.75, 0.25], [0.25, 0.75]]), 6)  # log 3
  1.098612
  >>> channel_epsilon([[1.0, 0.0], [0.0, 1.0]])
  inf
  """
  channel = _rows(channel)
  check_delta(delta)
  channel = channel[:, np.any(channel > 0, axis=0)]
  if delta == 0:  # No event has a larger ratio than every one of its outcomes.
    with np.errstate(divide="ignore"):
      return float(np.max(np.log(channel.max(axis=0)) - np.log(channel.min(axis=0))))
  return max(
    [_pair_epsilon(p, q, delta) for p, q in itertools.permutations(channel, 2)], default=0.0
  )


@checked
def response_channel(num_levels: int, log_lie_probability: float) -> np.ndarray:
  """The channel of randomised response on levels 0..k.

  ScalarDP and ScalarRelDP release this response for numbers on their grid. A number between levels
  has a mixture of two rows, which needs no larger epsilon.

  Args:
    num_levels: k.
    log_lie_probability: log of the probability of a level other than the number's own.

  Returns:
    float64 [k + 1, k + 1].

  >>> from jdp.mechanisms import scalar_dp
  >>> grid = scalar_dp(4.0, 1.0).parameters
  >>> round(channel_epsilon(response_channel(grid.num_levels, grid.log_lie_probability)), 9)
  4.0
  """
  _validate.in_range(1, MAX_LEVELS, num_levels=num_levels)
  _validate.in_range(-math.inf, 0, log_lie_probability=log_lie_probability)
  lie = np.exp(log_lie_probability)
  channel = np.full((num_levels + 1, num_levels + 1), lie / num_levels)
  np.fill_diagonal(channel, -np.expm1(log_lie_probability))
  return channel


@checked
def cap_channel(dim: int, gamma: float, p: float) -> np.ndarray:
  """The channel of PrivUnit's V on the inputs u and -u, by its height t = <V, u>.

  The outcomes are t >= gamma, -gamma < t < gamma, and t <= -gamma.

  On each side of the cap's rim, t has density (1 - t^2)^((d-3)/2) up to a constant. The constants
  are the same for every u, so the likelihood ratio is constant within an outcome. No other pair of
  inputs has a larger one.

  Args:
    dim: d >= 2.
    gamma: in [0, 1).
    p: probability of the cap, in (0, 1).

  Returns:
    float64 [2, 3].

  >>> from jdp.mechanisms import priv_unit
  >>> cap = priv_unit(100, 4.0).parameters
  >>> round(channel_epsilon(cap_channel(100, cap.gamma, cap.p)), 6)
  4.0
  """
  _validate.in_range(2, MAX_DIM, dim=dim)
  _validate.in_range(0, 1, gamma=gamma, p=p)
  return _two_sided(p, scipy.special.betainc((dim - 1) / 2, (dim - 1) / 2, (1 - gamma) / 2))


@checked
def gaussian_cap_channel(gamma: float, p: float) -> np.ndarray:
  """The channel of PrivUnitG's V on the inputs u and -u, by <V, u>, as in `cap_channel`.

  >>> from jdp.mechanisms import priv_unit_g
  >>> cap = priv_unit_g(100, 4.0).parameters
  >>> round(channel_epsilon(gaussian_cap_channel(cap.gamma, cap.p)), 6)
  4.0
  """
  _validate.in_range(-1e3, 1e3, gamma=gamma)
  _validate.probability(p=p)
  return _two_sided(p, scipy.stats.norm.sf(gamma))


@checked
def cube_channel(dim: int, threshold: int, p: float) -> np.ndarray:
  """The channel of PrivUnit-infinity's V on two opposite vertices of the cube.

  The outcomes count the coordinates that agree with the first vertex: at least `threshold`,
  between, or at most dim - threshold.

  Returns:
    float64 [2, 3].

  >>> from jdp.mechanisms import priv_unit_linf
  >>> cube = priv_unit_linf(100, 4.0).parameters
  >>> round(channel_epsilon(cube_channel(100, cube.threshold, cube.p)), 6)
  4.0
  """
  _validate.in_range(1, MAX_DIM, dim=dim)
  _validate.in_range(0, dim, threshold=threshold)
  _validate.probability(p=p)
  return _two_sided(p, scipy.stats.binom.sf(threshold - 1, dim, 0.5))


@checked
def l2_laplace_channel(dim: int, epsilon: float, num_cells: int = 200) -> np.ndarray:
  """The channel of L2-Laplace noise on two opposite ends of its ball, by cells of their loss.

  Let the ends be 1 apart. Noise z has a length R, and an angle of cosine c to their difference u.
  The loss is epsilon (||z + u|| - ||z||). With s = t / epsilon, it is at least t where c is at
  least (s^2 + 2 R s - 1) / (2 R). R has a Gamma(dim) distribution of scale 1 / epsilon. (1 - c) / 2
  has a Beta distribution with both parameters (dim - 1) / 2. Reflection turns the losses of one end
  into minus those of the other.

  Args:
    dim: at least 2. In one dimension see `binned_channel`.
    epsilon: the mechanism's epsilon, positive. The loss is in [-epsilon, epsilon]. It is near the
      ends only with a small probability, which falls with the dimension.
    num_cells: how many equal parts each half of that interval has.

  Returns:
    float64 [2, 2 num_cells], averages over `_LENGTHS` quantiles of R.

  >>> channel = l2_laplace_channel(16, 4.0)
  >>> channel_epsilon(channel) < 4.0
  True
  >>> f"{channel[0, -40:].sum():.0e}"  # a loss of at least 3.2
  '3e-04'
  """
  _validate.in_range(2, MAX_DIM, dim=dim)
  _validate.positive(epsilon=epsilon)
  _validate.in_range(1, 10**6, num_cells=num_cells)
  quantiles = (np.arange(_LENGTHS)[:, None] + 0.5) / _LENGTHS
  lengths = scipy.special.gammaincinv(dim, quantiles) / epsilon
  shares, half = np.linspace(0, 1, num_cells + 1), (dim - 1) / 2

  def cells(side: int) -> np.ndarray:
    """Cells of positive or of negative losses, from 0 outwards, by the tail on their side."""
    least = (shares**2 + 2 * lengths * side * shares - 1) / (2 * lengths)
    tails = scipy.special.betainc(half, half, np.clip((1 - side * least) / 2, 0, 1))
    return np.maximum(-np.diff(np.mean(tails, axis=0)), 0.0)

  first = np.concatenate([cells(-1)[::-1], cells(1)])
  return np.stack([first, first[::-1]]) / np.sum(first)


@checked
def binned_channel(laws: Sequence[Any], edges: Vector) -> np.ndarray:
  """The channel of real outputs that are told apart only by cells.

  Args:
    laws: one for each input, with `cdf` and `sf`, as SciPy's frozen distributions.
    edges: increasing, [n]. Some distributions have a constant likelihood ratio beyond the outer
      edges, such as Laplace's beyond the two centres. Their outer cells alone have the epsilon of
      the distribution itself.

  Returns:
    float64 [inputs, n + 1]. Each probability is exact to a relative 1e-16 of the smaller tail that
    the cell lies in.

  >>> laws = scipy.stats.laplace(0.0, 0.25), scipy.stats.laplace(1.0, 0.25)
  >>> round(channel_epsilon(binned_channel(laws, [0.0, 1.0])), 9)
  4.0
  """
  if not laws or not all(hasattr(law, side) for law in laws for side in ("cdf", "sf")):
    raise ValueError("Expected laws with cdf and sf, got others; freeze a distribution of SciPy.")
  edges = np.concatenate([[-np.inf], edges, [np.inf]])
  below, above = (np.array([getattr(law, side)(edges) for law in laws]) for side in ("cdf", "sf"))
  # Differences of the smaller tail are taken: those of the other would cancel. Rounding may make
  # them negative between neighbouring floats.
  return np.maximum(np.where(below[:, 1:] < 0.5, np.diff(below), -np.diff(above)), 0.0)


@checked
def attainable_bound(channel: Matrix, num_samples: int, bound: Bound) -> float:
  """The bound of the best event if it is seen as often as expected: an audit seldom finds more.

  It shows what keeps an audit's bound below the true epsilon: the number of reports, or the events
  and inputs that were tried.

  Args:
    channel: [2, outcomes], probabilities on two inputs, of cells with nearly one likelihood ratio.
    num_samples: the number of reports of each input that measure the event.
    bound: `jdp.audits.bounds.epsilon_bound` or another.

  Raises:
    ValueError: if the channel is not such a matrix, or num_samples is out of range.

  >>> from jdp.audits.bounds import epsilon_bound
  >>> laws = scipy.stats.laplace(0.0, 0.25), scipy.stats.laplace(1.0, 0.25)
  >>> channel = binned_channel(laws, [0.0, 1.0])
  >>> [round(attainable_bound(channel, n, epsilon_bound(0.99)), 2) for n in (1000, 100_000)]
  [3.07, 3.91]
  """
  _validate.in_range(1, 2**31 - 1, num_samples=num_samples)
  channel = _rows(channel)
  if len(channel) != 2:
    raise ValueError(f"Expected channel to have 2 rows, got {len(channel)}.")
  p, q = channel
  found = 0.0
  for own, other in ((p, q), (q, p)):
    # By the Neyman-Pearson lemma, the best events take the first cells in this order.
    with np.errstate(divide="ignore", invalid="ignore"):
      order = np.argsort(-own / other, kind="stable")
    seen, false = (np.minimum(np.cumsum(x[order]), 1.0) * num_samples for x in (own, other))
    bounds = bound(np.floor(seen), num_samples, np.ceil(false), num_samples)
    found = max(found, float(np.max(bounds)))
  return found


def _rows(channel: Matrix) -> np.ndarray:
  """The channel as an array. Refuses what is not a channel."""
  channel = np.asarray(channel, float)
  if not (
    channel.ndim == 2
    and np.all(channel >= 0)
    and np.allclose(channel.sum(axis=1), 1, rtol=0, atol=1e-9)
  ):
    raise ValueError(
      f"Expected channel to be rows of probabilities that sum to 1, got shape {channel.shape}."
    )
  return channel


def _pair_epsilon(p: np.ndarray, q: np.ndarray, delta: float) -> float:
  """The epsilon that events need if they are likelier under p than under q."""
  p, q = p[p > 0], q[p > 0]  # An outcome that only q has makes no event likelier under p.
  with np.errstate(divide="ignore"):  # An outcome that only p has gives infinity.
    order = np.argsort(-p / q, kind="stable")
    p, q = np.cumsum(p[order]), np.cumsum(q[order])
    needed = p > delta
    ratios = np.log(p[needed] - delta) - np.log(q[needed])
  return float(np.max(ratios, initial=0.0))


def _two_sided(p: float, q: float) -> np.ndarray:
  """Probabilities of the cap, of neither cap, and of the opposite cap, for u and for -u.

  The opposite cap is a share q / (1 - q) of what lies outside the cap.
  """
  outside = (1 - p) / (1 - q)
  row = np.array([p, outside * max(1 - 2 * q, 0.0), outside * q])
  return np.stack([row, row[::-1]])
