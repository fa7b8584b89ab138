"""jdp's own parts: clipping, sums, noise, samplers, accountants, strategies, all registered."""

import itertools
import math
from collections.abc import Callable, Iterator
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import jdp
from experiments.conformance.adapters.wrapping import noise_covariance, unsampled_replace_one
from jdp import accounting, federated, matrix_factorization, queries, transforms
from jdp.conformance import (
  Accountant,
  Aggregate,
  Calibration,
  Clip,
  Implementation,
  MatrixStrategy,
  Noise,
  Release,
  Sampling,
  Subject,
)
from jdp.conformance.protocol import Part, Plan, add_remove_ledger
from jdp.conformance.queries import registered_query_subjects
from jdp.conformance.reference_queries import audited
from jdp.conformance.subjects import sharpest_subject
from jdp.guarantees import Relation
from jdp.ledger import Ledger
from jdp.matrix_factorization import Strategy
from jdp.mechanisms import registry as mechanisms
from jdp.numerics import vectors
from jdp.numerics.compensated import rounded, sum_rows
from jdp.queries import SumQuery
from jdp.queries.base import PyTree, State, taken
from jdp.sampling import Sample, Sampler
from jdp.sampling import registry as samplers

Draw = Callable[[State, jax.Array], tuple[State, tuple[jax.Array, jax.Array]]]
"""(state, keys of rounds) -> (state, (indices, whether each is a member) of each round)."""

_DIM = 4
_FEW, _MANY = 32, 2**14  # slots of a padded cohort; the largest has 16,097 records
_NOISE_SIZE = 4096
_POPULATION = 12
_STDDEV = 2.0
_PATTERNS = ((1, 1), (1, 3), (2, 3), (3, 4), (4, 3), (1, 12))


def implementation() -> Implementation:
  """jdp with all its parts."""
  parts = (*_clips(), *_sums(), *_noises(), *_samplings(), *_accountants(), *_strategies())
  return Implementation("jdp", jdp.__version__, (*parts, *_releases()))


def _clips() -> Iterator[Part]:
  yield Clip("jdp.numerics.vectors.clip", jax.jit(lambda x: vectors.clip(x, 1.0)), 1.0)


def _sums() -> Iterator[Part]:
  """Queries without noise, on cohorts that are padded with records of NaN."""
  plain = queries.gaussian_sum(1.0, 0.0)
  record = {"a": np.zeros(2, np.float32), "b": np.zeros(_DIM - 2, np.float32)}
  cases = [
    ("gaussian_sum", plain, _whole, 1.0, 2.0),
    ("average(gaussian_sum)", queries.average(plain, 4.0), _whole, 0.25, 0.5),
    (
      "weighted_average",
      queries.weighted_average(1.0, 0.0, min_total_weight=2.0),
      _whole,
      2 / 3,
      1.0,
    ),
    ("per_layer", queries.per_layer(record, 1.0, 0.0), _halves, 1.0, 2.0),
    ("joint_clipped_sum", queries.joint_clipped_sum(1.0, 1.0, 0.0), _halves, 1.0, 2.0),
  ]
  for name, query, shape, added, replaced in cases:
    apply = _noiseless(query, shape)
    for relation, sensitivity in ((Relation.ADD_REMOVE, added), (Relation.REPLACE_ONE, replaced)):
      yield Aggregate(f"jdp.queries.{name}, {relation.label}", apply, sensitivity, relation)
  yield Aggregate("jdp.federated.cohort_sum, zero-out", _cohort(plain), 1.0, Relation.ZERO_OUT)


def _whole(records: np.ndarray) -> PyTree:
  return records


def _halves(records: np.ndarray) -> PyTree:
  return {"a": records[:, :2], "b": records[:, 2:]}


def _noiseless(
  query: SumQuery, shape: Callable[[np.ndarray], PyTree]
) -> Callable[[np.ndarray], np.ndarray]:
  """The query's result on records in the shape that it takes."""

  @jax.jit
  def result(records: PyTree, weights: jax.Array) -> jax.Array:
    keys = jax.random.split(jax.random.key(0), len(weights) + 1)
    state = query.init(jax.tree.map(lambda x: x[0], records))
    parts = jax.vmap(query.preprocess, (0, None, 0, 0))(keys[1:], state, records, weights)
    released = query.finalize(keys[0], state, taken(query, sum_rows(parts)))[0]
    return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(released)])

  return lambda records: np.asarray(result(*_padded(shape, records)))


