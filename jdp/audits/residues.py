"""Audits of float noise by the low-order digits of released numbers (I. Mironov, CCS 2012).

Noise made of floats is not a real number. The values that it takes, and their probabilities, are
uneven in the last digits. A released number, value plus noise, shows these digits, and they differ
with the value. A threshold on the released number does not see this. Its residues do.

`jdp.conformance` looks at the same residues of floats, inside jit.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from jdp import _validate
from jdp._arguments import Rows, checked
from jdp.audits.bounds import Bound
from jdp.audits.scores import Outcomes, count_both

_MODULI = (3, 5, 7, 16)
# Rarer residues are left out: otherwise every number would be an event of its own.
_LEAST_COUNT = 20
_GRID_LEVELS = 40  # how many granularities above a grid's spacing are tried
_GRANULARITY_OF_ZERO = 1000  # larger than any other: zero is a multiple of every power of two
_NUM_SIZES = 4096  # more than there are places of a first digit, so that the pair is one integer


class ResidueAudit(NamedTuple):
  """What an audit of residues found.

  Attributes:
    bound: the lower bound, >= 0, on epsilon or on whatever loss the `Bound` measures.
    column: the name of the residue whose values are the event (see `residues`).
    upper: whether the event is likelier on the first input. If False, it is likelier on the second.
    hits: outputs in the event on the input that makes it likelier.
    trials: outputs that `hits` was counted in.
    false_hits: outputs in the event on the other input.
    false_trials: outputs that `false_hits` was counted in.
  """

  bound: float
  column: str
  upper: bool
  hits: int
  trials: int
  false_hits: int
  false_trials: int


@checked
def residues(numbers: Rows, spacing: float | None = None) -> dict[str, np.ndarray]:
  """The residues of released numbers, by name: what remains when their size is forgotten.

  Each coordinate has these kinds:

  * "value": the number itself, its bits or its place on the grid. It serves events of equality.
  * "granularity": the largest e for which the number comes from a multiple of 2^e. For a float that
    is the place of its last digit. On a grid it is the coarsest such multiple that rounds to it.
  * "granularity and size": the granularity, with the place of the first digit.
  * "modulo 16": the remainder of the value. A grid has also those modulo 3, 5 and 7.
  * "offset", with a spacing: how far the number lies off the grid, in 64ths of the spacing.

  Each two neighbouring coordinates have the value of their "difference". It shows noise that both
  share.

  Args:
    numbers: [n] or [n, coordinates], floats, or integers in units of the spacing.
    spacing: the spacing of the grid that the numbers are on. None: they are plain float32.

  Returns:
    {name: int64 [n]}.

  Raises:
    ValueError: if `numbers` has more than two axes, or contains NaN or infinity.

  >>> {
  ...   name: column.tolist()
  ...   for name, column in residues(np.float32([0.75, 3.0])).items()
  ...   if "size" not in name
  ... }
  {'granularity of 0': [-2, 0], 'modulo 16 of 0': [0, 0], 'value of 0': [1061158912, 1077936128]}
  >>> residues([12, 7], spacing=0.25)["modulo 5 of 0"].tolist()
  [2, 2]
  """
  return _residues("numbers", numbers, spacing)


def _residues(name: str, numbers: ArrayLike, spacing: float | None) -> dict[str, np.ndarray]:
  """`residues` of an argument that errors call `name`."""
  numbers = np.asarray(numbers)
  if not (numbers.ndim in (1, 2) and np.all(np.isfinite(numbers))):
    raise ValueError(
      f"Expected {name} to be finite numbers [n] or [n, coordinates], got shape {numbers.shape}."
    )
  if spacing is not None:
    _validate.float32_safe(spacing=spacing)
  columns = numbers.reshape(len(numbers), -1).T
  single = {
    f"{kind} of {coordinate}": residue
    for coordinate, column in enumerate(columns)
    for kind, residue in (
      _of_floats(column) if spacing is None else _on_grid(column, spacing)
    ).items()
  }
  return single | {
    f"difference of {i} and {i + 1}": _value(columns[i] - columns[i + 1], spacing)
    for i in range(len(columns) - 1)
  }


def float_residues(numbers: jax.Array) -> dict[str, jax.Array]:
  """The residues of float32 numbers as for `residues`, for use under jit and vmap.

  Returns:
    {name: int32 of the numbers' shape}.
  """
  pattern = jax.lax.bitcast_convert_type(numbers, jnp.int32)
  first = _exponent(numbers) - jax.lax.clz(_digits(numbers)).astype(jnp.int32) + 32
  return {
    "value": pattern,
    **_granularities(granularity(numbers), first),
    "modulo 16": pattern % 16,
  }


def granularity(numbers: jax.Array) -> jax.Array:
  """The place of a float32's last digit that is not zero: int32.

  It is the largest e for which the number is a multiple of 2^e. Floats next to zero are finer than
  those next to 1. So a number near zero that comes from 1 plus noise is coarser than others there,
  which shows where it comes from.

  >>> granularity(jnp.float32([0.75, 12.0, 0.0])).tolist()
  [-2, 2, 1000]
  """
  digits = _digits(numbers)
  # m & -m is the lowest set bit: the bits below it count the trailing zeros.
  trailing = jax.lax.population_count((digits & (~digits + np.uint32(1))) - np.uint32(1)).astype(
    jnp.int32
  )
  return jnp.where(digits == 0, _GRANULARITY_OF_ZERO, trailing + _exponent(numbers))


def _digits(numbers: jax.Array) -> jax.Array:
  """The significand m, uint32, of float32 numbers of magnitude m 2^e, with e their `_exponent`."""
  pattern = jax.lax.bitcast_convert_type(numbers, jnp.uint32)
  normal = (pattern >> np.uint32(23)) & np.uint32(0xFF) > 0
  return (pattern & np.uint32(2**23 - 1)) | jnp.where(normal, np.uint32(2**23), np.uint32(0))


def _exponent(numbers: jax.Array) -> jax.Array:
  """The exponent e, int32, of float32 numbers of magnitude m 2^e, with m their `_digits`."""
  pattern = jax.lax.bitcast_convert_type(numbers, jnp.int32)
  return jnp.maximum((pattern >> 23) & 0xFF, 1) - 150


@checked
def audit_residues(
  first: Rows, second: Rows, bound: Bound, *, spacing: float | None = None
) -> ResidueAudit:
  """An audit by residues, over all columns of `residues`.

  The first half of the numbers chooses the event, and the second half measures it. The event is a
  set of values of one column, taken in the order of their likelihood ratios. One such set holds the
  values that floats can take on one input and not on the other. Inputs of different size tell most,
  such as 0 and half of the domain's radius: floats are finer next to zero.

  Args:
    first: [n] or [n, coordinates], independent releases on one input, as for `residues`, n >= 2.
    second: the same on the other input.
    bound: `epsilon_bound` or `gaussian_bound`. Its confidence is the audit's, however the event was
      chosen.
    spacing: the spacing of the grid that the numbers are on. None: they are plain float32.

  Raises:
    ValueError: if there are fewer than two numbers of either kind, or one is NaN or infinite.

  >>> from jdp.audits.bounds import epsilon_bound
  >>> noise = np.float32(np.random.default_rng(0).laplace(size=(2, 20_000)))
  >>> audit_residues(
  ...   noise[0], np.float32(0.5) + noise[1], epsilon_bound(0.99)
  ... ).bound > 4.0  # of real numbers: 1/2
  True
  """
  if min(len(first), len(second)) < 2:
    raise ValueError(
      f"Expected at least two numbers in first and in second, got {len(first)} and {len(second)}."
    )
  if np.shape(first)[1:] != np.shape(second)[1:]:
    raise ValueError(
      f"Expected first and second alike, got shapes {np.shape(first)} and {np.shape(second)}."
    )
  columns, others = _residues("first", first, spacing), _residues("second", second, spacing)
  candidates = [
    (*_best_event(own, other, bound), name, upper, new, other_new)
    for name in columns
    for upper, own, other, new, other_new in _sides(columns[name], others[name])
  ]
  # The choice saw the first halves alone, so the bound holds for the second halves.
  _, event, name, upper, new, other_new = max(candidates, key=lambda candidate: candidate[0])
  counts = count_both(event, new, other_new)
  hits, trials, false_hits, false_trials = counts
  found = bound(np.asarray(hits), trials, np.asarray(false_hits), false_trials)
  return ResidueAudit(float(found), name, upper, *counts)


def _sides(
  first: np.ndarray, second: np.ndarray
) -> tuple[tuple[bool, np.ndarray, np.ndarray, np.ndarray, np.ndarray], ...]:
  """(upper, halves that choose, halves that measure), with each input as the likelier in turn."""
  (own, new), (other, other_new) = (np.split(x, [len(x) // 2]) for x in (first, second))
  return (True, own, other, new, other_new), (False, other, own, other_new, new)


def _best_event(first: np.ndarray, second: np.ndarray, bound: Bound) -> tuple[float, Outcomes]:
  """(bound, event) of the set of frequent values with the largest bound on these residues."""
  values, index = np.unique(np.concatenate([first, second]), return_inverse=True)
  own, other = (np.bincount(x, minlength=len(values)) for x in np.split(index, [len(first)]))
  frequent = own + other >= _LEAST_COUNT
  values, own, other = values[frequent], own[frequent], other[frequent]
  if not len(values):
    return -1.0, Outcomes(values)
  # Half a count more on both sides keeps the ratio of a value unseen on one input finite.
  order = np.argsort(-(own + 0.5) / (other + 0.5), kind="stable")
  bounds = bound(np.cumsum(own[order]), len(first), np.cumsum(other[order]), len(second))
  best = int(np.argmax(bounds))
  return float(bounds[best]), Outcomes(np.sort(values[order[: best + 1]]))


def _of_floats(numbers: np.ndarray) -> dict[str, np.ndarray]:
  """`float_residues` on the host, int64."""
  found = jax.jit(float_residues)(numbers.astype(np.float32))
  return {name: np.asarray(residue, np.int64) for name, residue in found.items()}


def _value(numbers: np.ndarray, spacing: float | None) -> np.ndarray:
  """The bits of floats, or places on the grid."""
  if spacing is None:
    return numbers.astype(np.float32).view(np.int32).astype(np.int64)
  return _places(numbers, spacing)[0]


def _places(numbers: np.ndarray, spacing: float) -> tuple[np.ndarray, np.ndarray]:
  """The nearest places on the grid, and the offsets from them in 64ths of the spacing."""
  if np.issubdtype(numbers.dtype, np.integer):
    return numbers.astype(np.int64), np.zeros(numbers.shape, np.int64)
  exact = numbers / np.float64(spacing)
  nearest = np.rint(exact)
  return nearest.astype(np.int64), np.rint(64 * (exact - nearest)).astype(np.int64)


def _on_grid(numbers: np.ndarray, spacing: float) -> dict[str, np.ndarray]:
  """The residues of numbers on a grid, by name; see `residues`."""
  places, offsets = _places(numbers, spacing)
  finest = int(np.floor(np.log2(spacing)))
  coarsest = np.full(places.shape, finest)
  for e in range(finest + 1, finest + _GRID_LEVELS):
    step = 2.0**e / spacing
    # The multiple may be off by half a step of the grid, and by float32's rounding of the quotient.
    comes_from = np.abs(np.rint(places / step) * step - places) <= 0.5 + 2.0**-23 * np.abs(places)
    # A multiple of 2^e is one of 2^(e - 1) too: a number that failed there is out.
    coarsest = np.where(comes_from & (coarsest == e - 1), e, coarsest)
  coarsest = np.where(places == 0, _GRANULARITY_OF_ZERO, coarsest)
  moduli = {f"modulo {m}": np.mod(places, m) for m in _MODULI}
  return {
    "value": places,
    **_granularities(coarsest, np.frexp(places.astype(np.float64))[1]),
    **moduli,
    "offset": offsets,
  }


def _granularities(last: Any, first: Any) -> dict[str, Any]:
  """The residues of numbers whose last and first digits have these places."""
  return {"granularity": last, "granularity and size": last * _NUM_SIZES + first}
