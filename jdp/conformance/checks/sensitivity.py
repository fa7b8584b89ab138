"""Exact sensitivity: how far hostile records move a clipped record, a sum or a mean."""

import contextlib
import itertools
import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from jdp._arguments import checked
from jdp.conformance.checks.consequences import of_sensitivity
from jdp.conformance.protocol import (
  Aggregate,
  Clip,
  Finding,
  Witness,
  error_text,
  finding,
  not_applicable,
)
from jdp.guarantees import Relation, rounded_up

# The most that rounding to float32 may add to a norm, relative to it.
ROUNDING = 1e-5
_RAISED_TELLS = "Whether the call fails depends on one record: the failure itself reveals it."
# A mean over the realised size, or over m if that is larger, moves too far if m to 2 m - 2 others
# agree. For every m from 2 to 12, one of these numbers is in that range.
_TIES = {"two": 2, "three": 3, "six": 6, "twelve": 12}
_NAN_TELLS = "A sum with this record is NaN, and one without it is not: no noise hides that."
_OTHER_RESULT = "The statement is of another result than the one that comes out."

Records = dict[str, np.ndarray]


class _Cohort(NamedTuple):
  """The other records of a cohort, and the victim's place among them."""

  others: np.ndarray
  place: int

  def joined(self, record: np.ndarray) -> np.ndarray:
    """The cohort with the victim's record; with [0, dim] for it, without the victim."""
    return np.concatenate([self.others[: self.place], record, self.others[self.place :]])


@checked
def check_clip(part: Clip) -> list[Finding]:
  """No record comes out with a norm above the bound, and a record within it is unchanged.

  Norms are computed in float64. A relative 1e-5 is allowed for rounding. The records are those of
  `finite_records` and `unusual_records`. A call fails if it raises for one of them, or changes the
  caller's own array.

  >>> clip = Clip("min(1, bound / norm)", lambda x: x * min(1, 1 / np.linalg.norm(x)), 1.0)
  >>> [(found.check, found.verdict.value) for found in check_clip(clip)]  # NaN < 1 is False
  [('norm, finite records', 'passed'), ('norm, NaN and infinities', 'failed'), \
('records within the bound', 'passed'), ('arguments left as they were', 'passed')]
  """
  finite, unusual = finite_records(part.bound, part.dim), unusual_records(part.bound, part.dim)
  rows = [
    finding(part, f"norm, {kind}", _long_record(part, records), note=f"{len(records)} records")
    for kind, records in (("finite records", finite), ("NaN and infinities", unusual))
  ]
  rows.append(finding(part, "records within the bound", _changed_record(part)))
  return [*rows, _arguments_kept(part, finite["ten times the bound"])]


@checked
def check_aggregate(part: Aggregate) -> list[Finding]:
  """No two neighbours' results are farther apart than stated.

  The others of a cohort are none, one or several. They are ties with the victim, its opposites,
  records that nearly cancel, records at the bound, or records of NaN. The victim is each hostile
  record, alone (all others absent), or among them. A last cohort has 16,096 others. A running
  float32 sum of them rounds differently with and without one record before them, by several times
  that record's size in all. Under add/remove the empty cohort must have a result too. A call must
  leave the caller's array as it is.

  Distances are computed in float64. A relative 1e-5 is allowed for rounding.
  """
  finite, unusual = finite_records(part.radius, part.dim), unusual_records(part.radius, part.dim)
  cohorts, rows = _cohorts(part), []
  if part.relation is Relation.ADD_REMOVE:  # other relations fix the number of records
    empty = np.zeros((0, part.dim), np.float32)
    rows.append(finding(part, "no records", _refused(part, empty)))
  for kind, victims in (("finite records", finite), ("NaN and infinities", unusual)):
    note = f"{len(victims)} records in {len(cohorts)} cohorts"
    witness = _moved(part, victims, cohorts)
    rows.append(finding(part, f"sensitivity, {kind}", witness, note=note))
  rows.append(_arguments_kept(part, cohorts["seven of mixed sizes"].others))
  check = "sensitivity, rounding of thousands"
  if not part.takes_thousands:
    return [*rows, not_applicable(part, check, "made for small cohorts")]
  one = _along(part.dim, part.radius)
  victims, cohorts = (
    {"one at the bound": one, "zeros": 0 * one},
    {"16,096 others": _Cohort(_cancelling(part), 0)},
  )
  return [*rows, finding(part, check, _moved(part, victims, cohorts))]


