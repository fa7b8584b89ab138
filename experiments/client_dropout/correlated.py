"""Integers with correlated noise by the clients, some of whom are lost: errors, costs, training."""

import dataclasses
import math
import pathlib
from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure

from experiments.client_dropout import enumeration
from experiments.client_dropout.options import ClientDropoutOptions, DropoutOptions
from experiments.client_dropout.settings import local_training
from experiments.runner.files import Row
from experiments.runner.options import needed
from experiments.runner.problems.learning_problem import LearningProblem
from experiments.runner.reports import plots, style
from experiments.runner.reports.tables import by_column, epsilon, percent
from jdp import accounting, random, sampling
from jdp.events import PoissonSampling, Round
from jdp.federated.engine.rounds import FederatedAlgorithm, add_updates, rounds
from jdp.guarantees import Observer, Relation
from jdp.ledger import DurableLedger, Ledger
from jdp.matrix_factorization import Strategy, banded_toeplitz, identity, square_root_toeplitz
from jdp.numerics import vectors
from jdp.queries import SumQuery, correlated_integers
from jdp.queries.base import PyTree, State
from jdp.queries.distributed.correlated_integer_sums import CorrelatedIntegers, on_lattice

NOISES = {"independent": identity, "correlated": banded_toeplitz}
LOST = ("for good, at any time", "for five rounds at a time", "anew in each round")
BITS = (14, 16, 18, 20)
_DIM = 2048  # coordinates of which errors are measured
_SEED = 256  # bits
_DELTA = 1e-4  # of enumerated runs


def strategy_of(options: ClientDropoutOptions, name: str) -> Strategy:
  """The strategy of a noise of `NOISES`."""
  if name == "independent":
    return identity(options.num_rounds)
  return banded_toeplitz(options.num_rounds, needed(options.correlated_groups))


