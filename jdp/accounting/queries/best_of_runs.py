"""What it costs to run something a random number of times and release the best result only.

Hyper-parameters are chosen like this: each run draws one of the candidate settings and is scored by
what it released, and the best run's releases (or their score) alone are published. The number of
runs is random, as `jdp.events.BestOfRuns` says, independent of the data, and never told. What that
costs by Renyi divergences is in `jdp.accounting.renyi.repeated_runs`.

A fixed number of runs has no such bound: what the best of n releases costs may be n times as much.
"""

import math
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from jdp import _validate
from jdp._arguments import checked
from jdp.accounting.analysis import QueryAnalysis
from jdp.accounting.composed_rounds import compose_rounds, stands_alone
from jdp.accounting.composition import Composition, compose_pairs
from jdp.accounting.dp_events import dp_accounting_or_refuse, round_event
from jdp.accounting.families import DominatingPair, Family, always_symmetric, unbounded
from jdp.accounting.observed import observed
from jdp.accounting.profiles import rdp_profile, with_overflow, with_release
from jdp.accounting.registration import register_query, sampling_analysis
from jdp.accounting.renyi import repeated_runs
from jdp.accounting.seen import split
from jdp.events import BestOfRuns, LocalRelease, PoissonSampling, Round
from jdp.guarantees import Relation
from jdp.ledger import Ledger

if TYPE_CHECKING:
  from dp_accounting import DpEvent


@checked
def best_of_runs(ledger: Ledger, *, mean_runs: float, shape: float = 1.0) -> Round:
  """The event of releasing the best of a random number of runs, for the ledger of all that is done.

  `BestOfRuns` says how the number is drawn, and what a run is.

  Args:
    ledger: of one run. It holds rounds alone.
    mean_runs: E K >= 1.
    shape: of the distribution of K: in [0, 1000], or infinity for Poisson.

  Raises:
    ValueError: if an argument is out of range, or the ledger holds no round or a local release.
      Also if its rounds are adaptive, or have several relations, units or observers.

  >>> from jdp import accounting
  >>> from jdp.ledger import subsampled_gaussian
  >>> tuned = best_of_runs(subsampled_gaussian(0.01, 1.1, 1000), mean_runs=10.0)
  >>> final = Ledger().append(tuned).extend(subsampled_gaussian(0.01, 1.1, 1000).entries)
  >>> round(accounting.epsilon(Ledger().append(tuned), 1e-5), 2)
  3.43
  >>> round(accounting.epsilon(final, 1e-5), 2)
  4.11
  """
  rounds = split(ledger.entries).rounds
  if not rounds or len(rounds) < len(ledger.entries):
    raise ValueError(
      f"Expected a ledger of rounds alone, got {len(rounds)} kinds of rounds among "
      f"{len(ledger.entries)} kinds of events; ask selection_epsilon for {LocalRelease.__name__}s."
    )
  scopes = {(event.relation, event.unit, event.observer) for event, _ in rounds}
  if len(scopes) > 1:
    raise ValueError(
      f"Expected rounds of one relation, unit and observer, got {len(scopes)} combinations; make "
      "an event for each."
    )
  query = BestOfRuns(
    tuple(event for event, _ in rounds), tuple(count for _, count in rounds), mean_runs, shape
  )
  return Round(PoissonSampling(1.0), query, *scopes.pop())


