"""A planned run of federated averaging: noise for a target epsilon over a number of rounds."""

import dataclasses
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import optax
from jax.sharding import Mesh

from jdp import _validate, accounting
from jdp.accounting.registration import sampling_analysis
from jdp.events import (
  CorrelatedGaussianSum,
  FixedSizeSampling,
  GaussianSum,
  PoissonSampling,
  Round,
  TruncatedPoissonSampling,
)
from jdp.events.queries import SumQueryEvent
from jdp.events.sampling import SamplingEvent
from jdp.federated.engine.cohort_layout import CohortLayout
from jdp.federated.engine.local_training import LocalUpdate
from jdp.federated.engine.rounds import FederatedAlgorithm
from jdp.federated.engine.sharded import num_clients
from jdp.federated.estimators import fixed_denominator, flat_clipping, stddev_of
from jdp.federated.fedavg import federated_averaging
from jdp.guarantees import Relation, Unit
from jdp.ledger import Ledger
from jdp.matrix_factorization.plans import planned_sum
from jdp.matrix_factorization.strategies import Strategy
from jdp.sampling import Sampler, poisson

PyTree = Any
Planned = list[tuple[SamplingEvent, SumQueryEvent, int]]
"""How each of some rounds samples, its query, and how many rounds are alike."""


def planned_averaging(
  local_update: LocalUpdate,
  clients: PyTree,
  optimizer: optax.GradientTransformation,
  *,
  unit: Unit,
  size_name: str,
  size: int,
  clip_norm: float,
  num_rounds: int,
  noise_multiplier: float | None,
  target_epsilon: float | None,
  delta: float | None,
  accountant: str,
  sampler: Sampler | None,
  strategy: Strategy | None,
  relation: Relation | str,
  prior: Ledger,
  layout: CohortLayout | None,
  mesh: Mesh | None,
) -> FederatedAlgorithm:
  """What `dp_fedavg` and `dp_sgd` share: flat clipping, a fixed denominator, and the noise.

  Args:
    local_update: what a client computes.
    clients: their data. Each client is one `unit`.
    optimizer: the server's.
    unit: what one client is.
    size_name: the caller's name for the size, for error messages.
    size: the expected number of clients in a round.
    clip_norm: see `dp_fedavg`, as for all arguments below.
    num_rounds: the number of rounds in the whole run.
    noise_multiplier: z.
    target_epsilon: given in place of z.
    delta: the target's delta.
    accountant: the accountant by which the target is met.
    sampler: None: each client with the probability size / clients.
    strategy: how noise is correlated over the rounds.
    relation: the neighbouring relation.
    prior: what was released before.
    layout: how a cohort is computed.
    mesh: see `cohort_sum`.

  Returns:
    A `FederatedAlgorithm` that plans `num_rounds`.

  Raises:
    ValueError: as `dp_fedavg` does.
  """
  relation, population = Relation(relation), num_clients(clients)
  _validate.integer(1, **{size_name: size}, num_rounds=num_rounds)
  _validate.in_range(1, 2**31 - 1, num_rounds=num_rounds)
  _validate.positive(clip_norm=clip_norm)
  if sampler is None:
    if not size <= population:
      raise ValueError(
        f"Expected {size_name} of at most {population} {unit.value}s, got {size}; lower it."
      )
    sampler = poisson(population, size / population)
  if sampler.population != population:
    raise ValueError(
      f"Expected a sampler of {population} {unit.value}s, got one of {sampler.population}; make it "
      "for those of the data."
    )
  if delta is not None and delta * population >= 1:
    warnings.warn(
      f"Expected delta below 1 / {population}, one over the number of {unit.value}s, got {delta}: "
      f"publishing one of them outright has so large a delta; choose a smaller one.",
      stacklevel=4,
    )
  event = sampler.event(sampler.init())
  separation = {} if strategy is None else _separation(event, strategy.num_rounds)
  if strategy is None:
    rounds_of = partial(_independent_rounds, event, num_rounds)
  else:
    if num_rounds > strategy.num_rounds:
      raise ValueError(
        f"Expected num_rounds of at most the strategy's {strategy.num_rounds}, got {num_rounds}; "
        "make a strategy for more rounds."
      )
    whole_run = planned_sum(strategy, 1.0, **separation)
    rounds_of = partial(_correlated_rounds, event, num_rounds, whole_run)

  def plan(multiplier: float) -> Ledger:
    planned = rounds_of(stddev_of(multiplier, relation))
    rounds = ((Round(sampling, query, relation, unit), count) for sampling, query, count in planned)
    return prior + Ledger().extend(rounds)

  z = _noise_multiplier(noise_multiplier, target_epsilon, delta, plan, accountant)
  algorithm = federated_averaging(
    local_update,
    fixed_denominator(
      flat_clipping(clip_norm), z, size, relation=relation, strategy=strategy, **separation
    ),
    sampler,
    optimizer,
    relation=relation,
    unit=unit,
    mesh=mesh,
    **({} if layout is None else layout._asdict()),
  )
  return algorithm._replace(num_rounds=num_rounds)


def _noise_multiplier(
  given: float | None,
  target_epsilon: float | None,
  delta: float | None,
  plan: Callable[[float], Ledger],
  accountant: str,
) -> float:
  """The given multiplier, or the least one that meets the target."""
  if (given is None) == (target_epsilon is None):
    raise ValueError(
      "Expected one of noise_multiplier and target_epsilon, got "
      f"{'neither' if given is None else 'both'}; give one."
    )
  if given is not None:
    _validate.non_negative(noise_multiplier=given)
    return given
  if delta is None:
    raise ValueError("Expected delta with target_epsilon, got none; an epsilon is one at a delta.")
  assert target_epsilon is not None
  return accounting.calibrate_noise(target_epsilon, delta, plan, accountant=accountant)


def _independent_rounds(event: SamplingEvent, num_rounds: int, stddev: float) -> Planned:
  """The rounds of a run with independent noise."""
  if not isinstance(event, PoissonSampling | FixedSizeSampling | TruncatedPoissonSampling):
    raise ValueError(
      f"Expected a sampler whose rounds are alike with target_epsilon, got {type(event).__name__}; "
      "give noise_multiplier (jdp.accounting.calibrate_noise takes any plan)."
    )
  return [(event, GaussianSum(1.0, stddev), num_rounds)]


def _separation(event: SamplingEvent, num_rounds: int) -> dict[str, int]:
  """What a sampler promises about a user's rounds, as arguments of a plan."""
  pattern = sampling_analysis(event).pattern(event, num_rounds)
  return {"min_separation": pattern.separation, "max_participations": pattern.within(num_rounds)}


def _correlated_rounds(
  event: Any, num_rounds: int, whole_run: CorrelatedGaussianSum, stddev: float
) -> Planned:
  """Rounds that cost what the planned run does: its first and its last round.

  These two rounds carry the overflows of all rounds.
  """
  ends = sorted({0, num_rounds - 1})
  epoch = sampling_analysis(event).pattern(event, num_rounds).epoch
  planned: Planned = []
  for index in ends:
    changes: dict[str, Any] = {}
    if hasattr(event, "position"):
      changes["position"] = index
    if hasattr(event, "starts_epoch"):
      changes["starts_epoch"] = index % epoch == 0
    if hasattr(event, "overflow_probability"):
      share = num_rounds / len(ends) * event.overflow_probability
      changes["overflow_probability"] = min(1.0, share)
    query = dataclasses.replace(whole_run, noise_multiplier=stddev, index=index)
    planned.append((dataclasses.replace(event, **changes), query, 1))
  return planned
