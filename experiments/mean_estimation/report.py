"""The parts of the mean estimation experiment's report: tables and plots."""

import math
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from experiments.mean_estimation import sgd_asymptotics
from experiments.mean_estimation.gradients import gradients
from experiments.mean_estimation.options import MeanEstimationOptions
from experiments.runner.estimators import ESTIMATORS
from experiments.runner.files import Row
from experiments.runner.reports import plots, style
from experiments.runner.reports.parts import Part
from experiments.runner.reports.statistics import Interval, mean_interval
from experiments.runner.reports.tables import by_column, table
from jdp.accounting.local.separated import best_split
from jdp.guarantees import rounded_up
from jdp.mechanisms import priv_unit, scalar_dp, separated

Rows = Sequence[Row]

_LEVEL = 0.95
_AXES = {
  "epsilon": "ε of one release",
  "dim": "dimension",
  "cohort": "clients",
  "num_projections": "bytes of a report",
}
_VALUES = {
  "normal": "unit vectors, N(v, I/d) normalised for one random unit vector v",
  "signs": "vectors of +-1/sqrt(d), the signs of N(v, I/d) for one random unit vector v",
  "digits": "gradients of logistic regression at zero on the digits, one image each, each divided "
  "by its norm",
}


def error_parts(options: MeanEstimationOptions, rows: Rows) -> Iterator[Part]:
  """The table of all points, a plot for each list of values, and the projections' errors."""
  yield Part("What was estimated", _what_was_estimated(options, rows))
  # Bonferroni: all rows' intervals hold together with probability _LEVEL.
  intervals = [
    mean_interval(row["errors"], confidence=1 - (1 - _LEVEL) / len(rows)) for row in rows
  ]
  yield Part("Measured and in theory", _comparison(rows, intervals))
  for axis, label in _AXES.items():
    if len({row[axis] for row in rows} - {None}) > 1:
      yield _figure_part(axis, label, rows)
  if ratios := list(_projection_rows(rows)):
    yield Part("Error of projections over PrivUnit's", by_column(ratios))


def agrees(row: Row, interval: Interval) -> bool:
  """Whether the interval holds the closed form.

  Where the closed form is an upper bound, the interval may also lie below it.
  """
  width = interval.half_width or 0.0
  low, high = interval.mean - width, interval.mean + width
  return low <= row["theory"] and (row["theory"] <= high or not ESTIMATORS[row["mechanism"]].exact)


def _what_was_estimated(options: MeanEstimationOptions, rows: Rows) -> str:
  guarantees: dict[str, list[str]] = {}
  for row in rows:
    guarantees.setdefault(row["guarantee"], []).append(row["mechanism"])
  stated = "\n".join(
    f"- {', '.join(dict.fromkeys(names))}: {text}." for text, names in guarantees.items()
  )
  return (
    f"The mean of {_VALUES[options.values]}; they are fixed, the noise is drawn again in each of "
    f"the {options.repetitions} repetitions. The error is clients x ||mean of the estimates - mean "
    "of the values||^2: with independent errors, that of one release, whatever the cohort. "
    f"Nobody's data are protected here.\n\nEach release would be:\n\n{stated}"
  )


def _comparison(rows: Rows, intervals: Sequence[Interval]) -> str:
  lines = []
  for row, interval in zip(rows, intervals, strict=True):
    sign = "" if ESTIMATORS[row["mechanism"]].exact else "<= "
    lines.append(
      {
        **_point_cells(row),
        "bytes": f"{row['bytes']:,}",
        "measured": f"{interval.mean:.6g} +- {interval.half_width:.2g}",
        "in theory": f"{sign}{row['theory']:.6g}",
        "ratio": f"{interval.mean / row['theory']:.5f}",
        "": "" if agrees(row, interval) else "off",
      }
    )
  good = sum(map(agrees, rows, intervals))
  return (
    by_column(lines)
    + f"\n\n{good} of {len(rows)} intervals hold the theory. They are Student's t, and right "
    f"all together with probability {_LEVEL:g} if repetitions are nearly normal."
  )


