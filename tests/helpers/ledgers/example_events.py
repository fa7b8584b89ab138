"""One event or more of every type."""

import jax
import numpy as np

from jdp.events import (
  BallsInBins,
  BestOfRuns,
  ConcentratedRelease,
  CorrelatedGaussianSum,
  CyclicPoissonSampling,
  DiscreteGaussianSum,
  DistributedCorrelatedSum,
  DistributedGaussianSum,
  FixedSizeSampling,
  GaussianSum,
  GroupedSums,
  LaplaceSum,
  LocalRelease,
  MinSeparationSampling,
  NonPrivate,
  PoissonSampling,
  PureRelease,
  RandomAllocation,
  RandomizedResponse,
  Round,
  ShuffledBatches,
  SkellamSum,
  TreeAggregation,
  WeightedAverage,
)
from jdp.guarantees import ApproxDP, PureDP, SeparatedDP
from jdp.sampling.registry import registered

SAMPLERS = [entry.make(60, 6) for entry in registered().values()]
EVENTS = [
  Round(PoissonSampling(0.1, 1e-13, population=60_000), GaussianSum(1 / 3, 0.7)),
  Round(PoissonSampling(1.0), NonPrivate(), "zero_out", "example", "server"),
  LocalRelease(PureDP(np.pi)),
  LocalRelease(ApproxDP(0.1, 1e-300), max_releases=3),
  LocalRelease(SeparatedDP(8.0, 0.1, unit="user", observer="clients"), max_releases=1),
  Round(FixedSizeSampling(10, 1000), LaplaceSum(1.0, 1 / 3), "replace_one"),
  Round(ShuffledBatches(3, True, population=10), WeightedAverage(1 / 3, 0.1, 5.0)),
  Round(RandomAllocation(5, 2, True, 1e-13, population=10), GaussianSum(1 / 3, 0.7)),
  Round(BallsInBins(3, False, 1e-13), RandomizedResponse(0.1, 3)),
  Round(
    PoissonSampling(0.5), GroupedSums((PureRelease(0.1), ConcentratedRelease(1 / 3)), ("a", "b"))
  ),
  Round(PoissonSampling(1.0), DistributedGaussianSum(1 / 3, 0.7, released=False), "zero_out"),
  Round(PoissonSampling(1.0), DiscreteGaussianSum(10.5, 100.0, 2.5, 90, 1000), "zero_out"),
  Round(PoissonSampling(1.0), SkellamSum(10.5, 100.0, 2.5, 90), "zero_out"),
  Round(
    MinSeparationSampling(5, 2, 100, by_identity=True),
    CorrelatedGaussianSum(1 / 3, 2.1, "0a1b", 10, 5, 2, 2.5, 10, 1.1, 7),
  ),
  Round(
    MinSeparationSampling(5, 2, 100),
    DistributedCorrelatedSum(1 / 3, 2.1, "0a1b", 10, 5, 2, 2.5, 10, 1.1, 7),
    "zero_out",
  ),
  Round(CyclicPoissonSampling(5, 0.1, 100, 3, True, 1e-13), GaussianSum(1.0, 2.0)),
  Round(PoissonSampling(1.0), TreeAggregation(1 / 3, 0.7, (3, 1000)), "zero_out"),
  Round(
    PoissonSampling(1.0),
    BestOfRuns(
      (
        Round(PoissonSampling(0.1, 1e-13), GaussianSum(1 / 3, 0.7)),
        Round(PoissonSampling(0.5), PureRelease(0.1)),
      ),
      (1000, 1),
      1 / 0.3,
      np.inf,
      (BestOfRuns((Round(PoissonSampling(1.0), PureRelease(0.1)),), (3,), 1 / 0.3, np.inf),),
    ),
  ),
  *(
    Round(jax.tree.map(np.ndarray.item, jax.device_get(event)), LaplaceSum(1.0, 1 / 3), "zero_out")
    for event in (sampler.event(sampler.init()) for sampler in SAMPLERS)
  ),
]
