"""jdp: differentially private federated learning in JAX.

Three concerns never know of each other:

* the training procedure (`jdp.federated`);
* the privacy mechanism (`jdp.mechanisms` for one client's value, `jdp.queries` for one sample's
  sum);
* the accounting (`jdp.accounting`), which comes afterwards, from a ledger (`jdp.ledger`) of what
  was done.

A subpackage is imported when it is first used, so that `import jdp` alone costs next to nothing.
"""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
  from jdp import (
    accounting,
    attacks,
    audits,
    conformance,
    data,
    events,
    federated,
    guarantees,
    ledger,
    matrix_factorization,
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
  "attacks",
  "audits",
  "conformance",
  "data",
  "events",
  "federated",
  "guarantees",
  "ledger",
  "matrix_factorization",
  "mechanisms",
  "models",
  "numerics",
  "queries",
  "random",
  "sampling",
  "transforms",
]

__version__ = "0.1.0"


def __getattr__(name: str) -> ModuleType:
  """A subpackage, on its first use; Python keeps it afterwards."""
  if name in __all__:
    return importlib.import_module(f"jdp.{name}")
  raise AttributeError(f"Expected one of {', '.join(__all__)} of jdp, got {name!r}.")


def __dir__() -> list[str]:
  return sorted({*globals(), *__all__})
