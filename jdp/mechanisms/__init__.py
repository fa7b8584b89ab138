"""Local randomisers: one client's value, made private on the client."""

from jdp.mechanisms import registry
from jdp.mechanisms.additive import gaussian, l2_laplace, laplace
from jdp.mechanisms.base import LocalMechanism
from jdp.mechanisms.grid import on_grid
from jdp.mechanisms.hemisphere_sampling import hemisphere
from jdp.mechanisms.priv_unit_gaussian import priv_unit_g
from jdp.mechanisms.priv_unit_index import compressed_priv_unit
from jdp.mechanisms.priv_unit_infinity import priv_unit_linf
from jdp.mechanisms.priv_unit_l2 import priv_unit
from jdp.mechanisms.proj_units import fast_proj_unit
from jdp.mechanisms.scalar_dp_grids import scalar_dp, scalar_rel_dp
from jdp.mechanisms.separated_product import separated
from jdp.mechanisms.streaming import stream_sum

__all__ = [
  "LocalMechanism",
  "compressed_priv_unit",
  "fast_proj_unit",
  "gaussian",
  "hemisphere",
  "l2_laplace",
  "laplace",
  "on_grid",
  "priv_unit",
  "priv_unit_g",
  "priv_unit_linf",
  "registry",
  "scalar_dp",
  "scalar_rel_dp",
  "separated",
  "stream_sum",
]
