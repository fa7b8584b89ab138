"""Buffered linear Toeplitz strategies (BLTs): long memory in a few buffers (arXiv 2404.16706).

The coefficients of C are c_0 = 1 and c_j = sum_m omega_m theta_m^(j-1), with m from 1 to the number
of buffers. As a power series c(x) is a quotient of products,

    c(x) = prod_m (1 - eta_m x) / prod_m (1 - theta_m x),

so C^-1 has as many buffers, with the decays eta (arXiv 2408.08868, Lemma 5.2). With 1 > theta_1 >
eta_1 > theta_2 > ... all omega are positive. Errors are sums of geometric series, so a search costs
the same for any number of rounds.
"""

import dataclasses

import numpy as np
import scipy

from jdp import _validate
from jdp._arguments import checked
from jdp.matrix_factorization.optimised_toeplitz import OBJECTIVES
from jdp.matrix_factorization.participation import check_rounds, most_participations
from jdp.matrix_factorization.toeplitz import ToeplitzStrategy

_STARTS = 4
_MOST_BUFFERS = 20  # with more, decays are too close for float64


@dataclasses.dataclass(frozen=True)
class BufferedStrategy(ToeplitzStrategy):
  """A Toeplitz strategy made of buffers.

  Attributes:
    decay: theta, float64 [buffers], decreasing.
    scale: omega, float64 [buffers].
    inverse_decay: eta, float64 [buffers].
    inverse_scale: the scales of C^-1, float64 [buffers]: its coefficients are 1, then sum_m
      inverse_scale_m eta_m^(j-1).
  """

  decay: np.ndarray
  scale: np.ndarray
  inverse_decay: np.ndarray
  inverse_scale: np.ndarray


@checked
def buffered_toeplitz(
  num_rounds: int,
  *,
  buffers: int,
  min_separation: int = 1,
  max_participations: int | None = 1,
  objective: str = "max",
) -> BufferedStrategy:
  """The BLT with the least error of prefix sums for the given participation.

  Args:
    num_rounds: n >= 2.
    buffers: how many models of memory the noise needs; 2 to 5 come close to the best Toeplitz
      strategy.
    min_separation: the least distance between two rounds of one user.
    max_participations: the most rounds of one user. None: as many as fit.
    objective: "mean" or "max" of the rounds' squared errors.

  Raises:
    ValueError: if a number is out of range.

  >>> strategy = buffered_toeplitz(100_000, buffers=2)
  >>> strategy.decay.round(6).tolist(), round(strategy.max_error(max_participations=1), 4)
  ([0.999953, 0.985707], 5.2967)
  """
  _validate.integer(2, num_rounds=num_rounds)
  check_rounds(num_rounds)
  _validate.integer(1, buffers=buffers)
  _validate.in_range(1, _MOST_BUFFERS, buffers=buffers)
  _validate.one_of(OBJECTIVES, objective=objective)
  most = most_participations(num_rounds, min_separation, max_participations)
  min_separation = min(min_separation, num_rounds)  # no two rounds are farther apart

  def error(gaps: np.ndarray) -> float:
    decays = _decays(gaps)
    theta, eta = decays[::2], decays[1::2]
    sensitivity = _squared_sensitivity(theta, eta, num_rounds, min_separation, most)
    value = float(np.log(sensitivity) + np.log(_squared_error(theta, eta, num_rounds, objective)))
    return value if value >= 0 else np.inf  # only rounding brings either below 1

  # The best decays are spread out from 1 - 1/n. Starts differ in how far.
  starts = (
    _gaps(1 - np.geomspace(1 / (reach * num_rounds), 0.9, 2 * buffers))
    for reach in np.geomspace(0.3, 10, _STARTS)
  )
  # Where decays coincide, their scales are infinite, and are not used.
  with np.errstate(all="ignore"):
    found = min(
      (
        scipy.optimize.minimize(error, start, method="BFGS", options={"gtol": 1e-9})
        for start in starts
      ),
      key=lambda result: np.nan_to_num(result.fun, nan=np.inf),
    )
  decays = _decays(found.x)
  return _strategy(decays[::2], decays[1::2], num_rounds)