@checked
def selection_epsilon(
  ledger: Ledger,
  delta: float,
  *,
  mean_runs: float,
  shape: float = 1.0,
  relation: str | None = None,
  observer: str | None = None,
) -> float:
  """The epsilon of releasing the best of a random number of runs, each of which cost a ledger.

  Formal guarantee: (epsilon, delta)-differential privacy, under the relation and to the observer of
  the events, of the released run and of which it was. Every run's events, and its choice of a
  setting, must be as the ledger says, whatever the setting. Scores come from what the runs released
  or from other data. The number of runs is drawn as `BestOfRuns` says, and stays secret.

  Args:
    ledger: of one run.
    delta: in [0, 1].
    mean_runs: E K >= 1.
    shape: of the distribution: in [0, 1000], or infinity for Poisson. Smaller ones cost less for
      the same mean, and vary more.
    relation: add_remove, zero_out or replace_one. None: the only one that the events declare.
    observer: server, clients or model. None: the ledger's only one.

  Returns:
    The bound; infinity if no bound holds.

  Raises:
    ValueError: as `jdp.accounting.epsilon`, or if an argument is out of range.

  >>> from jdp import accounting
  >>> from jdp.ledger import subsampled_gaussian
  >>> run = subsampled_gaussian(0.01, 1.1, 1000)
  >>> round(accounting.epsilon(run, 1e-5), 2)
  1.52
  >>> round(selection_epsilon(run, 1e-5, mean_runs=10.0), 2)
  3.43
  """
  _validate.probability(delta=delta)
  _validate.in_range(1.0, 1e100, mean_runs=mean_runs)
  if shape != math.inf:
    _validate.in_range(0.0, 1000.0, shape=shape)
  if not ledger.entries:
    return 0.0
  with np.errstate(all="ignore"):  # Overflow gives infinity, an upper bound.
    seen = observed(ledger, relation, observer)
    profile = rdp_profile(compose_pairs([(_best_of(seen.joint, mean_runs, shape), 1)]))
    profile = with_release(profile, 0.0, min(1.0, mean_runs * (seen.delta + seen.rounds.cut)))
    return with_overflow(profile, mean_runs * seen.rounds.overflow).epsilon(delta)


def _best_of(one: Composition, mean_runs: float, shape: float) -> DominatingPair:
  """The pair of the best of a random number of runs, each of which costs a composition.

  It is known by its divergences alone. What samples of the runs overflow is no part of it.
  """
  curve = repeated_runs.best_of_runs(one.rdp, one.max_loss, mean_runs, shape)

  def rdp(parameters: np.ndarray, orders: np.ndarray) -> np.ndarray:
    return np.tile(curve(tuple(orders.tolist())), (len(parameters), 1))

  kind = Family(
    "the best of some runs",
    rdp,
    unbounded,
    None,
    is_symmetric=always_symmetric,
    cut=lambda row: min(1.0, mean_runs * one.cut),
  )
  return DominatingPair(kind, ())


def _of_round(event: Round, relation: Relation, sample_known: bool) -> DominatingPair:
  """The pair of a `BestOfRuns`. Overflows are counted by its event."""
  query: Any = event.query
  sampling, analysis = event.sampling, sampling_analysis(event.sampling)
  if not (analysis.fresh_coins and analysis.takes_all(sampling)):
    raise ValueError(
      f"Expected PoissonSampling of probability 1 for BestOfRuns, got {type(sampling).__name__}; "
      "its rounds say how they were sampled."
    )
  rounds: Counter[Round] = Counter()
  for inner, count in zip(query.rounds, query.counts, strict=True):
    if (inner.unit, inner.observer) != (event.unit, event.observer):
      raise ValueError(
        "Expected rounds of the unit and observer of their BestOfRuns, got others; make the event "
        "by jdp.accounting.best_of_runs."
      )
    rounds[inner] += count
  one = compose_rounds(rounds, relation, sample_known=sample_known)
  return _best_of(one, query.mean_runs, query.shape)


def _composed(
  rounds: Mapping[Round, int], relation: Relation, sample_known: bool
) -> list[tuple[DominatingPair, int]]:
  return [(_of_round(event, relation, sample_known), count) for event, count in rounds.items()]


def _exported(event: Round, relation: Relation, sample_known: bool) -> "DpEvent":
  """The event of the best of some runs, whose rounds have events of their own."""
  compose_rounds({event: 1}, relation, sample_known=sample_known)  # for its errors
  query: Any = event.query
  if not all(map(stands_alone, query.rounds)):
    raise ValueError(
      "Expected runs whose rounds are charged one by one, got epochs, turns or correlated noise; "
      "leave that event out."
    )
  dp = dp_accounting_or_refuse()
  run = [
    dp.SelfComposedDpEvent(round_event(inner, relation, sample_known), count)
    for inner, count in zip(query.rounds, query.counts, strict=True)
  ]
  return dp.dp_event.RepeatAndSelectDpEvent(dp.ComposedDpEvent(run), query.mean_runs, query.shape)


register_query(BestOfRuns, QueryAnalysis(composed=_composed, exported=_exported))
