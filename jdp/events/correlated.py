"""Events of runs whose noise is correlated over the rounds: one Gaussian release for a whole run.

Round t of a run of n rounds releases row t of G + C^-1 Z. The rows of G are the rounds' sums, each
divided by the round's clip norm, so that one record moves a row by at most 1. C is the strategy, a
lower triangular matrix [n, n] (a tree's has more rows), and Z is independent normal noise of
standard deviation z. All rounds together are a function of C G + Z, *one* Gaussian release, also
where G depends on earlier rounds (arXiv 2202.08312, 2306.08153). How far a record moves C G depends
on which rounds it takes part in. The sampling's event says what the sampler enforces about them.
"""

import jax

from jdp import _validate
from jdp.events.base import EventBase, event, if_known

_SLACK = 1 + 1e-9  # allows for rounding of the compared numbers


@event
class CorrelatedGaussianSum(EventBase):
  """Row `index` of clip_norm (G + C^-1 Z) was released.

  All fields but the clip norm and the index are the plan of the run. Rounds of equal plans belong
  to one run. If an index occurs several times, they belong to that many runs.

  The bound of a plan holds for records whose rounds keep its pattern: any two at least
  `min_separation` apart, and at most `max_participations` in all. It holds under zero-out, and with
  twice the sensitivity under replace-one, if the rounds open to a record do not depend on the data.
  It holds under add/remove if, in addition, no record's rounds depend on who else is present: they
  follow from its own identity or its own coins. In equal splits and samples of fixed size they do
  not.

  Attributes:
    clip_norm: S, the L2 bound on what one record contributes to the round's sum. It may differ
      between rounds, and depend on what earlier rounds released.
    noise_multiplier: z, the standard deviation of Z's entries. Zero means no privacy.
    strategy: the fingerprint of C, a digest of its numbers.
    num_rounds: n, the rounds that C is for.
    min_separation: b of the pattern; neighbouring rounds are 1 apart.
    max_participations: k of the pattern.
    squared_sensitivity: a bound on |C G - C G'|^2 for neighbours whose G differ by at most 1 in
      each row of one such pattern. It is their maximum where `bands` are at most `min_separation`.
    bands: how many diagonals of C are not zero, counted from the main one down to the last.
    largest_column_norm: the largest L2 norm of a column of C.
    index: t in [0, n). It is always a leaf of the pytree.

  >>> from jdp.matrix_factorization import planned_sum, square_root_toeplitz
  >>> event = planned_sum(square_root_toeplitz(10, bands=5), 2.0, min_separation=5)
  >>> type(event).__name__, event.index
  ('CorrelatedGaussianSum', 0)
  >>> round(event.noise_multiplier / event.squared_sensitivity**0.5, 3)  # of the one release
  1.131
  """

  clip_norm: float | jax.Array
  noise_multiplier: float
  strategy: str
  num_rounds: int
  min_separation: int
  max_participations: int
  squared_sensitivity: float
  bands: int
  largest_column_norm: float
  index: int | jax.Array

  def __post_init__(self):
    if_known(_validate.positive, clip_norm=self.clip_norm)
    _validate.non_negative(noise_multiplier=self.noise_multiplier)
    _validate.integer(
      1,
      num_rounds=self.num_rounds,
      min_separation=self.min_separation,
      max_participations=self.max_participations,
      bands=self.bands,
    )
    _validate.in_range(
      1, 2**31 - 1, num_rounds=self.num_rounds, max_participations=self.max_participations
    )
    _validate.in_range(1, self.num_rounds, bands=self.bands)
    _validate.positive(
      squared_sensitivity=self.squared_sensitivity, largest_column_norm=self.largest_column_norm
    )
    column = self.largest_column_norm * self.largest_column_norm
    most = self.max_participations * self.max_participations * column
    if not column <= self.squared_sensitivity * _SLACK <= most * _SLACK * _SLACK:
      raise ValueError(
        "Expected squared_sensitivity between the square of largest_column_norm, which is for one "
        f"participation, and max_participations^2 times that, got {self.squared_sensitivity} with "
        f"{self.largest_column_norm}; take both from the strategy."
      )
    if not isinstance(self.index, jax.Array):
      _validate.integer(0, index=self.index)
      if self.index >= self.num_rounds:
        raise ValueError(
          f"Expected index below num_rounds, {self.num_rounds}, got {self.index}; end the run, or "
          "make a strategy for more rounds."
        )


