"""Sum queries as subjects of audits: the release with a worst-case record, and without it."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jdp import _validate, accounting, transforms
from jdp._arguments import Arrays, checked
from jdp.accounting.dominating_pairs import dominating_pair as analysed
from jdp.accounting.dominating_pairs import is_central
from jdp.conformance.auditing import Subject
from jdp.conformance.reference_queries import audited
from jdp.conformance.scores import Release, reports
from jdp.conformance.statistics import default_statistics, equal_values
from jdp.events import PoissonSampling, Round
from jdp.events.queries import SumQueryEvent
from jdp.guarantees import Relation
from jdp.ledger import Ledger
from jdp.queries import SumQuery

_LEAST_VARIANCE = 1e-12  # replaces the zero variance of numbers without noise
_RECORDS = ("present", "opposite", "NaN", "infinite")  # of the victim
_NEIGHBOURS = {
  Relation.ADD_REMOVE: tuple((record, "absent") for record in _RECORDS),
  Relation.ZERO_OUT: tuple((record, "null") for record in _RECORDS),
  Relation.REPLACE_ONE: tuple(("present", record) for record in _RECORDS[1:]),
}


@checked
def query_subjects(
  query: SumQuery,
  victim: Arrays,
  others: tuple[tuple[Any, float], ...] = (),
  *,
  delta: float = 0.1,
) -> dict[Relation, Subject]:
  """A query's release of one round, with the epsilon that `jdp.accounting` finds in its event.

  The observer sees the result, the public part of the query's next state, and the event. The inputs
  are samples that differ in the victim's record:

  * the record itself;
  * its negative;
  * the null record, of weight 0 unless each record brings its share of the noise;
  * a record of NaN, and one of infinities;
  * no record.

  Args:
    query: what is audited, with the sum that `jdp.transforms.privatize` makes.
    victim: a record (a pytree of float32 arrays) that moves the release at least as far as any
      other.
    others: the other records, each with its weight in [0, 1].
    delta: if epsilon is infinite for delta = 0, it is stated for this delta.

  Returns:
    A subject for each relation that the event's analysis does not refuse.

  Raises:
    ValueError: if no relation has an accounting for the event, or the accounting fails under one.

  >>> from jdp.queries import gaussian_sum
  >>> subjects = query_subjects(gaussian_sum(1.0, 2.0), np.array([9.0], np.float32))
  >>> [str(relation) for relation, subject in subjects.items() if 0 < subject.epsilon < 2]
  ['add_remove', 'zero_out', 'replace_one']
  """
  inputs = _worst_case_samples(victim, others)

  def release(key: jax.Array, sample: Any) -> Any:
    records, weights = sample
    transformation = transforms.privatize(query, key)
    state = transformation.init(jax.tree.map(lambda x: x[0], records))
    result, state = transformation.update(records, state, weights=weights)
    return result, query.public(state.query), state.event

  event, directions = _pilot(release, inputs)
  statistics = default_statistics(directions["opposite"])
  statistics["change"] = default_statistics(directions["absent"])["projection"]
  statistics["event"] = _equal_events
  # If the noise does not depend on who takes part, a null record has weight 0: it is no record.
  if is_central(event):
    inputs["null"] = inputs["absent"]
  subjects = {}
  for relation, pairs in _NEIGHBOURS.items():
    if (stated := _stated_guarantee(event, relation, delta)) is not None:
      own = {name: inputs[name] for name in dict.fromkeys(name for pair in pairs for name in pair)}
      subjects[relation] = Subject(release, *stated, own, pairs, statistics)
  if not subjects:
    raise ValueError(
      f"Expected an event that is accounted for under some relation, got {type(event).__name__}."
    )
  return subjects


@checked
def registered_query_subjects(name: str, *, delta: float = 0.1) -> dict[Relation, Subject]:
  """The subjects of a registered query, or of a reference query."""
  _validate.one_of(list(audited()), name=name)
  entry = audited()[name]
  return query_subjects(entry.make(), entry.victim, entry.others, delta=delta)


def event_of(name: str) -> SumQueryEvent:
  """The event that an audited query releases, with shapes in place of arrays."""
  entry = audited()[name]
  return jax.eval_shape(
    lambda: transforms.privatize(entry.make(), jax.random.key(0)).init(entry.victim).event
  )


def _worst_case_samples(victim: Any, others: tuple[tuple[Any, float], ...]) -> dict[str, Any]:
  """Samples by name: ([n, ...] records, [n] weights) of the others and, last, the victim."""

  def sample(record: Any, weight: float = 1.0) -> Any:
    rows = [*(other for other, _ in others), record]
    weights = [*(other for _, other in others), weight]
    stacked = jax.tree.map(
      lambda *leaves: jnp.stack([jnp.asarray(x, jnp.float32) for x in leaves]), *rows
    )
    return stacked, jnp.asarray(weights, jnp.float32)

  def filled(value: float) -> Any:
    return jax.tree.map(lambda x: np.full_like(x, value), victim)

  return {
    "present": sample(victim),
    "absent": sample(victim, 0.0),
    "opposite": sample(jax.tree.map(np.negative, victim)),
    "null": sample(filled(0.0)),
    "NaN": sample(filled(math.nan)),
    "infinite": sample(filled(math.inf)),
  }


def _stated_guarantee(
  event: SumQueryEvent, relation: Relation, delta: float
) -> tuple[float, float] | None:
  """(epsilon, delta) of one round that every record takes part in.

  None if the event's analysis refuses the relation.
  """
  ledger = Ledger().append(Round(PoissonSampling(1.0), event, relation))
  try:
    analysed(event, relation, relation)
  except ValueError:
    return None
  pure = accounting.epsilon(ledger, 0.0)
  return (pure, 0.0) if pure < math.inf else (accounting.epsilon(ledger, delta), delta)


def _pilot(release: Release, inputs: dict[str, Any]) -> tuple[SumQueryEvent, dict[str, np.ndarray]]:
  """The event of a round, and the directions that distinguish the victim's release from two others.

  A direction is the mean difference of two releases. Each number is divided by its variance.
  Differences are taken with equal keys, so that additive noise cancels.
  """

  def pilots(name: str) -> Any:
    return jax.device_get(reports(release, jax.random.key(0), 0, inputs[name]))

  present = pilots("present")
  own = _flat_rows(present)
  variance = np.maximum(np.var(own, axis=0), _LEAST_VARIANCE)
  event = jax.tree.map(lambda x: jnp.asarray(x[0]), present[2])
  return event, {
    name: np.mean(own - _flat_rows(pilots(name)), axis=0) / variance
    for name in ("opposite", "absent")
  }


def _flat_rows(tree: Any) -> np.ndarray:
  """The numbers of each of n stacked pytrees, float64 [n, numbers]."""
  leaves = jax.tree.leaves(tree)
  return np.concatenate([np.asarray(x, float).reshape(len(x), -1) for x in leaves], axis=1)


def _equal_events(report: Any) -> jax.Array:
  """A category that stands for a report's event."""
  return equal_values(report[2])
