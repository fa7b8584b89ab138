"""The binary tree of partial sums, with Honaker's estimates from below (arXiv 2103.00039)."""

import dataclasses
import functools

import numpy as np

from jdp._arguments import checked
from jdp.matrix_factorization.participation import check_rounds, pattern_bound
from jdp.matrix_factorization.strategies import Strategy, Workload

_LONGEST_SEARCH = 3e9  # three times the elementary steps: seconds


@dataclasses.dataclass(frozen=True)
class TreeStrategy(Strategy):
  """Noise at every node of a binary tree over the rounds; a prefix sum is a sum of nodes.

  A node's sum is estimated by the node and by its children, each weighted by its precision. Nodes
  that are not complete inside the rounds have no noise.

  Attributes:
    rounds: n.
  """

  rounds: int

  @property
  def num_rounds(self) -> int:
    """The number of rounds, n."""
    return self.rounds

  @property
  def memory(self) -> int:  # type: ignore[override]
    """See `Strategy`: one estimate for each level."""
    return self.rounds.bit_length()

  def matrix(self) -> np.ndarray:
    """The encoder, float64 [nodes, n]: it says which rounds are below a node."""
    rows = []
    for level in range(self.rounds.bit_length()):
      size = 2**level
      for start in range(0, self.rounds - size + 1, size):
        rows.append((np.arange(self.rounds) // size == start // size).astype(np.float64))
    return np.stack(rows)

  def squared_sensitivity(self, min_separation: int, most: int) -> float:
    """Exact, or an upper bound if the exact search would take long."""
    return _squared_sensitivity(self.rounds, min_separation, most)

  @checked
  def squared_errors(self, workload: Workload = None) -> np.ndarray:
    """For prefix sums only: round t sums the estimates of the nodes that it consists of.

    Raises:
      ValueError: if there is a workload.

    >>> tree(10).squared_errors().round(3).tolist()  # eight rounds are one node
    [1.0, 0.667, 1.667, 0.571, 1.571, 1.238, 2.238, 0.533, 1.533, 1.2]
    """
    if workload is not None:
      raise ValueError("Expected no workload with a tree, got one; it estimates prefix sums.")
    variances = node_variances(self.rounds.bit_length())
    ends = np.arange(1, self.rounds + 1)
    return np.sum(
      [variance * (ends >> level & 1) for level, variance in enumerate(variances)], axis=0
    )


@checked
def tree(num_rounds: int) -> TreeStrategy:
  """The binary tree over the rounds.

  >>> strategy = tree(9)
  >>> round(strategy.sensitivity(min_separation=4, max_participations=3) ** 2, 9)
  11.0
  """
  check_rounds(num_rounds)
  return TreeStrategy(num_rounds)


@functools.lru_cache(maxsize=64)
def _squared_sensitivity(num_rounds: int, min_separation: int, most: int) -> float:
  if most**2 * min_separation**3 <= _LONGEST_SEARCH:
    return _heaviest_squares(num_rounds, min_separation, most)
  return pattern_bound(_nodes_above(num_rounds), min_separation, most)


def _nodes_above(num_rounds: int) -> np.ndarray:
  """How many nodes are above both of two rounds: C^T C, float64 [n, n]."""
  common = np.zeros((num_rounds, num_rounds))
  for level in range(num_rounds.bit_length()):
    size = 2**level
    for start in range(0, num_rounds - size + 1, size):
      common[start : start + size, start : start + size] += 1
  return common


def _heaviest_squares(num_rounds: int, min_separation: int, most: int) -> float:
  """The largest sum over the nodes of (a pattern's rounds below the node)^2.

  A subtree's table holds, at [m, a, z], the largest sum for m rounds. At least a rounds of the
  subtree come before the first of them, and at least z after the last. It ends with the largest m
  that fits.
  """
  b = min_separation
  table = np.full((2, b, b), -np.inf)
  table[0], table[1, 0, 0] = 0.0, 1.0  # a leaf
  tables = [table]
  for level in range(1, num_rounds.bit_length()):
    size = 2 ** (level - 1)
    table = _joined(table, size, table, size, most)
    table = table + np.arange(len(table))[:, None, None] ** 2.0
    tables.append(table)
  # The rounds form a row of complete trees, the largest first.
  forest, length = np.zeros((1, b, b)), 0
  for level in reversed(range(num_rounds.bit_length())):
    if num_rounds >> level & 1:
      forest = _joined(forest, length, tables[level], 2**level, most)
      length += 2**level
  return float(np.max(forest[:, 0, 0]))


def _joined(
  left: np.ndarray, left_size: int, right: np.ndarray, right_size: int, most: int
) -> np.ndarray:
  """The table of two subtrees side by side."""
  b = left.shape[1]
  places, fitting = np.arange(b), min(most, -(-(left_size + right_size) // b))
  best = np.full((fitting + 1, b, b), -np.inf)
  # All rounds on one side: the other side's length counts towards its distance from the end.
  best[: len(left)] = left[:, :, np.maximum(places - right_size, 0)]
  alone = right[:, np.maximum(places - left_size, 0)]
  np.maximum(best[: len(right)], alone, out=best[: len(right)])
  for first in range(1, min(len(left), fitting)):
    others = right[1 : fitting + 1 - first]
    together = best[first + 1 : first + 1 + len(others)]
    for after in places[: min(b, left_size)]:  # rounds after the left side's last one
      sums = left[first, :, after, None] + others[:, b - 1 - after, None, :]
      np.maximum(together, sums, out=together)
  return best


def node_variances(levels: int) -> list[float]:
  """The variance of a node's estimate by level: its own noise, and its children's estimates."""
  variances = [1.0]
  for _ in range(levels - 1):
    variances.append(1 / (1 + 1 / (2 * variances[-1])))
  return variances
