"""The experiment's part on integers with correlated noise: errors, training, options."""

import types

import jax.numpy as jnp
import numpy as np
import pytest

from experiments.client_dropout import __main__ as client_dropout
from experiments.client_dropout import correlated
from jdp import ledger
from tests.experiments import runs

OPTIONS = types.SimpleNamespace(
  num_rounds=8, correlated_groups=2, target_epsilon=6.0, delta=1e-3, clip_norm=0.5, max_dropout=0.3,
  modulus_bits=18, dropouts=(0.0, 0.3), data_seed=0,
)  # fmt: skip


def test_nobody_lost_has_the_error_of_central_noise_and_losses_add_to_it():
  query = correlated.query_of(OPTIONS, jnp.zeros(64), 10, "correlated")
  central = query.strategy.root_mean_squared_error(**correlated.pattern(OPTIONS))
  everybody = np.ones((8, 10), bool)
  planned = correlated.multiplier(OPTIONS) * OPTIONS.clip_norm * central
  assert planned < correlated.expected_error(query, everybody) < 1.01 * planned
  # If nothing is taken off, it is the noise that seven of ten would need.
  kept = correlated.expected_error(query, everybody, removed=False)
  assert kept == pytest.approx(planned * (10 / 7) ** 0.5, rel=0.01)
  # Who is away for the whole run leaves nothing, and seven have what is needed.
  away = everybody & (np.arange(10) > 2)
  assert planned < correlated.expected_error(query, away) < 1.01 * planned
  for kind in correlated.LOST:
    here = correlated.present(kind, 0.3, 10, 8, seed=0)
    assert here.sum(axis=1).min() >= 7
    assert correlated.expected_error(query, here) > planned


@pytest.mark.slow
def test_measured_errors_are_the_expected_ones():
  """Errors of 2,048 coordinates: 5 % is more than six of their standard deviations."""
  query = correlated.query_of(OPTIONS, jnp.zeros(2048), 10, "correlated")
  here = correlated.present(correlated.LOST[1], 0.3, 10, 8, seed=0)
  expected = correlated.expected_error(query, here)
  assert correlated.measured_error(query, here) == pytest.approx(expected, rel=0.05)


@pytest.mark.slow
def test_a_training_spends_its_target_and_keeps_its_ledger(tmp_path):
  options = client_dropout.ClientDropoutOptions(
    num_rounds=4, examples_per_user=40, local_batch_size=40, dropouts=(0.0,), max_dropout=0.3,
    target_epsilon=6.0, delta=1e-3, modulus_bits=18, correlated_groups=2,
  )  # fmt: skip
  problem = client_dropout.classification(
    options, options.data_seed, arrange=client_dropout.grouped
  )
  row = correlated.trained(options, problem, tmp_path, ("correlated", 0.3))
  assert 5.9 < row["epsilon"] <= 6.0
  kept = ledger.load(tmp_path / "correlated_correlated_0.3.jsonl")
  assert sum(count for _, count in kept.entries) == 4
  assert {event.observer for event, _ in kept.entries} == {"server"}


@pytest.mark.parametrize(
  ("given", "message"),
  [
    ({"noise_multiplier": 4.0}, "Expected --target_epsilon with --correlated_groups"),
    ({"target_epsilon": 4.0, "dropouts": (0.6,)}, "Expected --max_dropout of at least 0.6"),
    ({"target_epsilon": 4.0, "dropouts": (0.1,), "modulus_bits": 6}, "raise modulus_bits"),
  ],
)
def test_refuses_options_that_fit_no_sum(tmp_path, given, message):
  given = {"correlated_groups": 2, "examples_per_user": 40, "num_rounds": 4, **given}
  with pytest.raises(ValueError, match=message):
    runs.prepare(client_dropout.EXPERIMENT, tmp_path / "run", **given)


def test_a_coarse_lattice_shows_what_is_rounded_to_the_nearest_integer():
  (_, gaussian), (_, at_random), (_, nearest) = correlated.coarse_row(None)
  assert at_random < gaussian < nearest


def test_the_figure_has_independent_noise_and_three_ways_to_be_lost():
  problem = types.SimpleNamespace(num_users=10, init=lambda key: jnp.zeros(64))
  (axes,) = correlated.errors_figure(OPTIONS, problem).axes
  independent, nobody, for_good, anew = (line.get_ydata() for line in axes.lines)
  assert independent[-1] > anew[-1] > for_good[-1] > nobody[-1]
