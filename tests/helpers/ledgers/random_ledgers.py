"""Random ledgers with extreme parameters, and what every accountant must say of them.

    python -m tests.helpers.ledgers.random_ledgers --count 10000

checks 10,000 of them, and says how long it took, how much memory, how many were refused, and what
is wrong.
"""

import argparse
import collections
import dataclasses
import functools
import itertools
import math
import re
import resource
import time
import warnings
from unittest import mock

import numpy as np

from jdp import accounting, events
from jdp.guarantees import ApproxDP, Observer, PureDP, Relation, SeparatedDP
from jdp.ledger import Ledger

DELTAS = (0.0, 1e-12, 1e-5, 0.5)
EPSILONS = (0.0, 1.0, 50.0, 1e300)
# Where both bounds of an order are flat the search among orders stops within 3e-4 of the least.
TOLERANCE = 1e-3
REFUSAL = re.compile(r"^Expected [^;:]*, got .*[;:] .*", re.DOTALL)
LIMITS = (5e-324, 1e-308, 1e-160, 1e-12, 1e-3, 1.0, 1e3, 1e12, 1e160, 1.7e308)


def positive(rng):
  """A number > 0: ordinary, of 24 decades, or at a limit."""
  kind = rng.uniform()
  if kind < 0.1:
    return float(rng.choice(LIMITS))
  reach = 1.5 if kind < 0.5 else 12
  return float(10 ** rng.uniform(-reach, reach))


def number(rng):
  """Zero or positive."""
  return 0.0 if rng.uniform() < 0.05 else positive(rng)


def probability(rng):
  kind = rng.uniform()
  if kind < 0.2:
    return float(rng.choice([0.0, 1.0, 5e-324, 1e-300, 1 - 2**-53, 0.5]))
  return float(10 ** rng.uniform(-3 if kind < 0.6 else -12, 0))


def whole(rng, least=1):
  """From 1 to 1e9, or enormous."""
  if rng.uniform() < 0.02:
    return int(rng.choice(np.array([10**18, 10**40, 10**400], object)))
  return max(least, int(10 ** rng.uniform(0, 9)))


def grouped(rng):
  kinds = [QUERIES[kind] for kind in QUERIES if kind is not events.GroupedSums]
  kind = kinds[rng.integers(len(kinds))]
  parts = tuple(kind(rng) if rng.uniform() < 0.7 else query(rng) for _ in range(rng.integers(1, 4)))
  return events.GroupedSums(parts, tuple(map(str, range(len(parts)))))


def correlated(kind, rng):
  """A round of a run, of a pattern that few samplers keep or of bands that any does."""
  num_rounds = min(whole(rng), 2**31 - 1)
  apart, most = min(whole(rng), num_rounds), 1 + int(rng.integers(3))
  column = min(max(positive(rng), 1e-150), 1e150)
  squared = column**2 * rng.uniform(1, most**2)
  bands = int(rng.choice([1, 1, apart, num_rounds]))
  return kind(
    positive(rng),
    number(rng),
    "a strategy",
    num_rounds,
    int(rng.choice([1, apart])),
    most,
    squared,
    bands,
    column,
    int(rng.integers(num_rounds)),
  )


def in_turns(rng, kind, *middle):
  """A sampling of groups that take turns."""
  return kind(min(whole(rng), 10**12), *middle, whole(rng), by_identity=bool(rng.integers(2)))


