"""Training procedures: what clients compute and how the server steps.

`dp_fedavg` plans a private run over users, `dp_sgd` one over single examples, and `train` does it.
It returns a `Result`, shows `Progress` to the `callbacks`, and `no_improvement` may end it.
`private_sweep` makes many runs, and releases the best of them at a cost little above that of one.
`evaluate_users` and `evaluate_privately` say what a model is worth to users.

Every procedure is a `FederatedAlgorithm`, which `train` takes: `federated_averaging` with any
query, `private_federated` with local noise too, `iterative_training`, `p_norm_descent`,
`client_dropout`, and `rounds`, from which you build a procedure of your own. Clients compute
`local_sgd`, a `gradient_step`, an `example_gradient` or a `proximal_point`. The other names are
parts of these procedures and their layout.
"""

from jdp.federated import callbacks
from jdp.federated.dropout.distributed_noise import client_dropout
from jdp.federated.dropout.masked_rounds import masked_round
from jdp.federated.dropout.secure_aggregation_protocol import secure_aggregation
from jdp.federated.early_stopping import no_improvement
from jdp.federated.engine.cohort import client_mesh, cohort_sum
from jdp.federated.engine.cohort_layout import CohortLayout, fastest
from jdp.federated.engine.cores import use_all_cores
from jdp.federated.engine.ghost_norms import gradient_forms
from jdp.federated.engine.local_training import (
  LocalUpdate,
  example_gradient,
  gradient_step,
  local_sgd,
  proximal_point,
)
from jdp.federated.engine.rounds import FederatedAlgorithm, add_updates, rounds
from jdp.federated.estimators import (
  adaptive_average,
  clipped_denominator,
  fixed_denominator,
  flat_clipping,
  per_layer_clipping,
)
from jdp.federated.evaluation import evaluate_privately, evaluate_users
from jdp.federated.fedavg import federated_averaging, weight_by_examples
from jdp.federated.individual_budgets import individual_budget
from jdp.federated.iterative import iterative_training
from jdp.federated.local_and_central import private_federated
from jdp.federated.mirror_descent import p_norm_descent
from jdp.federated.planned_fedavg import dp_fedavg
from jdp.federated.planned_sgd import dp_sgd
from jdp.federated.runs.training import train
from jdp.federated.selection.private_selection import private_sweep

__all__ = [
  "CohortLayout",
  "FederatedAlgorithm",
  "LocalUpdate",
  "adaptive_average",
  "add_updates",
  "callbacks",
  "client_dropout",
  "client_mesh",
  "clipped_denominator",
  "cohort_sum",
  "dp_fedavg",
  "dp_sgd",
  "evaluate_privately",
  "evaluate_users",
  "example_gradient",
  "fastest",
  "federated_averaging",
  "fixed_denominator",
  "flat_clipping",
  "gradient_forms",
  "gradient_step",
  "individual_budget",
  "iterative_training",
  "local_sgd",
  "masked_round",
  "no_improvement",
  "p_norm_descent",
  "per_layer_clipping",
  "private_federated",
  "private_sweep",
  "proximal_point",
  "rounds",
  "secure_aggregation",
  "train",
  "use_all_cores",
  "weight_by_examples",
]
