"""Local randomisers: one client's value, made private on the client."""

from jdp.mechanisms.base import LocalMechanism
from jdp.mechanisms.grid import on_grid
from jdp.mechanisms.priv_unit import priv_unit, published_split
from jdp.mechanisms.scalar_dp import scalar_dp
from jdp.mechanisms.separated import SeparatedReport, separated
from jdp.mechanisms.streaming import stream_sum

__all__ = [
  "LocalMechanism",
  "SeparatedReport",
  "on_grid",
  "priv_unit",
  "published_split",
  "scalar_dp",
  "separated",
  "stream_sum",
]