def _cohort(query: SumQuery) -> Callable[[np.ndarray], np.ndarray]:
  """The sum of a cohort, chunk by chunk."""

  @jax.jit
  def total(records: jax.Array, weights: jax.Array) -> jax.Array:
    slots, state = len(weights), query.init(records[0])
    indices, size = jnp.arange(slots, dtype=jnp.int32), jnp.sum(weights > 0, dtype=jnp.int32)

    def summand(key: jax.Array, shared: State, record: jax.Array, weight: jax.Array) -> jax.Array:
      return query.preprocess(key, shared, record, weight)

    sample = Sample(indices, weights, size, slots)
    return rounded(federated.cohort_sum(summand, jax.random.key(0), state, sample, records))

  return lambda records: np.asarray(total(*_padded(_whole, records)))


def _padded(
  shape: Callable[[np.ndarray], PyTree], records: np.ndarray
) -> tuple[PyTree, np.ndarray]:
  """The records in a padded cohort, and the weights of its slots."""
  slots = _FEW if len(records) <= _FEW else _MANY
  padded = np.full((slots, records.shape[1]), np.nan, np.float32)
  padded[: len(records)] = records
  return shape(padded), (np.arange(slots) < len(records)).astype(np.float32)


def _noises() -> Iterator[Part]:
  """The noise of whole runs, through the transformation that training loops use."""
  yield _noise("gaussian_sum", queries.gaussian_sum(1.0, _STDDEV), _STDDEV**2 * np.eye(4))
  for name, strategy in {
    "square_root_toeplitz(4)": matrix_factorization.square_root_toeplitz(4),
    "banded_toeplitz(4, 2)": matrix_factorization.banded_toeplitz(4, 2),
    "banded(4, 2)": matrix_factorization.banded(4, 2),
    "buffered_toeplitz(4)": matrix_factorization.buffered_toeplitz(4, buffers=2),
    "banded_inverse_square_root(4, 2)": matrix_factorization.banded_inverse_square_root(4, 2),
  }.items():
    query = queries.correlated_gaussian_sum(1.0, _STDDEV, strategy)
    yield _noise(f"correlated_gaussian_sum({name})", query, _covariance(strategy))


def _covariance(strategy: Strategy) -> np.ndarray:
  return noise_covariance(strategy.matrix(), _STDDEV)


def _noise(name: str, query: SumQuery, covariance: np.ndarray) -> Noise:
  """Noise of two leaves; each leaf's halves lie on two devices where there are two."""
  like = {"a": jnp.zeros(_NOISE_SIZE), "b": jnp.zeros(_NOISE_SIZE)}
  devices = jax.devices()[:2]
  placed = jax.sharding.NamedSharding(
    jax.sharding.Mesh(np.array(devices), ("clients",)), jax.sharding.PartitionSpec("clients")
  )
  total = jax.device_put(like, placed)
  blocks = [f"leaf {leaf}, device {i}" for leaf in like for i in range(len(devices))]

  transformation = transforms.release(query, jax.random.key(0))
  init, update = jax.jit(transformation.init), jax.jit(transformation.update)

  def run(seed: int, stop: int | None) -> np.ndarray:
    # The key of the run is a part of the state: one compilation serves all seeds.
    state, rows = init(like)._replace(key=jax.random.key(seed)), []
    for t in range(len(covariance)):
      if t == stop:
        state = _saved_and_loaded(state)
      result, state = update(total, state)
      leaves = [np.asarray(leaf).reshape(len(devices), -1) for leaf in jax.tree.leaves(result)]
      rows.append(np.concatenate(leaves))
    return np.stack(rows)

  return Noise(
    f"jdp.queries.{name}",
    partial(run, stop=None),
    tuple(blocks),
    covariance,
    partial(run, stop=2),
  )


def _saved_and_loaded(state: State) -> State:
  """The state after a way through NumPy arrays, keys as their data."""

  def passed(leaf: jax.Array) -> jax.Array:
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
      data = np.asarray(jax.random.key_data(leaf))
      return jax.random.wrap_key_data(jnp.asarray(data), impl=jax.random.key_impl(leaf))
    return jnp.asarray(np.asarray(leaf))

  return jax.tree.map(passed, state)


