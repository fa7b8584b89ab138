"""The registry's local mechanisms for unit vectors, made for the same values.

All take vectors of L2 norm 1. A mechanism of another norm must allow for larger vectors, unless a
promise about coordinates bounds them. So vectors known to have no coordinate above
`Setting.max_coordinate` are scaled up into the cube of `priv_unit_linf`.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from jdp.mechanisms import LocalMechanism, registry
from jdp.mechanisms.registry import RegisteredMechanism

ESTIMATORS = {
  name: entry for name, entry in registry.registered().items() if entry.estimates_directions
}


def expected_error(
  estimator: RegisteredMechanism, mechanism: LocalMechanism, values: np.ndarray
) -> float:
  """E||mean of the estimates - mean of the values||^2 by the mechanism's own closed form.

  With a shared projection it holds to leading order in 1/k.

  Args:
    estimator: the registered mechanism.
    mechanism: made by it.
    values: [n, d] unit vectors.
  """
  norms = np.asarray(jax.vmap(mechanism.norm)(jnp.asarray(values)), np.float64)
  alone = float(np.mean([mechanism.mean_squared_error(norm) for norm in norms.tolist()]))
  if not estimator.shares_projection:
    return alone / len(values)
  # The error of a shared projection is common to all clients, and does not average out. It is
  # spread over all coordinates of the padded vector, of which the estimate keeps the first.
  projection = mechanism.parameters
  floor = (1 / projection.c**2 - 1) * values.shape[1] / projection.width
  return (alone - floor) / len(values) + floor * float(
    np.sum(np.mean(values, axis=0, dtype=float) ** 2)
  )


def report_bytes(mechanism: LocalMechanism) -> int:
  """Bytes of the arrays that leave the client."""
  report = jax.eval_shape(
    mechanism.encode, jax.random.key(0), jax.ShapeDtypeStruct(mechanism.shape, np.float32)
  )
  return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(report))
