"""DP-SGD in one call: planned, within its target, per example, and the procedure made by hand."""

import jax
import numpy as np
import optax
import pytest

from jdp import accounting, data, models, sampling
from jdp.federated import (
  dp_sgd,
  example_gradient,
  federated_averaging,
  fixed_denominator,
  flat_clipping,
  train,
)
from jdp.guarantees import Unit

RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 2, 400)
EXAMPLES = data.examples(RNG.normal(size=(400, 3)) + LABELS[:, None], LABELS)
MODEL = models.logistic_regression((3,), 2)
LOSS = models.cross_entropy(MODEL)
PLAN = {"batch_size": 100, "clip_norm": 0.5, "num_rounds": 5}
TARGET = {"target_epsilon": 2.0, "delta": 1e-4}


def test_the_whole_run_is_within_its_target_per_example_and_learns(key):
  algorithm = dp_sgd(LOSS, EXAMPLES, **PLAN, **TARGET)
  start = MODEL.init(key)
  result = train(algorithm, start, EXAMPLES)
  assert 1.98 < accounting.epsilon(result.ledger, 1e-4) <= 2.0
  assert "-DP per example (add/remove), against whoever sees the models" in result.statement(1e-4)
  assert [event.unit for event in result.ledger] == [Unit.EXAMPLE] * 5
  assert LOSS(result.params, EXAMPLES) < LOSS(start, EXAMPLES)


@pytest.mark.optimised
def test_it_is_the_procedure_made_by_hand(key):
  by_hand = federated_averaging(
    example_gradient(LOSS),
    fixed_denominator(flat_clipping(0.5), 1.3, 100),
    sampling.poisson(400, 0.25),
    optax.sgd(0.1),
    unit="example",
  )
  planned = dp_sgd(LOSS, EXAMPLES, **PLAN, noise_multiplier=1.3, optimizer=optax.sgd(0.1))
  noise_key, data_key = jax.random.split(key)
  results = [
    train(made, MODEL.init(key), EXAMPLES, num_rounds=5, noise_key=noise_key, data_key=data_key)
    for made in (by_hand, planned)
  ]
  jax.tree.map(np.testing.assert_array_equal, *(result.params for result in results))
  assert results[0].ledger == results[1].ledger


@pytest.mark.parametrize(("epochs", "rounds"), [(3, 12), (0.26, 2), (0.25, 1)])
def test_epochs_are_counted_by_the_expected_batch(epochs, rounds):
  planned = dp_sgd(
    LOSS, EXAMPLES, batch_size=100, clip_norm=0.5, num_epochs=epochs, noise_multiplier=1.0
  )
  assert planned.num_rounds == rounds


def test_a_delta_that_promises_nothing_is_named():
  with pytest.warns(UserWarning, match="delta below 1 / 400, one over the number of examples"):
    dp_sgd(LOSS, EXAMPLES, **PLAN, target_epsilon=2.0, delta=1 / 400)


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"num_rounds": None}, "num_epochs and num_rounds, got neither"),
    ({"num_epochs": 2}, "num_epochs and num_rounds, got both"),
    ({"num_rounds": None, "num_epochs": float("nan")}, "num_epochs"),
    ({"batch_size": 0, "num_rounds": None, "num_epochs": 1}, "batch_size"),
    ({"batch_size": 401}, "batch_size of at most 400 examples"),
    ({"sampler": sampling.poisson(40, 0.2)}, "sampler of 400 examples"),
  ],
)
def test_plans_that_do_not_fit_are_refused(changes, message):
  with pytest.raises(ValueError, match=message):
    dp_sgd(LOSS, EXAMPLES, **PLAN | TARGET | changes)
