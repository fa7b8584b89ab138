"""What a Draw and Discard client sends: bounded, noised as stated, and charged for."""

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jdp.accounting import gaussian_noise_multiplier, local_guarantee
from jdp.data import Examples
from jdp.federated.draw_and_discard import client_updates
from jdp.federated.draw_and_discard.client_updates import (
  exact_update,
  gaussian_update,
  laplace_update,
)
from jdp.guarantees import ApproxDP, Observer, PureDP, Relation, Unit
from jdp.ledger import Ledger
from jdp.models import Model, cross_entropy
from jdp.models.generalised_linear import glm
from tests.helpers import statistical

SHAPE = (3, 40)


def given(params, client):
  """A gradient that is whatever the client holds."""
  del params
  return client


FACTORIES = {
  "laplace": lambda **kwargs: laplace_update(given, 0.5, 0.1, **kwargs),
  "gaussian": lambda **kwargs: gaussian_update(given, 0.5, 1e-6, 0.1, **kwargs),
}
NORMS = {
  ("laplace", "coordinate"): np.inf,
  ("gaussian", "coordinate"): np.inf,
  ("laplace", "user"): 1,
  ("gaussian", "user"): 2,
}
every_kind = pytest.mark.parametrize("kind", NORMS, ids="-".join)


@functools.cache
def make(kind, **kwargs):
  """The same update for the same arguments: what is compiled for it serves all tests."""
  return FACTORIES[kind[0]](unit=kind[1], **kwargs)


def clipped(update, gradient):
  """What the noise of a release of that gradient is added to."""
  return update.clipped(update.settings, jax.tree.map(jnp.zeros_like, gradient), gradient)


@pytest.mark.slow
@every_kind
@pytest.mark.parametrize("clip", [0.1, 1.0])
@pytest.mark.parametrize("filling", [0.0, np.nan, np.inf, -np.inf, 1e-40, 1e30, 3e38])
def test_every_gradient_is_bounded(kind, clip, filling):
  update = make(kind, clip=clip)
  for gradient in (jnp.full(SHAPE, filling), jnp.ones(SHAPE).at[1, 3].set(filling)):
    bounded = np.asarray(jax.jit(clipped, static_argnums=0)(update, gradient), np.float64)
    assert np.linalg.norm(bounded.reshape(-1), NORMS[kind]) <= np.float32(clip)
    if np.isnan(filling):
      assert np.all(bounded[np.isnan(gradient)] == 0)


@every_kind
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision_is_bounded_in_float32(kind, dtype):
  """A norm in bfloat16 is off by 2^-9: it let 1.0039 c pass."""
  gradient = jnp.asarray(np.random.default_rng(0).normal(size=(40, 120)), dtype)
  with jax.numpy_dtype_promotion("standard"):
    sent = np.float64(clipped(make(kind, clip=0.3), gradient))
  assert np.linalg.norm(sent.ravel(), NORMS[kind]) <= np.float32(0.3)


def test_a_gradient_of_many_leaves_is_bounded():
  """Each small leaf is less than the rounding of the first: added one by one, they would count for
  nothing.
  """
  gradient = {f"{leaf:03d}": jnp.full(1, 1.0 if leaf == 0 else 2.9e-8) for leaf in range(200)}
  bounded = clipped(make(("laplace", "user")), gradient)
  assert sum(np.abs(np.float64(leaf)).sum() for leaf in bounded.values()) <= 1


@pytest.mark.optimised
@pytest.mark.sweep
@every_kind
def test_a_gradient_within_the_bound_is_kept_and_a_longer_one_reaches_it(kind):
  gradient = {"w": jnp.linspace(-1.0, 1.0, 120).reshape(SHAPE), "b": jnp.array([0.5])}
  size = np.linalg.norm(
    np.concatenate([np.ravel(g) for g in jax.tree.leaves(gradient)]), NORMS[kind]
  )
  kept = clipped(make(kind, clip=1.001 * size), gradient)
  assert jax.tree.all(jax.tree.map(jnp.array_equal, kept, gradient))
  shorter = clipped(make(kind, clip=0.5 * size), gradient)
  norm = np.linalg.norm(
    np.concatenate([np.ravel(g) for g in jax.tree.leaves(shorter)]), NORMS[kind]
  )
  np.testing.assert_allclose(norm, 0.5 * size, rtol=5e-6)
  if kind[1] == "user":  # the direction stays
    np.testing.assert_allclose(shorter["b"] / shorter["w"][0, 0], -0.5, rtol=1e-6)


