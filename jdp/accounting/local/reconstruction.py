"""Reconstruction from local releases: how likely an attacker is to succeed (arXiv 1812.00984, 2).

An attacker has a prior and sees only a release. The attacker names a value, and succeeds if the
target is close to it. Let p be the largest chance of success of any guess from the prior alone.
After a release that is epsilon-DP the chance is at most e^epsilon p, whatever the attack. This
holds for every realised release, not only on average.

So an epsilon that would be no protection where p = 1/2 may be a lot where p is 1e-30. Directions in
many dimensions have such a p. There is no such protection against an attacker who already knows
a good part of the data.

Everything is float64 on the host and in logarithms, as p underflows in many dimensions.
"""

import math

import numpy as np
import scipy

from jdp import _validate
from jdp._arguments import checked
from jdp.accounting.local import cap_shares, priv_unit
from jdp.guarantees import rounded_up

_MOST_EPSILON = 1e150


@checked
def log_guess(dim: int, alpha: float, density_ratio: float = 1.0) -> float:
  """log p of naming a direction in R^dim to within a distance alpha, from the prior alone.

  Let the prior have at most `density_ratio` times the density of the uniform distribution on the
  unit sphere. Then for every unit vector v, and U' uniform,

      P(||U - v|| <= alpha) <= density_ratio * P(<U', v> >= 1 - alpha^2 / 2).

  Equality holds for a prior that is uniform on a part of the sphere, if the ball lies in that part.
  Guesses are unit vectors. A guess inside the sphere would be close to more of it.

  Source: arXiv 1812.00984, Section 2.3, with the exact share of the sphere in place of the
  proposition's bound on it.

  Args:
    dim: The dimension k of the projection that is to be reconstructed. From 2 to 1e9.
    alpha: the distance between normalised vectors that counts as success, in (0, sqrt 2].
    density_ratio: rho_0 >= 1.

  Returns:
    The logarithm, at most 0, accurate to a relative 1e-13 before `density_ratio` is applied.

  Raises:
    ValueError: if an argument is out of range.

  >>> [
  ...   float(f"{math.exp(log_guess(dim, alpha)):.6g}")
  ...   for dim, alpha in ((3, 1.0), (10, 0.5), (50, 1.0))
  ... ]
  [0.25, 0.000210321, 9.35316e-05]
  """
  _check(dim, density_ratio)
  if not 0 < alpha <= math.sqrt(2):
    raise ValueError(
      f"Expected alpha in (0, sqrt 2], got {alpha}; unrelated directions are sqrt 2 apart."
    )
  # The ball's part of the sphere is the cap of height 1 - alpha^2 / 2, for which h = alpha^2 / 4.
  log_height = 2 * (math.log(alpha) - math.log(2))
  log_share, _ = cap_shares.log_share(dim, max(0.0, 1 - alpha**2 / 2), log_height)
  return min(0.0, math.log(density_ratio) + float(log_share))


@checked
def log_success(log_guess: float, epsilon: float, *, delta: float = 0.0) -> float:
  """log of min(1, e^epsilon p + delta): the largest chance after a release, with p = e^log_guess.

  With delta = 0 it holds for every realised release of a mechanism that is epsilon-DP under replace
  one. It then holds for every prior, target, measure of closeness and attack (arXiv 1812.00984,
  Lemma 2.3). With delta > 0 it holds on average over the releases: a few of them may give the
  target away.

  Several releases of one value count with their epsilons added up. Whatever is computed from
  releases (a sum, a model) tells no more than they do.

  Args:
    log_guess: Log of the largest chance of success of a guess from the prior. At most 0.
    epsilon: the cost of everything that the attacker saw of the target, >= 0. It may be infinite.
    delta: in [0, 1].

  Raises:
    ValueError: if an argument is out of range.

  >>> round(
  ...   math.exp(log_success(math.log(1e-6), 3.0)), 9
  ... )  # one of a million values: e^3 times as likely
  2.0086e-05
  """
  _check_log("log_guess", log_guess)
  _check_epsilon(epsilon)
  _validate.probability(delta=delta)
  if math.isinf(epsilon):
    return 0.0
  log_delta = math.log(delta) if delta else -math.inf
  return float(np.minimum(0.0, np.logaddexp(log_guess + epsilon, log_delta)))


@checked
def log_success_exact(log_guess: float, epsilon: float) -> float:
  """log of the largest posterior chance: its odds are e^epsilon times those of the guess.

  It is sharper than `log_success` where the chance is not small. It is attained: a release may be
  e^epsilon times as likely under the values close to the guess as under all others. By Bayes' rule
  it holds for every realised release of an epsilon-DP mechanism (replace one). Arguments and errors
  are those of `log_success`.

  >>> math.exp(log_success_exact(math.log(0.5), math.log(3.0)))
  0.75
  """
  _check_log("log_guess", log_guess)
  _check_epsilon(epsilon)
  if log_guess == 0 or math.isinf(epsilon):
    return 0.0
  logit = log_guess - math.log(-math.expm1(log_guess)) + epsilon
  return -float(np.logaddexp(0.0, -logit))


