"""A record moves the sum of a whole cohort by what it contributes, whatever the others hold."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jdp import mechanisms, queries, transforms
from jdp.events import GaussianSum
from jdp.federated import client_mesh, cohort_sum
from jdp.federated.engine.cohort import unrounded_cohort_sum
from jdp.federated.engine.rounds import replicate
from jdp.mechanisms.streaming import unrounded_stream_sum
from jdp.numerics.compensated import Compensated
from jdp.sampling import Sample
from tests.helpers.processes import one_process_script

pytestmark = pytest.mark.usefixtures("undithered")

# Others that make float32 round by half a unit in the last place, again and again, the same way.
COHORTS = {
  "1,002": np.r_[np.ones(501), np.full(500, -0.99 * 2.0**-15)],
  "16,097": np.r_[np.ones(4096), np.full(12_000, -0.99 * 2.0**-12), 0.0],
  "30,000": np.r_[np.ones(16_383), np.full(13_617, -0.99 * 2.0**-10)],
}
QUERY = queries.gaussian_sum(clip_norm=1.0, stddev=1.0)
QUERIES = {
  "gaussian": QUERY,
  "no noise": queries.gaussian_sum(clip_norm=1.0, stddev=0.0),
  "schedule": queries.gaussian_sum(optax.constant_schedule(1.0), optax.constant_schedule(1.0)),
  "grouped": queries.grouped({"all": QUERY}, "all"),
  "joint": queries.joint_clipped_sum(1.0, 1.0, 1.0),
  "adaptive": queries.adaptive_clipped_sum(1.0, 1000.0, initial_clip_norm=1.0),
  "weighted average": queries.weighted_average(1.0, 1.0, min_total_weight=0.5),
}


@functools.cache
def compiled(query, count, chunk_size, devices, model=1):
  mesh = client_mesh(jax.devices()[:devices], model=model) if devices > 1 else None
  # A record is equally long in each dimension, so it has the norm of one number.
  dim = model * model
  state = QUERIES[query].init(jnp.zeros(dim))

  def contribution(key, shared, record, weight):
    own = jnp.broadcast_to(record / model, (dim,)) + 0.0 * shared
    return QUERIES[query].preprocess(key, state, own, weight)

  def total(records):
    sample = Sample(jnp.arange(count, dtype=jnp.int32), jnp.ones(count), jnp.int32(count), count)
    shared = jnp.zeros(dim)
    if model > 1:
      shared = jax.lax.with_sharding_constraint(shared, NamedSharding(mesh, PartitionSpec("model")))
    return unrounded_cohort_sum(
      contribution, jax.random.key(0), shared, sample, records, chunk_size=chunk_size, mesh=mesh
    )

  return jax.jit(total), mesh


def exact(total):
  """A sum's pairs, in float64."""
  pairs = jax.tree.leaves(total, is_leaf=lambda x: isinstance(x, Compensated))
  return [np.float64(x.value) + np.float64(x.remainder) for x in pairs]


def movement(others, query="gaussian", chunk_size=1, devices=1, model=1, record=1.0):
  """How far one record, instead of zero, moves the sum."""
  run, mesh = compiled(query, len(others) + 1, chunk_size, devices, model)
  rows = [np.r_[first, others].astype(np.float32)[:, None] for first in (record, 0.0)]
  with_it, without = (exact(run(replicate(jnp.asarray(x), mesh))) for x in rows)
  return np.linalg.norm(
    np.concatenate([np.ravel(a - b) for a, b in zip(with_it, without, strict=True)])
  )


@pytest.mark.sweep
@pytest.mark.parametrize(
  ("chunk_size", "devices", "model"),
  [
    *((1, 1, 1), (16, 1, 1), (64, 1, 1), (1000, 1, 1), (1, 2, 1), (64, 2, 1), (16, 4, 1)),
    *((16, 4, 2), (64, 4, 4)),
  ],
)
def test_no_record_moves_a_sum_by_more_than_its_bound(chunk_size, devices, model):
  """Plain float32 sums move by up to 1.015, 3.93 and 12."""
  for others in COHORTS.values():
    moved = movement(others, chunk_size=chunk_size, devices=devices, model=model)
    assert 1 - 1e-5 < moved <= 1 + 1e-6


