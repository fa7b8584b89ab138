"""Training procedures: what clients compute and how the server steps."""

from jdp.federated.client_updates import ClientUpdate, exact_update, gaussian_update, laplace_update
from jdp.federated.cohort import client_mesh, cohort_sum, replicate
from jdp.federated.draw_and_discard import average_predictions, draw_and_discard, instances
from jdp.federated.iterative import initial_values, iterative_training, record_like
from jdp.federated.local_training import LocalUpdate, gradient_step, local_sgd, proximal_point
from jdp.federated.private_federated import private_federated
from jdp.federated.rounds import ClientKeys, FederatedAlgorithm, Server, ServerState, descend, rounds
from jdp.federated.server_batching import server_batching

__all__ = [
  "ClientKeys",
  "ClientUpdate",
  "FederatedAlgorithm",
  "LocalUpdate",
  "Server",
  "ServerState",
  "average_predictions",
  "client_mesh",
  "cohort_sum",
  "descend",
  "draw_and_discard",
  "exact_update",
  "gaussian_update",
  "gradient_step",
  "initial_values",
  "instances",
  "iterative_training",
  "laplace_update",
  "local_sgd",
  "private_federated",
  "proximal_point",
  "record_like",
  "replicate",
  "rounds",
  "server_batching",
]
