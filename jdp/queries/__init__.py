"""Sum queries: one sample's sum, made private on the server."""

from jdp.queries import registry
from jdp.queries.adaptive_clipping import adaptive_clipped_sum
from jdp.queries.base import SumQuery
from jdp.queries.correlated_sum import correlated_gaussian_sum
from jdp.queries.distributed.calibrated_integers import distributed_integers
from jdp.queries.distributed.correlated_integer_sums import correlated_integers
from jdp.queries.distributed.float_sums import distributed_sum
from jdp.queries.distributed.integer_sums import discrete_sum
from jdp.queries.distributed.noise_schemes import calibrated, central, excess, uncalibrated
from jdp.queries.gaussian import average, gaussian_sum, no_privacy
from jdp.queries.grid import on_grid
from jdp.queries.grouped_query import grouped
from jdp.queries.joint_clipping import joint_clipped_sum
from jdp.queries.noise_shares import dimension_adjusted_noise, proportional_noise
from jdp.queries.per_layer_clipping import per_layer
from jdp.queries.weighted_averages import weighted_average

__all__ = [
  "SumQuery",
  "adaptive_clipped_sum",
  "average",
  "calibrated",
  "central",
  "correlated_gaussian_sum",
  "correlated_integers",
  "dimension_adjusted_noise",
  "discrete_sum",
  "distributed_integers",
  "distributed_sum",
  "excess",
  "gaussian_sum",
  "grouped",
  "joint_clipped_sum",
  "no_privacy",
  "on_grid",
  "per_layer",
  "proportional_noise",
  "registry",
  "uncalibrated",
  "weighted_average",
]
