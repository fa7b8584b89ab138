"""Draw and Discard (arXiv 1807.04369): a server of k model instances, and clients with noisy
models.
"""

from jdp.federated.draw_and_discard.batching_server import server_batching
from jdp.federated.draw_and_discard.client_updates import (
  exact_update,
  gaussian_update,
  laplace_update,
)
from jdp.federated.draw_and_discard.instance_server import (
  average_predictions,
  draw_and_discard,
  draw_and_discard_process,
  spread_instances,
)
from jdp.federated.draw_and_discard.update_stream import ClientUpdate, arrivals, passes

__all__ = [
  "ClientUpdate",
  "arrivals",
  "average_predictions",
  "draw_and_discard",
  "draw_and_discard_process",
  "exact_update",
  "gaussian_update",
  "laplace_update",
  "passes",
  "server_batching",
  "spread_instances",
]