def _samplings() -> Iterator[Part]:
  # Shuffled epochs in batches of 2 leave no record over, and in those of 5 they do.
  for (name, entry), size in itertools.product(samplers.registered().items(), (2, 5)):
    sampler = entry.make(_POPULATION, size)
    draw, law = _rounds(sampler), sampler.event(sampler.init())
    yield Sampling(
      f"jdp.sampling.{name}, {size} of {_POPULATION}",
      partial(_members, sampler, draw, False),
      law,
      partial(_members, sampler, draw, True),
    )


def _rounds(sampler: Sampler) -> Draw:
  """The rounds of a sampler, compiled."""

  def draw(state: State, key: jax.Array) -> tuple[State, tuple[jax.Array, jax.Array]]:
    sample, state = sampler.sample(key, state)
    return state, (sample.indices, sample.weights > 0)

  return jax.jit(lambda state, keys: jax.lax.scan(draw, state, keys))


def _members(sampler: Sampler, draw: Draw, resumed: bool, seed: int, num_rounds: int) -> np.ndarray:
  """Who took part in a run of two halves; between them the state may be saved and loaded."""
  keys = jax.random.split(jax.random.key(seed), num_rounds)
  state, first = draw(sampler.init(), keys[: num_rounds // 2])
  state = _saved_and_loaded(state) if resumed else state
  _, second = draw(state, keys[num_rounds // 2 :])
  indices, member = (np.concatenate(parts) for parts in zip(first, second, strict=True))
  found = np.zeros((num_rounds, sampler.population), bool)
  rounds = np.broadcast_to(np.arange(num_rounds)[:, None], indices.shape)
  found[rounds[member], indices[member]] = True
  return found


def _accountants() -> Iterator[Part]:
  for accountant in accounting.ACCOUNTANTS:
    call = f'jdp.accounting.epsilon(accountant="{accountant}")'
    yield Accountant(call, partial(_epsilon, add_remove_ledger, accountant))
    yield Accountant(
      f"{call}, replace one",
      partial(_epsilon, unsampled_replace_one, accountant),
      unsampled_replace_one,
      unsampled=True,
    )
    yield Calibration(
      f'jdp.accounting.calibrate_noise_multiplier(accountant="{accountant}")',
      partial(_calibrated, accountant),
    )
  yield Accountant(
    "jdp.accounting.gaussian_epsilon",
    lambda plan, z: accounting.gaussian_epsilon(z / math.sqrt(plan.num_rounds), plan.delta),
    unsampled=True,
  )


def _epsilon(
  ledger: Callable[[Plan, float], Ledger], accountant: str, plan: Plan, noise_multiplier: float
) -> float:
  return accounting.epsilon(ledger(plan, noise_multiplier), plan.delta, accountant=accountant)


def _calibrated(accountant: str, plan: Plan, epsilon: float) -> float:
  return accounting.calibrate_noise_multiplier(
    epsilon, plan.delta, plan.sampling_probability, plan.num_rounds, accountant=accountant
  )


def _strategies() -> Iterator[Part]:
  for call, strategy in {
    "identity(12)": matrix_factorization.identity(12),
    "square_root_toeplitz(12)": matrix_factorization.square_root_toeplitz(12),
    "square_root_toeplitz(12, bands=3)": matrix_factorization.square_root_toeplitz(12, bands=3),
    "banded_toeplitz(12, 3)": matrix_factorization.banded_toeplitz(12, 3),
    "banded(12, 3)": matrix_factorization.banded(12, 3),
    "buffered_toeplitz(12)": matrix_factorization.buffered_toeplitz(12, buffers=2),
    "banded_inverse_square_root(12, 3)": matrix_factorization.banded_inverse_square_root(12, 3),
    "tree(12)": matrix_factorization.tree(12),
  }.items():
    yield MatrixStrategy(
      f"jdp.matrix_factorization.{call}", strategy.matrix(), partial(_moved, strategy), _PATTERNS
    )


def _moved(strategy: Strategy, min_separation: int, participations: int) -> float:
  return strategy.sensitivity(min_separation=min_separation, max_participations=participations)


def _releases() -> Iterator[Part]:
  """Audits of all registered mechanisms and queries."""
  for name in mechanisms.registered():
    yield Release(f"mechanism {name}", partial(_mechanism, name))
  for name in audited():
    if name != "no_privacy":
      yield Release(f"query {name}", partial(_query, name))


def _mechanism(name: str) -> dict[str, Subject]:
  return {Relation.REPLACE_ONE.label: sharpest_subject(name, 1.0)}


def _query(name: str) -> dict[str, Subject]:
  subjects = registered_query_subjects(name)
  return {relation.label: subject for relation, subject in subjects.items()}
