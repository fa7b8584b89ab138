"""Scores of reports, in programs that are compiled once for all subjects that can share them.

A subject's release is a program of its own. Its statistics are other programs: a `SharedStatistic`
takes what differs from subject to subject, such as a direction, as an argument.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Release = Callable[[jax.Array, Any], Any]
# report -> scalar. Floats are compared with thresholds, integers are categories.
Statistic = Callable[[Any], jax.Array]
Scores = dict[str, np.ndarray]

_BATCH = 4096  # reports whose keys are split from one key
_GROUP = 4  # batches made in one call, as the call itself costs as much as a batch
AT_ONCE = _GROUP * _BATCH


@dataclasses.dataclass(frozen=True)
class SharedStatistic:
  """A statistic, compute(prepare(report), constants).

  Attributes:
    prepare: report -> prepared, a pytree of arrays.
    compute: (prepared, constants) -> scalar. It must not close over anything that differs between
      subjects.
    constants: a pytree of arrays.
  """

  prepare: Callable[[Any], Any]
  compute: Callable[[Any, Any], jax.Array]
  constants: Any = ()

  def __call__(self, report: Any) -> jax.Array:
    """The statistic of one report."""
    return self.compute(self.prepare(report), self.constants)


def reports(release: Release, key: jax.Array, number: int, value: Any) -> Any:
  """AT_ONCE independent reports on one input, stacked: group `number` of them, from 0."""
  return _releases(release)(_keys(key, number), value)


def scores(
  release: Release,
  statistics: Mapping[str, Statistic],
  key: jax.Array,
  value: Any,
  num_samples: int,
) -> Scores:
  """The statistics, {name: [num_samples]}, of independent reports on one input."""
  batches = [
    _of_batch(statistics, reports(release, key, number, value))
    for number in range(math.ceil(num_samples / AT_ONCE))
  ]
  return {
    name: np.concatenate([np.asarray(own[name]) for own in batches])[:num_samples]
    for name in statistics
  }


def _of_batch(statistics: Mapping[str, Statistic], batch: Any) -> dict[str, jax.Array]:
  """The statistics of a batch of reports. Statistics with the same `prepare` share its result."""
  prepared: dict[Any, Any] = {}
  found = {}
  for name, statistic in statistics.items():
    if isinstance(statistic, SharedStatistic):
      prepare = statistic.prepare
      if prepare not in prepared:
        prepared[prepare] = _mapped(prepare)(batch)
      compute = _mapped(statistic.compute, (0, None))
      found[name] = compute(prepared[prepare], statistic.constants)
    else:
      found[name] = _mapped(statistic)(batch)
  return found


@jax.jit
def _keys(key: jax.Array, number: jax.typing.ArrayLike) -> jax.Array:
  numbers = _GROUP * jnp.asarray(number, jnp.int32) + jnp.arange(_GROUP, dtype=jnp.int32)
  batches = jax.vmap(lambda own: jax.random.split(jax.random.fold_in(key, own), _BATCH))(numbers)
  return batches.reshape(-1)


@functools.lru_cache(maxsize=16)
def _releases(release: Release) -> Callable[[jax.Array, Any], Any]:
  return jax.jit(jax.vmap(release, (0, None)))


@functools.lru_cache(maxsize=256)
def _mapped(
  function: Callable[..., Any], axes: tuple[int | None, ...] = (0,)
) -> Callable[..., Any]:
  return jax.jit(jax.vmap(function, axes))
