"""The form of a sum query: one sample's sum, made private on the server.

What a *record* is decides what the guarantee protects (arXiv 1812.06210, Table 1):

| training | record | sample |
| --- | --- | --- |
| per example | the gradient on one example | a batch of examples |
| by microbatch | the mean gradient on one microbatch | a batch of microbatches |
| federated, per user | one user's model update | the users of a round |

A record is fixed before sampling. So a microbatch is a record only if its members are fixed too:
cut the data into microbatches once, and sample those. Then the guarantee protects the microbatch.
If one example is added, removed or replaced, its record is *replaced*, which moves the sum by up to
2S. For one example alone, take the relation replace_one.

Cutting a *sample* into microbatches is not covered. One example less shifts all that follow it into
other microbatches, and each of them may move by 2S.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Self, TypeVar

import jax

from jdp import random
from jdp.events.queries import SumQueryEvent
from jdp.numerics.compensated import rounded

Key = jax.Array
PyTree = Any
State = Any
Contribution = Any
Schedule = Callable[[jax.Array], jax.Array]  # step -> value, as in optax
Preprocess = TypeVar("Preprocess", bound=Callable[..., Contribution])


def all_public(state: State) -> State:
  """Returns the state as it is."""
  return state


def unbounded(state: State, record: PyTree) -> PyTree:
  """Returns the record as it is."""
  del state
  return record


class _SumQuery(NamedTuple):
  init: Callable[[PyTree], State]
  preprocess: Callable[[Key, State, PyTree, jax.Array], Contribution]
  finalize: Callable[[Key, State, Contribution], tuple[PyTree, SumQueryEvent, State]]
  noise: float | Callable[[State], jax.Array] | None = None
  takes_pairs: bool = False
  clip: Callable[[State, PyTree], PyTree] = unbounded
  public: Callable[[State], State] = all_public
  num_rounds: int | None = None


class SumQuery(_SumQuery):
  """A private sum as pure functions (the query of arXiv 1812.06210, Section 2).

  A round is: `preprocess` each record of the sample, add the contributions up, `finalize` the sum.
  Make the query once, outside the round: jit caches by the identity of the functions.

  Attributes:
    init: record -> state. Called with one record (or its shapes). The state holds the step and
      whatever changes between rounds.
    preprocess: (key, state, record, weight) -> contribution. One record with its weight in [0, 1]
      becomes a bounded contribution, which may have another structure than the record. A weight of
      0 (padding) or NaN gives a contribution of exactly zero, whatever the record holds.
    finalize: (key, state, sum of contributions) -> (result, event, state). These are the noised
      result, what the ledger must hold about it, and the next state. The event says what was
      *done*, with the state before. The query marks it where the key is not secret. So this key and
      those of `preprocess` must follow from one key: the round's.
    takes_pairs: whether `finalize` takes unrounded sums, which have a `Compensated` for each float
      leaf. `finalize` then adds its noise by `jdp.numerics.compensated.add`, never by
      `jax.tree.map`. If False, it is given plain arrays. They are rounded to float32 before the
      noise, which can move a sum by 2^-23 of its length more.
    noise: the largest standard deviation of float noise on a coordinate of the result, or a bound
      on it. It is a number, or a function of the state before the round if it varies from round to
      round. It is 0 if there is no noise, and None if it is not stated. `on_grid` must hide the
      digits of this noise.
    clip: (state, record) -> record. The record within the bounds that `preprocess` would put on it
      in this round, for local training that stays within them. `preprocess` gives the same with and
      without it. If no bound is fixed beforehand, `clip` returns the record as it is.
    public: state -> the state without what must stay secret, such as noise that was not released.
      `preprocess`, `clip` and clients get this public state. `finalize` takes the whole state.
    num_rounds: the number of rounds that the noise is for, or None. No more may be released.
  """

  __slots__ = ()

  def __new__(cls, init: Any, preprocess: Any, finalize: Any, *options: Any, **named: Any) -> Self:
    """The query, whose `finalize` marks its event by its key."""
    return super().__new__(cls, init, preprocess, _marking(finalize), *options, **named)

  @classmethod
  def _make(cls, iterable: Iterable[Any]) -> Self:  # type: ignore[override]
    """As for a named tuple. It calls `__new__`, so that `_replace` marks a new `finalize` too."""
    return cls(*iterable)


def _marking(finalize: Callable) -> Callable:
  """The same `finalize`, which also marks the event that it returns (`jdp.random.marked`)."""
  if getattr(finalize, "marks", False):
    return finalize

  @functools.wraps(finalize)
  def marking(key, state, total):
    result, event, state = finalize(key, state, total)
    return result, random.marked(event, key), state

  marking.marks = True  # type: ignore[attr-defined]
  return marking


def scales(preprocess: Preprocess) -> Preprocess:
  """Marks a `preprocess` that scales the record by one factor, which follows from its L2 norm.

  A cohort's layout may then know no more of a record than its norm. The mark is on the function, so
  a query with another `preprocess` does not have it.
  """
  preprocess.scales = True  # type: ignore[attr-defined]
  return preprocess


def is_scaling(query: SumQuery) -> bool:
  """Whether the query's `preprocess` is marked by `scales`."""
  return getattr(query.preprocess, "scales", False)


def taken(query: SumQuery, total: Contribution) -> Contribution:
  """A sum in the form that the query's `finalize` takes."""
  return total if query.takes_pairs else rounded(total)


def times(factor: float, value: Any) -> Any:
  """A number or a function (a schedule, a query's `noise`), multiplied by a factor."""
  return (lambda argument: factor * value(argument)) if callable(value) else factor * value