@pytest.mark.slow
@every_kind
def test_the_privacy_loss_of_any_two_clients_is_within_the_guarantee(kind, key):
  """Laplace: the loss at the worst output. Gaussian: the shift in standard deviations, which is 1 /
  z at most.
  """
  update = make(kind)
  worst = 0.0
  for pair in np.asarray(10 * jax.random.laplace(key, (50, 2, *SHAPE))):
    first, second = (np.asarray(clipped(update, jnp.asarray(g)), np.float64) for g in pair)
    worst = max(worst, np.linalg.norm((first - second).reshape(-1), NORMS[kind]))
  shift = worst / float(update.settings.noise_scale)
  allowed = 0.5 if kind[0] == "laplace" else 1 / gaussian_noise_multiplier(0.5, 1e-6)
  # no pair of random clients is at opposite ends of an L1 or L2 ball
  assert 0.5 * allowed < shift <= allowed


def test_privacy_of_a_coordinate_is_not_privacy_of_the_update():
  """Ten features of 1 instead of 0 in one example: each coordinate loses half of epsilon / 2, all
  together 2.5.
  """
  update = laplace_update(glm("logistic", (10,)).gradient, 1.0, 0.1)
  params = jnp.zeros((1, 10))
  clients = [Examples(jnp.full((1, 10), x), jnp.ones(1), jnp.ones(1)) for x in (0.0, 1.0)]
  releases = [
    np.asarray(update.clipped(update.settings, params, client), np.float64) for client in clients
  ]
  losses = np.abs(releases[0] - releases[1]) / float(update.settings.noise_scale)
  np.testing.assert_allclose(losses, 0.25, rtol=1e-6)
  np.testing.assert_allclose(losses.sum(), 2.5, rtol=1e-6)


@pytest.mark.slow
@every_kind
def test_the_noise_has_the_stated_law_and_variance(kind, key):
  """An error of 2 % in the scale is caught."""
  update = make(kind, clip=0.25)
  params = {"w": jnp.zeros((400, 500)), "b": jnp.zeros(50)}
  noise = update.draw(key, params)
  moved = client_updates.step(update, update.settings, noise, params, params, jnp.int32(3))
  weights = np.concatenate([np.ravel(x) for x in jax.tree.leaves(moved)]).astype(np.float64)
  if kind[0] == "laplace":
    scale = 0.1 * 2 * 0.25 / 0.5
    statistical.assert_mean(np.abs(weights), scale, stddev=scale, catches=0.02 * scale)
    np.testing.assert_allclose(update.noise_variance, 2 * scale**2 * (1 + 1 / 3072), rtol=1e-6)
  else:
    scale = 0.1 * 2 * 0.25 * gaussian_noise_multiplier(0.5, 1e-6)
    statistical.assert_normal_stddev(weights, scale, catches=0.02)
    np.testing.assert_allclose(update.noise_variance, scale**2 * (1 + 1 / 3072), rtol=1e-6)
  statistical.assert_mean(
    weights, 0.0, stddev=math.sqrt(update.noise_variance), catches=0.05 * scale
  )


def test_leaves_of_equal_shape_have_noise_of_their_own(key):
  params = {"a": jnp.zeros(4000), "b": jnp.zeros(4000)}
  noise = FACTORIES["laplace"]().draw(key, params).draws
  columns = np.stack([noise["a"], noise["b"]], axis=1) / math.sqrt(2)
  statistical.assert_uncorrelated(columns, catches=0.15)


