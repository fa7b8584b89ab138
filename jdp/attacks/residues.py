"""What the low-order digits of released numbers tell: audits of float noise (I. Mironov, CCS 2012).

Noise made of floats is not a real number: which numbers it can be, and how often, is uneven in its
last digits. Added to a value it shows them, and they differ with the value. A threshold on the
released number does not see this; its residues do. `jdp.conformance` looks at the same residues of
floats, inside jit.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jdp.attacks.audit import Bound

_MODULI = (3, 5, 7, 16)
# residues seen less often are left out: else every number would be an event of its own
_LEAST_COUNT = 20
_LEVELS = 40
_OF_ZERO = 1000  # the granularity of zero, which every grid holds
_SIZES = 4096  # more than there are places of a first digit


class ResidueAudit(NamedTuple):
  """What an audit of residues found.

  Attributes:
    bound: the lower bound, >= 0, of epsilon or of what else the `Bound` speaks of.
    column: the name of the residue whose values are the event (see `residues`).
    upper: whether the event is likelier on the first input, else on the second.
    hits: outputs in the event on the input that makes it likelier, of `trials`.
    trials: outputs that it was measured on.
    false_hits: outputs in the event on the other input, of `false_trials`.
    false_trials: outputs that this was measured on.
  """

  bound: float
  column: str
  upper: bool
  hits: int
  trials: int
  false_hits: int
  false_trials: int


def residues(numbers, spacing: float | None = None) -> dict[str, np.ndarray]:
  """The residues of released numbers, by name: what is left of them when their size is forgotten.

  For each coordinate: "value", the number itself (its bits, or its place on the grid), for events
  of equality; "granularity", the largest e for which it comes from a multiple of 2^e (for a float
  the place of its last digit; on a grid, the coarsest such multiples that round to it);
  "granularity and size", this with the place of its first digit; and "modulo 16" of the value, on a
  grid also 3, 5 and 7.

  Args:
    numbers: [n] or [n, coordinates]: floats, or integers in units of the spacing.
    spacing: of the grid that the numbers are on; None: they are plain float32.

  Returns:
    {name: int64 [n]}.

  Raises:
    ValueError: if numbers have more than two axes, or there is a NaN or infinity among them.

  >>> {
  ...   name: column.tolist()
  ...   for name, column in residues(np.float32([0.75, 3.0])).items()
  ...   if "size" not in name
  ... }
  {'granularity of 0': [-2, 0], 'modulo 16 of 0': [0, 0], 'value of 0': [1061158912, 1077936128]}
  >>> residues([12, 7], spacing=0.25)["modulo 5 of 0"].tolist()
  [2, 2]
  """
  numbers = np.asarray(numbers)
  if not (numbers.ndim in (1, 2) and np.all(np.isfinite(numbers))):
    raise ValueError(
      f"Expected finite numbers [n] or [n, coordinates], got an array of shape {numbers.shape}."
    )
  columns = numbers.reshape(len(numbers), -1).T
  return {
    f"{name} of {coordinate}": residue
    for coordinate, column in enumerate(columns)
    for name, residue in (
      _of_floats(column) if spacing is None else _on_grid(column, spacing)
    ).items()
  }


def float_residues(numbers: jax.Array) -> dict[str, jax.Array]:
  """The residues of float32 numbers as for `residues`, by name: int32 of their shape, under jit and
  vmap.
  """
  pattern = jax.lax.bitcast_convert_type(numbers, jnp.int32)
  first = _exponent(numbers) - jax.lax.clz(_digits(numbers)).astype(jnp.int32) + 32
  return {
    "value": pattern,
    **_granularities(granularity(numbers), first),
    "modulo 16": pattern % 16,
  }


def granularity(numbers: jax.Array) -> jax.Array:
  """The place of a float32's last digit that is not zero: the largest e for which it is a multiple
  of 2^e, int32.

  Floats next to zero are finer: noise added to 1 shows there that it was.

  >>> granularity(jnp.float32([0.75, 12.0, 0.0])).tolist()
  [-2, 2, 1000]
  """
  digits = _digits(numbers)
  trailing = jax.lax.population_count((digits & (~digits + np.uint32(1))) - np.uint32(1)).astype(
    jnp.int32
  )
  return jnp.where(digits == 0, _OF_ZERO, trailing + _exponent(numbers))


def _digits(numbers: jax.Array) -> jax.Array:
  """m, uint32, of float32 numbers of magnitude m 2^e with the `_exponent` e."""
  pattern = jax.lax.bitcast_convert_type(numbers, jnp.uint32)
  normal = (pattern >> np.uint32(23)) & np.uint32(0xFF) > 0
  return (pattern & np.uint32(2**23 - 1)) | jnp.where(normal, np.uint32(2**23), np.uint32(0))


def _exponent(numbers: jax.Array) -> jax.Array:
  pattern = jax.lax.bitcast_convert_type(numbers, jnp.int32)
  return jnp.maximum((pattern >> 23) & 0xFF, 1) - 150


def audit_residues(first, second, bound: Bound, *, spacing: float | None = None) -> ResidueAudit:
  """Audits by residues: the event is chosen on the first half of the numbers, measured on the
  second.

  The event is a set of values of one column of `residues`, taken in the order of their likelihood
  ratios. Values that floats can take on one input and not on the other are such a set. Inputs that
  tell most are those of unlike size, 0 and half of the domain's radius: next to zero floats are
  finer.

  Args:
    first: [n] or [n, coordinates], independent releases on one input, as for `residues`, n >= 2.
    second: likewise on the other.
    bound: `epsilon_bound` or `gaussian_bound`; its confidence is the audit's, whatever the choice
      of the event.
    spacing: of the grid that the numbers are on; None: they are plain float32.

  Raises:
    ValueError: if there are fewer than two numbers of either kind, or one is NaN or infinite.

  >>> from jdp.attacks.audit import epsilon_bound
  >>> noise = np.float32(np.random.default_rng(0).laplace(size=(2, 20_000)))
  >>> audit_residues(
  ...   noise[0], np.float32(0.5) + noise[1], epsilon_bound(0.99)
  ... ).bound > 4.0  # of real numbers: 1/2
  True
  """
  if min(len(first), len(second)) < 2:
    raise ValueError(
      f"Expected at least two numbers on each input, got {len(first)} and {len(second)}."
    )
  columns, others = residues(first, spacing), residues(second, spacing)
  candidates = [
    (*_best_event(own, other, bound), name, upper, new, other_new)
    for name in columns
    for upper, own, other, new, other_new in _sides(columns[name], others[name])
  ]
  _, event, name, upper, new, other_new = max(candidates, key=lambda candidate: candidate[0])
  hits, false_hits = (int(np.count_nonzero(np.isin(x, event))) for x in (new, other_new))
  found = float(bound(np.asarray(hits), len(new), np.asarray(false_hits), len(other_new)))
  return ResidueAudit(found, name, upper, hits, len(new), false_hits, len(other_new))


def _sides(
  first: np.ndarray, second: np.ndarray
) -> tuple[tuple[bool, np.ndarray, np.ndarray, np.ndarray, np.ndarray], ...]:
  """(upper, halves that choose, halves that measure) for events likelier on the first input, and on
  the second.
  """
  (own, new), (other, other_new) = (np.split(x, [len(x) // 2]) for x in (first, second))
  return (True, own, other, new, other_new), (False, other, own, other_new, new)


def _best_event(first: np.ndarray, second: np.ndarray, bound: Bound) -> tuple[float, np.ndarray]:
  """(bound, values) of the set of frequent values with the largest bound on these residues."""
  values, index = np.unique(np.concatenate([first, second]), return_inverse=True)
  own, other = (np.bincount(x, minlength=len(values)) for x in np.split(index, [len(first)]))
  frequent = own + other >= _LEAST_COUNT
  values, own, other = values[frequent], own[frequent], other[frequent]
  if not len(values):
    return -1.0, values
  order = np.argsort(-(own + 0.5) / (other + 0.5), kind="stable")
  bounds = bound(np.cumsum(own[order]), len(first), np.cumsum(other[order]), len(second))
  best = int(np.argmax(bounds))
  return float(bounds[best]), values[order[: best + 1]]


def _of_floats(numbers: np.ndarray) -> dict[str, np.ndarray]:
  found = jax.jit(float_residues)(numbers.astype(np.float32))
  return {name: np.asarray(residue, np.int64) for name, residue in found.items()}


def _on_grid(numbers: np.ndarray, spacing: float) -> dict[str, np.ndarray]:
  places = (
    numbers if np.issubdtype(numbers.dtype, np.integer) else np.rint(numbers / np.float64(spacing))
  )
  places = places.astype(np.int64)
  finest = int(np.floor(np.log2(spacing)))
  coarsest = np.full(places.shape, finest)
  for e in range(finest + 1, finest + _LEVELS):
    step = 2.0**e / spacing
    # Within half a step of the grid, and float32's rounding of the quotient.
    comes_from = np.abs(np.rint(places / step) * step - places) <= 0.5 + 2.0**-23 * np.abs(places)
    coarsest = np.where(comes_from & (coarsest == e - 1), e, coarsest)
  coarsest = np.where(places == 0, _OF_ZERO, coarsest)
  moduli = {f"modulo {m}": np.mod(places, m) for m in _MODULI}
  return {
    "value": places,
    **_granularities(coarsest, np.frexp(places.astype(np.float64))[1]),
    **moduli,
  }


def _granularities(last: Any, first: Any) -> dict[str, Any]:
  """Of numbers whose last and first digits have these places."""
  return {"granularity": last, "granularity and size": last * _SIZES + first}
