"""Finds the fastest way to compute a cohort on this machine, by trying.

A layout says how many clients to compute side by side, and whether to make their gradients. The
best one depends on the processor, its caches, the model and the size of the clients. No rule of
thumb holds for all of them.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from jdp import _validate
from jdp._arguments import checked
from jdp.federated.engine.cohort import platform_of
from jdp.federated.engine.rounds import FederatedAlgorithm, replicate
from jdp.sampling import Sampler, poisson

PyTree = Any


class CohortLayout(NamedTuple):
  """Options of `federated_averaging` that change its speed and rounding, not its meaning.

  Attributes:
    chunk_size: clients computed side by side. None: see `jdp.federated.cohort_sum`.
    ghost_norms: whether clients are clipped without making their gradients.
  """

  chunk_size: int | None
  ghost_norms: bool = False


def candidates(mesh: Mesh | None = None) -> tuple[CohortLayout, ...]:
  """The layouts that `fastest` tries by default, each with and without ghost norms.

  Chunks are of 1 to 64 clients on a CPU, and of 16 to 1,024 elsewhere.
  """
  sizes = (1, 4, 16, 64) if platform_of(mesh) == "cpu" else (16, 64, 256, 1024)
  return tuple(CohortLayout(size, ghost) for ghost in (False, True) for size in sizes)


@checked
def fastest(
  make: Callable[[Sampler, CohortLayout], FederatedAlgorithm],
  params: PyTree,
  client: PyTree,
  cohort_size: int,
  *,
  mesh: Mesh | None = None,
  tried: Sequence[CohortLayout] | None = None,
  repeats: int = 5,
  clock: Callable[[], float] = time.perf_counter,
) -> CohortLayout:
  """The layout whose rounds take the least time, by median.

  A first round of each layout compiles. Then the layouts take turns.

  The search costs no privacy, as it looks at nothing private. It makes up clients of ones and zeros
  with the given shapes, and all of them are in the cohort. The choice depends on this machine and
  on its load. To repeat a run bit for bit, record the choice and pass it on. Several processes must
  be given the same layout: choose it beforehand, in one of them, with a mesh of its own devices.

  Args:
    make: (sampler, layout) -> the procedure.
    params: the model's parameters, or public ones of the same shapes.
    client: the shapes of one client, a pytree of arrays or of `jax.ShapeDtypeStruct`. Where users
      differ in size, give the shapes of the largest.
    cohort_size: how many clients a round has.
    mesh: the procedure's mesh.
    tried: the layouts to choose from; by default `candidates(mesh)`. A layout that the procedure
      refuses by a ValueError is left out, such as ghost norms of a model that has none.
    repeats: how often each layout is timed.
    clock: () -> seconds.

  Returns:
    The fastest layout. Among equals it is the one named first.

  Raises:
    ValueError: if every layout is refused, or cohort_size or repeats is not positive.

  >>> import optax
  >>> from jdp import models
  >>> from jdp.data import Examples
  >>> from jdp.federated import federated_averaging, fixed_denominator, flat_clipping, local_sgd
  >>> model = models.logistic_regression((4,), 2)
  >>> def make(sampler, layout):
  ...   update, query = (
  ...     local_sgd(models.cross_entropy(model), 0.1, batch_size=5),
  ...     fixed_denominator(flat_clipping(1.0), 1.0, 8.0),
  ...   )
  ...   return federated_averaging(update, query, sampler, optax.sgd(1.0), **layout._asdict())
  >>> client = Examples(jnp.zeros((10, 4)), jnp.zeros(10, jnp.int32), jnp.zeros(10))
  >>> tried = (
  ...   CohortLayout(1),
  ...   CohortLayout(8, ghost_norms=True),
  ... )  # several local steps have no ghost norms
  >>> fastest(make, model.init(jax.random.key(0)), client, 8, tried=tried, repeats=1)
  CohortLayout(chunk_size=1, ghost_norms=False)
  """
  _validate.integer(1, cohort_size=cohort_size, repeats=repeats)
  clients = replicate(_synthetic(client, cohort_size), mesh)
  runs, refused = {}, None
  for layout in candidates(mesh) if tried is None else tried:
    try:
      runs[layout] = _run(
        make(poisson(cohort_size, 1.0), layout), replicate(params, mesh), clients, mesh
      )
    except ValueError as error:
      refused = error
  if not runs:
    raise ValueError(
      "Expected a layout that the procedure accepts, got none; name others in tried."
    ) from refused
  return least_time(runs, repeats, clock)


def least_time(
  runs: Mapping[CohortLayout, Callable[[], None]],
  repeats: int = 5,
  clock: Callable[[], float] = time.perf_counter,
) -> CohortLayout:
  """The layout whose function takes the least time, by median; among equals the first.

  Each is called `repeats` times, always in the same order.
  """
  seconds: dict[CohortLayout, list[float]] = {layout: [] for layout in runs}
  # In turns: a load that comes and goes slows all layouts alike.
  for _ in range(repeats):
    for layout, run in runs.items():
      start = clock()
      run()
      seconds[layout].append(clock() - start)
  return min(runs, key=lambda layout: statistics.median(seconds[layout]))


def _synthetic(client: PyTree, count: int) -> PyTree:
  """Clients of the given shapes, full of ones.

  Whole numbers are zero, which is valid as a label and as a position.
  """

  def made(x):
    fill = jnp.ones if jnp.issubdtype(x.dtype, jnp.inexact) else jnp.zeros
    return fill((count, *x.shape), x.dtype)

  return jax.tree.map(made, client)


def _run(
  algorithm: FederatedAlgorithm, params: PyTree, clients: PyTree, mesh: Mesh | None
) -> Callable[[], None]:
  """A function that does one round. The first round is done here, and compiles."""
  state = replicate(algorithm.init(params), mesh)
  compiled = jax.jit(algorithm.round)

  def run():
    keys = replicate((jax.random.key(0), jax.random.key(1)), mesh)
    jax.block_until_ready(compiled(*keys, state, clients))

  run()
  return run
