"""Lower bounds on what training procedures leak: from many runs, and from many canaries in one."""

from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from experiments.audit import broken_procedures
from experiments.audit.options import AuditOptions
from experiments.audit.procedures import (
  DELTA,
  PROCEDURES,
  Procedure,
  adversaries,
  canaries,
  subject,
)
from jdp import accounting, conformance, federated
from jdp.audits.bounds import epsilon_bound, gaussian_bound
from jdp.audits.learned_scores import audit_releases
from jdp.audits.local_audit import score_sampler
from jdp.audits.one_run import audit_one_run
from jdp.audits.one_run_f_dp import audit_one_run_gaussian, gaussian_epsilon_of
from jdp.audits.scores import audit_scores
from jdp.ledger import Ledger
from jdp.queries.base import PyTree

_GUESSED = 0.03  # of all canaries; about the best for runs that are 1-GDP, by either method
_EPSILON = 2.0  # of a report of Draw and Discard
_BOUNDS = 4  # that many runs of a procedure give


class Row(NamedTuple):
  """What was proved of a procedure. None: it does not apply.

  Attributes:
    name: of the procedure.
    delta: of the epsilons from many runs.
    stated: by the ledger.
    proved: for who sees the models of all rounds.
    certified: the lower end of `epsilon_interval`.
    last_model: for who sees the last model only.
    learned: by a score that was learned from the models, with no knowledge of the procedure.
    strict_delta: of the epsilons that follow.
    strict_stated: by the ledger.
    gaussian: from many runs, by way of mu.
    one_run_gaussian: from one run, by way of mu (arXiv 2410.22235).
    one_run: from one run (arXiv 2305.08846).
  """

  name: str
  delta: float
  stated: float
  proved: float
  certified: float | None = None
  last_model: float | None = None
  learned: float | None = None
  strict_delta: float | None = None
  strict_stated: float | None = None
  gaussian: float | None = None
  one_run_gaussian: float | None = None
  one_run: float | None = None


def audit_procedures(options: AuditOptions) -> Iterator[Row]:
  """Audits every procedure.

  All bounds from many runs hold together with `options.confidence`, and all from one run with
  `options.central_confidence`.
  """
  keys = iter(jax.random.split(jax.random.key(options.seed), 2 * len(PROCEDURES) + 3))
  others = adversaries(_EPSILON)
  share = (1 - options.confidence) / (_BOUNDS * len(PROCEDURES) + len(others))
  from_one = sum(procedure.one_run for procedure in PROCEDURES.values())
  one_share = (1 - options.central_confidence) / (2 * from_one)
  for name, procedure in PROCEDURES.items():
    own = subject(procedure)
    found = {
      **from_many_runs(own, procedure, next(keys), options, 1 - share),
      **from_one_run(own, procedure, next(keys), options, 1 - one_share),
    }
    yield Row(name, DELTA, own.epsilon, **found)
  for name, own in others.items():
    first, second = _draw(own, next(keys), options.num_runs)
    proved = audit_scores(first["best"], second["best"], epsilon_bound(1 - share, own.delta)).bound
    yield Row(name, own.delta, own.epsilon, proved=proved)


def audit_broken_procedures(options: AuditOptions) -> Iterator[Row]:
  """Audits procedures that cost more than they state; the bounds share `options.confidence`."""
  bound = epsilon_bound(1 - (1 - options.confidence) / len(broken_procedures.BROKEN), DELTA)
  keys = jax.random.split(jax.random.key(options.seed + 1), len(broken_procedures.BROKEN))
  for key, (name, case) in zip(keys, broken_procedures.BROKEN.items(), strict=True):
    own = broken_procedures.subject(*case)
    first, second = _draw(own, key, options.num_runs)
    proved = audit_scores(first["best"], second["best"], bound).bound
    yield Row(name, DELTA, own.epsilon, proved)


