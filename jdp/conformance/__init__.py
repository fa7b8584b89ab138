"""Conformance: does an implementation keep what it states?

`check_implementation` checks the parts of any library (`Implementation`): hostile records, the
covariance of noise, who takes part, epsilons against certified intervals, strategies of correlated
noise. A fault comes with the inputs that show it.

Everything that is registered is audited (`jdp.mechanisms.registry`, `jdp.queries.registry`). A
mechanism of another library can be audited too: `audit(release_subject(privatize, first, second,
epsilon=...), key, num_samples=...)`.

An example wraps a library of your own. It clips correctly. Its average divides by the number of
records, or by four if there are fewer: that moves by up to 1/2 if a record is replaced, and by more
than 1/4 if one is added. A resumed run begins its noise anew.

>>> import numpy as np
>>> from jdp.guarantees import Relation
>>> def clip(record):
...   record = np.nan_to_num(record.astype(float))
...   return record / max(1.0, np.linalg.norm(record))
>>> def average(records):
...   return sum(map(clip, records), np.zeros(4)) / max(4, len(records))
>>> def noise(seed, rounds=3):
...   return np.random.default_rng(seed).normal(0, 2, (rounds, 1, 1000))
>>> def resumed(seed):
...   return np.concatenate([noise(seed, 2), noise(seed, 1)])
>>> own = Implementation(
...   "own",
...   "0.1",
...   (
...     Clip("clip", clip, bound=1.0),
...     Aggregate("average", average, 1 / 2, Relation.REPLACE_ONE),
...     Aggregate("average", average, 1 / 4, Relation.ADD_REMOVE),
...     Noise("noise", noise, ("weights",), 4 * np.eye(3), resumed),
...   ),
... )
>>> found = check_implementation(own)
>>> print(text_table(failures(found)))
failed          average: sensitivity, finite records (18 records in 10 cohorts)
    given largest and smallest against no record; six ties
    expected distance <= 0.25
    got distance 0.285714
    A Gaussian release stated at epsilon 2 (delta 1e-05) really costs 2.33.
failed          noise: covariance, resumed (3000 numbers; a deviation 7.1 % low would be seen)
    given round 2, weights and round 0, weights
    expected correlation 0, once whitened
    got 1
    Whoever subtracts one noised array from the other removes noise that is accounted for.
failed          noise: reuse, resumed (6 arrays of two seeds)
    given round 0, weights and round 2, weights
    expected different noise
    got the same numbers
    Their difference is released without any noise: epsilon is infinite.
>>> print(text_table([one for one in found if one.part in ("Clip", "Sampling")]))
passed          clip: norm, finite records (18 records)
passed          clip: norm, NaN and infinities (7 records)
passed          clip: records within the bound
passed          clip: arguments left as they were
not applicable  Sampling: all (own is wrapped without one)

| subject | module |
| --- | --- |
| the parts of an implementation, findings | `protocol` |
| all checks, the table | `suite` |
| a check for each part | `checks/` |
| audits of stated epsilons | `auditing`, `statistics`, `scores` |
| two data sets that differ in one client, through a round | `neighbours` |
| mechanisms and queries as subjects of audits | `subjects`, `queries`, `reference_queries` |
| what is registered nowhere | `coverage` |
"""

from jdp.conformance.auditing import Subject, audit
from jdp.conformance.coverage import unaudited
from jdp.conformance.protocol import (
  Accountant,
  Aggregate,
  Calibration,
  Clip,
  Implementation,
  MatrixStrategy,
  Noise,
  Release,
  Sampling,
)
from jdp.conformance.runs import run_subject
from jdp.conformance.subjects import mechanism_subject, registered_subject, release_subject
from jdp.conformance.suite import check_implementation, failures, text_table

__all__ = [
  "Accountant",
  "Aggregate",
  "Calibration",
  "Clip",
  "Implementation",
  "MatrixStrategy",
  "Noise",
  "Release",
  "Sampling",
  "Subject",
  "audit",
  "check_implementation",
  "failures",
  "mechanism_subject",
  "registered_subject",
  "release_subject",
  "run_subject",
  "text_table",
  "unaudited",
]
