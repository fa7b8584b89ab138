"""Functions of which the tests of the conformance kit make parts, and what fails of a part."""

import numpy as np

from jdp.conformance import failures
from jdp.conformance.suite import check_part


def failed(part, **options):
  """The witness of each check that fails."""
  return {found.check: found.witness for found in failures(check_part(part, **options))}


def bounded(record):
  """Within norm 1; zero where it is not finite."""
  norm = np.linalg.norm(record.astype(float))
  return record / max(1.0, norm) if np.isfinite(norm) else np.zeros(record.shape)


def total(records):
  return sum((bounded(record) for record in records), np.zeros(4))
