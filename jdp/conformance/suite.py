"""The kit: all checks over all parts of an implementation, and the table of what was found."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from jdp import _validate
from jdp._arguments import checked
from jdp.conformance.checks.inclusion import check_sampling
from jdp.conformance.checks.intervals import check_accountant, check_calibration
from jdp.conformance.checks.noise_covariance import check_noise
from jdp.conformance.checks.participation_patterns import check_strategy
from jdp.conformance.checks.releases import check_release
from jdp.conformance.checks.sensitivity import check_aggregate, check_clip
from jdp.conformance.protocol import (
  Accountant,
  Aggregate,
  Calibration,
  Clip,
  Finding,
  Implementation,
  MatrixStrategy,
  Noise,
  Part,
  Release,
  Sampling,
  Verdict,
  raised,
)

_EXACT: dict[type, Callable[[Any], list[Finding]]] = {
  Clip: check_clip,
  Aggregate: check_aggregate,
  Accountant: check_accountant,
  Calibration: check_calibration,
  MatrixStrategy: check_strategy,
}
_STOCHASTIC: dict[type, Callable[..., list[Finding]]] = {
  Noise: check_noise,
  Sampling: check_sampling,
  Release: check_release,
}
PART_TYPES = (*_EXACT, *_STOCHASTIC)


@checked
def check_part(part: Part, *, seed: int = 0, error: float = 1e-6) -> list[Finding]:
  """All checks of one part. If the part raises so that no check is possible, one finding fails.

  Args:
    part: what is checked.
    seed: the seed of all draws.
    error: the largest probability that one check fails a correct implementation.

  >>> import numpy as np
  >>> from jdp.conformance import Clip
  >>> halved = Clip("x / 2", lambda record: record / 2, bound=1.0)
  >>> print(check_part(halved)[0].witness.got)
  norm 3.40282e+38
  """
  _validate.integer(0, seed=seed)
  _validate.in_range(1e-100, 0.5, error=error)
  try:
    if type(part) in _EXACT:
      return _EXACT[type(part)](part)
    return _STOCHASTIC[type(part)](part, seed, error=error)
  except Exception as own:  # from any library: the other parts must still be checked
    return [raised(part, "all", own)]


@checked
def check_implementation(
  implementation: Implementation,
  *,
  seed: int = 0,
  error: float = 1e-6,
  report: Callable[[Finding], None] = lambda found: None,
) -> list[Finding]:
  """All checks of all parts. Checks without a part in the implementation are not applicable.

  Args:
    implementation: what is checked.
    seed: the seed of all draws.
    error: the largest probability that one check fails a correct implementation. All checks
      together fail one with at most the sum of their `Finding.false_failure`.
    report: called with each finding as it is made.
  """
  found = []
  for own in _rows(implementation, partial(check_part, seed=seed, error=error)):
    report(own)
    found.append(own)
  return found


@checked
def failures(findings: Iterable[Finding]) -> list[Finding]:
  """The findings that failed."""
  return [found for found in findings if found.verdict is Verdict.FAILED]


@checked
def text_table(findings: Sequence[Finding]) -> str:
  """The findings as lines of text: the verdict, the call, the check, and the witness.

  >>> from jdp.conformance import Clip
  >>> clip = Clip("clip", lambda record: 0 * record, bound=1.0)
  >>> print(text_table(check_part(clip)[2:3]))
  failed          clip: records within the bound
      given record [-0.3354, -0.1118, 0.1118, 0.3354]
      expected the record as it is
      got [-0, -0, 0, 0]
      Accuracy is lost without need; the guarantee stands.
  """
  return "\n".join(line for found in findings for line in _lines(found))


def _rows(
  implementation: Implementation, check: Callable[[Part], list[Finding]]
) -> Iterator[Finding]:
  for part in implementation.parts:
    yield from check(part)
  present = {type(part) for part in implementation.parts}
  for kind in PART_TYPES:
    if kind not in present:
      why = f"{implementation.name} is wrapped without one"
      yield Finding(kind.__name__, "", "all", Verdict.NOT_APPLICABLE, note=why)


def _lines(found: Finding) -> Iterator[str]:
  note = f" ({found.note})" if found.note else ""
  yield f"{found.verdict.value:<15} {found.call or found.part}: {found.check}{note}"
  if found.witness:
    yield f"    given {found.witness.inputs}"
    yield f"    expected {found.witness.expected}"
    yield f"    got {found.witness.got}"
    yield f"    {found.witness.consequence}"