@checked
def log_success_gaussian(log_guess: float, noise_multiplier: float) -> float:
  """log Phi(Phi^-1(p) + 1/z): the largest average chance after a release with Gaussian noise.

  The average is over the releases. The bound holds for every prior, target and attack. No attack on
  a release can tell a value from another better than the Neyman-Pearson test of N(0, z^2) against
  N(1, z^2) (arXiv 1905.02383, Theorem 2.7). The trade-off curve is concave. So averaging over the
  prior bounds the attack's success.

  Args:
    log_guess: Log of the largest chance of success of a guess from the prior. At most 0.
    noise_multiplier: z > 0, the noise's standard deviation over the L2 distance of the farthest two
      values. These are the values of a local release, or what one user can change in a sum (replace
      one). n releases count as z / sqrt(n).

  Raises:
    ValueError: if an argument is out of range.

  >>> round(math.exp(log_success_gaussian(math.log(1e-6), 1.0)), 9)
  8.7218e-05
  """
  _check_log("log_guess", log_guess)
  _validate.positive(noise_multiplier=noise_multiplier)
  if log_guess == 0 or math.isinf(1 / noise_multiplier):  # a subnormal z
    return 0.0
  return float(scipy.special.log_ndtr(scipy.special.ndtri_exp(log_guess) + 1 / noise_multiplier))


@checked
def largest_epsilon(log_guess: float, probability: float) -> float:
  """The largest epsilon that keeps the chance of success at or below `probability`.

  At this epsilon `log_success` reaches the log of `probability`.

  Args:
    log_guess: Log of the largest chance of success of a guess from the prior. At most 0.
    probability: the chance of success that is accepted, in (0, 1).

  Raises:
    ValueError: if an argument is out of range, or a guess from the prior alone does better than
      `probability`.

  >>> [round(largest_epsilon(log_guess(dim, 1.0), 1e-3), 4) for dim in (100, 784)]
  [9.8862, 109.2812]
  """
  _check_log("log_guess", log_guess)
  _check_chance(probability)
  epsilon = math.log(probability) - log_guess
  if not epsilon >= 0:
    raise ValueError(
      f"Expected a probability of at least {rounded_up(math.exp(log_guess))}, that of a guess "
      f"without any release, got {probability}."
    )
  return epsilon


@checked
def closest_alpha(
  dim: int, epsilon: float, probability: float, density_ratio: float = 1.0
) -> float:
  """The alpha for which an alpha-good reconstruction of a direction has at most this probability.

  The inverse of `log_success(log_guess(dim, alpha, density_ratio), epsilon)` in alpha.

  Args:
    dim: The dimension k. From 2 to 1e9.
    epsilon: the cost of everything that the attacker saw, in [0, 1e150].
    probability: in (0, 1).
    density_ratio: rho_0 >= 1.

  Returns:
    alpha in (0, sqrt 2]. It is sqrt 2 even where reconstructions that are farther off also have at
    most this probability.

  Raises:
    ValueError: if an argument is out of range.

  >>> round(closest_alpha(784, 109.2812, 1e-3), 5)
  1.0
  """
  _check(dim, density_ratio)
  _validate.in_range(0, _MOST_EPSILON, epsilon=epsilon)
  _check_chance(probability)
  # The share of the sphere that the ball may have. From one half on, alpha is at its largest.
  log_tail = math.log(probability) - epsilon - math.log(density_ratio)
  if log_tail >= math.log(0.5):
    return math.sqrt(2)
  _, log_height = cap_shares.quantile(dim, log_tail)
  return 2 * math.exp(float(log_height) / 2)


def _check(dim: int, density_ratio: float) -> None:
  _validate.integer(2, dim=dim)
  _validate.in_range(2, priv_unit.MAX_DIM, dim=dim)
  if not 1 <= density_ratio < math.inf:
    raise ValueError(
      f"Expected density_ratio to be a finite number >= 1, got {density_ratio}; 1 is uniform."
    )


def _check_log(name: str, value: float) -> None:
  if not value <= 0:
    raise ValueError(f"Expected {name} <= 0, the logarithm of a probability, got {value}.")


def _check_chance(probability: float) -> None:
  if not 0 < probability < 1:
    raise ValueError(f"Expected probability in (0, 1), got {probability}.")


def _check_epsilon(epsilon: float) -> None:
  if not epsilon >= 0:
    raise ValueError(f"Expected epsilon >= 0, got {epsilon}.")
