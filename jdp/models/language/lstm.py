"""An LSTM along sequences, whose gradient takes little memory and time.

JAX's own derivative of a scan adds up the gradient with respect to the weights step by step, and
keeps what each operation needs. This derivative keeps only the gates and the states, and computes
that gradient by one product over all steps.
"""

from typing import Any

import jax
import jax.numpy as jnp

from jdp._equations import with_derivative
from jdp.models.products import turned

_States = tuple[jax.Array, jax.Array, jax.Array]


def _states(gates: jax.Array, from_state: jax.Array) -> _States:
  """(activations [steps, n, 4 units], cells, outputs [steps, n, units]): see `lstm`."""
  units = len(from_state)

  def step(state, gates):
    cell, output = state
    gates = gates + output @ from_state
    sigmoids, candidates = jax.nn.sigmoid(gates[:, : 3 * units]), jnp.tanh(gates[:, 3 * units :])
    entering, forgetting, leaving = jnp.split(sigmoids, 3, axis=1)
    cell = forgetting * cell + entering * candidates
    output = leaving * jnp.tanh(cell)
    return (cell, output), (jnp.concatenate([sigmoids, candidates], axis=1), cell, output)

  zeros = jnp.zeros((gates.shape[1], units), gates.dtype)
  return jax.lax.scan(step, (zeros, zeros), gates)[1]


def _outputs(gates: jax.Array, from_state: jax.Array) -> jax.Array:
  """See `lstm`."""
  return _states(gates, from_state)[2]


def _forward(gates: jax.Array, from_state: jax.Array) -> tuple[jax.Array, Any]:
  """The outputs, and what their derivative needs."""
  states = _states(gates, from_state)
  return states[2], (*states, from_state)


def _backward(kept: Any, by_outputs: jax.Array) -> tuple[jax.Array, jax.Array]:
  """The derivatives by the gates and by the matrix, from the derivative by the outputs."""
  activations, cells, outputs, from_state = kept
  units = len(from_state)
  to_state = turned(from_state)
  cells_before, outputs_before = (
    jnp.concatenate([jnp.zeros_like(x[:1]), x[:-1]]) for x in (cells, outputs)
  )

  def step(by_state, inputs):
    by_cell, by_output = by_state
    activations, cell, cell_before, by_this_output = inputs
    sigmoids = activations[:, : 3 * units]
    entering, forgetting, leaving, candidates = jnp.split(activations, 4, axis=1)
    squashed = jnp.tanh(cell)
    by_output = by_output + by_this_output
    by_cell = by_cell + by_output * leaving * (1 - squashed**2)
    by_sigmoids = jnp.concatenate(
      [by_cell * candidates, by_cell * cell_before, by_output * squashed], axis=1
    )
    by_gates = jnp.concatenate(
      [by_sigmoids * sigmoids * (1 - sigmoids), by_cell * entering * (1 - candidates**2)], axis=1
    )
    return (by_cell * forgetting, by_gates @ to_state), by_gates

  zeros = jnp.zeros_like(cells[0])
  _, by_gates = jax.lax.scan(
    step, (zeros, zeros), (activations, cells, cells_before, by_outputs), reverse=True
  )
  return by_gates, jnp.einsum("tnh,tng->hg", outputs_before, by_gates)


lstm = with_derivative(_outputs, _forward, _backward)
"""(gates [steps, n, 4 units], matrix [units, 4 units]) -> outputs [steps, n, units].

A step adds the last output times the matrix to its gates. They are, in this order, the input gates,
the forget gates and the output gates, which pass a sigmoid, and the candidates, which pass tanh.
The state is zero at first. The caller computes the terms of inputs and biases in the gates, for all
steps at once.
"""
