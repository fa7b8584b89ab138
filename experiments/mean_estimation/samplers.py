"""Two ways to sample a direction: from hemispheres, and from caps (arXiv 1812.00984, Figure 2).

With probability p a report is uniform on the part of the sphere within <v, u> >= gamma of the input
u, else on the rest. Hemispheres have gamma = 0, PrivUnit has the gamma that is best for epsilon.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from experiments.mean_estimation.options import MeanEstimationOptions
from experiments.runner.estimators import ESTIMATORS
from experiments.runner.keys import case_key
from experiments.runner.options import needed
from experiments.runner.reports import plots, style
from experiments.runner.reports.parts import Part
from experiments.runner.reports.statistics import mean_interval
from experiments.runner.reports.tables import table
from jdp.guarantees import rounded_up
from jdp.mechanisms import LocalMechanism
from jdp.mechanisms.registry import Setting

SAMPLERS = ("hemisphere", "priv_unit")
_DRAWN = 100  # releases in the picture


class Sampler(NamedTuple):
  """One measurement: a name in `SAMPLERS`, and its parameters."""

  name: str
  dim: int
  epsilon: float

  def make(self) -> LocalMechanism:
    """The mechanism."""
    return ESTIMATORS[self.name].make(Setting(self.dim, self.epsilon))


def estimates(case: Sampler, seed: int, count: int) -> np.ndarray:
  """Independent estimates of the first basis vector, float64 [count, d]."""
  mechanism, value = case.make(), jnp.eye(1, case.dim)[0]
  keys = jax.random.split(case_key(seed, case), count)
  return np.asarray(jax.jit(jax.vmap(mechanism.privatize, (0, None)))(keys, value), float)


def samplers_part(options: MeanEstimationOptions) -> Part:
  """Where reports come from, and their error, for both samplers."""
  lines = []
  for dim in needed(options.dims):
    for epsilon in options.epsilons:
      for name in SAMPLERS:
        case = Sampler(name, dim, epsilon)
        mechanism = case.make()
        cap, found = mechanism.parameters, estimates(case, options.noise_seed, options.repetitions)
        inside = found[:, 0] * math.exp(cap.log_m) >= cap.gamma
        errors = found.copy()
        errors[:, 0] -= 1
        measured = mean_interval(np.sum(errors**2, axis=1).tolist())
        lines.append(
          [
            *(name, str(dim), rounded_up(epsilon), f"{float(cap.gamma):.4f}"),
            *(f"{cap.p:.4f}", f"{np.mean(inside):.4f}", f"{math.exp(-cap.log_m):.4g}"),
            f"{measured.mean:.4g} +- {measured.half_width:.2g}",
            f"{mechanism.mean_squared_error(1.0):.4g}",
          ]
        )
  header = ["sampler", "dimension", "epsilon", "gamma", "p", "drawn there", "length", "error"]
  text = (
    f"{options.repetitions:,} releases of one unit vector u. With probability p a report is "
    "uniform on <v, u> >= gamma. All estimates have one length; the error is E||Z - u||^2, with "
    "95 % intervals. The picture has d = 2 and epsilon "
    f"{rounded_up(options.epsilons[0])}: where reports come from with probability p (bold), the "
    f"input (blue), {_DRAWN} estimates (red), one of them as an arrow.\n\n"
  )
  made = {"samplers": _figure(options.epsilons[0], options.noise_seed)}
  return Part("Two samplers of directions", text + table([*header, "in theory"], lines), made)


def _figure(epsilon: float, seed: int) -> Figure:
  cases = [Sampler(name, 2, epsilon) for name in SAMPLERS]
  figure, panels = plots.panels("", "", [case.name for case in cases])
  blue, red, *_ = (look["color"] for look in style.distinct(["input", "estimate"]).values())
  reach = 1.1 * max(math.exp(-case.make().parameters.log_m) for case in cases)
  around = np.linspace(-np.pi, np.pi, 400)
  for axes, case in zip(panels, cases, strict=True):
    angle = math.acos(float(case.make().parameters.gamma))
    near = np.linspace(-angle, angle, 200)
    axes.plot(np.cos(around), np.sin(around), **style.REFERENCE)
    axes.plot(np.cos(near), np.sin(near), color="black", linewidth=4, label="drawn with p")
    found = estimates(case, seed, _DRAWN)
    axes.plot(found[:, 0], found[:, 1], ".", color=red, alpha=0.4, label="estimates")
    for end, color, line in (((1.0, 0.0), blue, "-"), (tuple(found[0]), red, "--")):
      arrow = {"arrowstyle": "->", "color": color, "linestyle": line, "linewidth": 1.5}
      axes.annotate("", end, (0.0, 0.0), arrowprops=arrow)
    axes.set(aspect="equal", xlim=(-reach, reach), ylim=(-reach, reach))
  return figure
