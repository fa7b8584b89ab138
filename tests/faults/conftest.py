"""Figures of the tests that the documentation shows.

    RECORD_FAULTS=1 pytest -n 0 -m slow tests/faults

writes them to `tests/faults/results/damage.json`.
"""

import os

import pytest

from tests.faults import results


@pytest.fixture
def record():
  """(row, part, number of cases that ended with equal bits, others): keeps them, if it is asked to.

  The others said what to do.
  """

  def keep(row, part, equal, others=0):
    if "RECORD_FAULTS" in os.environ:
      counts = {"cases": equal + others, "ended with equal bits": equal, "said what to do": others}
      results.put("damage", row, part, counts)

  return keep
