"""What limits a run with a local mechanism: the parts of its error, each switched off in turn.

The mechanisms here release something in the clear. They are for measurements alone.
"""

import math
from collections.abc import Callable
from functools import partial

import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from experiments.runner.reports import plots, style
from jdp.accounting.local.scalar_dp import best_num_relative_levels
from jdp.guarantees import PureDP, rounded_up
from jdp.mechanisms import LocalMechanism, scalar_dp, scalar_rel_dp
from jdp.numerics import vectors

PARTS = ("local_mechanism", "central_noise", "projection", "clipping")
LEAST_SHARE = 0.01  # of r_max: where errors of ScalarRelDP begin to be relative


def _relative(epsilon: float, max_value: float) -> LocalMechanism:
  least = LEAST_SHARE * max_value
  levels = best_num_relative_levels(epsilon, max_value, least)
  return scalar_rel_dp(epsilon, max_value, num_levels=levels, min_value=least)


MAGNITUDES: dict[str, Callable[[float, float], LocalMechanism]] = {
  "scalar_dp": scalar_dp,
  "scalar_rel_dp": _relative,
}


def local_names(epsilon: float, lacking: str = "") -> tuple[str, str]:
  """A row's folder and label: of the run at an eps1, or of the one that lacks a part.

  >>> local_names(8.0, "central_noise")
  ('local_8_without_central_noise', 'local ε₁ = 8, no central noise')
  """
  given = rounded_up(epsilon, 12)
  name, label = f"local_{given}", f"local ε₁ = {given}"
  if not lacking:
    return name, label
  return f"{name}_without_{lacking}", f"{label}, no {lacking.replace('_', ' ')}"


def in_the_clear(mechanism: LocalMechanism, max_norm: float) -> LocalMechanism:
  """The values themselves, clipped to an L2 norm; no privacy."""
  return _exposed(mechanism, lambda key, value: vectors.clip(value, max_norm))


def unclipped(mechanism: LocalMechanism, direction: LocalMechanism) -> LocalMechanism:
  """The direction's estimate times the exact norm, whatever it is; the norm has no privacy."""

  def privatize(key, value):
    norm = direction.norm(value)
    length = jnp.where(norm > 0, norm, 1.0)
    return norm * direction.privatize(key, value / length)

  return _exposed(mechanism, privatize)


def _exposed(mechanism: LocalMechanism, privatize: Callable) -> LocalMechanism:
  return mechanism._replace(
    encode=privatize,
    decode=lambda report: report,
    privatize=privatize,
    guarantee=PureDP(math.inf),
    max_norm=math.inf,
    mean_squared_error=lambda norm: math.nan,
    privatize_sum=None,
    noise=None,
  )


def magnitude_figure(epsilon: float, max_value: float) -> Figure:
  """The relative error of a released magnitude, exact, for both mechanisms."""
  figure, axes = plots.figure(
    "magnitude / r_max",
    "root mean squared error / magnitude",
    f"Magnitudes, ε₂ = {rounded_up(epsilon)}",
  )
  axes.set(xscale="log", yscale="log")
  shares = np.geomspace(LEAST_SHARE / 4, 1.0, 200)
  for name, look in style.series(list(MAGNITUDES)).items():
    errors = partial(relative_error, MAGNITUDES[name](epsilon, max_value))
    axes.plot(shares, [errors(s * max_value) for s in shares], label=name, markevery=20, **look)
  return figure


def relative_error(mechanism: LocalMechanism, magnitude: float) -> float:
  """Root mean squared error of a release over the magnitude.

  >>> round(relative_error(scalar_dp(10.0, 1.0), 0.01), 2)
  2.66
  """
  return math.sqrt(mechanism.mean_squared_error(magnitude)) / magnitude
