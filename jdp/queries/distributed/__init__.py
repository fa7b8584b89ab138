"""Sums whose noise the clients add: in floats, in integers, and who adds how much."""

from jdp.queries.distributed.calibrated_integers import IntegerSum, distributed_integers
from jdp.queries.distributed.correlated_integer_sums import CorrelatedIntegers, correlated_integers
from jdp.queries.distributed.float_sums import DistributedSum, RoundEvents, distributed_sum
from jdp.queries.distributed.integer_sums import discrete_sum
from jdp.queries.distributed.noise_schemes import calibrated, central, excess, uncalibrated

__all__ = [
  "CorrelatedIntegers",
  "DistributedSum",
  "IntegerSum",
  "RoundEvents",
  "calibrated",
  "central",
  "correlated_integers",
  "discrete_sum",
  "distributed_integers",
  "distributed_sum",
  "excess",
  "uncalibrated",
]
