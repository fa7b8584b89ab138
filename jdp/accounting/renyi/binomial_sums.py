"""Sums over the terms of binomials in logarithms, for many events and orders at once.

The memory is bounded: events are taken in chunks.
"""

import functools
from collections.abc import Callable, Iterator

import numpy as np
import scipy

CHUNK = 2**16
"""Array elements at a time. It bounds the memory, and the arrays stay in the cache."""


def log_binomial_sum(
  log_q: np.ndarray,
  log_p: np.ndarray,
  gain: Callable[[np.ndarray, np.ndarray], np.ndarray],
  orders: np.ndarray,
) -> np.ndarray:
  """log of sum_{k=2}^a C(a, k) p^(a-k) q^k e^(gain_k), for each event and order, [E, A].

  Args:
    log_q: [E].
    log_p: [E].
    gain: (events [R], k [K]) -> gain_k of those events, [R, K].
    orders: a, whole, >= 2, [A].
  """
  # All orders' terms lie side by side on one axis; the gain is evaluated once for each k.
  starts, k, rest, log_choose = _terms(tuple(orders.astype(int)))
  distinct = np.arange(2, k.max() + 1)
  result = np.empty((log_q.size, orders.size))
  for rows in chunks(np.full(log_q.size, k.size)):
    terms = (
      log_choose + k * log_q[rows, None] + rest * log_p[rows, None] + gain(rows, distinct)[:, k - 2]
    )
    result[rows] = _log_sum_exp(terms, starts)
  return result


def chunks(lengths: np.ndarray) -> Iterator[np.ndarray]:
  """Splits rows into index arrays that fill at most `CHUNK` elements.

  Rows of similar length come together, as each chunk is as wide as its longest row.
  """
  rows, start = np.argsort(lengths), 0
  while start < rows.size:
    window = rows[start : start + 1 + int(CHUNK // lengths[rows[start]])]
    filled = np.arange(1, window.size + 1) * lengths[window]
    size = max(1, int(np.searchsorted(filled, CHUNK, side="right")))
    yield window[:size]
    start += size


def log_expm1(t: np.ndarray) -> np.ndarray:
  """log(e^t - 1) for t >= 0, accurate for small and for large t."""
  return np.where(
    t > 1, t + np.log1p(-np.exp(-np.maximum(t, 1))), np.log(np.expm1(np.minimum(t, 1)))
  )


@functools.lru_cache(maxsize=16)
def _terms(orders: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
  """The terms k = 2..a of every order, one order after another.

  Returns:
    The index where each order starts, k, a - k and log C(a, k).
  """
  a = np.repeat(orders, np.array(orders) - 1)
  k = np.concatenate([np.arange(2, order + 1) for order in orders])
  starts = np.cumsum([0, *(order - 1 for order in orders[:-1])])
  gammaln = scipy.special.gammaln
  log_choose = gammaln(a + 1) - gammaln(k + 1) - gammaln(a - k + 1)
  return starts, k, a - k, log_choose


def _log_sum_exp(terms: np.ndarray, starts: np.ndarray) -> np.ndarray:
  """log of the sum of exp(terms) over the segments of the last axis that begin at `starts`."""
  top = np.maximum.reduceat(terms, starts, axis=1)
  lengths = np.diff(starts, append=terms.shape[1])
  # In place, as the terms are the largest array here.
  terms -= np.repeat(top, lengths, axis=1)
  return top + np.log(np.add.reduceat(np.exp(terms, out=terms), starts, axis=1))