def finite_records(bound: float, dim: int) -> Records:
  """Finite records that clipping may get wrong, by name: extremes, ties with the bound, tiny ones.

  Norms that exceed the bound by a 16,384th to a quarter reveal a norm that is computed too
  coarsely.
  """
  ones, one = np.ones(dim, np.float32), _along(dim)
  least, most = np.finfo(np.float32).smallest_subnormal, np.finfo(np.float32).max
  return {
    "zeros": 0 * ones,
    "negative zeros": -0.0 * ones,
    "one entry at the bound": one * np.float32(bound),
    "equal entries at the bound": ones * np.float32(bound / math.sqrt(dim)),
    "just above the bound": one * np.nextafter(np.float32(bound), np.float32(np.inf)),
    "ten times the bound": ones * np.float32(-10 * bound),
    "squares overflow": ones * np.float32(1e30),
    "largest floats": ones * most,
    "largest and smallest": np.where(one > 0, -most, least).astype(np.float32),
    "squares underflow": ones * np.float32(1e-30),
    "smallest floats": ones * least,
  } | {
    f"norm 2^-{k} above the bound": ones * np.float32(bound * (1 + 2.0**-k) / math.sqrt(dim))
    for k in range(2, 15, 2)
  }


def unusual_records(bound: float, dim: int) -> Records:
  """Records that hold NaN or infinity, by name."""
  one, ones = _along(dim), np.ones(dim, np.float32)
  inside = np.float32(bound / (2 * math.sqrt(dim)))
  values = {"NaN": np.nan, "infinity": np.inf, "minus infinity": -np.inf}
  single = {f"one {name}": np.where(one > 0, np.float32(v), inside) for name, v in values.items()}
  whole = {f"all {name}": (ones * np.float32(v)) for name, v in values.items()}
  both = np.where(one > 0, np.float32(np.inf), np.float32(-np.inf))
  return single | whole | {"infinities of both signs": both}


def _long_record(part: Clip, records: Records) -> Witness | None:
  """The record that comes out with the largest norm above the bound."""
  found = {name: _clipped(part, record) for name, record in records.items()}
  norms = {
    name: (math.nan if error else float(np.linalg.norm(value)), error)
    for name, (value, error) in found.items()
  }
  return _worst(norms, part.bound, "norm")


def _changed_record(part: Clip) -> Witness | None:
  """A record well within the bound that is changed."""
  record = np.linspace(-1, 1, part.dim).astype(np.float32)
  record *= np.float32(part.bound / (2 * np.linalg.norm(record)))
  value, error = _clipped(part, record)
  if not error and np.allclose(value, record, rtol=ROUNDING, atol=ROUNDING * part.bound):
    return None
  return Witness(
    f"record {_shown(record)}",
    "the record as it is",
    error or _shown(value),
    "Accuracy is lost without need; the guarantee stands.",
  )


def _clipped(part: Clip, record: np.ndarray) -> tuple[np.ndarray, str]:
  """(bounded record, error); another number of entries is an error."""
  value, error = _called(part, record)
  if error or value.shape == record.shape:
    return value, error
  return value, f"{value.size} numbers of {record.size}"


def _arguments_kept(part: Clip | Aggregate, records: np.ndarray) -> Finding:
  """The finding about a call that changes its argument."""
  given = records.copy()
  # Here only changes of the argument count: an error is a finding of another check.
  with contextlib.suppress(Exception):
    part.apply(given)
  check = "arguments left as they were"
  if np.array_equal(given, records, equal_nan=True):
    return finding(part, check, None)
  place = np.argwhere(given != records)[0]
  witness = Witness(
    f"records {_shown(np.ravel(records))}",
    "the caller's array as it was",
    f"entry {', '.join(map(str, place))} is {given[tuple(place)]:.4g} after the call",
    "What else reads the records, such as the next round, reads others: the statement is of one "
    "call only.",
  )
  return finding(part, check, witness)


def _refused(part: Aggregate, records: np.ndarray) -> Witness | None:
  """The witness of a call that raises."""
  _, error = _called(part, records)
  return Witness(f"{len(records)} records", "a result", error, _of_error(error)) if error else None


