"""Random plans, and the epsilon of what their runs record.

`python -m tests.helpers.planned_runs` tries 300 plans, which takes minutes.
"""

import dataclasses
import itertools
import math
import sys
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jdp import accounting
from jdp.events import Round
from jdp.federated import dp_fedavg
from jdp.ledger import Ledger

LEAST = 0.98  # of the target, that a run of all its rounds spends


class Plan(NamedTuple):
  population: int
  cohort: int
  rounds: int
  delta: float
  epsilon: float

  @property
  def needs_noise(self) -> bool:
    """Whether a record is sampled at all with a probability above delta."""
    return -math.expm1(self.rounds * math.log1p(-self.cohort / self.population)) > self.delta


def random_plans(seed: int) -> Iterator[Plan]:
  """Plans over all magnitudes, of which none meets its target without noise."""
  rng = np.random.default_rng(seed)

  def magnitude(low, high):
    return math.exp(rng.uniform(math.log(low), math.log(high)))

  while True:
    population = round(magnitude(2, 1e8))
    plan = Plan(
      population,
      min(population - 1, round(magnitude(1, min(population, 1e5)))),
      round(magnitude(1, 1e5)),
      magnitude(1e-12, 1e-4),
      magnitude(0.1, 20),
    )
    if plan.needs_noise:
      yield plan


def recorded(plan: Plan) -> Round:
  """The event that every round of `dp_fedavg` records, of which nothing else is computed."""
  clients = jax.ShapeDtypeStruct((plan.population,), jnp.float32)
  algorithm = dp_fedavg(
    lambda params, examples: jnp.sum(params),
    clients,
    cohort_size=plan.cohort,
    clip_norm=1.0,
    num_rounds=plan.rounds,
    target_epsilon=plan.epsilon,
    delta=plan.delta,
    local_update=lambda loss: lambda key, params, client, project: params,
  )
  keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0)))
  key = jax.ShapeDtypeStruct((), keys.dtype)
  state = jax.eval_shape(algorithm.init, jnp.zeros(1))
  _, (event,), _ = jax.eval_shape(algorithm.round, key, key, state, clients)
  return dataclasses.replace(event, number=np.int32(0))


def shares(plan: Plan) -> list[float]:
  """Epsilon over the target, after some of the rounds and after all."""
  event = recorded(plan)
  numbers = sorted({1, plan.rounds, *np.geomspace(1, plan.rounds, 6).astype(int).tolist()})
  spent = [accounting.epsilon(Ledger().append(event, count=n), plan.delta) for n in numbers]
  return [epsilon / plan.epsilon for epsilon in spent]


def kept(plan: Plan) -> bool:
  """Whether a run has an epsilon at every moment, and in the end the one that was asked for."""
  try:
    found = shares(plan)
  except ValueError as error:
    print(plan, error)
    return False
  if LEAST <= found[-1] <= 1 and all(map(math.isfinite, found)):
    return True
  print(plan, found)
  return False


def main(count: int) -> int:
  broken = [plan for plan in itertools.islice(random_plans(0), count) if not kept(plan)]
  print(f"{len(broken)} of {count} plans are not kept.")
  return int(bool(broken))


if __name__ == "__main__":
  sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 300))
