"""The privacy cost of a client's noisy model updates (arXiv 1807.04369, Sections 3.2 and 4.2).

A client moves the model it drew by -eta g plus Laplace (or Gaussian) noise on every coordinate. Its
average gradient g has coordinates in [-c, c] (Algorithm 1). Neighbours are two gradients of one
update. The model it starts from is the same.

* *Per coordinate*: either neighbours differ in one coordinate, or they differ anywhere and one
  coordinate of the releases is seen alone. Releases are reports minus their pre-images.
* *Per user*: neighbours differ anywhere, and all released coordinates are seen together.

The second case per coordinate fails for an observer who sees a model that others made from a
report. So neighbours differ in one coordinate against adversaries II and III, and against I over
several reports (Statement 3.1 of `docs/theory/later_updates.md`).

The publication's "feature-level" privacy (Section 6.3.1) is the statement per coordinate. It does
not hide a feature of a client: one feature moves the residual, and with it every coordinate of g.

Noise is taken as real-valued. Releases with floats are dithered
(`jdp.federated.draw_and_discard.client_updates`). What floats add then is bounded by
`jdp.accounting.grid_surcharge`, over all coordinates of all releases whose noise a statement rests
on.
"""

import math

import numpy as np

from jdp import _validate
from jdp._arguments import checked
from jdp.accounting.analytic_gaussian import gaussian_epsilon, gaussian_noise_multiplier
from jdp.accounting.draw_and_discard.laplace_sums import laplace_rdp, rdp_epsilon
from jdp.guarantees import ApproxDP, PureDP, Unit

_MOST_COORDINATES = 2**53


@checked
def noise_scale(epsilon: float, norm: float, step: float) -> float:
  """The Laplace scale 2 norm eta / epsilon of every coordinate of an update.

  `norm` decides what is epsilon-DP. If `norm` = c, the bound of each coordinate of g, then every
  coordinate is epsilon-DP (Algorithm 1). If `norm` bounds the L1 norm of g, then the whole update
  is epsilon-DP: two such gradients are at most 2 norm apart in L1.

  >>> noise_scale(1.0, 0.1, 0.5), noise_scale(1.0, 20.0, 0.5)
  (0.1, 20.0)
  """
  _validate.positive(epsilon=epsilon, norm=norm, step=step)
  return 2 * norm * step / epsilon


@checked
def joint_epsilon(
  epsilon: float, coordinates: int, *, clip: float = 1.0, l1_norm: float = math.inf
) -> float:
  """The epsilon of one update whose `coordinates` released coordinates are seen together.

  Each coordinate is epsilon-DP alone. The log density ratio is at most ||eta g - eta g'||_1 / scale
  <= epsilon / (2c) * ||g - g'||_1. Each of the coordinates contributes at most 2c to that norm, and
  all together at most 2 `l1_norm`. The result is epsilon * min(coordinates, l1_norm / c), which is
  sharp.

  An example is multinomial regression with features in [0, 1]. The gradient's row of feature x_j is
  (p - e_y) x_j for predicted probabilities p and label y. Its L1 norm is 2 (1 - p_y) x_j <= 2. That
  includes averages over examples and clipped rows. With c = 1 a feature's row therefore costs 2
  epsilon, for any number of outputs.

  Args:
    epsilon: The epsilon of each coordinate seen alone.
    coordinates: The number of released coordinates that depend on the data.
    clip: c > 0.
    l1_norm: A known bound on the L1 norm of these coordinates of g. Infinity means none.

  Raises:
    ValueError: if an argument is out of range or NaN.

  >>> joint_epsilon(1.0, 7850), joint_epsilon(1.0, 10, l1_norm=2.0)
  (7850.0, 2.0)
  """
  _validate.positive(epsilon=epsilon, clip=clip)
  _validate.integer(1, coordinates=coordinates)
  _validate.in_range(0, math.inf, l1_norm=l1_norm)
  _validate.in_range(1, _MOST_COORDINATES, coordinates=coordinates)
  return _finite(
    "epsilon of the coordinates together", epsilon * min(float(coordinates), l1_norm / clip)
  )


def _finite(name: str, value: float) -> float:
  """A product of finite numbers, refused where it overflows.

  Later computations would turn infinity into NaN.
  """
  if not value < math.inf:
    raise ValueError(f"Expected a finite {name}, got {value}; choose less extreme parameters.")
  return value


