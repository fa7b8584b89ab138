"""The choice of a strategy: all rows meet the target by the accountant; the least error wins."""

import dataclasses

import numpy as np
import pytest

from jdp import accounting
from jdp import matrix_factorization as mf
from jdp.events import CyclicPoissonSampling, MinSeparationSampling
from jdp.ledger import correlated_gaussian
from jdp.matrix_factorization.trees import TreeStrategy

RUN = {"population": 1000, "cohort_size": 50, "target_epsilon": 2.0, "delta": 1e-5, "memory": 4}


@pytest.fixture(scope="module")
def choice():
  return mf.choose_strategy(48, **RUN)


def ledger_of(candidate, relation="add_remove"):
  """The planned run of a row of the table."""
  turns = -(-candidate.strategy.num_rounds // candidate.num_groups)
  sampling = (
    MinSeparationSampling(candidate.num_groups, turns, 1000, by_identity=True)
    if candidate.sampler == "min_separation"
    else CyclicPoissonSampling(candidate.num_groups, candidate.probability, 1000, by_identity=True)
  )
  query = mf.planned_sum(
    candidate.strategy, candidate.noise_multiplier, min_separation=candidate.num_groups
  )
  return correlated_gaussian(query, sampling, relation=relation)


@pytest.mark.slow
def test_every_row_meets_the_target_and_less_noise_does_not(choice):
  for row in choice.table:
    quieter = row._replace(noise_multiplier=0.997 * row.noise_multiplier)
    assert accounting.epsilon(ledger_of(row), 1e-5, accountant="pld") <= 2 * 1.001
    assert accounting.epsilon(ledger_of(quieter), 1e-5, accountant="pld") > 2


@pytest.mark.slow
def test_the_table_is_sorted_by_the_objective_and_keeps_the_memory(choice):
  errors = [row.mean_error for row in choice.table]
  assert choice.best == choice.table[0]
  assert errors == sorted(errors)
  assert all(row.memory <= 4 for row in choice.table)
  largest = mf.choose_strategy(48, **RUN | {"memory": 0}, objective="max")
  assert [row.max_error for row in largest.table] == sorted(row.max_error for row in largest.table)
  assert {row.memory for row in largest.table} == {0}
  assert largest.best.max_error > min(row.max_error for row in choice.table)


@pytest.mark.slow
def test_errors_are_those_of_the_strategies(choice):
  whole = accounting.gaussian_noise_multiplier(2.0, 1e-5)
  for row in choice.table:
    if row.sampler == "min_separation":
      assert row.mean_error == pytest.approx(
        whole * row.strategy.root_mean_squared_error(min_separation=20)
      )


@pytest.mark.slow
def test_replace_one_moves_twice_as_far_and_is_not_amplified(choice):
  replaced = mf.choose_strategy(48, **RUN | {"memory": 0}, relation="replace_one")
  once = {row.name: row for row in choice.table if row.sampler == "min_separation"}
  assert {row.sampler for row in replaced.table} == {"min_separation"}
  for row in replaced.table:
    assert row.noise_multiplier == pytest.approx(2 * once[row.name].noise_multiplier)
  row = replaced.table[0]
  assert accounting.epsilon(ledger_of(row, "replace_one"), 1e-5, accountant="pld") <= 2 * 1.001


def test_strategies_are_compared_by_the_workload():
  momentum = mf.optimizer_workload(48, momentum=0.9)
  choice = mf.choose_strategy(48, **RUN | {"memory": 0}, workload=momentum)
  for row in choice.table:
    errors = row.strategy.squared_errors(momentum)
    assert row.mean_error == pytest.approx(row.noise_multiplier * np.sqrt(errors.mean()))


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"cohort_size": 1001}, "cohort_size to be a number in"),
    ({"min_separation": 21}, "min_separation to be a number in"),
    ({"min_separation": 0}, "min_separation to be a whole number >= 1"),
    ({"memory": -1}, "memory to be a whole number >= 0"),
    ({"objective": "median"}, "objective to be one of"),
    ({"target_epsilon": 0.0}, "epsilon to be a finite number > 0"),
    ({"relation": "both"}, "both"),
  ],
)
def test_invalid_arguments_are_refused(changes, message):
  with pytest.raises(ValueError, match=message):
    mf.choose_strategy(8, **RUN | changes)


STRATEGIES = {
  "identity": mf.identity(5),
  "square root": mf.square_root_toeplitz(9, bands=3),
  "inverse": mf.banded_inverse_square_root(9, 3),
  "buffered": mf.buffered_toeplitz(30, buffers=2),
  "banded": mf.banded(9, 3),
  "tree": mf.tree(9),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_strategies_come_back_from_files_bit_for_bit(name, tmp_path):
  strategy = STRATEGIES[name]
  mf.save(strategy, tmp_path / "strategy.npz")
  loaded = mf.load(tmp_path / "strategy.npz")
  assert type(loaded) is type(strategy)
  assert loaded.fingerprint == strategy.fingerprint
  for field in dataclasses.fields(strategy):
    np.testing.assert_array_equal(getattr(loaded, field.name), getattr(strategy, field.name))
  assert (loaded.num_rounds, loaded.memory) == (strategy.num_rounds, strategy.memory)
  assert len({other.fingerprint for other in STRATEGIES.values()}) == len(STRATEGIES)


def test_a_fingerprint_sees_the_last_bit():
  strategy = mf.banded(9, 3)
  diagonals = strategy.diagonals.copy()
  diagonals[1, 4] = np.nextafter(diagonals[1, 4], 1)
  assert dataclasses.replace(strategy, diagonals=diagonals).fingerprint != strategy.fingerprint


def test_files_without_a_strategy_are_refused(tmp_path):
  path = tmp_path / "strategy.npz"
  path.write_text("no strategy")
  with pytest.raises(ValueError, match="Expected a strategy in"):
    mf.load(path)
  mf.save(mf.identity(4), path)
  with np.load(path) as file:
    saved = {name: file[name] for name in file.files}
  for changes in (
    {"coefficients": np.array([1.0, 0.5, 0.0, 0.0])}, {"kind": "Other"}, {"more": np.ones(2)},
  ):  # fmt: skip
    np.savez(path, **saved | changes)
    with pytest.raises(ValueError, match="Expected a strategy in"):
      mf.load(path)
  with pytest.raises(ValueError, match="Expected a strategy of jdp"):
    mf.save(dataclasses.make_dataclass("Own", [], bases=(TreeStrategy,), frozen=True)(4), path)


@pytest.mark.parametrize("name", STRATEGIES)
def test_bands_are_those_of_the_matrix(name):
  strategy = STRATEGIES[name]
  rows, columns = np.nonzero(strategy.matrix())
  bands = strategy.num_rounds if name == "tree" else np.max(rows - columns) + 1
  assert strategy.bands == bands


def test_planned_sums_have_the_strategys_numbers():
  strategy = mf.square_root_toeplitz(64, bands=16)
  event = mf.planned_sum(strategy, 2.0, min_separation=16, max_participations=9)
  assert event.max_participations == 4  # no more fit
  assert event.squared_sensitivity == pytest.approx(7.775515, abs=6e-7)
  columns = np.linalg.norm(strategy.matrix(), axis=0)
  assert event.largest_column_norm == pytest.approx(columns.max(), rel=1e-14)
