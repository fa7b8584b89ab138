"""Reconstruction of directions under priors that the bound allows, by attacks in closed form."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from experiments.runner.estimators import ESTIMATORS
from experiments.runner.files import Row
from experiments.runner.keys import case_key, case_number
from jdp.accounting.local import priv_unit, reconstruction
from jdp.attacks.reconstruction import nearest_in_cap, succeeds
from jdp.guarantees import ApproxDP
from jdp.mechanisms import LocalMechanism
from jdp.mechanisms.registry import Setting
from jdp.mechanisms.separated_product import SeparatedReport
from jdp.queries.base import PyTree

CONFIDENCE = 0.999  # Of each one-sided limit.
_CHUNK = 10_000


class Case(NamedTuple):
  """What is released, and what the attacker knows and wants.

  Attributes:
    mechanism: a name in `ESTIMATORS`.
    epsilon: of one release.
    dim: k; the target is the direction of the first k coordinates.
    ambient: d >= k, the dimension of the unit vector that is released.
    density_ratio: rho_0, 1 or at least 2. The prior of the target is uniform on a cap of 1 / rho_0
      of the sphere.
  """

  mechanism: str
  epsilon: float
  dim: int
  ambient: int
  density_ratio: float = 1.0


def measure(case: Case, alphas: Sequence[float], trials: int, seed: int) -> list[Row]:
  """Rows of results: each alpha's successes in `trials` independent trials, beside the bounds.

  The guess is the estimate's direction. Under a prior on a cap it is the better of two guesses: the
  nearest direction in the cap, and the nearest one whose whole ball of success lies in the cap.
  """
  mechanism = ESTIMATORS[case.mechanism].make(Setting(case.ambient, case.epsilon))
  generator = np.random.default_rng([seed, case_number(case)])
  key = case_key(seed, case)
  center, angle = jnp.eye(case.dim)[0], prior_angle(case)

  def guesses(estimate, alpha):
    if math.isinf(angle):
      return [estimate]
    # A ball of radius alpha around a direction is a cap of angle 2 asin(alpha / 2).
    return [
      nearest_in_cap(estimate, center, angle - margin) for margin in (0.0, 2 * math.asin(alpha / 2))
    ]

  def trial(key, value):
    estimate = direction_seen(mechanism, mechanism.encode(key, value))[: case.dim]
    named = [guesses(estimate, alpha) for alpha in alphas]
    good = [
      [succeeds(guess, value[: case.dim], alpha) for guess in own]
      for alpha, own in zip(alphas, named, strict=True)
    ]
    return jnp.array(good)

  count = jax.jit(
    lambda keys, values: jnp.sum(jax.vmap(trial)(keys, values), axis=0, dtype=np.int32)
  )
  total, done = np.array(0), 0
  # Chunks bound the memory. Each has its own key, so trials are independent.
  while done < trials:
    size = min(_CHUNK, trials - done)
    values = jnp.asarray(values_of(case, generator, size))
    total = total + np.asarray(count(jax.random.split(jax.random.fold_in(key, done), size), values))
    done += size
  return [
    _row(case, mechanism, alpha, int(s), trials)
    for alpha, s in zip(alphas, total.max(axis=1), strict=True)
  ]


def direction_seen(mechanism: LocalMechanism, report: PyTree) -> jax.Array:
  """An attacker's estimate of a unit vector from a report.

  It is the server's own estimate, except for a separated report. There it is the direction's
  report, up to its length: a magnitude that happens to be negative would turn it around.
  """
  return report.direction if isinstance(report, SeparatedReport) else mechanism.decode(report)


def prior_angle(case: Case) -> float:
  """The angle of the prior's cap; infinite if the prior is uniform."""
  if case.density_ratio == 1:
    return math.inf
  gamma, _ = priv_unit.quantile(case.dim, -math.log(case.density_ratio))
  return math.acos(float(gamma))


def values_of(case: Case, generator: np.random.Generator, count: int) -> np.ndarray:
  """Unit vectors with a direction of the first k coordinates from the prior.

  They are float32 [count, ambient].
  """
  values = generator.normal(size=(count, case.ambient))
  if case.density_ratio > 1:
    # The cap's heights by inverse transform sampling. The rest of the direction is uniform, and the
    # first k coordinates keep their length.
    log_tail = np.log(1 - generator.random(count)) - math.log(case.density_ratio)
    height, _ = priv_unit.quantile(case.dim, log_tail)
    target = values[:, : case.dim]
    length, target[:, 0] = np.linalg.norm(target, axis=1), 0
    target *= (np.sqrt(1 - height**2) / np.linalg.norm(target, axis=1))[:, None]
    target[:, 0] = height
    target *= length[:, None]
  return (values / np.linalg.norm(values, axis=1, keepdims=True)).astype(np.float32)


def lower_limit(successes: int, trials: int) -> float:
  """The one-sided lower Clopper-Pearson limit of a chance of success, at `CONFIDENCE`."""
  return float(
    scipy.stats.binomtest(successes, trials, alternative="greater")
    .proportion_ci(CONFIDENCE, "exact")
    .low
  )


def bounds(mechanism: LocalMechanism, log_guess: float) -> tuple[float, float]:
  """The general and the sharper bound on the chance of success after one release."""
  guarantee = mechanism.guarantee
  general = reconstruction.log_success(log_guess, guarantee.epsilon, delta=guarantee.delta)
  if isinstance(guarantee, ApproxDP):  # The Gaussian mechanism; vectors are at most 2 apart.
    sharp = reconstruction.log_success_gaussian(log_guess, mechanism.parameters / 2)
  else:
    sharp = reconstruction.log_success_exact(log_guess, guarantee.epsilon)
  return math.exp(general), math.exp(sharp)


def beside_bounds(mechanism: LocalMechanism, log_guess: float, successes: int, trials: int) -> Row:
  """A row of results: an attack's successes, their lower limit, and both bounds."""
  general, sharp = bounds(mechanism, log_guess)
  return {
    "successes": successes,
    "trials": trials,
    "lower": lower_limit(successes, trials),
    "bound": general,
    "sharp": sharp,
  }


def _row(case: Case, mechanism: LocalMechanism, alpha: float, successes: int, trials: int) -> Row:
  log_guess = reconstruction.log_guess(case.dim, alpha, case.density_ratio)
  found = beside_bounds(mechanism, log_guess, successes, trials)
  return case._asdict() | {"alpha": alpha} | found
