"""Training procedures: what clients compute and how the server steps."""

from jdp.federated.cohort import client_mesh, cohort_sum, replicate
from jdp.federated.local_training import LocalUpdate, gradient_step, local_sgd, proximal_point
from jdp.federated.private_federated import private_federated
from jdp.federated.rounds import ClientKeys, FederatedAlgorithm, Server, ServerState, descend, rounds

__all__ = [
  "ClientKeys",
  "FederatedAlgorithm",
  "LocalUpdate",
  "Server",
  "ServerState",
  "client_mesh",
  "cohort_sum",
  "descend",
  "gradient_step",
  "local_sgd",
  "private_federated",
  "proximal_point",
  "replicate",
  "rounds",
]
