"""Events of whole runs: one event says what was released in many rounds."""

import math
from typing import Any

import jax

from jdp import _validate
from jdp.events.base import EVENT_TYPES, EventBase, check_noised_sum, event


@event
class BestOfRuns(EventBase):
  """A run was repeated a random number of times, and only the releases of the best repetition were
  released.

  Every repetition draws a setting (from a fixed distribution) and uses the same records, with fresh
  noise. It is scored by what it released, or by public data. The number K of repetitions is
  independent of the data, and never revealed (arXiv 2110.03620). With shape s it is

  * negative binomial, given K >= 1: P(K = k) = C(k + s - 1, k) (1 - g)^k / (g^-s - 1);
  * geometric at s = 1, and logarithmic, P(K = k) = (1 - g)^k / (k log(1/g)), at s = 0;
  * Poisson at s = infinity. If K = 0, the release is independent of the data.

  g in (0, 1] is the number for which K has its mean. The event's round has a `PoissonSampling` of
  probability 1, as the rounds of a repetition say how they were sampled.

  Attributes:
    rounds: the events `Round` of one repetition, or events that cost as much, whatever its setting.
      So none is adaptive. Their relation, unit and observer are those of the event's own round.
    counts: how often each of these events happened in a repetition, up to 2^53.
    mean_runs: the mean of K, >= 1.
    shape: s >= 0.
    others: if repetitions may have had other rounds (by their setting, or by whose record is
      protected), an event for each other list of rounds, with the same mean and shape.

  >>> from jdp import accounting, ledger
  >>> from jdp.events import BestOfRuns, GaussianSum, PoissonSampling, Round
  >>> rounds = (Round(PoissonSampling(0.01), GaussianSum(1.0, 1.1)),)
  >>> tuned = BestOfRuns(rounds, counts=(1000,), mean_runs=10.0, shape=0.0)
  >>> event = Round(PoissonSampling(1.0), tuned)
  >>> round(accounting.epsilon(ledger.Ledger().append(event), 1e-5), 2)
  2.26
  """

  rounds: tuple[EventBase, ...]
  counts: tuple[int, ...]
  mean_runs: float
  shape: float = 1.0
  others: tuple[EventBase, ...] = ()

  def __post_init__(self):
    if not self.rounds or len(self.rounds) != len(self.counts):
      raise ValueError(
        f"Expected one count for each of at least one round, got {len(self.counts)} counts of "
        f"{len(self.rounds)} rounds."
      )
    for inner in self.rounds:
      if type(inner) is not EVENT_TYPES["Round"]:
        raise ValueError(
          f"Expected rounds of events Round, got {type(inner).__name__}; make each release a Round."
        )
    for count in self.counts:
      _validate.integer(1, counts=count)
      _validate.in_range(1, 2**53, counts=count)
    check_number_of_runs(self.mean_runs, self.shape)
    if any(inner.adaptive for inner in self.rounds):
      raise ValueError(
        "Expected rounds that were fixed before the run, got adaptive ones: other repetitions may "
        "have had others; fix their noise and sampling beforehand."
      )
    for other in self.others:
      if type(other) is not BestOfRuns or other.others:
        raise ValueError(
          f"Expected others that are BestOfRuns without others, got {type(other).__name__}; make "
          "the event by jdp.accounting.best_of_runs."
        )
      if (other.mean_runs, other.shape) != (self.mean_runs, self.shape):
        raise ValueError(
          f"Expected others with mean_runs={self.mean_runs} and shape={self.shape}, got "
          f"{other.mean_runs} and {other.shape}; there is one number of repetitions."
        )

  @property
  def overflow_probability(self) -> float:
    """A bound on the probability that a sample outgrew its capacity, in any repetition."""
    own = self.mean_runs * sum(
      count * overflow_probability(inner)
      for inner, count in zip(self.rounds, self.counts, strict=True)
    )
    others: tuple[Any, ...] = self.others
    return max([own, *(other.overflow_probability for other in others)])


@event
class TreeAggregation(EventBase):
  """All partial sums over the steps of binary trees were released, as noised sums of their nodes.

  A tree's leaves are its steps. Each node is the sum of the leaves below it, with independent
  Gaussian noise. After a tree's last step the next one starts (arXiv 2103.00039, Appendix D). A
  record takes part in at most one step *of all trees together*. A leaf of a tree of n steps has at
  most ceil(log2(n + 1)) completed nodes above it, itself included. The event's round has a
  `PoissonSampling` of probability 1, as no sampling amplifies it, and the relation zero_out or
  replace_one, under which no record's step depends on who else is there.

  Attributes:
    clip_norm: S, the L2 bound on what one record contributes to its step.
    stddev: the standard deviation of the noise on each coordinate of a node. Zero means no privacy.
    step_counts: the number of steps of each tree.

  >>> from jdp import accounting, ledger
  >>> from jdp.events import PoissonSampling, Round, TreeAggregation
  >>> query = TreeAggregation(clip_norm=1.0, stddev=4.0, step_counts=(3, 1000))
  >>> event = Round(PoissonSampling(1.0), query, relation="zero_out")
  >>> query.depth, round(accounting.epsilon(ledger.Ledger().append(event), 1e-5), 2)
  (10, 3.34)
  """

  clip_norm: float | jax.Array
  stddev: float | jax.Array
  step_counts: tuple[int, ...]

  def __post_init__(self):
    check_noised_sum(self)
    if not self.step_counts:
      raise ValueError("Expected step_counts of at least one tree, got none; name its steps.")
    for steps in self.step_counts:
      _validate.integer(1, step_counts=steps)

  @property
  def depth(self) -> int:
    """The largest number of nodes that a record is in."""
    return max(self.step_counts).bit_length()  # ceil(log2(n + 1))


WholeRunEvent = BestOfRuns | TreeAggregation
"""What a whole run released, as one event."""


def check_number_of_runs(mean_runs: float, shape: float) -> None:
  """Refuses a distribution of the number of runs that `BestOfRuns` does not allow."""
  _validate.in_range(1.0, 1e100, mean_runs=mean_runs)
  if shape != math.inf:
    _validate.in_range(0.0, 1000.0, shape=shape)


def overflow_probability(event: Any) -> float:
  """The probability that a sample of a `Round` outgrew its capacity."""
  return float(
    getattr(event.sampling, "overflow_probability", 0.0)
    + getattr(event.query, "overflow_probability", 0.0)
  )
