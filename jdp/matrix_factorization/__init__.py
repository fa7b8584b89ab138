"""Correlated noise: matrix factorisations for runs of many rounds (DP-FTRL).

| subject | module |
| --- | --- |
| what a strategy is; sensitivity and errors | `strategies`, `participation` |
| Toeplitz strategies in closed form: independent noise, square roots | `toeplitz` |
| optimised banded Toeplitz strategies | `optimised_toeplitz` |
| optimised buffers (BLT) | `buffered` |
| optimised bands (BandMF) | `banded_matrices` |
| the binary tree | `trees` |
| the event of a planned run | `plans` |
"""

from jdp.matrix_factorization.banded_matrices import BandedStrategy, banded
from jdp.matrix_factorization.buffered import BufferedStrategy, buffered_toeplitz
from jdp.matrix_factorization.optimised_toeplitz import banded_toeplitz
from jdp.matrix_factorization.plans import planned_sum
from jdp.matrix_factorization.strategies import Strategy
from jdp.matrix_factorization.toeplitz import (
  ToeplitzStrategy,
  banded_inverse_square_root,
  identity,
  square_root_toeplitz,
)
from jdp.matrix_factorization.trees import TreeStrategy, tree

__all__ = [
  "BandedStrategy",
  "BufferedStrategy",
  "Strategy",
  "ToeplitzStrategy",
  "TreeStrategy",
  "banded",
  "banded_inverse_square_root",
  "banded_toeplitz",
  "buffered_toeplitz",
  "identity",
  "planned_sum",
  "square_root_toeplitz",
  "tree",
]
