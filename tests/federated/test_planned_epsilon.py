"""What a plan promises is what its run records, at every round."""

import itertools

from tests.helpers import planned_runs


def test_a_run_has_the_epsilon_that_it_was_planned_for():
  """Some of the plans of `python -m tests.helpers.planned_runs`."""
  for plan in itertools.islice(planned_runs.random_plans(0), 8):
    assert planned_runs.kept(plan)