def _point_cells(row: Row) -> dict[str, str]:
  k = row["num_projections"]
  return {
    "mechanism": row["mechanism"],
    "dimension": str(row["dim"]),
    "epsilon": rounded_up(row["epsilon"]),
    "clients": str(row["cohort"]),
    "k": "" if k is None else str(k),
  }


def _figure_part(axis: str, label: str, rows: Rows) -> Part:
  """A plot of the points that differ from their mechanism's first along `axis` only.

  Theory is dashed.
  """
  made, axes = plots.figure(
    label, "clients x squared error", "Mean estimation: measured; theory dashed"
  )
  axes.set(xscale="log", yscale="log")
  if axis == "epsilon":
    style.marked_values(axes, {row[axis]: rounded_up(row[axis]) for row in rows})
  for name, look in style.distinct([row["mechanism"] for row in rows]).items():
    own = [row for row in rows if row["mechanism"] == name]
    own = [
      row for row in own if all(row[other] == own[0][other] for other in _AXES if other != axis)
    ]
    own.sort(key=lambda row: row[axis] or 0)
    x = [row["bytes" if axis == "num_projections" else axis] for row in own]
    look["linestyle"] = "none"
    plots.points(axes, x, [mean_interval(row["errors"]) for row in own], name, look)
    axes.plot(x, [row["theory"] for row in own], "--", color=look["color"])
  if axis in ("dim", "epsilon"):
    x = sorted({row[axis] for row in rows})
    first = {"dim": rows[0]["dim"], "epsilon": rows[0]["epsilon"]}
    rates = [minimax_rate(**(first | {axis: value})) for value in x]
    axes.plot(x, rates, ":", color="black", label="minimax rate, without its constant")
  return Part(
    f"Error and {label}", "The other lists are at their first values.", {f"error_{axis}": made}
  )


def minimax_rate(dim: int, epsilon: float) -> float:
  """The order of the least worst-case error of one release of a unit vector, d / min(eps, eps^2).

  No mechanism is better by more than a constant for eps <= d (J. Duchi and R. Rogers, COLT 2019).

  >>> [minimax_rate(100, epsilon) for epsilon in (0.5, 1.0, 4.0)]
  [400.0, 100.0, 25.0]
  """
  return dim / min(epsilon, epsilon**2)


def _projection_rows(rows: Rows) -> Iterator[dict[str, str]]:
  """Errors of mechanisms that project, over PrivUnit's error at the same point."""
  base = {
    (row["dim"], row["epsilon"], row["cohort"]): row
    for row in rows
    if row["mechanism"] == "priv_unit"
  }
  for row in rows:
    other = base.get((row["dim"], row["epsilon"], row["cohort"]))
    if other and ESTIMATORS[row["mechanism"]].projects:
      measured = float(np.mean(row["errors"]) / np.mean(other["errors"]))
      yield {
        **_point_cells(row),
        "measured ratio": f"{measured:.4f}",
        "ratio in theory": f"{row['theory'] / other['theory']:.4f}",
      }


def split_part(options: MeanEstimationOptions) -> Part:
  """The value of a magnitude, as a share of the budget, for the gradients of the digits."""
  train, public = gradients("train"), np.linalg.norm(gradients("test"), axis=1)
  dim, max_value = train.shape[1], float(np.ceil(10 * public.max()) / 10)
  norms = np.minimum(np.linalg.norm(train, axis=1), max_value)
  made, axes = plots.figure(
    "the magnitude's share of ε", "mean squared error", f"Gradients of the digits, d = {dim}"
  )
  axes.set(yscale="log")
  style.percent(axes.xaxis)
  looks = style.series([_release(epsilon) for epsilon in options.budgets])
  lines = []
  for epsilon in options.budgets:
    splits = {
      "best for public norms": best_split(dim, epsilon, max_value, public)[:2],
      "best in the worst case": best_split(dim, epsilon, max_value)[:2],
      "halves": (epsilon / 2, epsilon / 2),
    }
    shares = np.linspace(0.02, 0.9, 45)
    curve = [_split_error(dim, (1 - s) * epsilon, s * epsilon, max_value, norms) for s in shares]
    look = looks[_release(epsilon)]
    axes.plot(shares, curve, label=_release(epsilon), markevery=5, **look)
    best = splits["best for public norms"][1] / epsilon
    axes.axvline(best, color=look["color"], linestyle=":")
    for number, (name, parts) in enumerate(splits.items()):
      # Only the best split is measured; the others are theory.
      interval = None if number else _split_measured(*parts, max_value, train, options.noise_seed)
      measured = f"{interval.mean:.4g} +- {interval.half_width:.2g}" if interval else ""
      error = f"{_split_error(dim, *parts, max_value, norms):.4g}"
      lines.append(
        [rounded_up(epsilon), name, *(rounded_up(part, 4) for part in parts), error, measured]
      )
  header = ["epsilon", "split", "direction", "magnitude", "error in theory", "measured"]
  text = (
    f"Vectors of norms {norms.min():.2f} to {norms.max():.2f} (mean {norms.mean():.2f}), clipped "
    f"at {max_value:g}. The splits were chosen by the {len(public)} test images, as a public "
    f"sample would be, or by nothing; errors E||Z - w||^2 are means over the {len(train)} training "
    "images, each released once where measured (95 %).\n\n"
  )
  return Part(
    "A budget split between direction and magnitude", text + table(header, lines), {"split": made}
  )


