"""Conformance: does an implementation keep what it states?

`check_implementation` puts the parts of any library (`Implementation`) to checks: hostile records,
the covariance of noise, who takes part, epsilons against certified intervals, strategies of
correlated noise. A fault comes with the inputs that show it.

Everything that is registered is audited (`jdp.mechanisms.registry`, `jdp.queries.registry`). A
mechanism of another library can be audited too: `audit(release_subject(privatize, first, second,
epsilon=...), key, num_samples=...)`.

| subject | module |
| --- | --- |
| the parts of an implementation, findings | `protocol` |
| all checks, the table | `suite` |
| a check for each part | `checks/` |
| audits of stated epsilons | `auditing`, `statistics` |
| mechanisms and queries as subjects of audits | `subjects`, `queries` |
| what is registered nowhere | `coverage` |
"""

from jdp.conformance.auditing import Audit, Subject, audit, audit_all
from jdp.conformance.coverage import unaudited
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
  Plan,
  Release,
  Sampling,
  Verdict,
  Witness,
  add_remove_ledger,
)
from jdp.conformance.queries import query_subjects, registered_query_subjects
from jdp.conformance.runs import run_subject
from jdp.conformance.subjects import (
  mechanism_subject,
  registered_subject,
  release_subject,
  sharpest_subject,
)
from jdp.conformance.suite import check_implementation, check_part, failures, text_table

__all__ = [
  "Accountant",
  "Aggregate",
  "Audit",
  "Calibration",
  "Clip",
  "Finding",
  "Implementation",
  "MatrixStrategy",
  "Noise",
  "Part",
  "Plan",
  "Release",
  "Sampling",
  "Subject",
  "Verdict",
  "Witness",
  "add_remove_ledger",
  "audit",
  "audit_all",
  "check_implementation",
  "check_part",
  "failures",
  "mechanism_subject",
  "query_subjects",
  "registered_query_subjects",
  "registered_subject",
  "release_subject",
  "run_subject",
  "sharpest_subject",
  "text_table",
  "unaudited",
]
