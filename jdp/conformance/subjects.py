"""Local mechanisms as subjects of audits: any object's `privatize`, and all registered ones."""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jdp import _validate
from jdp._arguments import checked
from jdp.audits.local_audit import opposite_inputs
from jdp.conformance.auditing import Statistic, Subject
from jdp.conformance.statistics import default_statistics
from jdp.mechanisms import LocalMechanism, registry

Further = Callable[[np.ndarray], Mapping[str, Statistic]]

_HUGE = 3e38  # float32 ends at 3.4e38, so its square is infinite


@checked
def release_subject(
  release: Callable[[jax.Array, jax.Array], Any],
  first: jax.typing.ArrayLike,
  second: jax.typing.ArrayLike,
  *,
  epsilon: float,
  delta: float = 0.0,
  decode: Callable[[Any], jax.Array] | None = None,
  statistics: Further = lambda difference: {},
) -> Subject:
  """The subject of any library's local mechanism, a function (key, value) -> report.

  The inputs are two opposite corners of the domain, and half of the first corner. Zero, huge, NaN
  and infinite values follow. They lie outside every domain or on its edge. Each must be as private
  as a value within.

  Args:
    release: (key, float32 value) -> report, which is what leaves the client. It must work under jit
      and vmap. A `privatize` will do.
    first: a value of the domain.
    second: the value that is farthest from it.
    epsilon: the epsilon stated for any two inputs.
    delta: the delta that `epsilon` is stated for.
    decode: report -> estimate, of the value's shape. None: the report is the estimate.
    statistics: difference of the corners -> {name: report -> scalar}, further statistics.

  >>> from jdp.conformance import audit
  >>> def privatize(key, value):  # adds noise to what it forgot to clip
  ...   return value + jax.random.laplace(key)
  >>> subject = release_subject(privatize, 0.5, -0.5, epsilon=1.0)
  >>> audit(subject, jax.random.key(0), num_samples=1000).refuted
  True
  """
  first, second = np.asarray(first, np.float32), np.asarray(second, np.float32)
  if first.shape != second.shape:
    raise ValueError(f"Expected first and second alike, got shapes {first.shape}, {second.shape}.")
  outside = {"zero": 0.0, "huge": _HUGE, "NaN": math.nan, "infinite": math.inf}
  others = {"half": first / 2} | {
    name: np.full_like(first, value) for name, value in outside.items()
  }
  pairs = [
    ("first", "second"),
    *((corner, other) for other in others for corner in ("first", "second")),
  ]
  own = default_statistics(first - second, decode) | dict(statistics(first - second))
  inputs = {"first": first, "second": second} | others
  return Subject(
    release, epsilon, delta, {n: jnp.asarray(v) for n, v in inputs.items()}, tuple(pairs), own
  )


@checked
def mechanism_subject(
  mechanism: LocalMechanism,
  *,
  radius: float = 1.0,
  statistics: Further = lambda difference: {},
) -> Subject:
  """The subject of a `LocalMechanism`: its reports on two opposite values, and its guarantee.

  Args:
    mechanism: the mechanism whose `encode` is audited.
    radius: the norm of the two values: the domain's radius in the mechanism's own norm.
    statistics: as for `release_subject`.
  """
  first, second = opposite_inputs(mechanism, radius)
  return release_subject(
    mechanism.encode,
    first,
    second,
    epsilon=mechanism.guarantee.epsilon,
    delta=mechanism.guarantee.delta,
    decode=mechanism.decode,
    statistics=statistics,
  )


@checked
def registered_subject(name: str, setting: registry.Setting) -> Subject:
  """The subject of a registered mechanism, made for a setting.

  >>> registered_subject("hemisphere", registry.Setting(dim=2, epsilon=1.0)).epsilon
  0.9999999995
  """
  _validate.one_of(list(registry.registered()), name=name)
  entry = registry.registered()[name]
  mechanism = entry.make(setting)
  return mechanism_subject(
    mechanism,
    radius=entry.radius(setting),
    statistics=functools.partial(entry.statistics, mechanism),
  )


@checked
def sharpest_subject(name: str, epsilon: float, *, delta: float = 0.1) -> Subject:
  """The subject of a registered mechanism in the fewest dimensions that it takes.

  There audits are sharpest.

  Args:
    name: its name in the registry.
    epsilon: the epsilon that the mechanism is to state.
    delta: the delta of mechanisms that are not pure. It is large, so that events of that
      probability occur.
  """
  _validate.one_of(list(registry.registered()), name=name)
  dim = registry.registered()[name].smallest_dim
  return registered_subject(
    name, registry.Setting(dim, epsilon, num_projections=min(2, dim), delta=delta)
  )