def _release(epsilon: float) -> str:
  return f"ε = {rounded_up(epsilon)}, one release"


def _split_error(
  dim: int, direction: float, magnitude: float, max_value: float, norms: np.ndarray
) -> float:
  mechanism = separated(priv_unit(dim, direction), scalar_dp(magnitude, max_value))
  return float(np.mean([mechanism.mean_squared_error(norm) for norm in norms.tolist()]))


def _split_measured(
  direction: float, magnitude: float, max_value: float, vectors: np.ndarray, seed: int
) -> Interval:
  mechanism = separated(priv_unit(vectors.shape[1], direction), scalar_dp(magnitude, max_value))
  keys = jax.random.split(jax.random.key(seed), len(vectors))
  estimates = jax.jit(jax.vmap(mechanism.privatize))(keys, jnp.asarray(vectors))
  return mean_interval(np.sum((np.asarray(estimates, float) - vectors) ** 2, axis=1).tolist())


def sgd_part(options: MeanEstimationOptions) -> Part:
  """Covariances of averaged SGD beside their limit, along each eigenvector of the Hessian."""
  steps, count = sgd_asymptotics.Steps(options.sgd_steps), options.sgd_repetitions
  lines = []
  for number, (name, release) in enumerate(sgd_asymptotics.releases().items()):
    key = jax.random.fold_in(jax.random.key(options.noise_seed), number)
    run = jax.jit(
      lambda key, mechanism=release.mechanism: sgd_asymptotics.averages(
        key, mechanism, steps, count
      )
    )
    measured = np.mean(np.asarray(run(key), float) ** 2, axis=0)
    # The sum of squares over the true variance is chi-squared: the mean x* is known.
    low, high = count / scipy.stats.chi2.ppf([(1 + _LEVEL) / 2, (1 - _LEVEL) / 2], count)
    predicted = sgd_asymptotics.covariance(release.noise(), steps)
    limit = sgd_asymptotics.limit(release.noise())
    for h, *values in zip(sgd_asymptotics.CURVATURES, measured, predicted, limit, strict=True):
      interval = f"{values[0]:.3f} ({low * values[0]:.3f} to {high * values[0]:.3f})"
      lines.append([name, f"{h:g}", interval, f"{values[1]:.3f}", f"{values[2]:.3f}"])
  text = (
    f"The variance of sqrt(n) (x_n - x*) along each eigenvector of the Hessian, over {count} runs "
    f"of n = {steps.total} steps of length {steps.rate:g} k^-{steps.decay:g} from x*, with 95 % "
    "intervals; the prediction for these n steps with noise as at x*; and the limit H^-1 (Cov(g) + "
    "E[Cov(Z | g)]) H^-1.\n\n"
  )
  header = ["gradients", "eigenvalue", "measured", "these steps", "limit"]
  return Part("Averaged stochastic gradient descent", text + table(header, lines))