@checked
def channel_guarantee(
  epsilon: float,
  *,
  coordinates: int = 1,
  clip: float = 1.0,
  l1_norm: float = math.inf,
  l2_norm: float = math.inf,
  reports: int = 1,
  delta: float = 0.0,
  noise: str = "laplace",
) -> PureDP | ApproxDP:
  """The guarantee for all reports of a user, seen with the models they started from (Section 4.2).

  Relation replace one, observer server. The unit is a coordinate for `coordinates=1`, else the user
  (all coordinates together).

  Without a delta epsilons add up. With one, the result is the smaller of that sum and the epsilon
  of the composed Renyi divergences (reports * sum_j f(v_j)). Here f is the divergence of one
  Laplace draw (`laplace_rdp`). f is convex and the shifts v_j, at most epsilon each, add up to at
  most `joint_epsilon`. So the worst v has as many shifts of epsilon as fit, and one of the rest.

  With Gaussian noise, coordinate j is shifted by w_j times 2c, where |w_j| <= 1. That costs as much
  as one release with the noise multiplier of (epsilon, delta) divided by ||w||_2. The squares
  ||w||_2^2 of several reports add up. ||w||_2^2 is at most min(sum |w_j|, (`l2_norm` / c)^2), and
  sum |w_j| is at most `joint_epsilon` / epsilon. The result is exact for the worst w.

  Args:
    epsilon: The epsilon of each coordinate of one report, seen alone. For Gaussian noise, it holds
      at `delta`.
    coordinates: As for `joint_epsilon`. So are `clip` and `l1_norm`.
    clip: The bound c on each coordinate of g.
    l1_norm: A bound on the L1 norm of g. Infinity means that none is known.
    l2_norm: A bound on its L2 norm. Infinity means that none is known.
    reports: How many updates the user sends at most.
    delta: The delta of the guarantee. It lies in [0, 1], or in (0, 1) for Gaussian noise.
    noise: "laplace" or "gaussian".

  Raises:
    ValueError: if an argument is out of range or NaN.

  >>> print(channel_guarantee(1.0, coordinates=10))
  10-DP per user (replace one), against the server
  >>> print(channel_guarantee(0.1, reports=400, delta=1e-6))
  (11.36..., 1e-06)-DP per coordinate (replace one), against the server
  """
  _validate.integer(1, reports=reports, coordinates=coordinates)
  _validate.in_range(1, _MOST_COORDINATES, reports=reports, coordinates=coordinates)
  _validate.probability(delta=delta)
  _validate.in_range(0, math.inf, l2_norm=l2_norm)
  _validate.one_of(("laplace", "gaussian"), noise=noise)
  # An L2 bound bounds the L1 norm too, by Cauchy-Schwarz.
  l1_norm = min(l1_norm, math.sqrt(coordinates) * l2_norm)
  joint = joint_epsilon(epsilon, coordinates, clip=clip, l1_norm=l1_norm)
  unit = Unit.COORDINATE if coordinates == 1 else Unit.USER
  if noise == "gaussian":
    ratio = l2_norm / clip
    squares = reports * min(joint / epsilon, ratio * ratio)
    if squares == 0:  # nothing that depends on the data is released
      return PureDP(0.0, unit=unit)
    multiplier = gaussian_noise_multiplier(epsilon, delta) / math.sqrt(squares)
    return ApproxDP(gaussian_epsilon(multiplier, delta), delta, unit=unit)
  pure = PureDP(_finite("epsilon of all reports", reports * joint), unit=unit)
  if delta == 0 or joint == 0:
    return pure
  # The worst shifts: as many coordinates as possible are shifted by a whole epsilon, one by the
  # rest.
  whole, rest = divmod(joint, epsilon)

  def rdp(orders: np.ndarray) -> np.ndarray:
    shared = whole * laplace_rdp(epsilon, orders) if whole else 0.0  # zero times infinity is NaN
    return reports * (shared + laplace_rdp(rest, orders))

  approximate = rdp_epsilon(rdp, delta)
  return pure if pure.epsilon <= approximate else ApproxDP(approximate, delta, unit=unit)
