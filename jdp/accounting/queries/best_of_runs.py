"""What it costs to run something a random number of times and release only the best result.

Hyper-parameters are chosen like this: each run draws one of the candidate settings and is scored by
what it released, and only the best run's releases (or their score) are published. The number of
runs is random, as `jdp.events.BestOfRuns` says, independent of the data, and never revealed. The
cost by Renyi divergences is in `jdp.accounting.renyi.repeated_runs`, and by privacy profiles in
`jdp.accounting.pld.losses.repeated_runs`.

A fixed number of runs has no such bound: the best of n releases may cost n times as much.
"""

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jdp import _validate
from jdp._arguments import checked
from jdp.accounting.analysis import QueryAnalysis, Rounds
from jdp.accounting.composed_rounds import compose_rounds, stands_alone
from jdp.accounting.composition import Composition, compose_pairs
from jdp.accounting.dp_events import dp_accounting_or_refuse, round_event
from jdp.accounting.families.base import (
  Charge,
  CountedPairs,
  DominatingPair,
  Family,
  always_symmetric,
)
from jdp.accounting.observed import observed
from jdp.accounting.pld.losses import pairs
from jdp.accounting.pld.losses import repeated_runs as profiles_of_runs
from jdp.accounting.pld.profile import tightest_profile, upper_sticks
from jdp.accounting.profiles import with_overflow, with_release
from jdp.accounting.registration import num_registered, register_query, sampling_analysis
from jdp.accounting.renyi import repeated_runs
from jdp.accounting.seen import split
from jdp.events import BestOfRuns, LocalRelease, PoissonSampling, Round
from jdp.events.whole_runs import check_number_of_runs
from jdp.guarantees import Relation
from jdp.ledger import Ledger

if TYPE_CHECKING:
  from dp_accounting import DpEvent


_DELTAS = (0.3, 1e-2, 1e-4, 1e-6, 1e-9, 1e-14, 1e-24, 1e-40)  # where bounds of one run are tight


@checked
def best_of_runs(ledger: Ledger, *others: Ledger, mean_runs: float, shape: float = 1.0) -> Round:
  """The event of releasing the best of a random number of runs, for the ledger of all that is done.

  `BestOfRuns` says how the number is drawn, and what a run is.

  Args:
    ledger: the ledger of one run. It holds only rounds.
    *others: ledgers of runs that differ in their rounds, by their setting, or as another's record
      is in them. At each order, and each epsilon, the dearest of all counts.
    mean_runs: E K >= 1.
    shape: the shape of the distribution of K: in [0, 1000], or infinity for Poisson.

  Raises:
    ValueError: if an argument is out of range, or the ledger holds no round or a local release.
      Also if rounds are adaptive, or have several relations, units or observers.

  >>> from jdp import accounting
  >>> from jdp.ledger import subsampled_gaussian
  >>> tuned = best_of_runs(subsampled_gaussian(0.01, 1.1, 1000), mean_runs=10.0)
  >>> final = Ledger().append(tuned).extend(subsampled_gaussian(0.01, 1.1, 1000).entries)
  >>> round(accounting.epsilon(Ledger().append(tuned), 1e-5), 2)
  2.4
  >>> round(accounting.epsilon(final, 1e-5), 2)
  3.11
  """
  kinds = [_rounds_of(one) for one in (ledger, *others)]
  scopes = {(event.relation, event.unit, event.observer) for kind in kinds for event, _ in kind}
  if len(scopes) > 1:
    raise ValueError(
      f"Expected rounds of one relation, unit and observer, got {len(scopes)} combinations; make "
      "an event for each."
    )
  first, *rest = dict.fromkeys(
    BestOfRuns(
      tuple(event for event, _ in kind), tuple(count for _, count in kind), mean_runs, shape
    )
    for kind in kinds
  )
  query = dataclasses.replace(first, others=tuple(rest))
  return Round(PoissonSampling(1.0), query, *scopes.pop())


