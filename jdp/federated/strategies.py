"""The fastest way to compute a cohort on this machine, found by trying.

How many clients to compute side by side, and whether to make their gradients, depends on the processor, its caches,
the model and the size of the clients; no rule of thumb holds for all of them.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from jdp import _validate
from jdp.federated.cohort import replicate
from jdp.federated.rounds import FederatedAlgorithm
from jdp.sampling import Sampler, poisson

PyTree = Any


class Strategy(NamedTuple):
  """How a cohort is computed: options of `federated_averaging` that change its speed and rounding, not its meaning.

  Attributes:
    chunk_size: clients computed side by side.
    ghost_norms: whether clients are clipped without making their gradients.
  """

  chunk_size: int
  ghost_norms: bool = False


def candidates(mesh: Mesh | None = None) -> tuple[Strategy, ...]:
  """What `fastest` tries unless told otherwise: chunks of 1 to 64 on a CPU, of 16 to 1,024 elsewhere, in both ways."""
  platform = jax.default_backend() if mesh is None else mesh.devices.flat[0].platform
  sizes = (1, 4, 16, 64) if platform == "cpu" else (16, 64, 256, 1024)
  return tuple(Strategy(size, ghost) for ghost in (False, True) for size in sizes)


def fastest(
  make: Callable[[Sampler, Strategy], FederatedAlgorithm],
  params: PyTree,
  client: PyTree,
  cohort_size: int,
  *,
  mesh: Mesh | None = None,
  tried: Sequence[Strategy] | None = None,
  repeats: int = 5,
  clock: Callable[[], float] = time.perf_counter,
) -> Strategy:
  """The strategy whose rounds take the least time, by median; all take turns, after a first round that compiles.

  Nothing private is looked at: the clients are made up of ones and zeros, of the given shapes, and all of them are in
  the cohort. So the choice costs no privacy. It is one of this machine and moment: to repeat a run bit for bit, record
  it and pass it on. Several processes must be given the same one: choose beforehand, in one of them, with a mesh of
  its own devices.

  Args:
    make: (sampler, strategy) -> the procedure.
    params: the model's parameters, or public ones of the same shapes.
    client: the shapes of one client, a pytree of arrays or of `jax.ShapeDtypeStruct`; of users of unequal size those
      of the largest.
    cohort_size: how many clients a round has.
    mesh: the procedure's.
    tried: the strategies to choose from; by default `candidates(mesh)`. One that the procedure refuses by a
      ValueError is left out, such as ghost norms of a model that has none.
    repeats: how often each is timed.
    clock: () -> seconds.

  Returns:
    The fastest; of equals the one that was named first.

  Raises:
    ValueError: if every strategy is refused; and if cohort_size or repeats is not positive.

  >>> import optax
  >>> from jdp import models
  >>> from jdp.data import Examples
  >>> from jdp.federated import federated_averaging, fixed_denominator, flat, gradient_step
  >>> model = models.logistic_regression((4,), 2)
  >>> def make(sampler, strategy):
  ...   update, average = gradient_step(models.cross_entropy(model), 0.1), fixed_denominator(flat(1.0), 1.0, 8.0)
  ...   return federated_averaging(update, average, sampler, optax.sgd(1.0), **strategy._asdict())
  >>> client = Examples(jnp.zeros((10, 4)), jnp.zeros(10, jnp.int32), jnp.zeros(10))
  >>> tried = (Strategy(1), Strategy(8, ghost_norms=True))  # logistic_regression is not a flax network
  >>> fastest(make, model.init(jax.random.key(0)), client, 8, tried=tried, repeats=1)
  Strategy(chunk_size=1, ghost_norms=False)
  """
  _validate.integer(1, cohort_size=cohort_size, repeats=repeats)
  clients = replicate(_synthetic(client, cohort_size), mesh)
  runs, refused = {}, None
  for strategy in candidates(mesh) if tried is None else tried:
    try:
      runs[strategy] = _run(make(poisson(cohort_size, 1.0), strategy), replicate(params, mesh), clients, mesh)
    except ValueError as error:
      refused = error
  if not runs:
    raise ValueError("Expected a strategy that the procedure accepts, got none; name others in tried.") from refused
  seconds: dict[Strategy, list[float]] = {strategy: [] for strategy in runs}
  for _ in range(repeats):
    for strategy, run in runs.items():
      start = clock()
      run()
      seconds[strategy].append(clock() - start)
  return min(runs, key=lambda strategy: statistics.median(seconds[strategy]))


def _synthetic(client, count):
  """Clients of the given shapes: full of ones, their whole numbers zero, which any label or place may be."""

  def made(x):
    fill = jnp.ones if jnp.issubdtype(x.dtype, jnp.inexact) else jnp.zeros
    return fill((count, *x.shape), x.dtype)

  return jax.tree.map(made, client)


def _run(algorithm: FederatedAlgorithm, params, clients, mesh) -> Callable[[], None]:
  """A function that does one round; the first is done."""
  state = replicate(algorithm.init(params), mesh)
  compiled = jax.jit(algorithm.round)

  def run():
    keys = replicate((jax.random.key(0), jax.random.key(1)), mesh)
    jax.block_until_ready(compiled(*keys, state, clients))

  run()
  return run
