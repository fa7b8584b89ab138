"""Clients per second of a federated round on logistic regression, and what local privacy costs.

    python -m experiments.benchmarks.federated_round --cohort_size=500 --examples_per_user=10

The baseline is the naive vmap: all clients of the cohort side by side, then one sum. All cases do
the same work with the same keys. Their results agree up to the order of summation.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from jax.flatten_util import ravel_pytree

from experiments.benchmarks import harness
from jdp import data, mechanisms, models, queries, random, sampling, transforms
from jdp.federated import cohort_sum, gradient_step

COHORT_SIZE = flags.DEFINE_integer("cohort_size", 500, "Clients of a round.")
EXAMPLES_PER_USER = flags.DEFINE_integer("examples_per_user", 10, "Examples of a client.")
CHUNK_SIZES = flags.DEFINE_list("chunk_sizes", ["1", "8", "64", "256"], "Chunk sizes to compare.")

_SHAPE, _CLASSES, _USERS = (28, 28), 10, 2000


def _client_fn(
  mechanism: mechanisms.LocalMechanism | None, query: queries.SumQuery, state: Any
) -> Callable[..., jax.Array]:
  loss = models.cross_entropy(models.logistic_regression(_SHAPE, _CLASSES))
  update = gradient_step(loss, learning_rate=0.1)

  def client_fn(key, params, client, weight):
    mechanism_key, query_key = jax.random.split(key)
    difference, _ = ravel_pytree(update(key, params, client))
    vector = difference if mechanism is None else mechanism.privatize(mechanism_key, difference)
    return query.preprocess(query_key, state, vector, weight)

  return client_fn


def _naive(
  client_fn: Callable[..., jax.Array],
  key: jax.Array,
  params: Any,
  sample: sampling.Sample,
  clients: data.Examples,
) -> jax.Array:
  chosen = transforms.members(sample, clients)
  keys = jax.vmap(jax.random.fold_in, (None, 0))(key, sample.indices)
  return jnp.sum(jax.vmap(client_fn, (0, None, 0, 0))(keys, params, chosen, sample.weights), axis=0)


def main(argv: Sequence[str]) -> None:
  """Prints one table for central privacy alone, and one for local and central privacy."""
  del argv
  size, count = COHORT_SIZE.value, EXAMPLES_PER_USER.value
  rng = np.random.default_rng(0)
  clients = data.Examples(
    jnp.asarray(rng.random((_USERS, count, *_SHAPE)), jnp.float32),
    jnp.asarray(rng.integers(0, _CLASSES, (_USERS, count)), jnp.int32),
    jnp.ones((_USERS, count)),
  )
  params = models.logistic_regression(_SHAPE, _CLASSES).init(random.seeded_key(0))
  dim = sum(x.size for x in jax.tree.leaves(params))
  indices = jnp.asarray(rng.choice(_USERS, size, replace=False), jnp.int32)
  sample = sampling.Sample(indices, jnp.ones(size), jnp.int32(size), _USERS)
  query = queries.gaussian_sum(clip_norm=1.0, stddev=1.0)
  state = query.init(jnp.zeros(dim))
  # Only the time of a release matters here, not its error.
  local = mechanisms.separated(mechanisms.priv_unit(dim, 32.0), mechanisms.scalar_dp(10.0, 1.0))
  generators = {"ChaCha20": random.seeded_key(1), "threefry": jax.random.key(1)}
  for title, mechanism in (("central privacy", None), ("local + central privacy", local)):
    client_fn = _client_fn(mechanism, query, state)
    cases = {}
    for generator, key in generators.items():
      naive = functools.partial(
        jax.jit(functools.partial(_naive, client_fn)), key, params, sample, clients
      )
      cases[f"naive vmap, {generator}"] = harness.Case(naive, size)
      for chunk_size in map(int, CHUNK_SIZES.value):
        chunked = functools.partial(cohort_sum, client_fn, chunk_size=chunk_size)
        run = functools.partial(jax.jit(chunked), key, params, sample, clients)
        cases[f"chunks of {chunk_size}, {generator}"] = harness.Case(run, size)
    timings = harness.compare(cases, baseline="naive vmap, ChaCha20", rounds=harness.ROUNDS.value)
    harness.report(
      f"{title}: {size} clients of {count} examples, {dim} weights",
      timings,
      "clients",
      json_path=harness.JSON.value,
    )


if __name__ == "__main__":
  app.run(main)
