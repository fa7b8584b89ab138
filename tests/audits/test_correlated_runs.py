"""Whole runs with correlated noise: what an observer of all models finds is what the ledger states.

Each bound holds with probability 99.9 %, on a fixed key: so often a sound run is not refuted. Of
100,000 runs the bound falls short of the true epsilon by 6 %, give or take 1.5 %. A sensitivity
that is 9 % too small states 14 % too little, and is found with probability above 99.9 %. The runs
are those of an experiment, and so many that XLA is to optimise them.
"""

import jax
import numpy as np
import pytest

from experiments.audit import correlated_runs
from jdp import conformance

RUNS = 100_000


def audit(strategy):
  return conformance.audit(
    correlated_runs.subject(strategy), jax.random.key(3), num_samples=RUNS, confidence=0.999
  )


@pytest.mark.slow
def test_a_sound_run_is_between_half_of_what_it_states_and_that():
  found = audit(correlated_runs.SOUND["banded_toeplitz"]())
  assert 0.5 * found.epsilon < found.bound <= found.epsilon, str(found)
  assert found.bound > 0.85 * found.epsilon, str(found)


@pytest.mark.slow
def test_rows_for_columns_are_refuted():
  wrong = correlated_runs.rows_for_columns(correlated_runs.ROUNDS, correlated_runs.SEPARATION)
  matrix = wrong.matrix()
  np.testing.assert_allclose(np.sum(matrix**2, axis=1), 1.0)  # of rows, as that library states
  true = super(type(wrong), wrong).squared_sensitivity(correlated_runs.SEPARATION, 4)
  assert 1.09 < np.sqrt(true / wrong.squared_sensitivity(correlated_runs.SEPARATION, 4)) < 1.1
  found = audit(wrong)
  assert found.refuted, str(found)