def _rounds_of(ledger: Ledger) -> Sequence[tuple[Round, int]]:
  """The rounds of a run with their counts, equal ones counted together."""
  rounds = split(ledger.entries).rounds
  if not rounds or len(rounds) < len(ledger.entries):
    raise ValueError(
      f"Expected a ledger of rounds alone, got {len(rounds)} kinds of rounds among "
      f"{len(ledger.entries)} kinds of events; ask selection_epsilon for {LocalRelease.__name__}s."
    )
  return rounds


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
  the events, for the released run and for which of the runs it was. Every run's events, and its
  choice of a setting, must be as the ledger says, whatever the setting. Scores come from what the
  runs released or from public data. The number of runs is drawn as `BestOfRuns` says, and stays
  secret.

  Args:
    ledger: the ledger of one run.
    delta: in [0, 1].
    mean_runs: E K >= 1.
    shape: the shape of the distribution: in [0, 1000], or infinity for Poisson. Smaller shapes cost
      less for the same mean, and the number varies more.
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
  2.4
  """
  _validate.probability(delta=delta)
  check_number_of_runs(mean_runs, shape)
  if not ledger.entries:
    return 0.0
  with np.errstate(all="ignore"):  # Overflow gives infinity, an upper bound.
    seen = observed(ledger, relation, observer)
    profile = tightest_profile(compose_pairs([(_best_of((seen.joint,), mean_runs, shape), 1)]))
    profile = with_release(profile, 0.0, min(1.0, mean_runs * (seen.delta + seen.rounds.cut)))
    return with_overflow(profile, mean_runs * seen.rounds.overflow).epsilon(delta)


def _best_of(kinds: Sequence[Composition], mean_runs: float, shape: float) -> DominatingPair:
  """The pair of the best of a random number of runs, each of which costs one of some compositions.

  Divergences and hockey sticks of a mixture are at most those of its dearest part. Sample overflows
  of the runs are not included.
  """
  max_loss = float(np.max([one.max_loss for one in kinds]))

  def one_run(orders: tuple[float, ...]) -> np.ndarray:
    return np.max([one.rdp(orders) for one in kinds], axis=0)

  curve = repeated_runs.best_of_runs(one_run, max_loss, mean_runs, shape)

  def rdp(parameters: np.ndarray, orders: np.ndarray) -> np.ndarray:
    return np.tile(curve(tuple(orders.tolist())), (len(parameters), 1))

  @functools.cache
  def charge(row: tuple[float, ...], attained: bool) -> Charge | None:
    found = [_profile_of(one) for one in kinds]
    if attained or not all(found):
      return None
    profile = profiles_of_runs.best_of_runs(
      lambda epsilons: np.max([one(epsilons) for one in found if one], axis=0), mean_runs, shape
    )
    by_divergences = pairs.renyi_profile(lambda orders: curve(tuple(orders.tolist())))
    pair = pairs.of_profile(lambda at: np.minimum(profile(at), by_divergences(at)))
    return Charge((pair,)) if len(pair.losses) else None

  kind = Family(
    "the best of some runs",
    rdp,
    charge=charge,
    is_symmetric=always_symmetric,
    cut=lambda row: min(1.0, mean_runs * max(one.cut for one in kinds)),
  )
  return DominatingPair(kind, ())


def _profile_of(one: Composition) -> Callable[[np.ndarray], np.ndarray] | None:
  """Epsilons -> log of a bound on the delta of a run, in both directions; None if there is none."""
  directions = upper_sticks(one, _DELTAS)
  if not directions or not all(directions):
    return None

  def log_delta(epsilons: np.ndarray) -> np.ndarray:
    # NaN, below a stick's window, is not a bound. 5e-324 keeps the logarithm finite.
    bounds = [np.fmin.reduce([stick.deltas(epsilons) for stick in sticks]) for sticks in directions]
    return np.log(np.clip(np.nan_to_num(np.max(bounds, axis=0), nan=1.0), 5e-324, 1.0))

  return log_delta


def _of_round(event: Round, relation: Relation, sample_known: bool) -> DominatingPair:
  """The pair of a `BestOfRuns`. Overflows are counted by its event."""
  query: Any = event.query
  sampling, analysis = event.sampling, sampling_analysis(event.sampling)
  if not (analysis.fresh_coins and analysis.takes_all(sampling)):
    raise ValueError(
      f"Expected PoissonSampling of probability 1 for BestOfRuns, got {type(sampling).__name__}; "
      "its rounds say how they were sampled."
    )
  for kind in (query, *query.others):
    for inner in kind.rounds:
      if (inner.unit, inner.observer) != (event.unit, event.observer):
        raise ValueError(
          "Expected rounds of the unit and observer of their BestOfRuns, got others; make the "
          "event by jdp.accounting.best_of_runs."
        )
  return _kept(query, relation, sample_known, num_registered())


@functools.lru_cache(maxsize=64)
def _kept(
  query: BestOfRuns, relation: Relation, sample_known: bool, registered: int
) -> DominatingPair:
  """The pair, cached as a run asks for it repeatedly. `registered` is part of the cache's key."""
  del registered
  events: tuple[Any, ...] = query, *query.others
  kinds = []
  for kind in events:
    rounds: Counter[Round] = Counter()
    for inner, count in zip(kind.rounds, kind.counts, strict=True):
      rounds[inner] += count
    kinds.append(compose_rounds(rounds, relation, sample_known=sample_known))
  return _best_of(kinds, query.mean_runs, query.shape)


def _composed(rounds: Rounds, relation: Relation, sample_known: bool) -> CountedPairs:
  return [(_of_round(event, relation, sample_known), count) for event, count in rounds.items()]


def _exported(event: Round, relation: Relation, sample_known: bool) -> "DpEvent":
  """The event of the best of some runs, whose rounds have events of their own."""
  compose_rounds({event: 1}, relation, sample_known=sample_known)  # only for its errors
  query: Any = event.query
  if query.others:
    raise ValueError(
      "Expected runs with the same rounds, got several kinds, which dp_accounting has no event "
      "for; leave that event out."
    )
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
