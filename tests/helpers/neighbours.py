"""Data sets that differ in one user, and procedures whose rounds they go through.

The user is empty or gone, of usual size, the largest by far, or hostile. Everything else of a round
is the same: keys, state, the other users. `python -m tests.helpers.neighbours` tries all of them
under all types of keys, which takes minutes.
"""

import dataclasses
import functools
import itertools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from jdp import data, matrix_factorization, mechanisms, models, queries, random, sampling
from jdp.conformance.neighbours import movements, observed
from jdp.federated import (
  client_mesh,
  federated_averaging,
  fixed_denominator,
  flat_clipping,
  gradient_step,
  local_sgd,
  per_layer_clipping,
  private_federated,
  proximal_point,
  weight_by_examples,
)

USERS, SHAPE, CLASSES, BOUND, CLIP = 24, (6, 6), 3, 40, 0.5
ROUNDING = 1e-6  # of a sum's sensitivity, by `jdp.numerics.compensated`
KEYS = {
  "threefry": jax.random.key,
  "rbg": functools.partial(jax.random.key, impl="rbg"),
  "unsafe_rbg": functools.partial(jax.random.key, impl="unsafe_rbg"),
  "chacha": random.seeded_key,
}
SGD = optax.sgd(1.0)


class Dropping(nn.Module):
  """A network that drops half of its hidden units in training."""

  @nn.compact
  def __call__(self, x, train=False):
    x = nn.relu(nn.Dense(16)(x.reshape(x.shape[0], -1)))
    return nn.Dense(CLASSES)(nn.Dropout(0.5, deterministic=not train)(x))


@functools.cache
def model(name):
  """(model, parameters)"""
  made = {
    "logistic": lambda: models.logistic_regression(SHAPE, CLASSES),
    "mlp": lambda: models.from_flax(
      nn.Sequential(
        [lambda x: x.reshape(x.shape[0], -1), nn.Dense(40), nn.tanh, nn.Dense(CLASSES)]
      ),
      SHAPE,
    ),
    "dropout": lambda: models.from_flax(Dropping(), SHAPE),
    "cnn": lambda: models.from_flax(
      nn.Sequential(
        [
          lambda x: x[..., None],
          nn.Conv(4, (3, 3)),
          nn.relu,
          lambda x: x.reshape(x.shape[0], -1),
          nn.Dense(CLASSES),
        ]
      ),
      SHAPE,
    ),
  }[name]()
  return made, made.init(jax.random.key(0))


@functools.cache
def loss(name):
  """The loss, of parameters in 16 bits too."""
  whole = models.cross_entropy(model(name)[0])
  if name != "dropout":
    return lambda params, examples: whole(in_dtype(params, jnp.float32), examples)
  return whole


def in_dtype(params, dtype):
  return jax.tree.map(lambda x: x.astype(dtype), params)


def examples_of(seed, count, scale=1.0):
  rng = np.random.default_rng(seed)
  return (scale * rng.normal(size=(count, *SHAPE))).astype(np.float32), rng.integers(
    0, CLASSES, count
  )


def hostile(name):
  inputs, labels = examples_of(99, 10)
  if name == "cancelling":
    half_of = np.repeat(inputs[:5], 2, axis=0)
    half_of[1::2] *= -1
    return half_of, np.repeat(labels[:5], 2)
  values = {"huge": 1e30, "tiny": 1e-30}
  return inputs * np.float32(values[name]), labels


CHANGES = {
  "usual": lambda: examples_of(7, 12),
  "one": lambda: examples_of(8, 1, 100.0),
  "largest": lambda: examples_of(9, BOUND, 10.0),
  **{name: functools.partial(hostile, name) for name in ("huge", "tiny", "cancelling")},
}
OTHERS = [examples_of(100 + number, 3 + 5 * number % 18, 3.0) for number in range(USERS - 1)]
ROWS = sum(len(labels) for _, labels in OTHERS) + 3 * BOUND
EMPTY = (np.zeros((0, *SHAPE), np.float32), np.zeros(0, int))


def packed(place, own, bound=BOUND):
  """All users, with the victim at a place; without it if there is nothing for it."""
  users = [*zip(itertools.count(), OTHERS, strict=False)]
  if own is not None:
    users.insert(place, ("victim", own))
  names, pairs = zip(*users, strict=True)
  made = data.clients_from_pairs(pairs, names=names, max_examples=bound)

  # One shape for all data sets of so many users: less to compile.
  def lengthened(x):
    return np.concatenate([x, np.zeros((ROWS - len(x), *x.shape[1:]), x.dtype)])

  return dataclasses.replace(made, examples=jax.tree.map(lengthened, made.examples))


def poisoned(clients, place, value):
  """The users, of whom the victim's examples hold a value that no reader lets in."""
  rows = slice(clients.starts[place], clients.starts[place] + clients.counts[place])
  inputs = clients.examples.inputs.copy()
  inputs[rows] = value
  return dataclasses.replace(clients, examples=clients.examples._replace(inputs=inputs))


def neighbours(place):
  found = {name: packed(place, own()) for name, own in CHANGES.items()}
  for name, value in (("NaN", np.nan), ("infinity", np.inf)):
    found[name] = poisoned(found["usual"], place, value)
  return found