QUERIES = {
  events.GaussianSum: lambda rng: events.GaussianSum(positive(rng), number(rng)),
  events.LaplaceSum: lambda rng: events.LaplaceSum(positive(rng), number(rng)),
  events.WeightedAverage: lambda rng: events.WeightedAverage(
    positive(rng), number(rng), positive(rng)
  ),
  events.RandomizedResponse: lambda rng: events.RandomizedResponse(
    probability(rng), whole(rng, 2), bool(rng.integers(2))
  ),
  events.PureRelease: lambda rng: events.PureRelease(number(rng)),
  events.ConcentratedRelease: lambda rng: events.ConcentratedRelease(number(rng)),
  events.NonPrivate: lambda rng: events.NonPrivate(),
  events.GroupedSums: grouped,
  events.DistributedGaussianSum: lambda rng: events.DistributedGaussianSum(
    positive(rng), number(rng), rng.uniform() < 0.9
  ),
  events.DiscreteGaussianSum: lambda rng: events.DiscreteGaussianSum(
    positive(rng), positive(rng), number(rng), whole(rng, 0) - 1, whole(rng)
  ),
  events.SkellamSum: lambda rng: events.SkellamSum(
    positive(rng), positive(rng), number(rng), whole(rng, 0) - 1, released=rng.uniform() < 0.9
  ),
  events.CorrelatedGaussianSum: functools.partial(correlated, events.CorrelatedGaussianSum),
  events.DistributedCorrelatedSum: functools.partial(correlated, events.DistributedCorrelatedSum),
}
SAMPLINGS = {
  events.TruncatedPoissonSampling: lambda rng: events.TruncatedPoissonSampling(
    probability(rng), min(whole(rng), 10**12), min(whole(rng), 10**12)
  ),
  events.PoissonSampling: lambda rng: events.PoissonSampling(
    probability(rng), overflow(rng), max_participations=whole(rng) if rng.uniform() < 0.2 else None
  ),
  events.FixedSizeSampling: lambda rng: events.FixedSizeSampling(*sorted((whole(rng), whole(rng)))),
  events.ShuffledBatches: lambda rng: events.ShuffledBatches(
    whole(rng), bool(rng.integers(2)), bool(rng.integers(2))
  ),
  events.BallsInBins: lambda rng: events.BallsInBins(
    whole(rng), bool(rng.integers(2)), overflow(rng)
  ),
  events.RandomAllocation: lambda rng: allocation(rng),
  events.MinSeparationSampling: lambda rng: in_turns(rng, events.MinSeparationSampling, whole(rng)),
  events.CyclicPoissonSampling: lambda rng: in_turns(
    rng, events.CyclicPoissonSampling, probability(rng)
  ),
}


def allocation(rng):
  most, rounds = sorted((whole(rng), whole(rng)))
  return events.RandomAllocation(rounds, most, bool(rng.integers(2)), overflow(rng))


def overflow(rng):
  return probability(rng) ** 3 if rng.uniform() < 0.15 else 0.0


def query(rng):
  return list(QUERIES.values())[rng.integers(len(QUERIES))](rng)


def event(rng, relation, observer):
  if rng.uniform() < 0.1:
    guarantee = (
      PureDP(number(rng)),
      ApproxDP(number(rng), probability(rng)),
      SeparatedDP(number(rng), number(rng)),
      PureDP(math.inf),
    )[rng.integers(4)]
    guarantee = guarantee.restate(unit="user", observer=observer)
    return events.LocalRelease(guarantee, (None, 1, 100)[rng.integers(3)])
  sampling = list(SAMPLINGS.values())[rng.integers(len(SAMPLINGS))](rng)
  return events.Round(sampling, query(rng), relation, observer=observer)


def random_ledger(rng):
  relation = list(Relation)[rng.integers(3)]
  observer = list(Observer)[rng.integers(3)]
  entries = [(event(rng, relation, observer), whole(rng)) for _ in range(rng.integers(1, 4))]
  return Ledger().extend(entries)


# What is harmless to raise in a query (epsilon may not grow), and what to lower.
NOISE = {
  events.GaussianSum: "stddev",
  events.LaplaceSum: "scale",
  events.WeightedAverage: "stddev",
  events.RandomizedResponse: "noise",
  events.DistributedGaussianSum: "stddev",
  events.DiscreteGaussianSum: "share_stddev",
  events.SkellamSum: "share_variance",
  events.CorrelatedGaussianSum: "noise_multiplier",
  events.DistributedCorrelatedSum: "noise_multiplier",
}
COST = {events.PureRelease: "epsilon", events.ConcentratedRelease: "rho"}


def scaled(value, factor, ceiling=math.inf):
  return min(value * factor, ceiling, 1.7e308)


def quieter(query):
  """The same with more noise."""
  if isinstance(query, events.GroupedSums):
    return dataclasses.replace(query, parts=tuple(map(quieter, query.parts)))
  if name := NOISE.get(type(query)):
    ceiling = 1.0 if isinstance(query, events.RandomizedResponse) else math.inf
    return dataclasses.replace(query, **{name: scaled(getattr(query, name), 1.7, ceiling)})
  if name := COST.get(type(query)):
    return dataclasses.replace(query, **{name: getattr(query, name) / 1.7})
  return query


