"""Correlated noise: matrix factorisations for runs of many rounds (DP-FTRL).

| subject | module |
| --- | --- |
| what a strategy is; sensitivity and errors | `strategies`, `participation` |
| Toeplitz strategies in closed form: independent noise, square roots | `toeplitz` |
| optimised banded Toeplitz strategies | `optimised_toeplitz` |
| optimised buffers (BLT) | `buffered` |
| optimised bands (BandMF) | `banded_matrices` |
| the binary tree | `trees` |
| workloads of optimisers with momentum, schedules and decay | `workloads` |
| the best strategy for a privacy target | `choice` |
| the event of a planned run; files | `plans`, `files` |
| the noise of the rounds | `noise` |
"""

from jdp.matrix_factorization.banded_matrices import banded
from jdp.matrix_factorization.buffered import buffered_toeplitz
from jdp.matrix_factorization.choice import choose_strategy
from jdp.matrix_factorization.files import load, save
from jdp.matrix_factorization.optimised_toeplitz import banded_toeplitz
from jdp.matrix_factorization.plans import planned_sum
from jdp.matrix_factorization.strategies import Strategy
from jdp.matrix_factorization.toeplitz import (
  banded_inverse_square_root,
  identity,
  square_root_toeplitz,
)
from jdp.matrix_factorization.trees import tree
from jdp.matrix_factorization.workloads import optimizer_workload

__all__ = [
  "Strategy",
  "banded",
  "banded_inverse_square_root",
  "banded_toeplitz",
  "buffered_toeplitz",
  "choose_strategy",
  "identity",
  "load",
  "optimizer_workload",
  "planned_sum",
  "save",
  "square_root_toeplitz",
  "tree",
]
