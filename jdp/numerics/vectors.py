"""Norms, directions and bounds of vectors, for whatever a client may send.

A vector is a pytree of floating-point arrays. All of these are total: a vector that holds NaN or
infinity, or no entry of at least 1e-30, is treated as zero. None of them overflows or underflows on
the way: entries are scaled before they are squared. Results are float32, whatever the input's type.
"""

from typing import Any

import jax
import jax.numpy as jnp

PyTree = Any

_LEAST = 1e-30  # far above denormal numbers, which processors may flush to zero
# The float32 sum of squares of up to 1e9 entries, as XLA orders it, is within 2e-6 of the exact
# one.
_ROUNDING = 2e-6


def _float32(vector: PyTree) -> PyTree:
  return jax.tree.map(lambda x: jnp.asarray(x).astype(jnp.float32), vector)


def _scaled(vector: PyTree) -> tuple[PyTree, jax.Array, jax.Array]:
  """(vector * scale, norm * scale, scale) of a float32 vector.

  All three are zero for a vector that counts as zero. The scale is a power of two, so nothing is
  rounded. It keeps all squares within float32's range.
  """
  largest = jnp.max(jnp.stack([jnp.max(jnp.abs(x), initial=0.0) for x in jax.tree.leaves(vector)]))
  # Scaled, the largest entry is in [2^-50, 2^40]. Its square is a normal float32, and 2^30 such
  # squares have a finite sum.
  scale = jnp.where(largest > 2.0**40, 2.0**-90, jnp.where(largest < 2.0**-36, 2.0**66, 1.0))
  scaled = jax.tree.map(lambda x: x * scale, vector)
  # One sum over the leaves' sums. Added one by one, hundreds of leaves would round by more than
  # _ROUNDING allows.
  norm = jnp.sqrt(jnp.sum(jnp.stack([jnp.sum(x * x) for x in jax.tree.leaves(scaled)])))
  # A sum always passes NaN on. The maximum may not: for rows of a batch, XLA on CPU drops it.
  usable = (largest >= _LEAST) & (norm < jnp.inf)
  scaled = jax.tree.map(lambda x: jnp.where(usable, x, 0.0), scaled)
  norm, scale = jnp.where(usable, norm, 0.0), jnp.where(usable, scale, 0.0)
  return scaled, norm, scale


def l2_norm(vector: PyTree) -> jax.Array:
  """The L2 norm, float32 scalar. It is infinite only if it exceeds float32's range.

  >>> print(l2_norm({"w": jnp.array([3e30, 0.0]), "b": jnp.array(4e30)}))
  5e+30
  >>> float(l2_norm(jnp.array([1.0, jnp.nan])))
  0.0
  """
  _, norm, scale = _scaled(_float32(vector))
  return norm / jnp.where(scale > 0, scale, 1.0)


def linf_norm(vector: jax.Array) -> jax.Array:
  """The largest magnitude of a [d] vector, float32 scalar.

  >>> float(linf_norm(jnp.array([1.0, -3.0]))), float(linf_norm(jnp.array([jnp.nan, 1.0])))
  (3.0, 0.0)
  """
  vector = _float32(vector)
  # Before the maximum: for rows of a batch, XLA on CPU drops NaN from it.
  usable = jnp.all(jnp.isfinite(vector))
  return jnp.max(jnp.where(usable, jnp.abs(vector), 0.0), initial=0.0)


def unit(vector: jax.Array) -> jax.Array:
  """The direction of a [d] vector, of norm 1.

  For a vector that counts as zero, it is the first basis vector.

  >>> unit(jnp.array([0.0, -2.0])).tolist(), unit(jnp.array([jnp.nan, 1.0])).tolist()
  ([0.0, -1.0], [1.0, 0.0])
  """
  scaled, norm, scale = _scaled(_float32(vector))
  first = (jnp.arange(scaled.size) == 0).astype(jnp.float32).reshape(scaled.shape)
  return jnp.where(scale > 0, scaled / jnp.where(scale > 0, norm, 1.0), first)


def clip(vector: PyTree, max_norm: jax.typing.ArrayLike) -> PyTree:
  """Scales a vector down to an L2 norm of at most `max_norm`; smaller ones are kept as they are.

  The norm of the result never exceeds `max_norm` (docs/theory/clipping.md, Statement 8.1). A scaled
  vector is made shorter by a relative 2e-6 to leave room for rounding. A vector whose norm is
  within that of the bound counts as longer.

  | input | result |
  | --- | --- |
  | norm <= max_norm | unchanged (as float32) |
  | norm > max_norm, however large | scaled to max_norm |
  | any NaN or infinity (as float32) | zero |
  | all entries below 1e-30 | zero |
  | max_norm 0 | zero |

  Args:
    vector: a pytree of float arrays. The norm is that of all leaves together.
    max_norm: S >= 0, scalar. It may be traced. NaN counts as 0.

  Returns:
    A pytree of float32 arrays.

  >>> clip({"w": jnp.array([3.0, 0.0]), "b": jnp.array(4.0)}, 10.0)["b"].item()
  4.0
  >>> clip(jnp.array([jnp.inf, 1.0]), 10.0).tolist()
  [0.0, 0.0]
  """
  bound = jnp.asarray(max_norm, jnp.float32) * (1 - _ROUNDING)
  bound = jnp.where(bound > 0, jnp.minimum(bound, jnp.finfo(jnp.float32).max), 0.0)
  vector = _float32(vector)
  scaled, norm, scale = _scaled(vector)
  keep = (norm <= bound * scale) & (scale > 0)
  factor = bound / jnp.where(norm > 0, norm, 1.0)
  # A subnormal factor may be wrong by as much as its own size, so it counts as 0.
  factor = jnp.where(factor >= jnp.finfo(jnp.float32).tiny, factor, 0.0)
  return jax.tree.map(lambda x, s: jnp.where(keep, x, s * factor), vector, scaled)
