"""Draw and Discard (arXiv 1807.04369): a server of k model instances, and clients with noisy
models.
"""

from jdp.federated.draw_and_discard.batching_server import server_batching, server_batching_process
from jdp.federated.draw_and_discard.client_updates import (
  exact_update,
  gaussian_update,
  laplace_update,
)
from jdp.federated.draw_and_discard.instance_server import (
  InstancesState,
  average_model,
  average_predictions,
  draw_and_discard,
  draw_and_discard_process,
  instances,
  spread_instances,
)
from jdp.federated.draw_and_discard.update_stream import (
  Arrivals,
  ClientUpdate,
  Passes,
  arrivals,
  passes,
)

__all__ = [
  "Arrivals",
  "ClientUpdate",
  "InstancesState",
  "Passes",
  "arrivals",
  "average_model",
  "average_predictions",
  "draw_and_discard",
  "draw_and_discard_process",
  "exact_update",
  "gaussian_update",
  "instances",
  "laplace_update",
  "passes",
  "server_batching",
  "server_batching_process",
  "spread_instances",
]
