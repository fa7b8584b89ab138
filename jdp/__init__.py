"""jdp: differentially private federated learning in JAX.

Three concerns never know of each other:

* the training procedure (`jdp.federated`);
* the privacy mechanism (`jdp.mechanisms` for one client's value, `jdp.queries` for one sample's
  sum);
* the accounting (`jdp.accounting`), which comes afterwards, from a ledger (`jdp.ledger`) of what
  was done.
"""

from jdp import (
  accounting,
  data,
  events,
  federated,
  guarantees,
  ledger,
  mechanisms,
  models,
  numerics,
  queries,
  random,
  sampling,
  transforms,
)

__all__ = [
  "accounting",
  "data",
  "events",
  "federated",
  "guarantees",
  "ledger",
  "mechanisms",
  "models",
  "numerics",
  "queries",
  "random",
  "sampling",
  "transforms",
]

__version__ = "0.1.0"
