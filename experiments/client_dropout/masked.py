"""A training whose sums really open under secure aggregation, message by message, and its cost.

Clients report integers with Skellam noise under masks, and calibrate under masks too
(`jdp.federated.masked_round`). All parties are simulated, by one processor.
"""

import math
import pathlib
import time
from collections.abc import Iterable

import jax
import numpy as np

from experiments.client_dropout.options import ClientDropoutOptions, DropoutOptions
from experiments.client_dropout.settings import updates_of
from experiments.runner.files import Row
from experiments.runner.options import needed
from experiments.runner.problems.learning_problem import LearningProblem
from experiments.runner.reports.tables import by_column, epsilon, percent
from jdp import accounting, random
from jdp.events import PoissonSampling, Round, SkellamSum
from jdp.federated import dropout, masked_round, secure_aggregation
from jdp.federated.dropout.dropout_models import stage_counts
from jdp.guarantees import Observer, Relation
from jdp.ledger import DurableLedger
from jdp.numerics.rotations import randomized_hadamard
from jdp.queries import discrete_sum


def neighbours(num_clients: int) -> int:
  """Clients that one shares masks with: even, and O(log n), so that survivors stay connected.

  >>> [neighbours(n) for n in (10, 100, 1000)]
  [8, 14, 20]
  """
  return min(2 * math.ceil(math.log2(num_clients)), (num_clients - 1) // 2 * 2)


def trained(
  options: ClientDropoutOptions,
  problem: LearningProblem,
  noise_multiplier: float,
  folder: pathlib.Path,
  case: tuple[float, float],
) -> Row:
  """A training of the first `--masked_clients` users, calibrated once.

  Args:
    options: of the experiment.
    problem: what is learnt.
    noise_multiplier: z, planned.
    folder: gets the ledger.
    case: share of a client's neighbours that must answer, share of clients lost before they report.

  Returns:
    The row of results: "threshold" (a number of neighbours), "rate", "opened" (the number of rounds
    whose sum opened), "accuracy", "epsilon" against the server and "seconds" (the median of a
    round's aggregation).
  """
  n, bound, bits = needed(options.masked_clients), options.clip_norm, options.modulus_bits
  share, rate = case
  degree = options.masked_neighbours or neighbours(n)
  threshold = max(1, math.ceil(share * degree))
  params = problem.init(jax.random.key(options.init_seed))
  query = discrete_sum(
    params, bound, noise_multiplier * bound, num_clients=n, modulus_bits=bits, noise="skellam"
  )
  protocol = secure_aggregation(n, degree, threshold, bits)
  run = masked_round(query, protocol, min_clients=options.min_clients)
  state, updates = query.init(params), updates_of(options, problem, n)
  lost = dropout.with_calibrations(dropout.independent(n, rate), [options.calibration_dropout])
  path = folder / f"masked_{threshold}_{rate:g}.jsonl"
  path.unlink(missing_ok=True)  # of a process that was killed before it released anything
  ledger = DurableLedger(path, path.stem)
  public, secret = jax.random.key(options.data_seed), random.secure_key()
  away, seconds = lost.init(public), []
  for number in range(options.masked_rounds):
    data_key, drop_key = jax.random.split(jax.random.fold_in(public, number))
    present, away = lost.sample(drop_key, away)
    records = jax.block_until_ready(updates(data_key, params))
    begun = time.process_time()
    opened = run(jax.random.fold_in(secret, number), state, records, np.asarray(present))
    seconds.append(time.process_time() - begun)
    if opened is not None:
      ledger.append(ledger.last_round + 1, [_event(n, opened.event)])
      reported = float(stage_counts(present)[1])
      params = jax.tree.map(lambda x, total, m=reported: x + total / m, params, opened.result)
  ledger.finish()
  spent = ledger.ledger
  ledger.close()
  return {
    "threshold": threshold,
    "rate": rate,
    "opened": sum(count for _, count in spent.entries),
    "accuracy": float(problem.evaluate(params)[problem.headline]),
    "epsilon": accounting.epsilon(spent, options.delta, accountant=options.accountant),
    "seconds": float(np.median(seconds)),
  }


def _event(num_clients: int, query: SkellamSum) -> Round:
  # A probability of 1: being lost by chance is not counted as privacy.
  everybody = PoissonSampling(1.0, population=num_clients)
  return Round(everybody, query, relation=Relation.ZERO_OUT, observer=Observer.SERVER)


def masked_table(options: DropoutOptions, problem: LearningProblem, rows: Iterable[Row]) -> str:
  """What opened, its guarantee, and what it cost."""
  size = randomized_hadamard(problem.dim).dim * options.modulus_bits / 8 / 1000
  degree = options.masked_neighbours or neighbours(needed(options.masked_clients))
  return by_column(
    {
      "must answer": f"{row['threshold']} of {degree}",
      "clients lost": percent(row["rate"], 0),
      "sums opened": f"{row['opened']} of {options.masked_rounds}",
      "ε against the server": epsilon(row["epsilon"]),
      "test accuracy": percent(row["accuracy"]),
      "kB a client sends": f"{2 * size:.1f}",
      "masks it draws": f"{2 * degree + 3}",
      "ms a client": f"{1000 * row['seconds'] / options.masked_clients:.2f}",
    }
    for row in rows
  )