def test_the_noise_scale_is_never_rounded_below_what_the_guarantee_needs():
  for clip in (0.1, 0.3, 1.0, 1e-3):
    for epsilon in np.geomspace(0.01, 86, 50):
      settings = laplace_update(given, epsilon, 0.1, clip=clip).settings
      least = 2 * float(settings.clip) / epsilon
      assert least <= float(settings.noise_scale) <= least * (1 + 2**-22)


@pytest.mark.slow
def test_schedules_count_updates_and_the_noise_follows_the_step(key):
  update = FACTORIES["laplace"](schedule=lambda number: 1 / (1 + number))
  params, noise = jnp.zeros(SHAPE), update.draw(key, jnp.zeros(SHAPE))
  first, later = (
    client_updates.step(update, update.settings, noise, params, jnp.ones(SHAPE), jnp.int32(t))
    for t in (0, 3)
  )
  np.testing.assert_allclose(later, first / 4, rtol=1e-6)
  assert update.noise_variance == FACTORIES["laplace"]().noise_variance


@pytest.mark.slow
def test_the_functions_of_one_update_serve_the_settings_of_another(key):
  soft, hard = laplace_update(given, 0.5, 0.1), laplace_update(given, 2.0, 0.3, clip=0.1)
  noise, gradient = soft.draw(key, jnp.zeros(SHAPE)), jnp.full(SHAPE, 0.7)
  arguments = (noise, jnp.zeros(SHAPE), gradient, jnp.int32(0))
  np.testing.assert_array_equal(
    client_updates.step(soft, hard.settings, *arguments),
    client_updates.step(hard, hard.settings, *arguments),
  )


@pytest.mark.slow
def test_a_flax_model_is_updated_through_its_loss(key):
  network = nn.Dense(2)
  model = Model(
    lambda k: network.init(k, jnp.zeros((1, 3)))["params"],
    lambda p, x: network.apply({"params": p}, x),
  )
  loss = cross_entropy(model)
  client = Examples(jnp.ones((2, 3)), jnp.array([0, 0]), jnp.ones(2))
  params = model.init(key)
  update = exact_update(jax.grad(loss), 0.5)
  moved = client_updates.step(
    update, update.settings, update.draw(key, params), params, client, jnp.int32(0)
  )
  assert jax.tree.structure(moved) == jax.tree.structure(params)
  assert loss(moved, client) < 0.8 * loss(params, client)
  hostile = client._replace(inputs=jnp.full((2, 3), jnp.nan))
  still = client_updates.step(update, update.settings, None, params, hostile, jnp.int32(0))
  np.testing.assert_array_equal(still["kernel"], params["kernel"])


def test_what_the_ledger_holds():
  laplace = FACTORIES["laplace"]().event
  assert laplace.guarantee == PureDP(0.5, unit=Unit.COORDINATE)
  assert (laplace.relation, laplace.observer) == (Relation.REPLACE_ONE, Observer.SERVER)
  assert local_guarantee(Ledger().append(laplace, count=100)).epsilon == 50
  assert FACTORIES["gaussian"](unit="user").event.guarantee == ApproxDP(0.5, 1e-6, unit=Unit.USER)
  assert local_guarantee(Ledger().append(exact_update(given, 0.1).event)).epsilon == math.inf


@pytest.mark.parametrize("factory", FACTORIES.values(), ids=FACTORIES)
@pytest.mark.parametrize("kwargs", [{"clip": 0.0}, {"clip": math.nan}, {"unit": "example"}])
def test_bad_arguments_are_refused(factory, kwargs):
  with pytest.raises(ValueError, match=f"Expected {next(iter(kwargs))} to be"):
    factory(**kwargs)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf, 1e-45])
def test_bad_epsilons_are_refused(epsilon):
  with pytest.raises(ValueError, match=r"Expected (epsilon|noise_scale) to be a finite number > 0"):
    laplace_update(given, epsilon, 0.1)


@pytest.mark.parametrize("rate", [0.0, math.nan, math.inf])
def test_bad_learning_rates_are_refused(rate):
  with pytest.raises(ValueError, match="Expected learning_rate"):
    exact_update(given, rate)
