"""Events of sampling: who took part in a round."""

import jax
import scipy

from jdp import _validate
from jdp.events.base import EventBase, event, whole_if_given
from jdp.events.correlated import CyclicPoissonSampling, MinSeparationSampling


@event
class PoissonSampling(EventBase):
  """Each record takes part independently with probability `probability`.

  Attributes:
    probability: The rate q, in `[0, 1]`, as realised by the sampler. That is its integer threshold
      divided by the range.
    overflow_probability: The probability that a sample outgrew the public capacity and surplus
      records were dropped, whatever they held. The accountant adds to delta `(1 + e^epsilon)` times
      the sum of this probability over rounds.
    population: N, the public number of records. None in a plan that names none.
    max_participations: A record that has taken part this often in the run is passed over. None: no
      record is. Equal events in a ledger belong to one run.

  >>> from jdp import accounting, ledger
  >>> from jdp.events import GaussianSum, PoissonSampling, Round
  >>> sampling = PoissonSampling(0.5, 1e-12, population=1000, max_participations=2)
  >>> event = Round(sampling, GaussianSum(1.0, 2.0))
  >>> round(accounting.epsilon(ledger.Ledger().append(event, count=100), 1e-5), 2)
  2.74
  """

  probability: float
  overflow_probability: float = 0.0
  population: int | None = None
  max_participations: int | None = None

  def __post_init__(self):
    _validate.probability(
      probability=self.probability, overflow_probability=self.overflow_probability
    )
    whole_if_given(population=self.population, max_participations=self.max_participations)


@event
class TruncatedPoissonSampling(EventBase):
  """Each record is drawn independently. If too many are drawn, a uniformly random subset takes
  part.

  Source: arXiv 2508.15089. Nothing is added to delta: the analysis is of the truncated sample.

  Attributes:
    probability: The rate q, in `[0, 1]`, of the draws, as realised by the sampler.
    capacity: B >= 1, the most records that take part.
    population: N, the public number of records; the larger number of two neighbouring data sets.

  >>> from jdp.events import TruncatedPoissonSampling
  >>> sampling = TruncatedPoissonSampling(0.1, capacity=100, population=1000)
  >>> round(sampling.full_probability, 3), round(sampling.inclusion_probability, 4)
  (0.511, 0.0962)
  """

  probability: float
  capacity: int
  population: int

  def __post_init__(self):
    _validate.probability(probability=self.probability)
    _validate.integer(1, capacity=self.capacity, population=self.population)

  @property
  def full_probability(self) -> float:
    """The probability that the other records drawn fill the sample: P(Bin(N - 1, q) >= B)."""
    return _binomial_above(self.capacity - 1, self.population - 1, self.probability)

  @property
  def share_when_full(self) -> float:
    """The probability that a record takes part, given that the others drawn fill the sample.

    It is the mean of q B / (M + 1) over the number M >= B of others drawn.
    """
    drawn = _binomial_above(self.capacity, self.population, self.probability)
    full = self.full_probability
    return min(1.0, drawn * self.capacity / (full * self.population)) if full else 0.0

  @property
  def inclusion_probability(self) -> float:
    """The probability that a record takes part."""
    full = self.full_probability
    return (1 - full) * self.probability + full * self.share_when_full


def _binomial_above(number: int, trials: int, probability: float) -> float:
  """P(Bin(trials, probability) > number) = I_q(number + 1, trials - number)."""
  if number >= trials:
    return 0.0
  return float(scipy.special.betainc(number + 1, trials - number, probability))


@event
class FixedSizeSampling(EventBase):
  """A uniformly random subset of fixed size takes part, drawn anew for each round.

  It is drawn without replacement.

  Attributes:
    sample_size: The number m of records in the sample, in `[1, population]`.
    population: N, the public number of records.

  >>> from jdp import accounting, ledger
  >>> from jdp.events import FixedSizeSampling, GaussianSum, Round
  >>> sampling = FixedSizeSampling(10, population=1000)
  >>> event = Round(sampling, GaussianSum(1.0, 2.0), relation="replace_one")
  >>> round(accounting.epsilon(ledger.Ledger().append(event, count=100), 1e-5), 2)
  0.77
  """

  sample_size: int
  population: int

  def __post_init__(self):
    _validate.integer(1, population=self.population, sample_size=self.sample_size)
    if self.sample_size > self.population:
      raise ValueError(
        f"Expected sample_size <= population, got {self.sample_size} > {self.population}."
      )


