"""jax_privacy: clipping, sums, noise, samplers, accountants and strategies."""

from collections.abc import Callable, Iterator
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax_privacy import batch_selection, clipping, noise_addition
from jax_privacy.accounting import accountants, analysis, calibrate
from jax_privacy.matrix_factorization import banded, sensitivity, toeplitz

from experiments.conformance.adapters.wrapping import (
  membership,
  noise_covariance,
  root,
  toeplitz_matrix,
  version,
)
from jdp import events
from jdp.conformance import (
  Accountant,
  Aggregate,
  Calibration,
  Clip,
  Implementation,
  MatrixStrategy,
  Noise,
  Sampling,
)
from jdp.conformance.protocol import Part, Plan
from jdp.events.sampling import SamplingEvent
from jdp.guarantees import Relation

Select = Callable[[int], batch_selection.BatchSelectionStrategy]

_STDDEV, _SIZE, _ROUNDS = 2.0, 4096, 4
_POPULATION = 12
_FEW, _MANY = 32, 2**14  # records of a padded batch; the largest has 16,097 of its own
_RECORDS = 1_000_000  # of the accountants' data sets: the rates of all plans are whole batches
_PATTERNS = ((1, 1), (1, 3), (2, 3), (3, 4), (4, 3), (1, 12))
_BAND_PATTERNS = ((3, 1), (3, 4), (4, 3), (6, 2))


def implementation() -> Implementation:
  """jax_privacy with all its parts."""
  parts = (*_sums(), *_noises(), *_samplings(), *_accountants(), *_strategies())
  return Implementation("jax_privacy", version("jax_privacy"), parts)


def _sums() -> Iterator[Part]:
  yield Clip(
    "jax_privacy.clipping.clip_pytree", jax.jit(lambda x: clipping.clip_pytree(x, 1.0)[0]), 1.0
  )
  clipped = partial(clipping.clipped_fun, lambda x: x, keep_batch_dim=False, l2_clip_norm=1.0)
  total, mean = _padded(clipped()), _padded(clipped(normalize_by=4.0))
  call = "jax_privacy.clipping.clipped_fun"
  for relation, stated in ((Relation.ADD_REMOVE, 1.0), (Relation.REPLACE_ONE, 2.0)):
    yield Aggregate(f"{call}, {relation.label}", total, stated, relation)
    yield Aggregate(f"{call}(normalize_by=4), {relation.label}", mean, stated / 4, relation)


def _padded(function: Callable[..., jax.Array]) -> Callable[[np.ndarray], np.ndarray]:
  """The function of a batch of fixed size: the rest is padding, as the library has it.

  A batch of size 0 is refused, one of padding alone is not.
  """
  compiled = jax.jit(lambda records, padding: function(records, is_padding_example=padding))

  def apply(records: np.ndarray) -> np.ndarray:
    size = _FEW if len(records) <= _FEW else _MANY
    batch = np.zeros((size, records.shape[1]), np.float32)
    batch[: len(records)] = records
    return np.asarray(compiled(batch, np.arange(size) >= len(records)))

  return apply


def _noises() -> Iterator[Part]:
  call = "jax_privacy.noise_addition"
  yield Noise(
    f"{call}.gaussian_privatizer",
    _drawn(noise_addition.gaussian_privatizer),
    ("leaf a", "leaf b"),
    _STDDEV**2 * np.eye(_ROUNDS),
    _drawn(noise_addition.gaussian_privatizer, stop=2),
  )
  coefficients = toeplitz.optimal_max_error_strategy_coefs(_ROUNDS)
  matrix = toeplitz_matrix(np.asarray(coefficients), _ROUNDS)
  for name, noising in {
    "dense inverse": jnp.asarray(np.linalg.inv(matrix), jnp.float32),
    "toeplitz.inverse_as_streaming_matrix": toeplitz.inverse_as_streaming_matrix(coefficients),
  }.items():
    make = partial(noise_addition.matrix_factorization_privatizer, noising)
    yield Noise(
      f"{call}.matrix_factorization_privatizer({name})",
      _drawn(make),
      ("leaf a", "leaf b"),
      noise_covariance(matrix, _STDDEV),
      _drawn(make, stop=2),
    )


def _drawn(
  make: Callable[..., optax.GradientTransformation], stop: int | None = None
) -> Callable[[int], np.ndarray]:
  """A run's noise; with `stop`, its state goes through a copy before that round."""
  zeros = {"a": jnp.zeros(_SIZE), "b": jnp.zeros(_SIZE)}

  def draw(seed: int) -> np.ndarray:
    privatizer = make(stddev=_STDDEV, prng_key=jax.random.key(seed))
    update, state, rows = jax.jit(privatizer.update), privatizer.init(zeros), []
    for t in range(_ROUNDS):
      if t == stop:
        privatizer = make(stddev=_STDDEV, prng_key=jax.random.key(seed))
        update = jax.jit(privatizer.update)
      noise, state = update(zeros, state)
      rows.append(np.stack([np.asarray(noise["a"]), np.asarray(noise["b"])]))
    return np.stack(rows)

  return draw


