"""Speed of ProjUnit and its parts.

Run it as `python -m experiments.benchmarks.projections`. The baseline is the published fast
algorithm (arXiv 2306.04444) in plain numpy and float64. It has these steps:

* random signs, a Hadamard transform, and k of its coordinates
* PrivUnitG of their direction
* the same steps back

As published, a transform is log2(d) passes over the vector, and the constants are computed
beforehand. A vector is privatised and decoded. numpy takes one vector after the other, jdp takes
blocks of them.
"""

import functools
from collections.abc import Callable, Sequence

import jax
import numpy as np
from absl import app, flags

import jdp.random
from experiments.benchmarks import harness
from jdp import mechanisms
from jdp.accounting.local.priv_unit_g import GaussianCap, optimal_gaussian_cap
from jdp.numerics.hadamard import hadamard_transform

LEVELS = flags.DEFINE_multi_integer("levels", [13, 17, 20], "log2 of the number of coordinates.")
PROJECTIONS = flags.DEFINE_integer("projections", 1024, "Numbers that a client reports.")
EPSILON = flags.DEFINE_float("epsilon", 16.0, "Privacy loss of a release.")
VALUES = flags.DEFINE_integer(
  "values", 4_000_000, "Clients times coordinates of one run.", lower_bound=1
)
BASELINE = "published form, numpy"


def numpy_transform(vector: np.ndarray) -> np.ndarray:
  """The orthonormal Hadamard transform of [d], in log2(d) passes."""
  size = len(vector)
  half = 1
  while half < size:
    pairs = vector.reshape(-1, 2, half)
    vector = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1).reshape(-1)
    half *= 2
  return vector / np.sqrt(size)


def numpy_release(
  generator: np.random.Generator, cap: GaussianCap, k: int, u: np.ndarray
) -> np.ndarray:
  """One estimate of the unit vector u by the published fast form."""
  signs = 2.0 * generator.integers(0, 2, len(u)) - 1
  rows = generator.choice(len(u), k, replace=False)
  projected = numpy_transform(signs * u)[rows]
  projected /= np.linalg.norm(projected)
  height = generator.normal()
  above = generator.random() < cap.p
  # Rejection sampling. At large epsilon the cap is rare, so heights in it are proposed from a
  # shifted exponential distribution.
  while (height >= cap.gamma) != above:
    height = generator.exponential() / cap.gamma + cap.gamma if above else generator.normal()
    if above and generator.random() > np.exp(-0.5 * (height - cap.gamma) ** 2):
      height = -np.inf
  noise = generator.standard_normal(k)
  report = (noise + (height - noise @ projected) * projected) / cap.m
  spread = np.zeros_like(u)
  spread[rows] = report
  return np.sqrt(len(u) / k) * signs * numpy_transform(spread)


def _published(dim: int, k: int, count: int) -> harness.Case:
  generator, cap = np.random.default_rng(0), optimal_gaussian_cap(EPSILON.value)
  u = generator.standard_normal(dim)
  u /= np.linalg.norm(u)

  def run():
    for _ in range(count):
      numpy_release(generator, cap, k, u)

  return harness.Case(run, count)


def _cases(dim: int) -> dict[str, harness.Case]:
  k, count = min(PROJECTIONS.value, dim), max(2, VALUES.value // dim)
  keys = jax.random.split(jax.random.key(0), count)
  vectors = jax.random.normal(jax.random.key(1), (count, dim))
  key = jax.random.key(2)
  own = mechanisms.fast_proj_unit(dim, EPSILON.value, k)
  same_rotation = mechanisms.fast_proj_unit(dim, EPSILON.value, k, rotation_key=key)
  same_projection = mechanisms.fast_proj_unit(
    dim, EPSILON.value, k, projection_key=jax.random.clone(key)
  )

  def case(run: Callable, *args):
    return harness.Case(functools.partial(jax.jit(run), *args), count)

  def streamed(mechanism, block_size=None):
    return case(
      functools.partial(mechanisms.stream_sum, mechanism, block_size=block_size), keys, vectors
    )

  return {
    BASELINE: _published(dim, k, max(2, min(count, 2**20 // dim))),
    "every release, fast_proj_unit": case(jax.vmap(own.privatize), keys, vectors),
    "stream_sum, fast_proj_unit": streamed(own),
    "stream_sum, one rotation": streamed(same_rotation),
    "stream_sum, one projection": streamed(same_projection, max(1, 400_000 // dim)),
    "encode alone": case(jax.vmap(own.encode), keys, vectors),
    "stream_sum, priv_unit": streamed(mechanisms.priv_unit(dim, EPSILON.value)),
    "stream_sum, priv_unit_g": streamed(mechanisms.priv_unit_g(dim, EPSILON.value)),
    "one transform": case(hadamard_transform, vectors),
    "one draw of normals": case(jax.vmap(lambda key: jdp.random.normal(key, (dim,))), keys),
  }


def main(argv: Sequence[str]) -> None:
  """Prints one table for each dimension."""
  del argv
  for levels in LEVELS.value:
    timings = harness.compare(_cases(2**levels), baseline=BASELINE, rounds=harness.ROUNDS.value)
    title = f"{2**levels:,d} coordinates, {PROJECTIONS.value} projections"
    harness.report(title, timings, "vectors", json_path=harness.JSON.value)


if __name__ == "__main__":
  app.run(main)
