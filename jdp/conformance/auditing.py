"""Audits of stated guarantees: worst-case inputs, several statistics, one confidence."""

from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

from jdp import _validate
from jdp._arguments import checked
from jdp.audits.bounds import Bound, epsilon_bound, quick_epsilon_bound
from jdp.audits.scores import Outcomes, Threshold, best_outcomes, best_threshold, count_both
from jdp.conformance.scores import Scores, Statistic, scores
from jdp.guarantees import rounded_down, rounded_up

Event = Threshold | Outcomes
Statistics = Mapping[str, Statistic]
Name = TypeVar("Name", bound=Hashable)


class Subject(NamedTuple):
  """What is audited, with the statement about it.

  Attributes:
    release: (key, input) -> report, a pytree of arrays. The report is all that the observer sees.
      Works under jit and vmap.
    epsilon: the stated epsilon.
    delta: the delta that `epsilon` is stated for, in [0, 1).
    inputs: the worst cases by name. They are pytrees of arrays, all with one structure.
    pairs: names of the inputs that the statement calls neighbours, each pair in one order.
    statistics: {name: report -> scalar}.
  """

  release: Callable[[jax.Array, Any], Any]
  epsilon: float
  delta: float
  inputs: Mapping[str, Any]
  pairs: tuple[tuple[str, str], ...]
  statistics: Statistics


class Audit(NamedTuple):
  """The result of an audit.

  Attributes:
    epsilon: the stated epsilon.
    delta: the delta that `epsilon` is stated for.
    bound: the lower bound on epsilon, >= 0.
    confidence: the probability that the bound is at most the true epsilon.
    pair: the two inputs that gave the largest bound. The first makes the event likelier.
    statistic: the name of the statistic that told them apart.
    hits: the number of reports on the first input that were in the event.
    false_hits: the number of reports on the second input that were in the event.
    trials: the number of reports on each of the two inputs on which the event was measured.
  """

  epsilon: float
  delta: float
  bound: float
  confidence: float
  pair: tuple[str, str]
  statistic: str
  hits: int
  false_hits: int
  trials: int

  @property
  def refuted(self) -> bool:
    """Whether the stated epsilon is disproved."""
    return self.bound > self.epsilon

  def __str__(self) -> str:
    verdict = "REFUTED" if self.refuted else "not refuted"
    events = f"{self.hits} against {self.false_hits} of {self.trials}"
    return (
      f"epsilon {rounded_up(self.epsilon)} {verdict}: at least {rounded_down(self.bound)} "
      f"({self.statistic}, {' / '.join(self.pair)}: {events})"
    )


class _Candidate(NamedTuple):
  """An event that may refute the stated epsilon, and the bound that it gave."""

  bound: float
  pair: tuple[str, str]
  statistic: str
  sign: int  # 1 or -1: the threshold applies to sign * score
  event: Event


