"""Mean estimation under local privacy: measures every vector mechanism beside its closed form.

There are six tasks:

* `--task=error` estimates the mean of unit vectors. It shows the error against epsilon, dimension,
  cohort, and bytes on the wire. The settings of arXiv 2306.04444, Section 5, are presets.
* `--task=split` divides a budget between a vector's direction and its magnitude. The vectors are
  the gradients of the digits.
* `--task=sgd` compares the covariance of averaged stochastic gradient descent on private gradients
  with its limit (arXiv 1812.00984, Section 3.2).
* `--task=location` does so for the mean of unit vectors, over mechanisms and dimensions.
* `--task=mirror` compares averaged mirror descent with gradient descent, for gradients that are
  bounded in each coordinate.
* `--task=samplers` draws from hemispheres and from caps (its Figure 2).
"""

import dataclasses
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.mean_estimation import report
from experiments.mean_estimation.gradients import directions
from experiments.mean_estimation.location_sgd import Descent
from experiments.mean_estimation.location_sgd import measure as measure_descent
from experiments.mean_estimation.mirror_descent import METHODS, OPTIMA, MirrorCase
from experiments.mean_estimation.mirror_descent import measure as measure_mirror
from experiments.mean_estimation.samplers import samplers_part
from experiments.runner import files
from experiments.runner.estimators import ESTIMATORS, expected_error, report_bytes
from experiments.runner.keys import case_key
from experiments.runner.launch import Experiment, Work, launch
from experiments.runner.options import MOST_SEED, option
from experiments.runner.reports.parts import Part, write_report
from experiments.runner.runs.kept_rows import kept_rows
from experiments.runner.runs.workdir import Workdir
from jdp import _validate
from jdp.federated import client_mesh
from jdp.mechanisms import stream_sum
from jdp.mechanisms.registry import Setting

_count = partial(_validate.integer, 1)
_seed = partial(_validate.integer, 0)
_epsilon = partial(_validate.in_range, 1e-2, 1e4)
_DIGITS = "digits"
_TASKS = ("error", "split", "sgd", "location", "mirror", "samplers")
_ROWS, _DESCENTS, _MIRROR = "results.jsonl", "descents.jsonl", "mirror.jsonl"


@dataclasses.dataclass(frozen=True)
class MeanEstimationOptions:
  """The options of this experiment.

  Each list is gone through in turn, while the other lists are held at their first value.
  """

  task: tuple[str, ...] = option(("error",), "What is measured.", choices=_TASKS)
  mechanisms: tuple[str, ...] = option(
    tuple(ESTIMATORS), "Mechanisms of the tasks error and location.", choices=tuple(ESTIMATORS)
  )
  values: str = option(
    "normal",
    "Unit vectors: N(v, I/d) normalised, v a random unit vector; their signs over sqrt(d); or "
    "gradients of the digits.",
    choices=("normal", "signs", _DIGITS),
  )
  dims: tuple[int, ...] | None = option(
    (1024,),
    "Dimensions.",
    check=partial(_validate.integer, 2),
    when={"values": ("normal", "signs")},
    most=10**8,
  )
  epsilons: tuple[float, ...] = option((4.0,), "Privacy losses of a release.", check=_epsilon)
  cohorts: tuple[int, ...] = option((1,), "Numbers of clients.", check=_count, most=10**9)
  num_projections: tuple[int, ...] = option(
    (128,), "k of the mechanisms that report k numbers.", check=partial(_validate.integer, 2)
  )
  repetitions: int = option(
    50, "Of every measurement of an error, and of a sampler.", check=partial(_validate.integer, 2)
  )
  budgets: tuple[float, ...] = option(
    (4.0, 16.0), "Privacy losses of the task split.", check=_epsilon
  )
  sgd_steps: int = option(2000, "Steps of the tasks sgd, location and mirror.", check=_count)
  sgd_repetitions: int = option(1000, "Runs of the tasks sgd, location and mirror.", check=_count)
  data_seed: int = option(
    0, "Seed of the values.", check=partial(_validate.integer, 0), most=MOST_SEED
  )
  noise_seed: int = option(
    0, "Seed of the noise.", check=partial(_validate.integer, 0), most=MOST_SEED
  )


class Point(NamedTuple):
  """One measurement: a mechanism's name, and its parameters."""

  mechanism: str
  dim: int
  epsilon: float
  cohort: int
  num_projections: int | None


