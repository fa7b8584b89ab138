"""How a sum becomes a release: with noise that is bound to that sum."""

import jax

from jdp.events.queries import SumQueryEvent
from jdp.queries.base import Contribution, Key, PyTree, State, SumQuery, taken
from jdp.random import binding


def finalized(
  query: SumQuery, key: Key, state: State, total: Contribution
) -> tuple[PyTree, SumQueryEvent, State]:
  """`query.finalize` with a key that is bound to the sum (`jdp.random.binding.bind`).

  So two rounds with one key have the same noise if their sums, the query's states and the events
  have the same bits. Otherwise their noise is independent: a round that is done again with other
  data or code is a release of its own.

  Args:
    query: the query whose `finalize` is called.
    key: the round's key. Consumed.
    state: the query's state before the round.
    total: the sum of contributions, rounded or not.

  Returns:
    (result, event, next state).
  """
  # The digest and the noise see the same bits: XLA computes the sum once.
  total = jax.lax.optimization_barrier(taken(query, total))
  # The event says how much noise there will be. XLA drops everything else of this call.
  _, event, _ = query.finalize(jax.random.clone(key), state, total)
  return query.finalize(binding.bind(key, (state, total, event)), state, total)