@event
class DistributedCorrelatedSum(CorrelatedGaussianSum):
  """The same, with noise by the records' owners. Every owner adds noise in every round.

  `noise_multiplier` is that of a central run which costs as much, whichever owners were lost. If a
  record is zeroed or replaced, its owner's noise stays. Under add/remove the noise would leave with
  the record, so there is no bound.

  >>> from jdp import accounting, ledger
  >>> from jdp.events import DistributedCorrelatedSum, MinSeparationSampling
  >>> from jdp.matrix_factorization import planned_sum, square_root_toeplitz
  >>> plan = planned_sum(square_root_toeplitz(10, bands=5), 2.0, min_separation=5)
  >>> query = DistributedCorrelatedSum(**vars(plan))
  >>> run = ledger.correlated_gaussian(query, MinSeparationSampling(5, 2, 100), relation="zero_out")
  >>> round(accounting.epsilon(run, 1e-5), 2)
  3.8
  """


@event
class MinSeparationSampling(EventBase):
  """A record takes part in at most k rounds of a run, any two of them at least b apart.

  Which rounds are open to a record follows from public data that does not depend on the records,
  such as its number. A record may sit out any of its open rounds. The sample of a round depends on
  nothing else.

  A bound holds under zero-out and replace-one. It holds under add/remove only with `by_identity`:
  if groups were cut by position or to equal sizes, a record that leaves would move others to
  other rounds.

  Attributes:
    min_separation: b, in rounds of the sampler; neighbouring rounds are 1 apart.
    max_participations: k, over the whole run of the sampler.
    population: N, the public number of records.
    position: the sampler's number of this round, from 0. None in a plan that names none. In one
      run, positions and indices grow by the same steps.
    by_identity: whether the rounds open to a record follow from its own identity or coin, and not
      from who else is present.

  >>> from jdp import accounting, ledger
  >>> from jdp.events import MinSeparationSampling
  >>> from jdp.matrix_factorization import planned_sum, square_root_toeplitz
  >>> query = planned_sum(square_root_toeplitz(10, bands=5), 2.0, min_separation=5)
  >>> sampling = MinSeparationSampling(5, 2, population=100, position=0, by_identity=True)
  >>> round(accounting.epsilon(ledger.correlated_gaussian(query, sampling), 1e-5), 2)
  3.8
  """

  min_separation: int
  max_participations: int
  population: int
  position: int | jax.Array | None = None
  by_identity: bool = False

  def __post_init__(self):
    _validate.integer(
      1,
      min_separation=self.min_separation,
      max_participations=self.max_participations,
      population=self.population,
    )
    _check_position(self.position)


@event
class CyclicPoissonSampling(EventBase):
  """Records are in groups; in round t each member of group t mod b takes part with probability p.

  It decides by its own coin, which is secret, and fresh in every round. A record's group follows
  from public data that does not depend on the records.

  A bound holds under zero-out and replace-one, and under add/remove with `by_identity`. Under
  replace-one, only Gaussian releases are amplified.

  Attributes:
    num_groups: b. So any two rounds of a record are at least b apart.
    probability: p, the rate *within the group*, in [0, 1], as realised by the sampler. The expected
      sample is p N / b records.
    population: N, the public number of records.
    position: as for `MinSeparationSampling`.
    by_identity: as for `MinSeparationSampling`.
    overflow_probability: as for `PoissonSampling`.

  >>> from jdp import accounting, ledger
  >>> from jdp.events import CyclicPoissonSampling
  >>> from jdp.matrix_factorization import planned_sum, square_root_toeplitz
  >>> query = planned_sum(square_root_toeplitz(10, bands=5), 2.0, min_separation=5)
  >>> sampling = CyclicPoissonSampling(5, 0.1, population=100, position=0, by_identity=True)
  >>> round(accounting.epsilon(ledger.correlated_gaussian(query, sampling), 1e-5), 2)
  0.7
  """

  num_groups: int
  probability: float
  population: int
  position: int | jax.Array | None = None
  by_identity: bool = False
  overflow_probability: float = 0.0

  def __post_init__(self):
    _validate.integer(1, num_groups=self.num_groups, population=self.population)
    _validate.probability(
      probability=self.probability, overflow_probability=self.overflow_probability
    )
    _check_position(self.position)


def _check_position(position: int | jax.Array | None) -> None:
  """Refuses a position on the host that is not a whole number >= 0."""
  if position is not None and not isinstance(position, jax.Array):
    _validate.integer(0, position=position)