def _samplings() -> Iterator[Part]:
  cyclic, partitions = batch_selection.CyclicPoissonSampling, batch_selection.PartitionType
  poisson = events.PoissonSampling(0.3)
  rounds = 2**20  # more than are drawn
  cases: list[tuple[str, Select, SamplingEvent]] = [
    ("CyclicPoissonSampling", lambda n: cyclic(0.3, n), poisson),
    (
      "CyclicPoissonSampling(cycle_length=3)",
      lambda n: cyclic(0.5, n, cycle_length=3),
      events.CyclicPoissonSampling(3, 0.5, _POPULATION),
    ),
    (
      "CyclicPoissonSampling(cycle_length=3, INDEPENDENT)",
      lambda n: cyclic(0.5, n, cycle_length=3, partition_type=partitions.INDEPENDENT),
      events.CyclicPoissonSampling(3, 0.5, _POPULATION),
    ),
    (
      "FixedBatchSampling",
      lambda n: batch_selection.FixedBatchSampling(5, n),
      events.FixedSizeSampling(5, _POPULATION),
    ),
    (
      "BallsInBinsSampling",
      lambda n: batch_selection.BallsInBinsSampling(n, 4),
      events.MinSeparationSampling(4, rounds, _POPULATION),
    ),
    (
      "BMinSepSampling(min_sep=3)",
      lambda n: batch_selection.BMinSepSampling(0.3, n, 3),
      events.MinSeparationSampling(3, rounds, _POPULATION),
    ),
    ("BMinSepSampling(min_sep=1)", lambda n: batch_selection.BMinSepSampling(0.3, n, 1), poisson),
  ]
  for name, make, law in cases:
    yield Sampling(f"jax_privacy.batch_selection.{name}", partial(_members, make), law)


def _members(make: Select, seed: int, num_rounds: int) -> np.ndarray:
  return membership(make(num_rounds).batch_iterator(_POPULATION, seed), _POPULATION)


def _accountants() -> Iterator[Part]:
  for config in (accountants.RdpAccountantConfig, accountants.PldAccountantConfig):
    made = analysis.DpsgdTrainingAccountant(config())
    name = f"DpsgdTrainingAccountant({config.__name__})"
    yield Accountant(f"jax_privacy.accounting.{name}", partial(_epsilon, made))
    yield Calibration(
      f"jax_privacy.accounting.calibrate_noise_multiplier({name})", partial(_calibrated, made)
    )


def _epsilon(made: analysis.DpsgdTrainingAccountant, plan: Plan, noise_multiplier: float) -> float:
  params = analysis.DpParams(
    noise_multipliers=noise_multiplier,
    num_samples=_RECORDS,
    delta=plan.delta,
    batch_size=round(plan.sampling_probability * _RECORDS),
  )
  return made.compute_epsilon(plan.num_rounds, params)


def _calibrated(made: analysis.DpsgdTrainingAccountant, plan: Plan, epsilon: float) -> float:
  return calibrate.calibrate_noise_multiplier(
    target_epsilon=epsilon,
    accountant=made,
    batch_sizes=round(plan.sampling_probability * _RECORDS),
    num_updates=plan.num_rounds,
    num_samples=_RECORDS,
    target_delta=plan.delta,
  )


def _strategies() -> Iterator[Part]:
  """Strategies with the functions that jax_privacy has for their sensitivity."""
  place = "jax_privacy.matrix_factorization"
  whole = np.asarray(toeplitz.optimal_max_error_strategy_coefs(12))
  bands = np.asarray(toeplitz.optimize_banded_toeplitz(12, 3))
  for name, coefficients in (("optimal_max_error", whole), ("optimize_banded", bands)):
    yield MatrixStrategy(
      f"{place}.toeplitz.minsep_sensitivity_squared({name})",
      toeplitz_matrix(coefficients, 12),
      root(partial(_toeplitz_squared, jnp.asarray(coefficients))),
      _PATTERNS,
    )
  signed = toeplitz_matrix(np.array([1.0, -0.5, 0.25]), 12)
  for name, matrix in (("optimal_max_error", toeplitz_matrix(whole, 12)), ("signed", signed)):
    bound = partial(sensitivity.get_min_sep_sensitivity_upper_bound, jnp.asarray(matrix))
    yield MatrixStrategy(
      f"{place}.sensitivity.get_min_sep_sensitivity_upper_bound({name})", matrix, bound, _PATTERNS
    )
  strategy = banded.ColumnNormalizedBanded.default(12, 3)
  matrix = np.asarray(strategy.materialize())
  yield MatrixStrategy(
    f"{place}.banded.minsep_sensitivity_squared",
    matrix,
    root(partial(banded.minsep_sensitivity_squared, strategy)),
    _BAND_PATTERNS,
  )
  yield MatrixStrategy(
    f"{place}.sensitivity.get_sensitivity_banded",
    matrix,
    partial(sensitivity.get_sensitivity_banded, jnp.asarray(matrix)),
    _BAND_PATTERNS,
  )


def _toeplitz_squared(coefficients: jax.Array, min_separation: int, participations: int) -> float:
  return toeplitz.minsep_sensitivity_squared(coefficients, min_separation, participations, 12)