def _cohorts(part: Aggregate) -> dict[str, _Cohort]:
  """The cohorts that a victim joins, by the names of its others."""
  one = _along(part.dim, part.radius)
  others = {
    "no others": np.zeros((0, part.dim), np.float32),
    "one other": one[None],
    "two that nearly cancel": np.stack([one, np.float32(-0.875) * one]),
    **{f"{name} ties": np.stack([one] * number) for name, number in _TIES.items()},
    "three opposites": np.stack([-one] * 3),
    "seven of mixed sizes": np.outer(np.linspace(-2, 2, 7), one).astype(np.float32),
    "others of NaN": np.full((3, part.dim), np.nan, np.float32),
  }
  return {name: _Cohort(own, len(own) // 2) for name, own in others.items()}


def _cancelling(part: Aggregate) -> np.ndarray:
  """Records whose running float32 sum rounds differently after one more record."""
  sizes = np.concatenate([np.ones(4096), np.full(12_000, -0.99 * 2.0**-12)])
  return np.outer(sizes, _along(part.dim, part.radius)).astype(np.float32)


def _moved(part: Aggregate, victims: Records, cohorts: Mapping[str, _Cohort]) -> Witness | None:
  """The neighbours whose results are farthest apart, if that is too far."""
  distances = {
    f"{pair}; {name}": distance
    for name, cohort in cohorts.items()
    for pair, distance in _distances(part, victims, cohort)
  }
  return _worst(distances, part.sensitivity, "distance")


def _distances(
  part: Aggregate, victims: Records, cohort: _Cohort
) -> Iterator[tuple[str, tuple[float, str]]]:
  """(names of the neighbours, (distance, error)) for any two neighbouring cohorts."""
  results = {name: _called(part, cohort.joined(record[None])) for name, record in victims.items()}
  if part.relation is Relation.REPLACE_ONE:
    for (name, own), (other, its) in itertools.combinations(results.items(), 2):
      yield f"{name} against {other}", _distance(own, its)
    return
  added = part.relation is Relation.ADD_REMOVE
  null = np.zeros((0 if added else 1, part.dim), np.float32)
  without = _called(part, cohort.joined(null))
  if without[1] and not len(null) + len(cohort.others):
    return  # another check finds this
  for name, own in results.items():
    yield f"{name} against {'no record' if added else 'a null record'}", _distance(own, without)


def _distance(own: tuple[np.ndarray, str], other: tuple[np.ndarray, str]) -> tuple[float, str]:
  """How far apart two results are, or the error if only one of them is an error."""
  (first, error), (second, other_error) = own, other
  if error or other_error:
    # If both fail, the results do not tell the cohorts apart.
    return (0.0, "") if error and other_error else (math.nan, error or other_error)
  if first.shape != second.shape:
    return math.inf, ""
  # Two NaN tell nothing: only differences count.
  same = (first == second) | (np.isnan(first) & np.isnan(second))
  with np.errstate(invalid="ignore"):
    return float(np.linalg.norm(np.where(same, 0.0, first - second))), ""


def _worst(found: Mapping[str, tuple[float, str]], bound: float, what: str) -> Witness | None:
  """The witness of the largest number above the bound; NaN counts as the largest."""
  sizes = {name: math.inf if math.isnan(size) else size for name, (size, _) in found.items()}
  worst = max(sizes, key=lambda name: sizes[name])
  if sizes[worst] <= bound * (1 + ROUNDING):
    return None
  size, error = found[worst]
  return Witness(
    worst,
    f"{what} <= {rounded_up(bound)}",
    error or f"{what} {size:.6g}",
    _of_error(error) if error else _NAN_TELLS if math.isnan(size) else of_sensitivity(size, bound),
  )


def _of_error(error: str) -> str:
  return _RAISED_TELLS if error.startswith("raised") else _OTHER_RESULT


def _called(part: Clip | Aggregate, value: np.ndarray) -> tuple[np.ndarray, str]:
  """(result, flat and in float64, error); the part has a copy, which it may change."""
  try:
    with np.errstate(all="ignore"):
      result = np.asarray(part.apply(value.copy()))
      if result.dtype.kind in "OSUcmM":
        return np.zeros(0), f"an array of {result.dtype}"
      return np.ravel(result.astype(np.float64)), ""
  except Exception as error:  # whatever another library raises is a finding, not the kit's fault
    return np.zeros(0), error_text(error)


def _along(dim: int, size: float = 1.0) -> np.ndarray:
  """A vector of that size along the first axis, float32."""
  return (np.arange(dim) == 0).astype(np.float32) * np.float32(size)


def _shown(vector: np.ndarray) -> str:
  return "[" + ", ".join(f"{x:.4g}" for x in vector[:4]) + (", ...]" if len(vector) > 4 else "]")
