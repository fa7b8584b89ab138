"""Events: what a run did with private data, as the ledger records it.

An event is a frozen value, and its docstring is its mathematical definition. To write an
accountant, one needs to know nothing else. An event never changes its meaning: a new meaning is a
new class. Events are checked when they are made.

Events are pytrees, so a jitted step can return them and a scan can stack them. Fields that hold
arrays are leaves, such as a clip norm that follows a schedule. Everything else is static: names,
policies and constants. Static values therefore stay float64 on their way through jit.

One leaf always exists, the event's number. So the events of a scan always have an axis, and a
ledger cannot take them for one event.

| events | module |
|---|---|
| what all have in common | `base` |
| who took part in a round | `sampling` |
| what was released about them | `queries` |
| the same of a whole run | `whole_runs` |
| both, where noise is correlated over the rounds of a run | `correlated` |
| what a ledger holds: rounds, releases by local mechanisms | `rounds` |
"""

from jdp.events.base import EventBase
from jdp.events.correlated import (
  CorrelatedGaussianSum,
  CyclicPoissonSampling,
  DistributedCorrelatedSum,
  MinSeparationSampling,
)
from jdp.events.queries import (
  ConcentratedRelease,
  DiscreteGaussianSum,
  DistributedGaussianSum,
  GaussianSum,
  GroupedSums,
  LaplaceSum,
  NonPrivate,
  PureRelease,
  RandomizedResponse,
  SkellamSum,
  WeightedAverage,
  register,
  register_sampling,
)
from jdp.events.rounds import LocalRelease, Round
from jdp.events.sampling import (
  BallsInBins,
  FixedSizeSampling,
  PoissonSampling,
  RandomAllocation,
  ShuffledBatches,
  TruncatedPoissonSampling,
)
from jdp.events.whole_runs import BestOfRuns, TreeAggregation

__all__ = [
  "BallsInBins",
  "BestOfRuns",
  "ConcentratedRelease",
  "CorrelatedGaussianSum",
  "CyclicPoissonSampling",
  "DiscreteGaussianSum",
  "DistributedCorrelatedSum",
  "DistributedGaussianSum",
  "EventBase",
  "FixedSizeSampling",
  "GaussianSum",
  "GroupedSums",
  "LaplaceSum",
  "LocalRelease",
  "MinSeparationSampling",
  "NonPrivate",
  "PoissonSampling",
  "PureRelease",
  "RandomAllocation",
  "RandomizedResponse",
  "Round",
  "ShuffledBatches",
  "SkellamSum",
  "TreeAggregation",
  "TruncatedPoissonSampling",
  "WeightedAverage",
  "register",
  "register_sampling",
]