def from_many_runs(
  own: conformance.Subject,
  procedure: Procedure,
  key: jax.Array,
  options: AuditOptions,
  confidence: float,
) -> dict[str, float]:
  """The bounds from many runs with one canary and as many without; each has this confidence."""
  first, second = _draw(own, key, options.num_runs)
  bound = epsilon_bound(confidence, DELTA)
  found = {
    "proved": audit_scores(first["best"], second["best"], bound).bound,
    "last_model": audit_scores(first["last"], second["last"], bound).bound,
    "learned": audit_releases(_numbers(first), _numbers(second), bound).bound,
  }
  if procedure.gaussian:
    mu = audit_scores(first["best"], second["best"], gaussian_bound(confidence)).bound
    found["gaussian"] = gaussian_epsilon_of(mu, options.delta)
  return found


def from_one_run(
  own: conformance.Subject,
  procedure: Procedure,
  key: jax.Array,
  options: AuditOptions,
  confidence: float,
) -> dict[str, float]:
  """What the ledger of one run certifies, and what the run proves if it tells of many canaries."""
  count = options.one_run_canaries if procedure.one_run else 1
  coins_key, run_key = jax.random.split(key)
  included = np.asarray(jax.random.bernoulli(coins_key, shape=(count,)))
  changes, ledger = one_run(procedure, included, run_key)
  found = {
    "certified": accounting.epsilon_interval(ledger, DELTA)[0],
    "strict_delta": options.delta,
    "strict_stated": accounting.epsilon(ledger, options.delta, accountant="pld"),
  }
  if not procedure.one_run:
    return found
  # The statistic of one canary's runs serves each coordinate.
  (statistic,) = own.statistics.values()
  scores = np.asarray(jax.vmap(statistic, in_axes=2)(jnp.asarray(changes)))
  guesses = max(2, 2 * round(_GUESSED * count / 2))
  one_epsilon = audit_one_run(
    scores, included, num_guesses=guesses, confidence=confidence, delta=options.delta
  )
  found["one_run"] = one_epsilon.epsilon
  if procedure.gaussian:
    curve = audit_one_run_gaussian(scores, included, num_guesses=(guesses,), confidence=confidence)
    found["one_run_gaussian"] = curve.epsilon(options.delta)
  return found


def one_run(
  procedure: Procedure, included: np.ndarray, key: jax.Array
) -> tuple[np.ndarray, Ledger]:
  """The changes of the models [rounds, leaves, canaries] in one run, and its ledger."""
  count = len(included)
  noise_key, data_key = jax.random.split(key)
  models: list[np.ndarray] = []  # before and after every round
  result = federated.train(
    procedure.make(count),
    procedure.params(count),
    procedure.clients(canaries(included)),
    noise_key=noise_key,
    data_key=data_key,
    evaluate_every=1,
    callbacks=[lambda progress: models.append(_flat(progress.params, count))],
  )
  return np.diff(np.stack(models), axis=0), result.ledger


def _flat(params: PyTree, count: int) -> np.ndarray:
  return np.asarray(ravel_pytree(params)[0]).reshape(-1, count)


def _draw(own: conformance.Subject, key: jax.Array, num_runs: int) -> list[dict[str, np.ndarray]]:
  """Scores of runs with each of the two inputs: the best one, the last model, and all numbers."""
  (statistic,) = own.statistics.values()

  def scores(changes: jax.Array) -> dict[str, jax.Array]:
    numbers = changes.reshape(-1)
    single = {f"number {i}": numbers[i] for i in range(numbers.size)}
    return {"best": statistic(changes), "last": jnp.sum(changes)} | single

  sample = score_sampler(own.release, scores)
  keys = jax.random.split(key, 2)
  return [sample(keys[i], own.inputs[name], num_runs) for i, name in enumerate(own.pairs[0])]


def _numbers(scores: dict[str, np.ndarray]) -> np.ndarray:
  """The numbers of all models, [runs, numbers]."""
  return np.stack([own for name, own in scores.items() if name.startswith("number")], axis=1)