def rarer(sampling):
  """The same with a smaller sample."""
  if isinstance(sampling, events.PoissonSampling | events.CyclicPoissonSampling):
    return dataclasses.replace(sampling, probability=sampling.probability * 0.6)
  if isinstance(sampling, events.FixedSizeSampling):
    return dataclasses.replace(sampling, sample_size=max(1, sampling.sample_size * 6 // 10))
  return sampling


def changed(ledger, change):
  return Ledger().extend(change(event, count) for event, count in ledger.entries)


def more_often(event, count):
  return event, 3 * count


def with_part(event, name, change):
  """The event with its query or sampling changed; a local release has neither."""
  if not isinstance(event, events.Round):
    return event
  return dataclasses.replace(event, **{name: change(getattr(event, name))})


def with_more_noise(event, count):
  return with_part(event, "query", quieter), count


def with_smaller_samples(event, count):
  return with_part(event, "sampling", rarer), count


class FaultError(Exception):
  """What is wrong with a ledger's numbers."""


def stated(function, ledger, argument, accountant, relation=None):
  """A number, or None if the ledger is refused in due form."""
  try:
    value = function(ledger, argument, accountant=accountant, relation=relation)
  except ValueError as error:
    if not REFUSAL.match(str(error)):
      raise FaultError(f"refusal says {error}") from error
    return None
  except Exception as error:
    raise FaultError(f"raised {type(error).__name__}: {error}") from error
  if not value >= 0:
    raise FaultError(f"{function.__name__}({argument}) = {value}")
  return value


def not_above(small, large, what, absolute=1e-300):
  if small is None or large is None:
    return
  if small > large * (1 + TOLERANCE) + absolute:
    raise FaultError(f"{what}: {small} > {large}")


def check(ledger, accountant, relation=None):
  """Raises `FaultError` if an accountant's numbers for the ledger cannot be right. Returns whether
  it stated any.
  """
  module = accounting.accountant
  # composes once
  with mock.patch.object(module, "_profile", functools.lru_cache(maxsize=4)(module._profile)):
    return _check(ledger, accountant, relation)


def _check(ledger, accountant, relation):
  epsilons = [stated(accounting.epsilon, ledger, delta, accountant, relation) for delta in DELTAS]
  deltas = [stated(accounting.delta, ledger, epsilon, accountant, relation) for epsilon in EPSILONS]
  for before, after in itertools.pairwise(epsilons):
    not_above(after, before, "epsilon grows with delta")
  for before, after in itertools.pairwise(map(surprise, deltas)):
    not_above(before, after, "delta grows with epsilon", absolute=TOLERANCE)
  if deltas[0] is not None and not max(deltas) <= 1:
    raise FaultError(f"delta above 1: {deltas}")
  for change, sign in ((more_often, 1), (with_more_noise, -1), (with_smaller_samples, -1)):
    other = changed(ledger, change)
    if other == ledger:
      continue
    value = stated(accounting.epsilon, other, DELTAS[2], accountant, relation)
    small, large = (epsilons[2], value) if sign > 0 else (value, epsilons[2])
    not_above(small, large, change.__name__)
  return epsilons[0] is not None


def surprise(delta):
  """-log delta, in which the bounds are as exact as epsilon."""
  return None if delta is None else -math.log(delta) if delta > 0 else math.inf


def search(count, seed, accountants=("rdp", "moments", "pld"), pld_share=0.05):
  """Faults found in `count` ledgers: (number, accountant, message, ledger); how many gave numbers;
  the slowest.
  """
  faults, stated_by, slowest = [], collections.Counter(), (0.0, "", 0)
  for i in range(count):
    rng = np.random.default_rng([seed, i])
    ledger = random_ledger(rng)
    for accountant in accountants:
      if accountant == "pld" and rng.uniform() > pld_share:
        continue
      relation = next((e.relation for e, _ in ledger.entries if isinstance(e, events.Round)), None)
      started = time.process_time()
      try:
        stated_by[accountant] += check(ledger, accountant, relation)
      except FaultError as fault:
        faults.append((i, accountant, str(fault), ledger))
      slowest = max(slowest, (time.process_time() - started, accountant, i))
  return faults, stated_by, slowest


def main():
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--count", type=int, default=10_000)
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--accountants", default="rdp,moments,pld")
  parser.add_argument(
    "--pld_share", type=float, default=0.02, help="of the ledgers, which take long with this one"
  )
  parser.add_argument("--show", type=int, default=20, help="how many faults to print")
  options = parser.parse_args()
  warnings.simplefilter("error")
  before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
  faults, stated_by, slowest = search(
    options.count, options.seed, options.accountants.split(","), options.pld_share
  )
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  print(f"{options.count} ledgers in {time.perf_counter() - started:.0f} s, {len(faults)} faults")
  print(
    f"ledgers with numbers: {dict(stated_by)}; the slowest took {slowest[0]:.1f} s of the "
    f"processor: {slowest[1:]}"
  )
  print(f"memory: {before // 1024} MB before, {peak // 1024} MB at most")
  for i, accountant, message, ledger in faults[: options.show]:
    print(f"\n{i} {accountant}: {message}\n  " + "\n  ".join(map(str, ledger.entries)))


if __name__ == "__main__":
  main()
