"""Training procedures: what clients compute and how the server steps."""

from jdp.federated.averages import (
  adaptive_average,
  by_layer,
  clipped_denominator,
  fixed_denominator,
  flat,
  true_average,
)
from jdp.federated.averaging import dp_sgd, federated_averaging, weight_by_examples
from jdp.federated.client import ClientKeys
from jdp.federated.client_dropout import client_dropout
from jdp.federated.client_updates import ClientUpdate, exact_update, gaussian_update, laplace_update
from jdp.federated.cohort import client_mesh, cohort_sum, replicate, unrounded_cohort_sum
from jdp.federated.cohort_layout import CohortLayout, fastest
from jdp.federated.draw_and_discard import (
  average_predictions,
  draw_and_discard,
  draw_and_discard_process,
  instances,
  spread_instances,
)
from jdp.federated.iterative import initial_values, iterative_training, record_like
from jdp.federated.local_training import LocalUpdate, gradient_step, local_sgd, proximal_point
from jdp.federated.masked_round import masked_round
from jdp.federated.mirror_descent import p_norm_descent
from jdp.federated.private_federated import private_federated
from jdp.federated.rounds import FederatedAlgorithm, Server, ServerState, add_updates, rounds
from jdp.federated.run_folder import RunFolder
from jdp.federated.secure_aggregation import secure_aggregation
from jdp.federated.server_batching import server_batching, server_batching_process
from jdp.federated.sharded import ShardedClients, shard
from jdp.federated.training import Progress, Result, train
from jdp.federated.update_stream import Arrivals, Passes, arrivals, passes

__all__ = [
  "Arrivals",
  "ClientKeys",
  "ClientUpdate",
  "CohortLayout",
  "FederatedAlgorithm",
  "LocalUpdate",
  "Passes",
  "Progress",
  "Result",
  "RunFolder",
  "Server",
  "ServerState",
  "ShardedClients",
  "adaptive_average",
  "add_updates",
  "arrivals",
  "average_predictions",
  "by_layer",
  "client_dropout",
  "client_mesh",
  "clipped_denominator",
  "cohort_sum",
  "dp_sgd",
  "draw_and_discard",
  "draw_and_discard_process",
  "exact_update",
  "fastest",
  "federated_averaging",
  "fixed_denominator",
  "flat",
  "gaussian_update",
  "gradient_step",
  "initial_values",
  "instances",
  "iterative_training",
  "laplace_update",
  "local_sgd",
  "masked_round",
  "p_norm_descent",
  "passes",
  "private_federated",
  "proximal_point",
  "record_like",
  "replicate",
  "rounds",
  "secure_aggregation",
  "server_batching",
  "server_batching_process",
  "shard",
  "spread_instances",
  "train",
  "true_average",
  "unrounded_cohort_sum",
  "weight_by_examples",
]
