"""Families of dominating pairs, with all that accountants know of each.

| families | module |
|---|---|
| what all have in common | `base` |
| Gaussian releases, of samples, of bins, of groups | `gaussian` |
| Laplace and integer sums, responses, stated and unprotected releases | `releases` |
| all that one sample released, whatever it was | `samples` |
"""

from jdp.accounting.families.base import (
  Charge,
  DominatingPair,
  Family,
  always_symmetric,
  charge_of,
  loss_of,
  unbounded,
)
from jdp.accounting.families.gaussian import (
  ALLOCATED_GAUSSIAN,
  CAPPED_GAUSSIAN,
  FIXED_SIZE_GAUSSIAN,
  GAUSSIAN,
  GROUP_GAUSSIAN,
  REPLACED_GAUSSIAN,
  TRUNCATED_GAUSSIAN,
)
from jdp.accounting.families.releases import (
  CONCENTRATED,
  DISCRETE_GAUSSIAN,
  LAPLACE,
  NON_PRIVATE,
  NULL_RESPONSE,
  PURE,
  RANDOMIZED_RESPONSE,
  SKELLAM,
)

__all__ = [
  "ALLOCATED_GAUSSIAN",
  "CAPPED_GAUSSIAN",
  "CONCENTRATED",
  "DISCRETE_GAUSSIAN",
  "FIXED_SIZE_GAUSSIAN",
  "GAUSSIAN",
  "GROUP_GAUSSIAN",
  "LAPLACE",
  "NON_PRIVATE",
  "NULL_RESPONSE",
  "PURE",
  "RANDOMIZED_RESPONSE",
  "REPLACED_GAUSSIAN",
  "SKELLAM",
  "TRUNCATED_GAUSSIAN",
  "Charge",
  "DominatingPair",
  "Family",
  "always_symmetric",
  "charge_of",
  "loss_of",
  "unbounded",
]