def prepare(options: MeanEstimationOptions) -> Work:
  """Checks the grid and returns the work."""
  points = grid(options) if "error" in options.task else []
  descents = [
    Descent(name, dim, epsilon)
    for dim in options.dims or ()
    for name in options.mechanisms
    for epsilon in options.epsilons[:1]
    if "location" in options.task and not ESTIMATORS[name].projects
  ]
  mirrored = [
    MirrorCase(method, optimum, dim, options.epsilons[0])
    for optimum in OPTIMA
    for dim in options.dims or ()
    for method in METHODS
    if "mirror" in options.task
  ]
  for point in points:
    if not (options.values != _DIGITS or point.cohort <= len(directions())):
      raise ValueError(
        f"Expected --cohorts of at most {len(directions())}, the images, got {point.cohort}."
      )
    if point.num_projections is not None and not point.num_projections <= point.dim:
      raise ValueError(
        f"Expected --num_projections of at most {point.dim}, the dimension, got "
        f"{point.num_projections}; take fewer."
      )

  def parts(workdir: Workdir) -> Iterator[Part]:
    if "error" in options.task:
      rows = kept_rows(points, partial(measure, options), workdir.path / _ROWS)
      yield from report.error_parts(options, list(rows))
    if "split" in options.task:
      yield report.split_part(options)
    if "sgd" in options.task:
      yield report.sgd_part(options)
    if descents:
      rows = kept_rows(descents, partial(measure_descent, options), workdir.path / _DESCENTS)
      yield report.location_part(options, list(rows))
    if mirrored:
      rows = kept_rows(mirrored, partial(measure_mirror, options), workdir.path / _MIRROR)
      yield report.mirror_part(options, list(rows))
    if "samplers" in options.task:
      yield samplers_part(options)

  def work(workdir: Workdir) -> None:
    write_report(workdir, "mean_estimation", "Mean estimation under local privacy", parts(workdir))
    measured = {name: files.read_rows(workdir.path / name) for name in (_ROWS, _DESCENTS, _MIRROR)}
    files.write_json(workdir.path / "results.json", {"flags": vars(options), **measured})

  return work


def grid(options: MeanEstimationOptions) -> list[Point]:
  """The measurements of every mechanism, along one list at a time from the first value of each."""
  dims = options.dims or (directions().shape[1],)
  axes = {"dim": dims, "epsilon": options.epsilons, "cohort": options.cohorts}
  found: dict[Point, None] = {}
  for name in options.mechanisms:
    own = axes | {
      "num_projections": options.num_projections if ESTIMATORS[name].projects else (None,)
    }
    # One list at a time: the others stay at their first value.
    first: dict[str, Any] = {axis: values[0] for axis, values in own.items()}
    for axis, values in own.items():
      found |= dict.fromkeys(Point(name, **(first | {axis: value})) for value in values)
  return list(found)


def unit_vectors(options: MeanEstimationOptions, dim: int, cohort: int) -> np.ndarray:
  """The clients' values, float32 [cohort, dim]."""
  generator = np.random.default_rng([options.data_seed, dim, cohort])
  if options.values == _DIGITS:
    return directions()[generator.permutation(len(directions()))[:cohort]]
  center = generator.normal(size=dim)
  values = center / np.linalg.norm(center) + generator.normal(size=(cohort, dim)) / np.sqrt(dim)
  if options.values == "signs":
    values = np.sign(values)
  return (values / np.linalg.norm(values, axis=1, keepdims=True)).astype(np.float32)


def measure(options: MeanEstimationOptions, point: Point) -> dict[str, Any]:
  """A row of results: the repetitions' errors times the cohort, beside the closed form."""
  estimator, values = ESTIMATORS[point.mechanism], unit_vectors(options, point.dim, point.cohort)
  # The signs over sqrt(d) promise a bound on every coordinate, which priv_unit_linf can use.
  bound = point.dim**-0.5 if options.values == "signs" else 1.0
  setting = Setting(point.dim, point.epsilon, point.num_projections or 2, bound)

  mesh = client_mesh()

  @jax.jit
  def total(key, values):
    # Mechanisms with a shared projection draw it from the public key, anew in each repetition.
    public_key, noise_key = jax.random.split(key)
    mechanism = estimator.make(setting._replace(public_key=public_key))
    return stream_sum(mechanism, jax.random.split(noise_key, point.cohort), values, mesh=mesh)

  key = case_key(options.noise_seed, point)
  totals = (total(own, jnp.asarray(values)) for own in jax.random.split(key, options.repetitions))
  # float64 on the host: some mechanisms' errors vary by less than float32 resolves.
  exact = np.sum(values, axis=0, dtype=float)
  errors = [
    float(np.sum((np.asarray(estimate, float) - exact) ** 2)) / point.cohort for estimate in totals
  ]
  mechanism = estimator.make(setting)  # Closed forms and shapes depend on no key.
  return point._asdict() | {
    "bytes": report_bytes(mechanism),
    "guarantee": str(mechanism.guarantee),
    "theory": point.cohort * expected_error(estimator, mechanism, values),
    "errors": errors,
  }


EXPERIMENT = Experiment("mean_estimation", MeanEstimationOptions, prepare)

if __name__ == "__main__":
  launch(EXPERIMENT)