def pattern(options: ClientDropoutOptions) -> dict[str, int]:
  """How far apart the rounds of a user are, and how many."""
  groups = needed(options.correlated_groups)
  return {"min_separation": groups, "max_participations": -(-options.num_rounds // groups)}


def multiplier(options: DropoutOptions) -> float:
  """That of the one Gaussian release which a run is."""
  target = needed(options.target_epsilon)
  return accounting.calibrate_noise_multiplier(target, options.delta, 1.0, 1)


def query_of(
  options: ClientDropoutOptions,
  record: PyTree,
  num_clients: int,
  name: str,
  modulus_bits: int | None = None,
) -> CorrelatedIntegers:
  """The sum whose runs cost the target epsilon."""
  strategy = on_lattice(strategy_of(options, name))
  return correlated_integers(
    record,
    options.clip_norm,
    multiplier(options) * strategy.sensitivity(**pattern(options)),
    strategy,
    num_clients=num_clients,
    max_dropout=options.max_dropout,
    modulus_bits=modulus_bits or options.modulus_bits,
    **pattern(options),
  )


def check(options: ClientDropoutOptions, problem: LearningProblem) -> None:
  """Refuses options by which no sum can be made.

  Raises:
    ValueError: if there is no target, more is lost than tolerated, or as `correlated_integers`.
  """
  if options.target_epsilon is None:
    raise ValueError("Expected --target_epsilon with --correlated_groups, got none; set it.")
  if not max(options.dropouts) <= options.max_dropout:
    raise ValueError(
      f"Expected --max_dropout of at least {max(options.dropouts)}, the largest of --dropouts, got "
      f"{options.max_dropout}; raise it."
    )
  for name in NOISES:
    query_of(options, jax.eval_shape(problem.init, jax.random.key(0)), problem.num_users, name)


def present(kind: str, rate: float, num_clients: int, num_rounds: int, seed: int) -> np.ndarray:
  """Who reports, bool [rounds, n]: of each round, the share `rate` is lost at most.

  >>> for kind in LOST:
  ...   here = present(kind, 0.3, 10, 20, seed=0)
  ...   print(here.sum(axis=1).min(), bool(here[:, here[-1]].all()))
  7 True
  7 False
  7 False
  """
  rng, lost = np.random.default_rng(seed), math.floor(rate * num_clients)
  here = np.ones((num_rounds, num_clients), bool)
  if kind == LOST[0]:
    for client in rng.permutation(num_clients)[:lost]:
      here[rng.integers(num_rounds) :, client] = False
    return here
  for start in range(0, num_rounds, 5 if kind == LOST[1] else 1):
    away = rng.permutation(num_clients)[:lost]
    here[start : start + (5 if kind == LOST[1] else 1), away] = False
  return here


def expected_errors(
  query: CorrelatedIntegers, here: np.ndarray, *, removed: bool = True
) -> np.ndarray:
  """The error of the sum of the results so far, after each round: by the variances of all rows.

  Args:
    query: the sum.
    here: who reports.
    removed: whether parts that are not needed are taken off.
  """
  num_rounds, num_clients = here.shape
  missing = num_clients - np.minimum.accumulate(here.sum(axis=1))
  variances = query.stddevs[missing if removed else np.full(num_rounds, -1)] ** 2
  prefixes = np.cumsum(np.linalg.inv(query.strategy.matrix()), axis=0)
  of_one = np.append(prefixes**2 @ variances, 0.0)
  # What a client has reported so far is all of its rows up to its latest report.
  latest = np.maximum.accumulate(np.where(here, np.arange(num_rounds)[:, None], -1), axis=0)
  return np.sqrt(of_one[latest].sum(axis=1))


def expected_error(query: CorrelatedIntegers, here: np.ndarray, *, removed: bool = True) -> float:
  """The same, root mean square over the rounds."""
  return float(np.sqrt(np.mean(expected_errors(query, here, removed=removed) ** 2)))


def errors_figure(options: ClientDropoutOptions, problem: LearningProblem) -> Figure:
  """Errors over the rounds, with nobody lost and with the largest loss."""
  made, axes = plots.figure("rounds", "error of the sum over rounds", "noise by the clients")
  n, most = problem.num_users, max(options.dropouts)
  record = jax.eval_shape(problem.init, jax.random.key(0))
  cases = [("independent", LOST[0], 0.0), ("correlated", LOST[0], 0.0)]
  cases += [("correlated", kind, most) for kind in (LOST[0], LOST[2])]
  labels = [f"{name}, {percent(rate, 0)} lost {kind if rate else ''}" for name, kind, rate in cases]
  looks = style.distinct(labels)
  for label, (name, kind, rate) in zip(labels, cases, strict=True):
    here = present(kind, rate, n, options.num_rounds, options.data_seed)
    errors = expected_errors(query_of(options, record, n, name), here)
    axes.plot(range(1, options.num_rounds + 1), errors, label=label, **looks[label])
  return made


def measured_error(query: CorrelatedIntegers, here: np.ndarray) -> float:
  """The same of one run, whose records are all zero; its noise is not a release."""
  nothing = jnp.zeros(_DIM, jnp.int32)

  @jax.jit
  def run(key, here):
    def one(carry, present):
      state, key, total = carry
      key, own = jax.random.split(key)
      result, _, state = query.finalize(own, state, nothing, jnp.stack([present, present]))
      return (state, key, total + result), jnp.mean((total + result) ** 2)

    begun = query.init(nothing), key, jnp.zeros(_DIM)
    return jnp.sqrt(jnp.mean(jax.lax.scan(one, begun, here)[1]))

  return float(run(jax.random.key(0), jnp.asarray(here)))


def error_rows(options: ClientDropoutOptions, num_clients: int) -> list[Row]:
  """The errors of each way to be lost at each rate, by those of central noise."""
  query = query_of(options, jnp.zeros(_DIM), num_clients, "correlated")
  own = strategy_of(options, "correlated")
  central = (
    multiplier(options) * options.clip_norm * own.root_mean_squared_error(**pattern(options))
  )
  rows = []
  for kind in LOST:
    for rate in options.dropouts:
      if kind != LOST[0] and not rate:
        continue
      here = present(kind, rate, num_clients, options.num_rounds, options.data_seed)
      rows.append(
        {
          "kind": kind,
          "rate": rate,
          "expected": expected_error(query, here) / central,
          "measured": measured_error(query, here) / central,
          "kept": expected_error(query, here, removed=False) / central,
        }
      )
  return rows


def error_table(rows: Iterable[Row]) -> str:
  """The errors as a table."""
  return by_column(
    {
      "clients lost": percent(row["rate"], 0),
      "how": row["kind"] if row["rate"] else "nobody",
      "by theory": f"{row['expected']:.3f}",
      "measured": f"{row['measured']:.3f}",
      "if nothing is taken off": f"{row['kept']:.3f}",
    }
    for row in rows
  )


class Enumerated(NamedTuple):
  """A run on one number that is small enough to be enumerated."""

  num_clients: int
  num_rounds: int
  missing: tuple[tuple[int, int], ...]
  width: int


ENUMERATED = (
  Enumerated(4, 2, (), 200),
  Enumerated(4, 2, ((0, 0),), 200),
  Enumerated(6, 2, (), 240),
  Enumerated(6, 2, ((0, 1), (1, 1)), 240),
  Enumerated(6, 2, ((0, 0), (1, 1)), 240),
  Enumerated(4, 3, (), 80),
  Enumerated(4, 3, ((0, 1),), 80),
)


def enumeration_row(case: Enumerated) -> Row:
  """The exact epsilon of a case, and the stated one."""
  short = case.num_rounds == 3
  query = correlated_integers(
    jnp.zeros(1),
    1.0,
    1.0 if short else 1.5,
    square_root_toeplitz(case.num_rounds),
    num_clients=case.num_clients,
    max_dropout=0.34,
    modulus_bits=8 if short else 9,
  )
  found, norm = enumeration.cost_of_a_run(
    query, case.num_clients, case.missing, _DELTA, width=case.width
  )
  everybody = PoissonSampling(1.0, population=case.num_clients)
  ledger = Ledger().extend(
    (Round(everybody, dataclasses.replace(query.plan, index=t), Relation.ZERO_OUT), 1)
    for t in range(case.num_rounds)
  )
  return {
    "case": [case.num_clients, case.num_rounds, [list(pair) for pair in case.missing]],
    "norm": norm,
    "exact": found,
    "stated": accounting.epsilon(ledger, _DELTA),
  }


def enumeration_table(rows: Iterable[Row]) -> str:
  """Exact epsilons beside the stated ones."""

  def missed(pairs):
    return ", ".join(f"{client + 1} in {number + 1}" for client, number in pairs) or "nobody"

  return by_column(
    {
      "clients": str(row["case"][0]),
      "rounds": str(row["case"][1]),
      "client missing in round": missed(row["case"][2]),
      "a record moves a sum by": str(row["norm"]),
      "exact ε": f"{row['exact']:.3f}",
      "stated ε": epsilon(row["stated"]),
    }
    for row in rows
  )


def coarse_row(_: None) -> list[tuple[str, float]]:
  """What one client's two rounds cost on a coarse lattice, by how its fractions are rounded."""
  variance, coefficients = 2.0, (1.0, 0.5)
  client = enumeration.Client((True, True), (variance, variance))
  multiplier_of_both = math.sqrt(variance) / math.hypot(coefficients[0], sum(coefficients))
  rows = [("none: Gaussian noise", accounting.gaussian_epsilon(multiplier_of_both, _DELTA))]
  for name, rounding in (
    ("at random", enumeration.by_discrete_gaussian),
    ("to the nearest integer", enumeration.by_nearest),
  ):
    found = enumeration.sums([client], coefficients, width=40, rounding=rounding)
    rows.append((name, enumeration.epsilon(found, enumeration.moves(2, 1), _DELTA)))
  return rows


class _State(NamedTuple):
  """Who reports in the round, bool [2, n], and the state of the sum."""

  present: jax.Array
  sum: State


def algorithm_of(
  options: ClientDropoutOptions, problem: LearningProblem, query: CorrelatedIntegers
) -> FederatedAlgorithm:
  """Federated averaging of groups in turns. Its clients are pairs: data, whether one reports."""
  n = problem.num_users
  local_update = local_training(options, problem)
  project = partial(vectors.clip, max_norm=options.clip_norm)

  def client_fn(keys, params, client):
    user, reports = client
    return (local_update(keys.data, params, user, project), reports), {}

  def preprocess(key, state, record, weight):
    update, reports = record
    reported = weight * reports  # who is lost is public, whatever the data are
    return query.encode(key, state.sum, update, reported), (reported > 0).astype(jnp.int32)

  def finalize(key, state, total):
    integers, reported = total
    result, event, after = query.finalize(key, state.sum, integers, state.present)
    number = jnp.maximum(reported, 1).astype(jnp.float32)
    return jax.tree.map(lambda x: x / number, result), event, state._replace(sum=after)

  as_query = SumQuery(
    lambda record: _State(jnp.ones((2, n), bool), query.init(record)),
    preprocess,
    finalize,
    public=lambda state: state._replace(sum=query.public(state.sum)),
    num_rounds=query.plan.num_rounds,
  )
  return rounds(
    client_fn,
    as_query,
    sampling.min_separation(n, *pattern(options).values()),
    add_updates(optax.sgd(1.0)),
    relation=Relation.ZERO_OUT,
  )


def trained(
  options: ClientDropoutOptions,
  problem: LearningProblem,
  folder: pathlib.Path,
  case: tuple[str, float],
) -> Row:
  """A training of groups in turns, with noise by all users, of whom some are lost for good.

  Args:
    options: of the experiment.
    problem: what is learnt.
    folder: gets the ledger.
    case: of `NOISES`, and the share of users lost in the end.

  Returns:
    The row of results: "noise", "rate", "accuracy", "epsilon" against the server, and "reported".
  """
  name, rate = case
  params = problem.init(jax.random.key(options.init_seed))
  query = query_of(options, params, problem.num_users, name)
  algorithm = algorithm_of(options, problem, query)
  here = present(LOST[0], rate, problem.num_users, options.num_rounds, options.data_seed)
  path = folder / f"correlated_{name}_{rate:g}.jsonl"
  path.unlink(missing_ok=True)  # of a process that was killed before it released anything
  ledger = DurableLedger(path, path.stem)
  secret, public = random.secure_key(), jax.random.key(options.data_seed)
  state, one_round = algorithm.init(params), jax.jit(algorithm.round)
  for number in range(options.num_rounds):
    reported = jnp.asarray(here[number])
    begun = state._replace(query=state.query._replace(present=jnp.stack([reported, reported])))
    clients = problem.clients, reported.astype(jnp.float32)
    after, events, _ = one_round(secret, public, begun, clients)
    ledger.append(
      number, [dataclasses.replace(event, observer=Observer.SERVER) for event in events]
    )
    state = after
  ledger.finish()
  spent = ledger.ledger
  ledger.close()
  return {
    "noise": name,
    "rate": rate,
    "accuracy": float(problem.evaluate(state.params)[problem.headline]),
    "epsilon": accounting.epsilon(spent, options.delta),
    "expected": expected_error(query, here),
  }


def training_table(rows: Iterable[Row]) -> str:
  """Accuracies at equal epsilon."""
  return by_column(
    {
      "noise": row["noise"],
      "users lost in the end": percent(row["rate"], 0),
      "error of the sum over rounds": f"{row['expected']:.3f}",
      "ε against the server": epsilon(row["epsilon"]),
      "test accuracy": percent(row["accuracy"]),
    }
    for row in rows
  )


def bytes_table(options: ClientDropoutOptions, problem: LearningProblem) -> str:
  """What a client sends in a round, and keeps, by the bits of an integer."""
  record = jax.eval_shape(problem.init, jax.random.key(0))
  own = strategy_of(options, "correlated")
  rows = []
  for bits in BITS:
    query = query_of(options, record, problem.num_users, "correlated", bits)
    dim = jax.eval_shape(query.init, record).noise.owed.shape[1]
    central = multiplier(options) * options.clip_norm * own.sensitivity(**pattern(options))
    together = query.stddevs[0] * math.sqrt(problem.num_users)
    rows.append(
      {
        "bits of an integer": str(bits),
        "bytes of a report": f"{dim * bits / 8:,.0f}",
        "of seeds, at most": f"{5 * _SEED // 8}",
        "kB it keeps": f"{4 * dim * query.plan.bands / 1000:,.0f}",
        "stddev of its row, in units": f"{query.stddevs[0] / query.grid.spacing:.1f}",
        "noise, by that of central noise": f"{together / central:.4f}",
      }
    )
  return by_column(rows)
