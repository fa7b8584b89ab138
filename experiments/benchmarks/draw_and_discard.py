"""Updates per second of Draw and Discard.

Run it as `python -m experiments.benchmarks.draw_and_discard`. The model is multinomial regression
with 784 features and 10 classes. Each update has 10 examples and Laplace noise. The baseline is a
numpy loop written directly from the paper. The naive scan is that loop, compiled, with noise drawn
update by update.

A second table times a million updates (`--long_updates`) of a logistic regression with 1,000
features, and extrapolates to a billion.
"""

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

from experiments.benchmarks import harness
from jdp import random
from jdp.data import Examples
from jdp.federated.draw_and_discard import draw_and_discard_process, spread_instances
from jdp.federated.draw_and_discard.client_updates import ClientUpdate, exact_update, laplace_update
from jdp.federated.draw_and_discard.update_stream import arrivals
from jdp.models.generalised_linear import glm

UPDATES = flags.DEFINE_integer("updates", 4096, "Updates of one run.", lower_bound=1)
LONG_UPDATES = flags.DEFINE_integer(
  "long_updates", 1_000_000, "Updates of the long run; 0: none.", lower_bound=0
)

_FEATURES, _CLASSES, _EXAMPLES, _USERS, _INSTANCES = 784, 10, 10, 6000, 20
_RATE, _EPSILON = 0.1, 1.0


def _data(features: int, classes: int) -> Examples:
  rng = np.random.default_rng(0)
  inputs = rng.random((_USERS, _EXAMPLES, features), np.float32)
  labels = rng.integers(0, classes, (_USERS, _EXAMPLES)).astype(np.int32)
  return Examples(jnp.asarray(inputs), jnp.asarray(labels), jnp.ones((_USERS, _EXAMPLES)))


def _numpy_loop(inputs: np.ndarray, labels: np.ndarray, count: int) -> np.ndarray:
  rng = np.random.default_rng(0)
  models, one_hot = np.zeros((_INSTANCES, _FEATURES, _CLASSES)), np.eye(_CLASSES)
  for t in range(count):
    theta, x = models[rng.integers(_INSTANCES)], inputs[t % _USERS]
    scores = x @ theta
    chances = np.exp(scores - scores.max(axis=1, keepdims=True))
    chances /= chances.sum(axis=1, keepdims=True)
    gradient = np.clip(x.T @ (chances - one_hot[labels[t % _USERS]]) / _EXAMPLES, -1, 1)
    noise = rng.laplace(scale=2 * _RATE / _EPSILON, size=theta.shape)
    models[rng.integers(_INSTANCES)] = theta - _RATE * gradient + noise
  return models


def _naive_scan(key: jax.Array, clients: Examples, users: jax.Array) -> jax.Array:
  def update(models, key_and_user):
    own_key, user = key_and_user
    choice_key, noise_key = jax.random.split(own_key)
    drawn, discarded = jax.random.randint(choice_key, (2,), 0, _INSTANCES)
    theta, x = models[drawn], clients.inputs[user]
    residuals = jax.nn.softmax(x @ theta) - jax.nn.one_hot(clients.labels[user], _CLASSES)
    noise = 2 * _RATE / _EPSILON * jax.random.laplace(noise_key, theta.shape)
    theta = theta - _RATE * jnp.clip(x.T @ residuals / _EXAMPLES, -1.0, 1.0) + noise
    return models.at[discarded].set(theta), None

  keys = jax.random.split(key, users.shape[0])
  return jax.lax.scan(update, jnp.zeros((_INSTANCES, _FEATURES, _CLASSES)), (keys, users))[0]


def _jdp(
  update: ClientUpdate,
  params: jax.Array,
  clients: Examples,
  users: jax.Array,
  key: jax.Array,
  **options: Any,
) -> Callable[[], Any]:
  process = draw_and_discard_process(update, _INSTANCES, **options)
  state = process.init(
    spread_instances(jax.random.key(1), params, _INSTANCES, update.noise_variance)
  )
  coming = arrivals(users, _USERS)
  return functools.partial(jax.jit(process.run), key, state, coming, clients, update.settings)


def _compare() -> None:
  count, clients = UPDATES.value, _data(_FEATURES, _CLASSES)
  users = jnp.arange(count, dtype=jnp.int32) % _USERS
  inputs, labels = np.asarray(clients.inputs, np.float64), np.asarray(clients.labels)
  model = glm("multinomial", (_FEATURES,), _CLASSES)
  run = functools.partial(
    _jdp,
    params=jnp.zeros((_CLASSES, _FEATURES)),
    clients=clients,
    users=users,
    key=jax.random.key(0),
  )
  laplace, exact = (
    laplace_update(model.gradient, _EPSILON, _RATE),
    exact_update(model.gradient, _RATE),
  )
  # The numpy loop is slow; its rate does not depend on the number of updates.
  few = max(1, count // 4)
  cases = {
    "numpy loop": harness.Case(functools.partial(_numpy_loop, inputs, labels, few), few),
    "naive scan": harness.Case(
      functools.partial(jax.jit(_naive_scan), jax.random.key(0), clients, users), count
    ),
    "jdp, threefry": harness.Case(run(laplace), count),
    "jdp, ChaCha8": harness.Case(run(laplace, key=random.seeded_key(0, "chacha8")), count),
    "jdp, ChaCha20": harness.Case(run(laplace, key=random.seeded_key(0)), count),
    "jdp, threefry, 100 clients at once": harness.Case(run(laplace, in_flight=100), count),
    "jdp, without noise": harness.Case(run(exact), count),
  }
  timings = harness.compare(cases, baseline="numpy loop", rounds=harness.ROUNDS.value)
  title = (
    f"{_FEATURES} x {_CLASSES} weights, {_EXAMPLES} examples, Laplace noise, {_INSTANCES} instances"
  )
  harness.report(title, timings, "updates", json_path=harness.JSON.value)


def _long_run() -> None:
  features, count = 1000, LONG_UPDATES.value
  update = laplace_update(glm("logistic", (features,)).gradient, _EPSILON, _RATE)
  users = jnp.arange(count, dtype=jnp.int32) % _USERS
  run = _jdp(update, jnp.zeros((1, features)), _data(features, 2), users, jax.random.key(0))
  jax.block_until_ready(run())
  start = time.perf_counter()
  jax.block_until_ready(run())
  seconds = time.perf_counter() - start
  timing = harness.Timing("jdp, threefry", seconds, count / seconds, 1.0)
  harness.report(
    f"{features:,} features, {count:,} updates", [timing], "updates", json_path=harness.JSON.value
  )
  print(f"a billion updates would take {1e9 / count * seconds / 3600:.1f} hours")


def main(argv: Sequence[str]) -> None:
  """Prints one table for each model."""
  del argv
  _compare()
  if LONG_UPDATES.value:
    _long_run()


if __name__ == "__main__":
  app.run(main)
