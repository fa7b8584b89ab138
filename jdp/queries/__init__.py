"""Sum queries: one sample's sum, made private on the server."""

from jdp.queries.base import SumQuery
from jdp.queries.gaussian import average, gaussian_sum, no_privacy

__all__ = ["SumQuery", "average", "gaussian_sum", "no_privacy"]