@event
class ShuffledBatches(EventBase):
  """The round's records are the next batch of an epoch.

  An epoch is a fresh uniform permutation of the records, cut into batches. Each record is in at
  most one batch of an epoch.

  Attributes:
    num_batches: The number of rounds of a whole epoch. Public.
    starts_epoch: Whether this round is the first after a new permutation.
    keeps_partial: Whether the last batch of an epoch is smaller than the others when the batch size
      does not divide the population. If False, the records left over sit that epoch out.
    population: N, the public number of records. None in a plan that names none.

  >>> from jdp import accounting, ledger
  >>> from jdp.events import GaussianSum, Round, ShuffledBatches
  >>> sampling = ShuffledBatches(10, starts_epoch=True, keeps_partial=True, population=995)
  >>> later = ShuffledBatches(10, starts_epoch=False, keeps_partial=True, population=995)
  >>> rounds = [(Round(s, GaussianSum(1.0, 2.0)), n) for s, n in ((sampling, 1), (later, 9))]
  >>> round(accounting.epsilon(ledger.Ledger().extend(rounds), 1e-5), 2)  # of one epoch
  4.98
  """

  num_batches: int
  starts_epoch: bool | jax.Array
  keeps_partial: bool = False
  population: int | None = None

  def __post_init__(self):
    _validate.integer(1, num_batches=self.num_batches)
    whole_if_given(population=self.population)


@event
class BallsInBins(EventBase):
  """The round's records are those that picked this round.

  Each record picks one round of every epoch, uniformly and independently.

  Attributes:
    num_batches: The number of rounds of a whole epoch. Public.
    starts_epoch: Whether this round is the first after the records picked anew.
    overflow_probability: As for `PoissonSampling`.
    population: N, the public number of records. None in a plan that names none.

  >>> from jdp import accounting, ledger
  >>> from jdp.events import BallsInBins, GaussianSum, Round
  >>> sampling = BallsInBins(10, starts_epoch=True, overflow_probability=1e-12, population=1000)
  >>> later = BallsInBins(10, starts_epoch=False, overflow_probability=1e-12, population=1000)
  >>> rounds = [(Round(s, GaussianSum(1.0, 2.0)), n) for s, n in ((sampling, 1), (later, 9))]
  >>> round(accounting.epsilon(ledger.Ledger().extend(rounds), 1e-5), 2)  # of one epoch
  0.62
  """

  num_batches: int
  starts_epoch: bool | jax.Array
  overflow_probability: float = 0.0
  population: int | None = None

  def __post_init__(self):
    _validate.integer(1, num_batches=self.num_batches)
    _validate.probability(overflow_probability=self.overflow_probability)
    whole_if_given(population=self.population)


@event
class RandomAllocation(EventBase):
  """The round's records are those whose random subset of the epoch's rounds contains this round.

  Each record picks `participations` rounds of every epoch, uniformly among all subsets of that
  size, independently of the other records (arXiv 2502.08202).

  Attributes:
    num_batches: t, the number of rounds of a whole epoch. Public.
    participations: k in `[1, num_batches]`, how many rounds of an epoch a record is in.
    starts_epoch: Whether this round is the first after the records picked anew.
    overflow_probability: As for `PoissonSampling`.
    population: N, the public number of records. None in a plan that names none.

  >>> from jdp import accounting, ledger
  >>> from jdp.events import GaussianSum, RandomAllocation, Round
  >>> sampling = RandomAllocation(10, participations=2, starts_epoch=True, population=1000)
  >>> later = RandomAllocation(10, participations=2, starts_epoch=False, population=1000)
  >>> rounds = [(Round(s, GaussianSum(1.0, 2.0)), n) for s, n in ((sampling, 1), (later, 9))]
  >>> round(accounting.epsilon(ledger.Ledger().extend(rounds), 1e-5), 2)  # of one epoch
  1.31
  """

  num_batches: int
  participations: int
  starts_epoch: bool | jax.Array
  overflow_probability: float = 0.0
  population: int | None = None

  def __post_init__(self):
    _validate.integer(1, num_batches=self.num_batches, participations=self.participations)
    if self.participations > self.num_batches:
      raise ValueError(
        f"Expected participations <= num_batches, got {self.participations} > {self.num_batches}."
      )
    _validate.probability(overflow_probability=self.overflow_probability)
    whole_if_given(population=self.population)


SamplingEvent = (
  PoissonSampling
  | TruncatedPoissonSampling
  | FixedSizeSampling
  | ShuffledBatches
  | BallsInBins
  | RandomAllocation
  | MinSeparationSampling
  | CyclicPoissonSampling
)
"""Who took part in a round."""
