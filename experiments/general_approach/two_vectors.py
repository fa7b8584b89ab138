"""Two vectors of different scales, of which every record has one (arXiv 1812.06210, Section 2).

It compares the error of their noised sums at one noise multiplier: clipped together as one vector,
clipped separately, and clipped jointly. Records and noise are seeded: no run here is private.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from experiments.general_approach.options import GeneralApproachOptions
from experiments.runner import files
from experiments.runner.reports import plots, statements
from experiments.runner.reports.parts import Part, write_report
from experiments.runner.reports.statistics import mean_interval
from experiments.runner.reports.tables import number, table
from experiments.runner.runs.workdir import Workdir
from jdp.guarantees import rounded_up
from jdp.queries import SumQuery, gaussian_sum, grouped, joint_clipped_sum, proportional_noise

_BOUNDS = {"v_1": 1.0, "v_2": 100.0}
_DIM, _RECORDS, _REPETITIONS = 20, 200, 100
_TITLE = "Two vectors, of which every record has one"


def make_queries(noise_multiplier: float) -> dict[str, SumQuery]:
  """The queries on {"v_1", "v_2"} by name. All have this noise multiplier."""
  largest = max(_BOUNDS.values())
  stddevs = proportional_noise(_BOUNDS, noise_multiplier)
  separate = {name: gaussian_sum(bound, stddevs[name]) for name, bound in _BOUNDS.items()}
  return {
    "as one vector": gaussian_sum(largest, noise_multiplier * largest),
    "separate clipping": grouped(separate, {name: name for name in _BOUNDS}),
    "joint clipping": joint_clipped_sum(_BOUNDS, 1.0, noise_multiplier),
  }


def errors(query: SumQuery, key: jax.Array) -> dict[str, np.ndarray]:
  """The errors of the sums over the vectors' bounds, root mean squares [repetitions] by vector.

  A record has one of the vectors at random. Its norm is uniform between half its bound and its
  bound, and the other vector is zero.
  """

  def once(key):
    norm_key, which_key, direction_key, clip_key, noise_key = jax.random.split(key, 5)
    norms = jax.random.uniform(norm_key, (_RECORDS,), minval=0.5)
    first = jax.random.bernoulli(which_key, 0.5, (_RECORDS,))
    directions = jax.random.normal(direction_key, (_RECORDS, _DIM))
    directions *= (norms / jnp.linalg.norm(directions, axis=1))[:, None]
    records = {
      name: bound * jnp.where(has[:, None], directions, 0.0)
      for (name, bound), has in zip(_BOUNDS.items(), (first, ~first), strict=True)
    }
    state = query.init(jax.tree.map(lambda x: x[0], records))
    contributions = jax.vmap(
      lambda record: query.preprocess(clip_key, state, record, jnp.float32(1))
    )(records)
    total = jax.tree.map(lambda x: jnp.sum(x, axis=0), contributions)
    result, _, _ = query.finalize(noise_key, state, total)
    return {
      name: jnp.sqrt(jnp.mean((result[name] - jnp.sum(records[name], axis=0)) ** 2)) / bound
      for name, bound in _BOUNDS.items()
    }

  found = jax.jit(jax.vmap(once))(jax.random.split(key, _REPETITIONS))
  return {name: np.asarray(values, np.float64) for name, values in found.items()}


def report_two_vectors(workdir: Workdir, options: GeneralApproachOptions) -> None:
  """Writes results.json, the plot and report.md, and prints the table."""
  z, key = options.noise_multiplier, jax.random.key(options.data_seed)
  found = {
    name: {
      v: mean_interval(values.tolist())
      for v, values in errors(query, jax.random.fold_in(key, number)).items()
    }
    for number, (name, query) in enumerate(make_queries(z).items())
  }
  largest = max(_BOUNDS.values())
  expected = {
    "as one vector": {v: z * largest / bound for v, bound in _BOUNDS.items()},
    "separate clipping": {v: z * math.sqrt(len(_BOUNDS)) for v in _BOUNDS},
    "joint clipping": dict.fromkeys(_BOUNDS, z),
  }
  rows = [
    [name, *(f"{number(found[name][v])} ({expected[name][v]:.4g})" for v in _BOUNDS), f"{z:g}"]
    for name in found
  ]
  bounds = {v: rounded_up(bound) for v, bound in _BOUNDS.items()}
  header = ["mechanism", *(f"error of {v} / {bound}" for v, bound in bounds.items()), "z"]
  figure, axes = plots.figure("", "error of the sum / bound", _TITLE)
  for place, v in enumerate(_BOUNDS):
    heights = [found[name][v].mean for name in found]
    axes.bar([i + 0.4 * place - 0.2 for i in range(len(found))], heights, 0.4, label=v)
  axes.set_xticks(range(len(found)), list(found))
  axes.set_yscale("log")
  axes.legend()
  text = f"""{table(header, rows)}

Root mean square error of a coordinate of the sum of {_RECORDS} records, over the vector's bound
({", ".join(": ".join(named) for named in bounds.items())}; {_DIM} coordinates each), at one noise
multiplier. Means over {_REPETITIONS} repetitions with 95 % intervals; in brackets: the
noise alone. No record is clipped. The example's own numbers are not in the text that we have."""
  reason = f"a simulation: all randomness comes from --data_seed={options.data_seed}"
  data = {
    name: {v: {**interval._asdict(), "expected": expected[name][v]} for v, interval in row.items()}
    for name, row in found.items()
  }
  files.write_json(
    workdir.path / "results.json",
    {"not_private": [reason], "flags": vars(options), "two_vectors": data},
  )
  write_report(
    workdir,
    "general_approach",
    "A general approach to private iterative training (arXiv 1812.06210): an example",
    [Part(_TITLE, text, {"two_vectors": figure})],
    notice=statements.warnings([reason]),
    remark="All results are in `results.json`.",
  )
