"""What a privacy guarantee says: how much, about whom, to whom.

A number called epsilon means nothing until three things are named with it:

* the **relation** that makes two inputs neighbours,
* the **unit** whose presence or value is hidden,
* the **observer** from whom it is hidden.

Guarantees are plain values. `compose` adds guarantees of the same relation, unit and observer, and
refuses any others. Composition here is only the basic theorem: epsilons and deltas add up.
Everything tighter is the accountant's work, from a ledger.
"""

import dataclasses
import decimal
import enum
import math
import sys
from collections.abc import Sequence
from typing import Any, Self

from jdp import _validate
from jdp._arguments import checked, convert_fields


class Relation(enum.StrEnum):
  """It says when two inputs (of a release) or two data sets (of a run) are neighbours."""

  ADD_REMOVE = "add_remove"  #: one has a record that the other lacks
  REPLACE_ONE = "replace_one"  #: one record has another value; for a local release: any two inputs
  ZERO_OUT = "zero_out"  #: one record is replaced by the null record, which contributes zero

  @property
  def label(self) -> str:
    """The relation's name in prose."""
    return {"add_remove": "add/remove", "replace_one": "replace one", "zero_out": "zero-out"}[
      self.value
    ]


class Unit(enum.StrEnum):
  """What is hidden: the thing that neighbours differ in."""

  VALUE = "value"  #: one input of one local release
  COORDINATE = "coordinate"  #: one coordinate of one input
  EXAMPLE = "example"  #: one training example
  MICROBATCH = "microbatch"  #: a group of training examples that was fixed before sampling
  USER = "user"  #: all the examples of one user


class Observer(enum.StrEnum):
  """The observer from whom the unit is hidden."""

  SERVER = "server"  #: sees every client's report
  CLIENTS = "clients"  #: the other clients, who see what the server broadcasts
  MODEL = "model"  #: sees every released model (the intermediate ones too), no report


_SCOPE = {"relation": Relation, "unit": Unit, "observer": Observer}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Guarantee:
  """The part that all guarantees share: relation, unit and observer."""

  relation: Relation = Relation.REPLACE_ONE
  unit: Unit = Unit.VALUE
  observer: Observer = Observer.SERVER

  def __post_init__(self):
    convert_fields(self)

  def restate(self, **changes: Any) -> Self:
    """The same guarantee, stated for another `unit`, `observer` or `relation`.

    The caller is responsible for the restatement being true: a release computed from all of a
    user's data hides the user, not only the value.

    >>> print(PureDP(2.0).restate(unit="user"))
    2-DP per user (replace one), against the server
    """
    if unknown := changes.keys() - _SCOPE.keys():
      raise TypeError(f"Expected to restate {', '.join(_SCOPE)}, got {', '.join(sorted(unknown))}.")
    return dataclasses.replace(self, **changes)

  def repeat(self, count: int) -> Self:
    """The guarantee of `count` releases, by basic composition of each part.

    >>> for once in (PureDP(0.5), ApproxDP(0.5, 1e-6), SeparatedDP(2.0, 0.5)):
    ...   print(once.repeat(4))
    2-DP per value (replace one), against the server
    (2, 4e-06)-DP per value (replace one), against the server
    (8, 2)-separated, 10-DP per value (replace one), against the server
    """
    _validate.integer(0, count=count)
    parts: dict[str, Any] = {name: _times(count, getattr(self, name)) for name in self.parts()}
    if "delta" in parts:
      parts["delta"] = min(1.0, parts["delta"])
    return dataclasses.replace(self, **parts)

  @classmethod
  def parts(cls) -> tuple[str, ...]:
    """The names of the numbers that it states."""
    return tuple(field.name for field in dataclasses.fields(cls) if field.name not in _SCOPE)

  def _scope(self) -> str:
    """The unit, the relation and the observer, in words."""
    observer = (
      "whoever sees the models" if self.observer is Observer.MODEL else f"the {self.observer}"
    )
    return f"per {self.unit} ({self.relation.label}), against {observer}"


@dataclasses.dataclass(frozen=True)
class ApproxDP(Guarantee):
  """(epsilon, delta)-differential privacy: P(A) <= e^epsilon P'(A) + delta for all events A.

  >>> print(ApproxDP(2.0, 1e-6, unit="user"))
  (2, 1e-06)-DP per user (replace one), against the server
  """

  epsilon: float
  delta: float

  def __post_init__(self):
    super().__post_init__()
    _check_epsilon("epsilon", self.epsilon)
    if not 0 <= self.delta <= 1:
      raise ValueError(f"Expected delta in [0, 1], got {self.delta}.")

  def __str__(self) -> str:
    return f"({rounded_up(self.epsilon)}, {rounded_up(self.delta, 3)})-DP {self._scope()}"


@dataclasses.dataclass(frozen=True)
class PureDP(Guarantee):
  """epsilon-differential privacy: every output's likelihood ratio is at most e^epsilon.

  >>> print(PureDP(2.0))
  2-DP per value (replace one), against the server
  >>> print(compose([PureDP(2.0), PureDP(0.5)]))
  2.5-DP per value (replace one), against the server
  """

  epsilon: float
  delta = 0.0

  def __post_init__(self):
    super().__post_init__()
    _check_epsilon("epsilon", self.epsilon)

  def __str__(self) -> str:
    return f"{rounded_up(self.epsilon)}-DP {self._scope()}"