@checked
def audit(
  subject: Subject,
  key: jax.Array,
  *,
  num_samples: int,
  num_choosing: int | None = None,
  confidence: float = 0.999,
) -> Audit:
  """The greatest lower bound on epsilon that reports on worst-case inputs prove.

  For every pair of inputs and every statistic, the audit looks for an event that one input makes
  far likelier than the other. The event is a threshold on the statistic, or a set of its values if
  it is an integer. Three sets of reports take part. The first half of the choosing reports proposes
  events, and the second half ranks them. The best event is then measured on new reports. The bound
  is log((P - delta) / Q), with Clopper and Pearson's limits of the event's probabilities P and Q.

  Formal guarantee: the bound is at most the true epsilon (of this delta) with probability
  `confidence`, whatever the subject, the statistics and the events. So a bound above the stated
  epsilon refutes it. A bound below it proves nothing.

  Args:
    subject: what is audited.
    key: the key of the reports; consumed.
    num_samples: how many reports of each of the two inputs measure the event, at least 4. For an
      event of probability Q the bound falls short by about 4.3 / sqrt(n Q).
    num_choosing: how many reports of each input choose it. Default: a quarter of num_samples.
    confidence: in (0, 1).

  Raises:
    ValueError: if an argument is out of range.

  >>> from jdp.conformance import mechanism_subject
  >>> from jdp.mechanisms import laplace
  >>> subject = mechanism_subject(laplace(2.0, 2.0))
  >>> found = audit(subject, jax.random.key(0), num_samples=20_000)
  >>> 1.8 < found.bound < 2.0, found.refuted
  (True, False)
  >>> audit(subject._replace(epsilon=1.0), jax.random.key(0), num_samples=20_000).refuted
  True
  """
  _validate.integer(4, num_samples=num_samples)
  num_choosing = max(4, num_samples // 4) if num_choosing is None else num_choosing
  _validate.integer(4, num_choosing=num_choosing)

  def draw(
    key: jax.Array, names: tuple[str, ...], only: Statistics, count: int
  ) -> dict[str, Scores]:
    keys = jax.random.split(key, len(names))
    return {
      name: _without_nan(scores(subject.release, only, keys[i], subject.inputs[name], count))
      for i, name in enumerate(names)
    }

  # Independent keys: the event must not be measured on the reports that chose it.
  choosing_key, measuring_key = jax.random.split(key)
  candidates = draw(choosing_key, tuple(subject.inputs), subject.statistics, num_choosing)
  chosen = _choose(candidates, subject, confidence)
  measured = {chosen.statistic: subject.statistics[chosen.statistic]}
  reports = draw(measuring_key, chosen.pair, measured, num_samples)
  first, second = (chosen.sign * reports[name][chosen.statistic] for name in chosen.pair)
  counts = count_both(chosen.event, first, second)
  return Audit(
    epsilon=subject.epsilon,
    delta=subject.delta,
    bound=float(epsilon_bound(confidence, subject.delta)(*counts)),
    confidence=confidence,
    pair=chosen.pair,
    statistic=chosen.statistic,
    hits=counts[0],
    false_hits=counts[2],
    trials=num_samples,
  )


@checked
def audit_all(
  subjects: Mapping[Name, Subject],
  key: jax.Array,
  *,
  num_samples: int,
  confidence: float = 0.999,
  report: Callable[[Name, Audit], None] = lambda name, found: None,
) -> dict[Name, Audit]:
  """Audits of several subjects, whose bounds hold jointly with one confidence.

  Args:
    subjects: by name, or by any other key.
    key: the key of the reports; consumed.
    num_samples: as for `audit`.
    confidence: the confidence of all bounds together. Each bound has an equal share of 1 -
      confidence.
    report: called with each audit as it is done.
  """
  share, found = (1 - confidence) / len(subjects), dict[Name, Audit]()
  for name, own in zip(subjects, jax.random.split(key, len(subjects)), strict=True):
    found[name] = audit(subjects[name], own, num_samples=num_samples, confidence=1 - share)
    report(name, found[name])
  return found


def _choose(reports: dict[str, Scores], subject: Subject, confidence: float) -> _Candidate:
  """The best event over all pairs, statistics and sides.

  Half of the reports propose the events, and the other half rank them.
  """
  bound = quick_epsilon_bound(confidence, subject.delta)
  halves = {
    (name, statistic): tuple(map(np.sort, np.split(scores, [len(scores) // 2])))
    for name, own in reports.items()
    for statistic, scores in own.items()
  }
  candidates = [
    _ranked(pair, statistic, [halves[name, statistic] for name in pair], bound)
    for one in subject.pairs
    for pair in (one, one[::-1])
    for statistic in subject.statistics
  ]
  return max(candidates, key=lambda candidate: candidate.bound)


def _ranked(
  pair: tuple[str, str], statistic: str, halves: list[tuple[np.ndarray, ...]], bound: Bound
) -> _Candidate:
  """The better event of a statistic and a pair, with the bound that the second halves give it.

  All scores are sorted.
  """
  (own, new), (other, other_new) = halves
  if np.issubdtype(own.dtype, np.integer):
    proposed: list[tuple[int, Event]] = [(1, best_outcomes(own, other, bound)[1])]
  else:
    sides = (1, own, other), (-1, -own[::-1], -other[::-1])
    proposed = [(sign, best_threshold(first, second, bound)[1]) for sign, first, second in sides]
  found = []
  for sign, event in proposed:
    counts = count_both(event, sign * new, sign * other_new)
    found.append(_Candidate(float(bound(*counts)), pair, statistic, sign, event))
  return max(found, key=lambda candidate: candidate.bound)


def _without_nan(scores: Scores) -> Scores:
  """The scores with -inf for NaN, which tells as much as any other value."""
  return {
    name: np.where(np.isnan(own), -np.inf, own).astype(own.dtype) for name, own in scores.items()
  }