def average(clip=flat_clipping):
  return observed(fixed_denominator(clip(CLIP), 1.0, 8.0))


def averaging(update, query=None, probability=1.0, **options):
  @functools.cache
  def make(population):
    sampler = sampling.poisson(population, probability)
    return federated_averaging(update, query or average(), sampler, SGD, **options)

  return make


def local(name, **options):
  return averaging(local_sgd(loss(name), 0.5, batch_size=10, num_epochs=2), **options)


def step(name, **options):
  return averaging(gradient_step(loss(name), 0.5), **options)


def over_mechanism(name, mechanism):
  @functools.cache
  def make(population):
    return private_federated(
      local_sgd(loss(name), 0.5, batch_size=4),
      observed(queries.average(queries.gaussian_sum(CLIP, 1.0), 8.0)),
      sampling.poisson(population, 1.0),
      SGD,
      mechanism=mechanism,
      chunk_size=4,
    )

  return make


def correlated():
  strategy = matrix_factorization.banded_toeplitz(8, 2)
  return observed(
    fixed_denominator(flat_clipping(CLIP), 1.0, 8.0, strategy=strategy, min_separation=2)
  )


def layers():
  return observed(fixed_denominator(per_layer_clipping(model("mlp")[1], CLIP), 1.0, 8.0))


LOGISTIC, MLP, DROPOUT, CNN = (model(name)[1] for name in ("logistic", "mlp", "dropout", "cnn"))
# Whoever is deleted moves the coins by which the others are sampled. They are secret.
COINS_BY_ROW = ("local SGD, sampled",)
# A user without examples sends a release all the same.
ALWAYS_SENT = ("PrivUnit",)
DIM = sum(leaf.size for leaf in jax.tree.leaves(LOGISTIC))
CASES = {
  "local SGD": (local("mlp"), MLP),
  "local SGD, chunks": (local("mlp", chunk_size=8), MLP),
  "local SGD, sampled": (local("logistic", probability=0.5), LOGISTIC),
  "local SGD, two devices": (local("mlp", mesh=client_mesh(jax.devices()[:2])), MLP),
  "local SGD, four devices": (local("mlp", mesh=client_mesh(), chunk_size=2), MLP),
  "local SGD, unprojected": (local("mlp", project=False), MLP),
  "local SGD, dropout": (local("dropout", chunk_size=4), DROPOUT),
  "local SGD, CNN": (local("cnn"), CNN),
  "local SGD, weighted": (local("logistic", weight=weight_by_examples(20)), LOGISTIC),
  "local SGD, correlated noise": (local("logistic", query=correlated()), LOGISTIC),
  "local SGD, per layer": (local("mlp", query=layers()), MLP),
  "one step": (step("mlp"), MLP),
  "one step, gradients": (step("mlp", ghost_norms=False), MLP),
  "one step, chunks": (step("mlp", chunk_size=8), MLP),
  "one step, ghost norms": (step("mlp", ghost_norms=True, chunk_size=8), MLP),
  "one step, logistic, ghost norms": (
    step("logistic", ghost_norms=True, chunk_size=4),
    LOGISTIC,
  ),
  "one step, CNN, ghost norms": (step("cnn", ghost_norms=True, chunk_size=4), CNN),
  "one step, dropout": (step("dropout"), DROPOUT),
  "one step, dropout, ghost norms": (step("dropout", ghost_norms=True, chunk_size=8), DROPOUT),
  "one step, bfloat16, ghost norms": (
    step("mlp", ghost_norms=True, chunk_size=8),
    in_dtype(MLP, jnp.bfloat16),
  ),
  "one step, float16": (step("mlp"), in_dtype(MLP, jnp.float16)),
  "proximal point": (
    averaging(proximal_point(loss("logistic"), 0.5, num_iterations=3)),
    LOGISTIC,
  ),
  "local and central": (over_mechanism("logistic", None), LOGISTIC),
  "PrivUnit": (over_mechanism("logistic", mechanisms.priv_unit(DIM, 4.0)), LOGISTIC),
}


def largest_movements(case, key, place, clients, num_rounds=2):
  """The farthest that each neighbour moves the sum of a round."""
  make, params = CASES[case]
  found = movements(
    make,
    params,
    packed(place, EMPTY),
    clients,
    num_rounds=num_rounds,
    noise_key=KEYS[key](3),
    data_key=KEYS[key](4),
  )
  return {name: max(own) for name, own in found.items()}


def main():
  """Prints the farthest of all, in units of the clip norm, and how many sums were compared."""
  farthest, compared = {}, 0
  for case, key, place in itertools.product(CASES, KEYS, (0, 11, USERS - 1)):
    gone = {} if case in COINS_BY_ROW else {"gone": packed(place, None)}
    found = largest_movements(case, key, place, neighbours(place) | gone)
    compared += 2 * len(found)
    assert case in ALWAYS_SENT or found.get("gone", 0) == 0, (case, key, place)
    farthest[case] = max(farthest.get(case, 0), *found.values())
    if place == USERS - 1:
      print(f"{case}, {key}: {farthest[case] / CLIP:.8f} after {compared} sums", flush=True)


if __name__ == "__main__":
  main()
