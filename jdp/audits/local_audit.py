"""Black-box audits of local mechanisms: reports on two inputs, and a score to tell them apart."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jdp import _validate
from jdp._arguments import checked
from jdp.audits.bounds import Bound
from jdp.audits.scores import ScoreAudit, audit_scores
from jdp.mechanisms.base import LocalMechanism, Report
from jdp.mechanisms.separated_product import SeparatedParameters

Statistic = Callable[[Report], jax.Array]  # report -> scalar

_BATCH = 4096
_GROUP = 64  # batches in one call
_SHRUNK = 1e-6  # the second input's share of the radius, where the magnitude is released apart


@checked
def projection_on(mechanism: LocalMechanism, difference: jax.Array) -> Statistic:
  """The score <estimate, difference>: for PrivUnit on u and -u, 2 <Z, u>.

  It orders the reports by likelihood ratio, or nearly so. This holds for all of jdp's mechanisms
  for vectors and scalars.

  >>> from jdp.mechanisms import laplace
  >>> score = projection_on(laplace(2.0, 1.0), jnp.array(2.0))  # of the inputs 1 and -1
  >>> score(jnp.array(0.25)).item()  # of the report 0.25
  0.5
  """
  return lambda report: jnp.sum(mechanism.decode(report) * difference)


@checked
def opposite_inputs(mechanism: LocalMechanism, radius: float = 1.0) -> tuple[jax.Array, jax.Array]:
  """Two opposite values v and -v of norm `radius` in the mechanism's norm.

  They are the farthest two inputs of a ball. v lies along the diagonal or along an axis, whichever
  reaches farther in L2. A mechanism for magnitudes takes -v for 0. If direction and magnitude are
  released apart, the second input is -v shrunk to nearly nothing, which differs in both.

  >>> from jdp.mechanisms import priv_unit_linf
  >>> opposite_inputs(priv_unit_linf(3, 4.0))[1].tolist()
  [-1.0, -1.0, -1.0]
  """
  diagonal = np.ones(mechanism.shape)
  axis = (np.arange(diagonal.size) == 0).astype(float).reshape(mechanism.shape)
  scaled = [
    radius * x / float(mechanism.norm(jnp.asarray(x, jnp.float32))) for x in (axis, diagonal)
  ]
  longest = jnp.asarray(max(scaled, key=np.linalg.norm), jnp.float32)
  apart = isinstance(mechanism.parameters, SeparatedParameters)
  return longest, -longest * (_SHRUNK if apart else 1.0)


@checked
def score_sampler(
  release: Callable[[jax.Array, Any], Report],
  statistic: Callable[[Report], Any],
  batch: int = _BATCH,
) -> Callable[[jax.Array, Any, int], Any]:
  """The sampler (key, input, n) -> [n] scores of independent reports, compiled once.

  The sampler consumes its key.

  Args:
    release: (key, input) -> report.
    statistic: report -> scalar. For a pytree of scalars the sampler returns a pytree of arrays.
    batch: how many reports are made at once.

  >>> sample = score_sampler(
  ...   lambda key, value: value + jax.random.laplace(key), lambda report: report > 0, batch=100
  ... )
  >>> sample(jax.random.key(0), 1.0, 1000).mean().round(1).item()  # of 0.816
  0.8
  """
  _validate.in_range(1, 2**24, batch=batch)

  def scores(key, number, value):
    keys = jax.random.split(jax.random.fold_in(key, number), batch)
    return jax.vmap(lambda own: statistic(release(own, value)))(keys)

  @jax.jit
  def group(key, first, count, value):
    made = jax.eval_shape(scores, key, first, value)
    empty = jax.tree.map(lambda x: jnp.zeros((_GROUP, *x.shape), x.dtype), made)

    def fill(i, filled):
      return jax.tree.map(lambda a, x: a.at[i].set(x), filled, scores(key, first + i, value))

    return jax.lax.fori_loop(0, count, fill, empty)

  def sample(key: jax.Array, value: Any, num_samples: int) -> Any:
    # Every group has the same shape, so one compilation serves. One call makes many batches, as a
    # call costs as much as a small batch.
    number = math.ceil(num_samples / batch)
    parts = [
      jax.device_get(group(key, first, min(_GROUP, number - first), value))
      for first in range(0, number, _GROUP)
    ]
    return jax.tree.map(lambda *arrays: np.concatenate(arrays).reshape(-1)[:num_samples], *parts)

  return sample


@checked
def draw_scores(
  key: jax.Array,
  mechanism: LocalMechanism,
  statistic: Statistic,
  num_samples: int,
  *values: jax.Array,
) -> list[np.ndarray]:
  """Scores of independent reports: [num_samples] for each value. Consumes the key.

  Args:
    key: the key of the reports.
    mechanism: the mechanism, whose `encode` is audited as it stands.
    statistic: report -> scalar. Integers stay integers.
    num_samples: the number of reports of each value, at most 2^31 - 1.
    *values: inputs, within the mechanism's domain or outside it.

  >>> from jdp.mechanisms import laplace
  >>> own, other = draw_scores(
  ...   jax.random.key(0), laplace(2.0, 1.0), jnp.sign, 1000, jnp.array(1.0), jnp.array(-1.0)
  ... )
  >>> own.shape, bool(own.mean() > 0 > other.mean())
  ((1000,), True)
  """
  _validate.in_range(1, 2**31 - 1, num_samples=num_samples)
  sample = score_sampler(mechanism.encode, statistic, min(num_samples, _BATCH))
  keys = jax.random.split(key, len(values))
  return [
    sample(keys[i], jnp.asarray(value, jnp.float32), num_samples) for i, value in enumerate(values)
  ]


@checked
def audit_mechanism(
  key: jax.Array,
  mechanism: LocalMechanism,
  first: jax.Array,
  second: jax.Array,
  *,
  num_samples: int,
  bound: Bound,
  statistic: Statistic | None = None,
) -> ScoreAudit:
  """A lower bound on a local mechanism's privacy loss, from reports on two inputs.

  Half of the reports choose the event: a threshold on the score, and its side. The other half
  measure it. The result is at most the mechanism's true loss with the bound's confidence. That
  holds for every mechanism, every two inputs and every score, if the reports are independent. How
  near the result comes to the true loss depends on all three.

  Args:
    key: the key of the reports; consumed.
    mechanism: its stated guarantee is not used.
    first: an input of the mechanism's shape. The ends of the domain, u and -u, tell most. Inputs
      outside the domain show whether it is enforced.
    second: another input.
    num_samples: reports of each input, from 4 to 2^31 - 1. Take 100 e^epsilon or more: events with
      a probability of e^-epsilon decide.
    bound: `epsilon_bound`, with the delta that the mechanism states, or `gaussian_bound`.
    statistic: report -> score, larger on the first input. Default: `projection_on` the inputs'
      difference.

  Raises:
    ValueError: if there are fewer than four reports, or a score is NaN.

  >>> from jdp.audits.bounds import epsilon_bound
  >>> from jdp.mechanisms import laplace
  >>> mechanism = laplace(2.0, 1.0)
  >>> audit = audit_mechanism(
  ...   jax.random.key(0),
  ...   mechanism,
  ...   jnp.array(0.5),
  ...   jnp.array(-0.5),
  ...   num_samples=20_000,
  ...   bound=epsilon_bound(0.99),
  ... )
  >>> 1.7 < audit.bound < 2.0
  True
  """
  _validate.integer(4, num_samples=num_samples)
  _validate.in_range(4, 2**31 - 1, num_samples=num_samples)
  for name, value in (("first", first), ("second", second)):
    if np.shape(value) != mechanism.shape:
      raise ValueError(
        f"Expected {name} of shape {mechanism.shape}, the mechanism's, got {np.shape(value)}."
      )
  if statistic is None:
    statistic = projection_on(
      mechanism, jnp.asarray(first, jnp.float32) - jnp.asarray(second, jnp.float32)
    )
  own, other = draw_scores(key, mechanism, statistic, num_samples, first, second)
  return audit_scores(own, other, bound)
