"""Data sets that differ in one user, and procedures whose rounds they go through.

The user is empty or gone, of usual size, the largest by far, or hostile. Everything else of a round
is the same: keys, state, the other users. `python -m tests.helpers.neighbours` tries all of them
under all types of keys, on up to eight devices, which takes an hour.
"""

import dataclasses
import functools
import itertools
import math
import os
from collections.abc import Callable
from typing import Any, NamedTuple

# For the command. The tests begin with four devices.
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from jdp import data, matrix_factorization, mechanisms, models, queries, random, sampling
from jdp.conformance.neighbours import movements, observed
from jdp.conformance.reference_queries import audited
from jdp.federated import (
  add_updates,
  client_mesh,
  example_gradient,
  federated_averaging,
  fixed_denominator,
  flat_clipping,
  gradient_step,
  local_sgd,
  per_layer_clipping,
  private_federated,
  proximal_point,
  rounds,
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


def packed(place, own, bound=BOUND, rows=ROWS):
  """All users, with the victim at a place; without it if there is nothing for it.

  Without a bound, all are padded to the largest.
  """
  users = [*zip(itertools.count(), OTHERS, strict=False)]
  if own is not None:
    users.insert(place, ("victim", own))
  names, pairs = zip(*users, strict=True)
  made = data.clients_from_pairs(pairs, names=names, max_examples=bound)

  # One shape for all data sets of so many users: less to compile.
  def lengthened(x):
    return np.concatenate([x, np.zeros((rows - len(x), *x.shape[1:]), x.dtype)])

  return dataclasses.replace(made, examples=jax.tree.map(lengthened, made.examples))


def poisoned(clients, place, value):
  """The users, of whom the victim's examples hold a value that no reader lets in."""
  rows = slice(clients.starts[place], clients.starts[place] + clients.counts[place])
  inputs = clients.examples.inputs.copy()
  inputs[rows] = value
  return dataclasses.replace(clients, examples=clients.examples._replace(inputs=inputs))


def users(place):
  """(data where the victim has no examples, neighbours by name)"""
  found = {name: packed(place, own()) for name, own in CHANGES.items()}
  for name, value in (("NaN", np.nan), ("infinity", np.inf)):
    found[name] = poisoned(found["usual"], place, value)
  return packed(place, EMPTY), found | {"gone": packed(place, None)}


def added(data, place):
  """(data where the victim is gone, neighbours by name), for who sends something when empty too."""
  _, found = data(place)
  return found.pop("gone"), found


def larger_users(bound, place):
  """The victim has 1 to 1,000 examples more than the largest of the others."""
  largest, rows = max(len(labels) for _, labels in OTHERS), ROWS + 2 * 1024
  found = {
    f"{more} more": packed(place, examples_of(more, largest + more), bound, rows)
    for more in (1, 2, 3, 13, 100, 1000)
  }
  return packed(place, EMPTY, bound, rows), found


def examples(place):
  """Examples in the place of users, for DP-SGD."""
  inputs, labels = examples_of(5, USERS, 3.0)
  mask = np.ones(USERS, np.float32)
  all_of_them = data.Examples(inputs, labels.astype(np.int32), mask)

  def own(x):
    changed = inputs.copy()
    changed[place] = x
    return all_of_them._replace(inputs=changed)

  values = {"huge": 1e30, "tiny": 1e-30, "large": 50.0, "NaN": np.nan, "infinity": np.inf}
  found = {name: own(np.float32(value)) for name, value in values.items()}
  gone = jax.tree.map(lambda x: np.delete(x, place, axis=0), all_of_them)
  absent = all_of_them._replace(mask=np.where(np.arange(USERS) == place, 0, mask))
  return absent, found | {"usual": all_of_them, "gone": gone}


def records(like, place):
  """Records in the place of users' data, for a query alone."""
  rng = np.random.default_rng(6)
  others = jax.tree.map(
    lambda x: (2 * rng.normal(size=(USERS, *x.shape)) / math.sqrt(x.size)).astype(np.float32), like
  )

  def own(value):
    def changed(x):
      made = x.copy()
      made[place] = value * (rng.normal(size=x.shape[1:]) if np.isfinite(value) else 1)
      return made

    return jax.tree.map(changed, others)

  values = (0.3, 1.0, 7.0, 1e30, 1e-20, np.nan, np.inf)
  return own(0.0), {str(value): own(value) for value in values} | {
    "gone": jax.tree.map(lambda x: np.delete(x, place, axis=0), others)
  }


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


def by_example(name, **options):
  return averaging(example_gradient(loss(name)), unit="example", **options)


def of_records(name):
  """Rounds of a registered query, whose records are the clients' data."""

  @functools.cache
  def make(population):
    query = observed(audited()[name].make())
    sampler = sampling.poisson(population, 1.0)
    return rounds(
      lambda keys, sent, own: (own, {}), query, sampler, add_updates(SGD), relation="zero_out"
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
DIM = sum(leaf.size for leaf in jax.tree.leaves(LOGISTIC))


class Case(NamedTuple):
  """A procedure, and what it is tried on.

  Attributes:
    make: see `movements`.
    params: what training begins with.
    most: by how much one client may move a sum.
    data: place of the victim -> (data without it, neighbours by name).
    coins_by_row: whether one who is deleted moves the coins by which the others are sampled. They
      are secret.
    num_rounds: how many are compared. One where clip norms follow from earlier releases.
  """

  make: Callable[[int], Any]
  params: Any
  most: float = CLIP
  data: Callable[[int], Any] = users
  coins_by_row: bool = False
  num_rounds: int = 2


def of_query(name, query):
  """The case of a query alone."""
  data = functools.partial(records, query.victim)
  empty_ones_count = name in ("weighted_average", "adaptive", "correlated_adaptive")
  return Case(
    of_records(name),
    jax.tree.map(np.zeros_like, query.victim),
    _MOST.get(name, 1.0),
    functools.partial(added, data) if empty_ones_count else data,
    num_rounds=1 if "adaptive" in name else 2,
  )


CASES = {
  "local SGD": Case(local("mlp"), MLP),
  "local SGD, chunks": Case(local("mlp", chunk_size=8), MLP),
  "local SGD, sampled": Case(local("logistic", probability=0.5), LOGISTIC, coins_by_row=True),
  "local SGD, two devices": Case(local("mlp", mesh=client_mesh(jax.devices()[:2])), MLP),
  "local SGD, all devices": Case(local("mlp", mesh=client_mesh(), chunk_size=2), MLP),
  "local SGD, unprojected": Case(local("mlp", project=False), MLP),
  "local SGD, dropout": Case(local("dropout", chunk_size=4), DROPOUT),
  "local SGD, CNN": Case(local("cnn"), CNN),
  "local SGD, weighted": Case(local("logistic", weight=weight_by_examples(20)), LOGISTIC),
  "local SGD, correlated noise": Case(local("logistic", query=correlated()), LOGISTIC),
  "local SGD, per layer": Case(local("mlp", query=layers()), MLP),
  "one step": Case(step("mlp"), MLP),
  "one step, gradients": Case(step("mlp", ghost_norms=False), MLP),
  "one step, chunks": Case(step("mlp", chunk_size=8), MLP),
  "one step, ghost norms": Case(step("mlp", ghost_norms=True, chunk_size=8), MLP),
  "one step, logistic, ghost norms": Case(
    step("logistic", ghost_norms=True, chunk_size=4), LOGISTIC
  ),
  "one step, CNN, ghost norms": Case(step("cnn", ghost_norms=True, chunk_size=4), CNN),
  "one step, dropout": Case(step("dropout"), DROPOUT),
  "one step, dropout, ghost norms": Case(step("dropout", ghost_norms=True, chunk_size=8), DROPOUT),
  "one step, bfloat16, ghost norms": Case(
    step("mlp", ghost_norms=True, chunk_size=8), in_dtype(MLP, jnp.bfloat16)
  ),
  "one step, float16": Case(step("mlp"), in_dtype(MLP, jnp.float16)),
  "proximal point": Case(
    averaging(proximal_point(loss("logistic"), 0.5, num_iterations=3)), LOGISTIC
  ),
  "local and central": Case(over_mechanism("logistic", None), LOGISTIC),
  "PrivUnit": Case(
    over_mechanism("logistic", mechanisms.priv_unit(DIM, 4.0)),
    LOGISTIC,
    data=functools.partial(added, users),
  ),
  "DP-SGD": Case(by_example("mlp"), MLP, data=examples),
}
_LENGTHS = functools.partial(larger_users, 1024), functools.partial(larger_users, None)
# By how much a record may move the sums of a query, all of them together.
_MOST = {
  "weighted_average": math.sqrt(2),
  "adaptive": math.sqrt(1.25),
  "correlated_adaptive": math.sqrt(1.25),
  "grouped": math.sqrt(5),
}
# Clients add noise, or integers, and no vector of the clip norm.
_OTHER_QUERIES = {
  "no_privacy",
  "discrete_gaussian",
  "discrete_skellam",
  "distributed_integers",
  "correlated_integers",
  "distributed",
}
# What the command tries beside them.
MORE_CASES = {
  "local SGD, 1,024 examples": Case(local("logistic"), LOGISTIC, data=_LENGTHS[0]),
  "local SGD, padded to the largest": Case(local("logistic"), LOGISTIC, data=_LENGTHS[1]),
  "local SGD, logistic, all devices": Case(local("logistic", mesh=client_mesh()), LOGISTIC),
  "one step, 1,024 examples": Case(step("logistic", ghost_norms=False), LOGISTIC, data=_LENGTHS[0]),
  "one step, all devices": Case(step("mlp", mesh=client_mesh()), MLP),
  "one step, ghost norms, one by one": Case(step("mlp", ghost_norms=True, chunk_size=1), MLP),
  "one step, ghost norms, all devices": Case(
    step("mlp", ghost_norms=True, chunk_size=2, mesh=client_mesh()), MLP
  ),
  "one step, bfloat16": Case(step("mlp"), in_dtype(MLP, jnp.bfloat16)),
  "one step, bfloat16, CNN, ghost norms": Case(
    step("cnn", ghost_norms=True, chunk_size=4), in_dtype(CNN, jnp.bfloat16)
  ),
  "one step, float16, ghost norms": Case(
    step("mlp", ghost_norms=True, chunk_size=8), in_dtype(MLP, jnp.float16)
  ),
  "DP-SGD, gradients": Case(by_example("mlp", chunk_size=1), MLP, data=examples),
  "DP-SGD, ghost norms": Case(
    by_example("mlp", ghost_norms=True, chunk_size=8), MLP, data=examples
  ),
  "DP-SGD, CNN": Case(by_example("cnn", chunk_size=4), CNN, data=examples),
  "DP-SGD, all devices": Case(by_example("logistic", mesh=client_mesh()), LOGISTIC, data=examples),
  "DP-SGD, bfloat16": Case(
    by_example("mlp", ghost_norms=True, chunk_size=4), in_dtype(MLP, jnp.bfloat16), data=examples
  ),
} | {
  f"query {name}": of_query(name, query)
  for name, query in audited().items()
  if name not in _OTHER_QUERIES
}


def largest_movements(case, key, place):
  """The farthest that each neighbour moves the sum of a round."""
  without, neighbours = case.data(place)
  if case.coins_by_row:
    del neighbours["gone"]
  found = movements(
    case.make,
    case.params,
    without,
    neighbours,
    num_rounds=case.num_rounds,
    noise_key=KEYS[key](3),
    data_key=KEYS[key](4),
  )
  return {name: max(own) for name, own in found.items()}


def main():
  """Prints the farthest of all, in units of what is allowed, and how many sums were compared."""
  compared = 0
  for key, (name, case) in itertools.product(KEYS, (CASES | MORE_CASES).items()):
    farthest = 0.0
    for place in (0, 11, USERS - 1):
      found = largest_movements(case, key, place)
      compared += case.num_rounds * len(found)
      gone = found.get("gone", 0)
      assert gone <= ROUNDING * case.most, (name, key, place, gone)
      farthest = max(farthest, *found.values())
    print(f"{name}, {key}: {farthest / case.most:.8f} after {compared} sums", flush=True)
    jax.clear_caches()  # A process may not hold as many programs as there are cases.


if __name__ == "__main__":
  main()