@pytest.mark.sweep
@pytest.mark.parametrize("block_size", [1, 3])
@pytest.mark.parametrize("cohort", ["1,002", "16,097"])  # one block of parts, and several
def test_no_release_moves_a_streamed_sum_by_more_than_its_bound(cohort, block_size):
  """Releases that are the values themselves, at most eight of which are added up in float32 at
  once.
  """
  identity = mechanisms.priv_unit(2, 1.0)._replace(
    privatize_sum=lambda keys, values, weights: jnp.sum(weights[:, None] * values, axis=0)
  )
  rows = np.r_[1.0, COHORTS[cohort]].astype(np.float32)[:, None]
  keys = jax.random.split(jax.random.key(0), len(rows))
  run = jax.jit(functools.partial(unrounded_stream_sum, identity, block_size=block_size))
  with_it, without = (
    exact(run(keys, x))[0] for x in (rows, np.r_[np.zeros_like(rows[:1]), rows[1:]])
  )
  assert 1 - 3.1e-5 <= with_it[0] - without[0] <= 1 + 3.1e-5


@pytest.mark.slow
def test_no_record_moves_a_sum_over_eight_devices_by_more_than_its_bound():
  """In a process of its own, as this one has four; plain float32 sums move by up to 1.003."""
  chunk_sizes = ["1", "16", "64"]
  found = json.loads(one_process_script.printed("eight_devices.py", *chunk_sizes, devices=8))
  moved = np.array([found[chunk_size] for chunk_size in chunk_sizes])
  assert moved.shape == (3, len(COHORTS))
  assert np.all((moved > 1 - 1e-5) & (moved <= 1 + 1e-6)), moved


@pytest.mark.sweep
@pytest.mark.parametrize("query", QUERIES)
def test_no_query_lets_a_record_move_its_sum_by_more(query):
  """The weight, or the count of unclipped records, moves too: by as much again, or half of it."""
  most = {"weighted average": np.sqrt(2), "adaptive": np.sqrt(1.25)}.get(query, 1)
  assert movement(COHORTS["16,097"], query) <= most * (1 + 1e-6)


@pytest.mark.parametrize("seed", range(20))
def test_random_records_move_sums_by_what_they_contribute(seed):
  """Whatever the others' sizes; plain float32 sums are off by up to 3e-3."""
  rng = np.random.default_rng(seed)
  others = rng.choice([-1.0, 1.0], 4000) * 2.0 ** rng.uniform(-30, rng.uniform(-20, 0), 4000)
  record = float(2.0 ** rng.uniform(-20, 0))
  alone = np.float64(
    QUERY.preprocess(jax.random.key(0), QUERY.init(None), jnp.float32(record), 1.0)
  )
  assert abs(movement(others, record=record) - abs(alone)) <= 1e-9


def test_noise_is_added_before_the_sum_is_rounded():
  """The release is the exact sum and the noise, rounded once: within half a unit in the last place
  of a float.
  """
  run, _ = compiled("gaussian", 16_384, 1, 1)
  rows = np.r_[np.ones(16_383), 0.3].astype(np.float32)[:, None]
  total, key, state = run(jnp.asarray(rows)), jax.random.key(7), QUERY.init(jnp.zeros(1))
  noise, _, _ = QUERY.finalize(key, state, jnp.zeros(1))
  released, _, _ = QUERY.finalize(jax.random.clone(key), state, total)
  assert released == np.float32(exact(total)[0] + np.float64(noise))


def test_privatize_sums_its_rows_exactly():
  query, others = queries.gaussian_sum(1.0, 1e-6), COHORTS["16,097"]
  optimizer = transforms.privatize(query, jax.random.key(0))
  state = optimizer.init(jnp.zeros(1))
  rows = [jnp.asarray(np.r_[first, others], jnp.float32)[:, None] for first in (1.0, 0.0)]
  with_it, without = (np.float64(jax.jit(optimizer.update)(x, state)[0][0]) for x in rows)
  assert abs(with_it - without) <= 1 + 2 * np.spacing(np.float32(with_it))  # each is rounded once


def test_a_sum_of_more_contributions_than_are_exact_is_refused():
  slots = 2**21 + 1
  sample = Sample(jnp.zeros(slots, jnp.int32), jnp.zeros(slots), jnp.int32(0), 1)
  with pytest.raises(ValueError, match=r"Expected a sample of at most 2\^21 slots"):
    cohort_sum(lambda key, shared, client, weight: client, None, (), sample, jnp.zeros(1))


def test_a_query_of_ones_own_that_knows_no_pairs_is_given_plain_sums():
  """Mapped over, a pair would have its noise twice, and lose it by a subtraction."""

  def finalize(key, state, total):
    noised = jax.tree.map(lambda x: x + jax.random.normal(key, x.shape), total)
    return noised, GaussianSum(1.0, 1.0), state

  own = queries.SumQuery(QUERY.init, QUERY.preprocess, finalize)
  for query in (own, queries.grouped({"all": own}, "all")):
    optimizer = transforms.privatize(query, jax.random.key(0))
    result, _ = jax.jit(optimizer.update)(jnp.ones((5, 3)), optimizer.init(jnp.zeros(3)))
    assert isinstance(result, jax.Array)
    assert result.shape == (3,)
