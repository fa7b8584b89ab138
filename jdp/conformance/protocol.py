"""The protocol of the kit: the parts of an implementation, and a check's finding about a part.

A part is a function of any library, on NumPy arrays, together with what the library states about
it. Wrap the parts that a library has, and leave out the others:

| part | function | stated |
| --- | --- | --- |
| `Clip` | one record -> bounded record | its largest norm |
| `Aggregate` | records -> sum or mean, without noise | how far one record moves it |
| `Noise` | seed -> a run's noise, on a sum of zero | its covariance |
| `Sampling` | seed -> who took part in which round | the law of that |
| `Accountant` | plan, noise multiplier -> epsilon | an upper bound on the run's epsilon |
| `Calibration` | plan, epsilon -> noise multiplier | noise enough for the plan |
| `MatrixStrategy` | the matrix of correlated noise | its sensitivity |
| `Release` | `Subject`s of audits | their epsilons |

A function must leave its arguments as they are, and depend on nothing else. A function that raises
fails its check, with the exception as the witness. There are two exceptions. An accountant, a
calibration or a sensitivity that raises refuses its plan, and so states nothing false. The
functions of a `Noise`, a `Sampling` or a `Release` may raise `NotImplementedError`: then the
library does not offer this, and the check is not applicable.
"""

import enum
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from jdp._arguments import checked
from jdp.conformance.auditing import Subject
from jdp.events.sampling import SamplingEvent
from jdp.guarantees import Relation
from jdp.ledger import Ledger, subsampled_gaussian

_LONGEST_ERROR = 200  # characters


class Clip(NamedTuple):
  """How one record is bounded.

  Attributes:
    call: the call, as a reader would write it. All parts have this field.
    apply: record, float32 [dim] -> bounded record, [dim].
    bound: the stated largest L2 norm.
    dim: the dimension of records, at least 2.
  """

  call: str
  apply: Callable[[np.ndarray], ArrayLike]
  bound: float
  dim: int = 4


class Aggregate(NamedTuple):
  """A round's computation from its records before noise is added, including their bounds.

  Attributes:
    call: see `Clip`.
    apply: records, float32 [n, dim] -> an array of any shape. n may be 0.
    sensitivity: the stated L2 distance between two results whose records are neighbours.
    relation: which records are neighbours. The null record of zero-out is a record of zeros.
    radius: the norm that records are bounded to. Hostile records are near it.
    dim: the dimension of records, at least 2.
    takes_thousands: whether sums of thousands are checked too, for the effect of rounding.
  """

  call: str
  apply: Callable[[np.ndarray], ArrayLike]
  sensitivity: float
  relation: Relation
  radius: float = 1.0
  dim: int = 4
  takes_thousands: bool = True


class Noise(NamedTuple):
  """The noise of a run. It must be normal, or on a grid that is fine compared with its standard
  deviation.

  Attributes:
    call: see `Clip`.
    draw: seed -> the noise of a run, [rounds, blocks, size]. Equal seeds may give equal noise.
    blocks: names of the arrays that a round adds noise to: leaves of a model, or their shards on
      several devices. The statement is that their noise is independent.
    covariance: float64 [rounds, rounds], the stated covariance of one coordinate over the rounds.
    resumed: like `draw`, of a run that is stopped after some rounds and goes on from what it saved.
      None: resuming is not wrapped.
  """

  call: str
  draw: Callable[[int], ArrayLike]
  blocks: tuple[str, ...]
  covariance: np.ndarray
  resumed: Callable[[int], ArrayLike] | None = None


class Sampling(NamedTuple):
  """Who takes part.

  Attributes:
    call: see `Clip`.
    draw: (seed, number of rounds) -> whether a record took part, bool [rounds, population].
    law: the stated law, as an event of `jdp.events`. If it names a population, it is that of
      `draw`.
    resumed: like `draw`, of a run that is stopped after some rounds and goes on from what it saved.
      None: resuming is not wrapped.
  """

  call: str
  draw: Callable[[int, int], ArrayLike]
  law: SamplingEvent
  resumed: Callable[[int, int], ArrayLike] | None = None


class Plan(NamedTuple):
  """A planned run: a Gaussian sum of clip norm 1 in every round.

  Attributes:
    sampling_probability: q, the rate of Poisson sampling.
    num_rounds: T, the number of rounds.
    delta: the delta of the requested epsilon.
  """

  sampling_probability: float
  num_rounds: int
  delta: float


@checked
def add_remove_ledger(plan: Plan, noise_multiplier: float) -> Ledger:
  """The events of a plan, under add/remove of a record."""
  return subsampled_gaussian(plan.sampling_probability, noise_multiplier, plan.num_rounds)


