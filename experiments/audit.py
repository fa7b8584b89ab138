"""Audits: what an attacker can prove of every mechanism, and of training with canaries, beside what is stated.

`--task=local` tells reports of two inputs apart, for every local mechanism: lower bounds on epsilon that hold
together with one confidence. `--task=central` plants canaries among the users of private federated learning: a lower
bound from one run (arXiv 2305.08846) and the one-shot estimates (arXiv 2302.03098).
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from experiments import audit_report
from experiments.runner.classification import ClassificationOptions, Task, load_task
from experiments.runner.launch import Experiment, launch
from experiments.runner.options import option
from experiments.runner.parts import Part, write_parts
from experiments.runner.workdir import Workdir
from jdp import _validate, accounting, mechanisms
from jdp.attacks.audit import ScoreAudit, epsilon_bound
from jdp.attacks.canaries import canary_directions, cosines, one_shot_estimate, plant, planted_update
from jdp.attacks.local_audit import audit_mechanism, opposite_inputs
from jdp.attacks.one_run import OneRunAudit, audit_one_run
from jdp.federated import gradient_step, private_federated
from jdp.ledger import Ledger
from jdp.mechanisms import LocalMechanism
from jdp.queries import average, gaussian_sum
from jdp.sampling import poisson

_count = partial(_validate.integer, 1)
_probability = partial(_validate.in_range, 1e-9, 1 - 1e-9)
_CLIP_NORM = 1.0
_LEARNING_RATE = 0.1
_GAUSSIAN_DELTA = 0.01  # events of this probability are seen often enough

MECHANISMS: dict[str, Callable[[float, int], LocalMechanism]] = {  # (epsilon, dimension of vectors) -> mechanism
  "priv_unit": lambda epsilon, dim: mechanisms.priv_unit(dim, epsilon),
  "priv_unit_g": lambda epsilon, dim: mechanisms.priv_unit_g(dim, epsilon),
  "priv_unit_linf": lambda epsilon, dim: mechanisms.priv_unit_linf(dim, epsilon),
  "hemisphere": lambda epsilon, dim: mechanisms.hemisphere(dim, epsilon),
  "proj_unit": lambda epsilon, dim: mechanisms.proj_unit(dim, epsilon, dim // 2),
  "fast_proj_unit": lambda epsilon, dim: mechanisms.fast_proj_unit(dim, epsilon, dim // 2),
  "on_grid": lambda epsilon, dim: mechanisms.on_grid(mechanisms.priv_unit(dim, epsilon), 0.25),
  "separated": lambda epsilon, dim: mechanisms.separated(
    mechanisms.priv_unit(dim, epsilon / 2), mechanisms.scalar_dp(epsilon / 2, 1.0)
  ),
  "scalar_dp": lambda epsilon, dim: mechanisms.scalar_dp(epsilon, 1.0),
  "scalar_rel_dp": lambda epsilon, dim: mechanisms.scalar_rel_dp(epsilon, 1.0, num_levels=4, min_value=0.1),
  "laplace": lambda epsilon, dim: mechanisms.laplace(epsilon, 2.0),
  "laplace_vector": lambda epsilon, dim: mechanisms.laplace(epsilon, 2.0, shape=(dim,)),
  "l2_laplace": lambda epsilon, dim: mechanisms.l2_laplace(epsilon, 2.0, shape=(dim,)),
  "gaussian": lambda epsilon, dim: mechanisms.gaussian(
    2 * accounting.gaussian_noise_multiplier(epsilon, _GAUSSIAN_DELTA), 2.0, _GAUSSIAN_DELTA, shape=(dim,)
  ),
}


@dataclasses.dataclass(frozen=True)
class Options(ClassificationOptions):
  """The options of this experiment."""

  task: tuple[str, ...] = option(("local", "central"), "What is audited.", choices=("local", "central"))
  mechanisms: tuple[str, ...] = option(
    tuple(MECHANISMS), "Local mechanisms; on_grid rounds priv_unit.", choices=tuple(MECHANISMS)
  )
  epsilons: tuple[float, ...] = option(
    (1.0, 4.0), "Stated privacy losses of the local mechanisms.", check=partial(_validate.in_range, 0.1, 8.0)
  )
  dim: int = option(16, "Dimension of the local mechanisms for vectors.", check=partial(_validate.integer, 4))
  num_samples: int = option(
    24_000, "Reports of each input: half choose the event, half measure it.", check=partial(_validate.integer, 4)
  )
  confidence: float = option(0.9999, "Of all local bounds together.", check=_probability)
  noise_multipliers: tuple[float, ...] = option(
    (0.5, 2.0, 8.0), "z of the central noise; a run for each.", check=_validate.positive
  )
  num_rounds: int = option(4, "Rounds of a run, all users in each.", check=_count)
  num_canaries: int = option(
    300, "Canaries, each in the run with probability 1/2.", check=partial(_validate.integer, 8)
  )
  num_guesses: int = option(60, "Canaries that the audit in one run guesses.", check=partial(_validate.integer, 2))
  central_confidence: float = option(0.95, "Of each bound from one run.", check=_probability)
  delta: float = option(1e-5, "Delta of the central epsilons.", check=partial(_validate.in_range, 1e-100, 0.5))
  data_seed: int = option(0, "Seed of the data's partition.", check=partial(_validate.integer, 0))
  seed: int = option(0, "Seed of reports, canaries and noise.", check=partial(_validate.integer, 0))


class Local(NamedTuple):
  """A row of the table of local mechanisms."""

  name: str
  mechanism: LocalMechanism
  audit: ScoreAudit


class Central(NamedTuple):
  """A row of the table of runs: what the ledger states, the bound, and estimates from final model and all rounds."""

  noise_multiplier: float
  epsilon: float
  audit: OneRunAudit
  final: float
  observed: float


def prepare(options: Options) -> Callable[[Workdir], None]:
  """Checks the samples' sizes and reads the data; returns the work."""
  least = 2 * math.ceil(100 * math.exp(max(options.epsilons)))
  if "local" in options.task and not options.num_samples >= least:
    raise ValueError(f"Expected --num_samples of at least {least}, 200 e^epsilon, got {options.num_samples}.")
  task = load_task(options, options.data_seed, None) if "central" in options.task else None
  if task and not options.num_guesses <= options.num_canaries <= task.dim:
    raise ValueError(
      f"Expected --num_guesses <= --num_canaries <= {task.dim}, the model's parameters, got {options.num_guesses} "
      f"and {options.num_canaries}."
    )

  def parts() -> Iterator[Part]:
    if "local" in options.task:
      yield audit_report.local_part(options, audit_local(options))
    if task:
      yield audit_report.central_part(options, task, [audit_run(options, task, z) for z in options.noise_multipliers])

  return lambda workdir: write_parts(workdir, "Audits", "audit", parts())