def location_part(options: MeanEstimationOptions, rows: Rows) -> Part:
  """Averaged SGD in many dimensions: measured, for these steps and in the limit."""
  steps = sgd_asymptotics.Steps(options.sgd_steps)
  made, axes = plots.figure(
    "dimension", "n E||average - x*||^2", "Averaged SGD: measured; Corollary 3.2 dashed"
  )
  axes.set(xscale="log", yscale="log")
  for name, look in style.distinct([row["mechanism"] for row in rows]).items():
    own = [row for row in rows if row["mechanism"] == name]
    x = [row["dim"] for row in own]
    order = np.argsort(x)
    measured = [Interval(**own[i]["measured"]) for i in order]
    look["linestyle"] = "none"
    plots.points(axes, [x[i] for i in order], measured, name, look)
    axes.plot([x[i] for i in order], [own[i]["limit"] for i in order], "--", color=look["color"])
  rates = [minimax_rate(row["dim"], row["epsilon"]) for row in rows]
  lines = [
    {
      "mechanism": row["mechanism"],
      "dimension": str(row["dim"]),
      "measured": f"{row['measured']['mean']:.5g} +- {row['measured']['half_width']:.2g}",
      "these steps": f"{row['steps']:.5g}",
      "limit": f"{row['limit']:.5g}",
      "minimax rate": f"{rate:.5g}",
    }
    for row, rate in zip(rows, rates, strict=True)
  ]
  guarantees = dict.fromkeys(f"{row['mechanism']}: {row['guarantee']}" for row in rows)
  stated = "\n".join(f"- {one}." for one in guarantees)
  text = (
    f"n E||average - x*||^2 over {options.sgd_repetitions} runs of n = {steps.total} "
    f"steps of length {steps.rate:g} k^-{steps.decay:g} from x* on the loss ||x - a||^2 / 2, with "
    "95 % intervals; the prediction for these steps, which is exact for an unbiased mechanism; its "
    "limit 1 + E||Z - a||^2; and the minimax rate of one release, without its constant.\n\n"
    f"One release:\n\n{stated}\n\n"
  )
  return Part("Averaged SGD over dimensions", text + by_column(lines), {"location": made})


def mirror_part(options: MeanEstimationOptions, rows: Rows) -> Part:
  """Mirror descent beside gradient descent: measured, in theory and the bound."""
  optima = list(dict.fromkeys(row["optimum"] for row in rows))
  made, panels = plots.panels(
    "dimension", "E||average - x*||^2", [f"a {optimum} optimum" for optimum in optima]
  )
  looks = style.distinct([row["method"] for row in rows])
  for axes, optimum in zip(panels, optima, strict=True):
    axes.set(xscale="log", yscale="log")
    for method, look in looks.items():
      own = [row for row in rows if (row["method"], row["optimum"]) == (method, optimum)]
      x = [row["dim"] for row in own]
      measured = [Interval(**row["measured"]) for row in own]
      plots.points(axes, x, measured, method, look | {"linestyle": "none"})
      axes.plot(x, [row["bound"] for row in own], "--", color=look["color"])
    axes.axhline(1.0, label="the start", **style.REFERENCE)
  lines = []
  for row in rows:
    mean, half_width = Interval(**row["measured"])
    lines.append(
      {
        "optimum": row["optimum"],
        "dimension": str(row["dim"]),
        "method": row["method"],
        "measured": f"{mean:.3g} +- {half_width or math.nan:.2g}",
        "in theory": "" if row["expected"] is None else f"{row['expected']:.3g}",
        "bound": rounded_up(row["bound"], 3),
      }
    )
  guarantees = ", ".join(dict.fromkeys(row["guarantee"] for row in rows))
  text = (
    f"E||average - x*||^2 over {options.sgd_repetitions} runs of n = {options.sgd_steps:,} steps "
    "from 0, a client for each, on the loss ||x - a||^2 / 2 of vertices a of [-1, 1]^d whose mean "
    "x* has the L2 norm 1: four entries (sparse) or all (dense) of one size. The step is the best "
    "for the bound. With 95 % intervals; gradient descent's theory is exact. Dashed in the plot: "
    f"the bounds. At 0 the error is 1.\n\nOne release: {guarantees}.\n\n"
  )
  return Part("Mirror descent", text + by_column(lines), {"mirror": made})
