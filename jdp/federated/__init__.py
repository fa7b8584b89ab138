"""Training procedures: what clients compute and how the server steps."""

from jdp.federated.cohort import client_mesh, cohort_sum, replicate
from jdp.federated.local_training import LocalUpdate, gradient_step, local_sgd, proximal_point
from jdp.federated.private_federated import Diagnostics, FederatedAlgorithm, ServerState, private_federated

__all__ = [
  "Diagnostics",
  "FederatedAlgorithm",
  "LocalUpdate",
  "ServerState",
  "client_mesh",
  "cohort_sum",
  "gradient_step",
  "local_sgd",
  "private_federated",
  "proximal_point",
  "replicate",
]
