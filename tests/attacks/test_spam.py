"""The interval test for spam: what it computes, what it rejects, and what it cannot see."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jdp.attacks import spam
from jdp.federated.draw_and_discard import (
  client_updates,
  draw_and_discard_process,
  spread_instances,
)
from jdp.federated.draw_and_discard.client_updates import laplace_update
from jdp.federated.draw_and_discard.instance_server import instances
from jdp.federated.draw_and_discard.update_stream import arrivals

K, WEIGHTS = 20, 50


@pytest.mark.slow
def test_the_largest_deviation_is_that_of_the_worst_weight(key):
  models = {"w": jax.random.normal(key, (K, 3, 4)), "b": jnp.linspace(0.0, 1.0, K)}
  submitted = {"w": jnp.full((3, 4), 0.3), "b": jnp.array(4.0)}
  expected = max(
    np.max(
      np.abs(submitted[name] - np.mean(models[name], axis=0)) / np.std(models[name], axis=0, ddof=1)
    )
    for name in models
  )
  found = spam.largest_deviation(models, submitted)
  np.testing.assert_allclose(found, expected, rtol=1e-5)
  assert spam.interval_test(1.001 * expected)(models, submitted)
  assert not spam.interval_test(0.999 * expected)(models, submitted)


@pytest.mark.slow
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_a_number_is_rejected_whatever_the_threshold(value, key):
  models = jax.random.normal(key, (K, WEIGHTS))
  accept = spam.interval_test(1e30)
  submitted = jnp.stack([jnp.zeros(WEIGHTS), jnp.zeros(WEIGHTS).at[7].set(value)])
  assert jax.jit(jax.vmap(accept, (None, 0)))(models, submitted).tolist() == [True, False]
  assert spam.largest_deviation(models, submitted[1]) == jnp.inf
  assert not accept(models.at[3, 7].set(value), jnp.zeros(WEIGHTS))


def test_rates_and_thresholds():
  deviations = np.array([1.0, 2.0, 3.0, np.inf])
  np.testing.assert_array_equal(
    spam.rejection_rates(deviations, [0.5, 1.0, 2.5, 1e9]), [1, 0.75, 0.5, 0.25]
  )
  honest = np.random.default_rng(0).normal(size=5000)
  for rate in (0.001, 0.05, 0.5):
    threshold = spam.threshold_for(honest, rate)
    assert spam.rejection_rates(honest, threshold) <= rate
    assert spam.rejection_rates(honest, np.nextafter(threshold, -np.inf)) > rate


@pytest.mark.parametrize(
  ("make", "message"),
  [
    (lambda: spam.interval_test(np.nan), "Expected threshold"),
    (lambda: spam.rejection_rates([1.0, np.nan], 1.0), "none of them NaN"),
    (lambda: spam.rejection_rates([], 1.0), "Expected deviations"),
    (lambda: spam.threshold_for([1.0], 0.0), "false_positive_rate"),
    (lambda: spam.threshold_for(np.ones(999), 0.001), "at least 1000 deviations"),
    (lambda: spam.threshold_for([1.0, 2.0, np.nan], 0.5), "none of them NaN"),
    (lambda: spam.random_model(0.0), "stddev"),
    (lambda: spam.scaled_update(np.nan), "factor"),
  ],
)
def test_bad_arguments_are_refused(make, message):
  with pytest.raises(ValueError, match=message):
    make()


ATTACKS = {
  "honest": lambda key, view: view.honest,
  "random model": spam.random_model(10.0),
  "scaled": spam.scaled_update(30.0),
  "sign flip": spam.sign_flip(),
  "small drift": spam.drift(jnp.full(WEIGHTS, 0.1)),
  "large drift": spam.drift(jnp.zeros(WEIGHTS).at[3].set(60.0)),
  "replay": spam.replay(),
}


@pytest.fixture(scope="module")
def deviations():
  """Of honest clients and each attacker, at the stationary spread; noise of scale 1, no drift of
  the model.

  The old instance is one of 200 updates before.
  """
  update = laplace_update(lambda params, client: jnp.zeros_like(params), 2.0, 1.0)
  process = draw_and_discard_process(update, K)

  def one(key):
    keys = jax.random.split(key, 4)
    start = process.init(spread_instances(keys[0], jnp.zeros(WEIGHTS), K, update.noise_variance))
    state = process.run(
      keys[1], start, arrivals(jnp.zeros(200, jnp.int32), 1), jnp.zeros((1, 1)), update.settings
    )
    models = instances(state)
    noise = update.draw(keys[2], models[0])
    honest = client_updates.step(update, update.settings, noise, models[0], None, state.number)
    view = spam.View(drawn=models[0], honest=honest, old=instances(start)[0])
    return {
      name: spam.largest_deviation(models, attack(keys[3], view))
      for name, attack in ATTACKS.items()
    }

  with jax.debug_key_reuse(False):  # the attacks are alternatives: each may have the same key
    return jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(0), 4000))


@pytest.mark.slow
def test_detection_at_one_false_rejection_in_a_hundred(deviations):
  """The threshold is chosen on one half of the honest clients; of the other it rejects what its
  sample allows.

  A right test fails with probability 1e-6; a share of 4 % instead of 1 % is caught.
  """
  threshold = spam.threshold_for(deviations["honest"][:2000], 0.01)
  rates = {
    name: float(spam.rejection_rates(values[2000:], threshold))
    for name, values in deviations.items()
  }
  law = stats.betabinom(2000, 21, 1980)  # new values above the 20th largest but one of 2000
  assert law.ppf(5e-7) <= 2000 * rates["honest"] <= law.isf(5e-7) < 70
  for caught in ("random model", "scaled", "large drift"):
    assert rates[caught] > 0.95, rates
  for unseen in ("sign flip", "small drift"):  # the distribution of the honest ones, or close to it
    assert rates[unseen] < 0.05, rates
