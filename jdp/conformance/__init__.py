"""Conformance: does a mechanism or a query keep the epsilon that it states?

Everything that is registered is audited (`jdp.mechanisms.registry`, `jdp.queries.registry`). A
mechanism of another library can be audited too: `audit(release_subject(privatize, first, second,
epsilon=...), key, num_samples=...)`.
"""

from jdp.conformance.auditing import Audit, Subject, audit, audit_all
from jdp.conformance.coverage import unaudited
from jdp.conformance.queries import query_subjects, registered_query_subjects
from jdp.conformance.runs import run_subject
from jdp.conformance.subjects import (
  mechanism_subject,
  registered_subject,
  release_subject,
  sharpest_subject,
)

__all__ = [
  "Audit",
  "Subject",
  "audit",
  "audit_all",
  "mechanism_subject",
  "query_subjects",
  "registered_query_subjects",
  "registered_subject",
  "release_subject",
  "run_subject",
  "sharpest_subject",
  "unaudited",
]
