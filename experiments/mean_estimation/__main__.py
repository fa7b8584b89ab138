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

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.mean_estimation import report
from experiments.mean_estimation.gradients import directions
from experiments.mean_estimation.location_sgd import Descent
from experiments.mean_estimation.location_sgd import measure as measure_descent
from experiments.mean_estimation.mirror_descent import METHODS, OPTIMA, MirrorCase
from experiments.mean_estimation.mirror_descent import measure as measure_mirror
from experiments.mean_estimation.options import DIGITS, MeanEstimationOptions
from experiments.mean_estimation.samplers import samplers_part
from experiments.runner import files
from experiments.runner.estimators import ESTIMATORS, expected_error, report_bytes
from experiments.runner.files import Row
from experiments.runner.keys import case_key
from experiments.runner.launch import Experiment, Work, launch
from experiments.runner.reports.parts import Part, write_report
from experiments.runner.runs.kept_rows import kept_rows
from experiments.runner.runs.workdir import Workdir
from jdp.federated import client_mesh
from jdp.mechanisms import stream_sum
from jdp.mechanisms.registry import Setting

_ROWS, _DESCENTS, _MIRROR = "results.jsonl", "descents.jsonl", "mirror.jsonl"


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
    if not (options.values != DIGITS or point.cohort <= len(directions())):
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
  found: dict[Point, None] = {}
  for name in options.mechanisms:
    counts = options.num_projections if ESTIMATORS[name].projects else (None,)
    # One list at a time: the others stay at their first value.
    first = Point(name, dims[0], options.epsilons[0], options.cohorts[0], counts[0])
    found |= dict.fromkeys(first._replace(dim=dim) for dim in dims)
    found |= dict.fromkeys(first._replace(epsilon=epsilon) for epsilon in options.epsilons)
    found |= dict.fromkeys(first._replace(cohort=cohort) for cohort in options.cohorts)
    found |= dict.fromkeys(first._replace(num_projections=count) for count in counts)
  return list(found)


def unit_vectors(options: MeanEstimationOptions, dim: int, cohort: int) -> np.ndarray:
  """The clients' values, float32 [cohort, dim]."""
  generator = np.random.default_rng([options.data_seed, dim, cohort])
  if options.values == DIGITS:
    return directions()[generator.permutation(len(directions()))[:cohort]]
  center = generator.normal(size=dim)
  values = center / np.linalg.norm(center) + generator.normal(size=(cohort, dim)) / np.sqrt(dim)
  if options.values == "signs":
    values = np.sign(values)
  return (values / np.linalg.norm(values, axis=1, keepdims=True)).astype(np.float32)


def measure(options: MeanEstimationOptions, point: Point) -> Row:
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