@dataclasses.dataclass(frozen=True)
class SeparatedDP(Guarantee):
  """(direction, magnitude)-separated privacy of a vector (arXiv 1812.00984, Definition 1).

  The release's direction part is `direction`-DP, and its magnitude part is `magnitude`-DP. The two
  are drawn independently. So the whole release is (direction + magnitude)-DP.

  >>> print(SeparatedDP(8.0, 2.0))
  (8, 2)-separated, 10-DP per value (replace one), against the server
  """

  direction: float
  magnitude: float
  delta = 0.0

  def __post_init__(self):
    super().__post_init__()
    _check_epsilon("direction", self.direction)
    _check_epsilon("magnitude", self.magnitude)

  @property
  def epsilon(self) -> float:
    """Pure-DP epsilon of the whole release."""
    return self.direction + self.magnitude

  def __str__(self) -> str:
    parts = f"({rounded_up(self.direction)}, {rounded_up(self.magnitude)})-separated"
    return f"{parts}, {rounded_up(self.epsilon)}-DP {self._scope()}"


@checked
def rounded_up(bound: float, digits: int = 6) -> str:
  """An upper bound in `digits` significant digits, rounded so that the printed number also holds.

  Every epsilon and delta that jdp prints goes through here, and every noise multiplier that is
  meant to be enough. A float64 keeps 15 decimal digits. Digits beyond them are taken as its own
  rounding error: 0.1 + 0.2 prints as 0.3. A number given in up to `digits` digits prints as given.
  So the printed number is at least the bound, up to a share of 5e-15.

  Args:
    bound: A number, infinity or NaN.
    digits: The number of significant digits. From 1 to 15.

  >>> rounded_up(1.0000001), rounded_up(0.1 + 0.2), rounded_up(1e-5, 3), rounded_up(float("inf"))
  ('1.00001', '0.3', '1e-05', 'inf')
  """
  return _rounded(bound, digits, decimal.ROUND_CEILING)


@checked
def rounded_down(bound: float, digits: int = 6) -> str:
  """A lower bound in `digits` significant digits.

  Examples are what an attack has proved, and the most that a plan allows. The result is at most the
  bound, as `rounded_up` is at least the bound.

  >>> rounded_down(1.9999999), rounded_down(0.1 + 0.2), rounded_down(0.0299, 2)
  ('1.99999', '0.3', '0.029')
  """
  return _rounded(bound, digits, decimal.ROUND_FLOOR)


def _rounded(bound: float, digits: int, rounding: str) -> str:
  """The bound in `digits` significant digits, rounded as one of the modes of `decimal`."""
  if not 1 <= digits <= sys.float_info.dig:
    raise ValueError(f"Expected digits from 1 to {sys.float_info.dig}, got {digits}.")
  # Cut to 15 digits first. Otherwise a float's own rounding error would add a whole digit.
  exact = f"{bound:.{sys.float_info.dig}g}"
  return (
    f"{float(decimal.Context(prec=digits, rounding=rounding).create_decimal(exact)):.{digits}g}"
  )


AnyGuarantee = PureDP | ApproxDP | SeparatedDP


@checked
def common_scope(guarantees: Sequence[AnyGuarantee]) -> dict[str, Any]:
  """The relation, unit and observer that guarantees share, by name.

  Raises:
    ValueError: if they differ, or there is no guarantee.

  >>> print(*common_scope([PureDP(2.0), ApproxDP(0.5, 1e-6)]).values())
  replace_one value server
  """
  scopes = {tuple(getattr(g, name) for name in _SCOPE) for g in guarantees}
  if len(scopes) != 1:
    raise ValueError(
      "Expected guarantees of one relation, unit and observer, got "
      f"{sorted('/'.join(scope) for scope in scopes) or 'none'}; restate them, or account for them "
      "separately."
    )
  return dict(zip(_SCOPE, scopes.pop(), strict=True))


@checked
def compose(guarantees: Sequence[AnyGuarantee]) -> AnyGuarantee:
  """The guarantee of several releases of one unit's data together, by basic composition.

  Args:
    guarantees: At least one. All have the same relation, unit and observer.

  Returns:
    A `SeparatedDP` if all are separated, else a `PureDP` if all deltas are zero, else an
    `ApproxDP`.

  Raises:
    ValueError: if there is no guarantee. Also if their relations, units or observers differ.

  >>> print(compose([PureDP(2.0), ApproxDP(0.5, 1e-6)]))
  (2.5, 1e-06)-DP per value (replace one), against the server
  """
  scope = common_scope(guarantees)
  separated = [g for g in guarantees if isinstance(g, SeparatedDP)]
  if len(separated) == len(guarantees):
    return SeparatedDP(
      sum(g.direction for g in separated), sum(g.magnitude for g in separated), **scope
    )
  epsilon, delta = sum(g.epsilon for g in guarantees), sum(g.delta for g in guarantees)
  return ApproxDP(epsilon, min(1.0, delta), **scope) if delta else PureDP(epsilon, **scope)


def _times(count: int, cost: float) -> float:
  """`count` times a cost. It is infinite if the count is too large for floats."""
  if count == 0 or cost == 0:
    return 0.0
  try:
    return int(count) * cost
  except OverflowError:
    return math.inf


def _check_epsilon(name: str, value: float) -> None:
  """Refuses an epsilon below zero."""
  if not value >= 0:  # also refuses NaN; infinity is a guarantee, the empty one
    raise ValueError(f"Expected {name} >= 0, got {value}.")