def _decays(gaps: np.ndarray) -> np.ndarray:
  """Decreasing decays in (0, 1): each is a share of the one before."""
  return np.cumprod(scipy.special.expit(gaps))


def _gaps(decays: np.ndarray) -> np.ndarray:
  """The inverse of `_decays`."""
  return scipy.special.logit(decays / np.append(1.0, decays[:-1]))


def _scales(theta: np.ndarray, eta: np.ndarray) -> np.ndarray:
  """omega of c(x) = prod (1 - eta x) / prod (1 - theta x), by partial fractions."""
  differences = theta[:, None] - theta
  np.fill_diagonal(differences, 1.0)
  return np.prod(theta[:, None] - eta, axis=1) / np.prod(differences, axis=1)


def _strategy(theta: np.ndarray, eta: np.ndarray, num_rounds: int) -> BufferedStrategy:
  """The strategy of the decays."""
  omega, inverse_omega = _scales(theta, eta), _scales(eta, theta)
  return BufferedStrategy(
    _coefficients(theta, omega, num_rounds),
    _coefficients(eta, inverse_omega, num_rounds),
    len(theta),
    theta,
    omega,
    eta,
    inverse_omega,
  )


def _coefficients(decay: np.ndarray, scale: np.ndarray, length: int) -> np.ndarray:
  """1, then sum_m scale_m decay_m^(j-1)."""
  powers = decay ** np.arange(length - 1)[:, None]
  return np.append(1.0, powers @ scale)


def _squared_sensitivity(
  theta: np.ndarray, eta: np.ndarray, n: int, min_separation: int, most: int
) -> float:
  """The squared norm of the columns 0, b, 2b, ... together.

  The product of two columns is sum_j c_j c_(j + lag) over the rounds from the later column on. So
  the products of a column with all earlier ones are a geometric series in the lag.
  """
  omega = _scales(theta, eta)
  number = np.arange(most)  # of a column, and of the columns before it
  lengths = n - 1 - number * min_separation
  sums = _geometric(np.outer(theta, theta), lengths[:, None, None]) * np.outer(omega, omega)
  own = 1 + np.sum(sums, axis=(1, 2))
  power = theta**min_separation
  earlier = power * _geometric(power, number[:, None])  # sum of theta^lag, [most, buffers]
  # Only j = 0 has the coefficient 1 in place of a sum of powers.
  others = earlier @ (omega / theta) + np.einsum("pm,pmk->p", earlier, sums)
  return float(np.sum(own + 2 * others))


def _squared_error(theta: np.ndarray, eta: np.ndarray, n: int, objective: str) -> float:
  """sum_t w_t b_t^2, with b the power series of 1 / ((1 - x) c(x))."""
  poles = np.append(1.0, eta)
  # b_t = sum_i residue_i pole_i^t, by partial fractions of prod (1 - theta x) / prod (1 - pole x).
  residues = _scales(poles, theta)
  products, ratios = np.outer(residues, residues), np.outer(poles, poles)
  if objective == "max":
    return float(np.sum(products * _geometric(ratios, n)))
  # The mean of partial sums over their lengths 1 to n.
  return float(np.sum(products * _mean_geometric(ratios, n)))


def _geometric(ratio: np.ndarray, length: np.ndarray | int) -> np.ndarray:
  """sum_{j < length} ratio^j, for ratios in (0, 1]."""
  with np.errstate(divide="ignore", invalid="ignore"):
    found = -np.expm1(length * np.log(ratio)) / (1 - ratio)
  return np.where(ratio == 1, length, found)


def _mean_geometric(ratio: np.ndarray, length: int) -> np.ndarray:
  """sum_{j < length} (1 - j / length) ratio^j."""
  with np.errstate(divide="ignore", invalid="ignore"):
    found = (1 - ratio * _geometric(ratio, length) / length) / (1 - ratio)
  return np.where(ratio == 1, (length + 1) / 2, found)