def audit_local(options: Options) -> list[Local]:
  """All mechanisms at all epsilons, on opposite inputs: the confidence is shared out among the rows."""
  cases = [(name, epsilon) for epsilon in options.epsilons for name in options.mechanisms]
  share = (1 - options.confidence) / len(cases)
  rows = []
  for number, (name, epsilon) in enumerate(cases):
    mechanism = MECHANISMS[name](epsilon, options.dim)
    key = jax.random.fold_in(jax.random.key(options.seed), number)
    bound = epsilon_bound(1 - share, mechanism.guarantee.delta)
    found = audit_mechanism(key, mechanism, *opposite_inputs(mechanism), num_samples=options.num_samples, bound=bound)
    print(f"{number + 1}/{len(cases)}: {name}, epsilon {epsilon:g}: at least {found.bound:.4g}", flush=True)
    rows.append(Local(name, mechanism, found))
  return rows


def audit_run(options: Options, task: Task, noise_multiplier: float) -> Central:
  """One run of private federated learning with canaries of the clip norm among the users."""
  keys = jax.random.split(jax.random.key(options.seed), 5)
  directions = canary_directions(keys[0], options.num_canaries, task.dim)
  included = np.asarray(jax.random.bernoulli(keys[1], shape=(options.num_canaries,)))
  sampler = poisson(task.num_users + options.num_canaries, 1.0)
  algorithm = private_federated(
    planted_update(gradient_step(task.loss, _LEARNING_RATE), directions, _CLIP_NORM),
    average(gaussian_sum(_CLIP_NORM, noise_multiplier * _CLIP_NORM), sampler.expected_size),
    sampler,
    optax.sgd(1.0),
  )
  clients, params = plant(task.clients, included), task.init(keys[2])
  models, ledger = _run(algorithm, keys[3], keys[4], params, clients, options.num_rounds)
  final = cosines(directions, models[-1] - models[0])
  observed = np.max([cosines(directions, step) for step in np.diff(models, axis=0)], axis=0)
  estimates = (
    one_shot_estimate(scores[included], delta=options.delta, absent=scores[~included]) for scores in (final, observed)
  )
  audit = audit_one_run(
    final,
    included,
    num_guesses=options.num_guesses,
    confidence=options.central_confidence,
    delta=options.delta,
  )
  return Central(noise_multiplier, accounting.epsilon(ledger, options.delta), audit, *estimates)


def _run(algorithm, noise_key, data_key, params, clients, num_rounds) -> tuple[np.ndarray, Ledger]:
  """(the parameters before and after every round, float32 [rounds + 1, dim]; what they cost)."""
  round_fn, state, ledger = jax.jit(algorithm.round), algorithm.init(params), Ledger()
  models = [ravel_pytree(params)[0]]
  for _ in range(num_rounds):
    state, events, _ = round_fn(noise_key, data_key, state, clients)
    ledger = ledger.extend((event, 1) for event in events)
    models.append(ravel_pytree(state.params)[0])
  return np.asarray(jnp.stack(models)), ledger


if __name__ == "__main__":
  launch(Experiment("audit", Options, prepare))
