"""Training with noise by the clients, some of whom vanish.

The modules model who vanishes, train under dropout, and sum under masks.
"""

from jdp.federated.dropout.distributed_noise import client_dropout
from jdp.federated.dropout.dropout_models import (
  DropoutModel,
  bursty,
  by_size,
  independent,
  stage_counts,
  with_calibrations,
)
from jdp.federated.dropout.masked_rounds import masked_round
from jdp.federated.dropout.secure_aggregation_protocol import secure_aggregation

__all__ = [
  "DropoutModel",
  "bursty",
  "by_size",
  "client_dropout",
  "independent",
  "masked_round",
  "secure_aggregation",
  "stage_counts",
  "with_calibrations",
]