class Accountant(NamedTuple):
  """A function that computes epsilon.

  Attributes:
    call: see `Clip`.
    epsilon: (plan, noise multiplier) -> an upper bound on epsilon.
    ledger: (plan, noise multiplier) -> the events that the bound is stated for.
    unsampled: whether it accounts for runs without sampling only.
  """

  call: str
  epsilon: Callable[[Plan, float], float]
  ledger: Callable[[Plan, float], Ledger] = add_remove_ledger
  unsampled: bool = False


class Calibration(NamedTuple):
  """A function that computes the noise for a target.

  Attributes:
    call: see `Clip`.
    noise_multiplier: (plan, epsilon) -> a multiplier that keeps the run within epsilon.
    ledger: as for `Accountant`.
    unsampled: as for `Accountant`.
  """

  call: str
  noise_multiplier: Callable[[Plan, float], float]
  ledger: Callable[[Plan, float], Ledger] = add_remove_ledger
  unsampled: bool = False


class MatrixStrategy(NamedTuple):
  """A strategy C of correlated noise: a run releases G + C^-1 Z.

  Attributes:
    call: see `Clip`.
    matrix: C, float64 [m, n], for n rounds.
    sensitivity: (min-separation b, participations k) -> the stated distance by which one record
      moves C G. The record's norm in a round is at most 1, and it takes part in at most k rounds,
      any two at least b apart.
    patterns: the pairs (b, k) that are checked.
  """

  call: str
  matrix: np.ndarray
  sensitivity: Callable[[int, int], float]
  patterns: tuple[tuple[int, int], ...]


class Release(NamedTuple):
  """A release whose epsilon is audited.

  Attributes:
    call: see `Clip`.
    make: () -> the subjects with their epsilons, by name, such as the relation. It is called when
      the part is checked.
    num_samples: as for `jdp.conformance.audit`.
  """

  call: str
  make: Callable[[], Mapping[str, Subject]]
  num_samples: int = 20_000


Part = Clip | Aggregate | Noise | Sampling | Accountant | Calibration | MatrixStrategy | Release
"""Any part of an implementation that has checks."""


class Implementation(NamedTuple):
  """A library as the kit sees it.

  Attributes:
    name: the name of the package.
    version: the version of the package.
    parts: its parts, any number of each kind.
  """

  name: str
  version: str
  parts: tuple[Part, ...]


class Verdict(enum.StrEnum):
  """The result of a check."""

  PASSED = "passed"
  FAILED = "failed"
  NOT_APPLICABLE = "not applicable"


class Witness(NamedTuple):
  """The inputs that show a fault, and the fault.

  Attributes:
    inputs: what the function was given.
    expected: the results that the statement allows.
    got: the actual result.
    consequence: what the fault means for the guarantee, as a sentence.
  """

  inputs: str
  expected: str
  got: str
  consequence: str


class Finding(NamedTuple):
  """What one check found about one part.

  Attributes:
    part: the kind of the part.
    call: the part's `call`.
    check: the name of the check.
    verdict: passed, failed or not applicable.
    witness: the witness of a fault, else None.
    false_failure: the largest probability that a correct implementation fails the check; 0 if it
      draws nothing.
    note: how much was checked, and the smallest fault that would have been detected.
  """

  part: str
  call: str
  check: str
  verdict: Verdict
  witness: Witness | None = None
  false_failure: float = 0.0
  note: str = ""


def finding(
  part: Part, check: str, witness: Witness | None, *, false_failure: float = 0.0, note: str = ""
) -> Finding:
  """The finding of a check that was done: failed if there is a witness."""
  verdict = Verdict.FAILED if witness else Verdict.PASSED
  return Finding(type(part).__name__, part.call, check, verdict, witness, false_failure, note)


def not_applicable(part: Part, check: str, why: str) -> Finding:
  """The finding of a check that does not apply to the part."""
  return Finding(type(part).__name__, part.call, check, Verdict.NOT_APPLICABLE, note=why)


def raised(part: Part, check: str, error: Exception) -> Finding:
  """The finding of a check whose call raised: failed, unless it says that there is no answer."""
  if isinstance(error, NotImplementedError):
    return refusal(part, check, error)
  consequence = "The part gives nothing that its statement could be checked on."
  return finding(part, check, Witness("the part", "a result", error_text(error), consequence))


def refusal(part: Part, check: str, error: Exception) -> Finding:
  """The finding of a check whose call raised: a refusal makes no claim that could be false."""
  return not_applicable(part, check, error_text(error))


def error_text(error: Exception) -> str:
  """The error on one line."""
  return f"raised {type(error).__name__}: {' '.join(str(error).split())[:_LONGEST_ERROR]}"
