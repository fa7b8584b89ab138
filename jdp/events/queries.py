"""Events of queries: what was released about a sample."""

import typing
from functools import partial
from typing import Annotated, TypeVar, dataclass_transform

import jax

from jdp import _validate
from jdp.events.base import EVENT_TYPES, EventBase, check_noised_sum, event, if_known
from jdp.events.correlated import CorrelatedGaussianSum, DistributedCorrelatedSum
from jdp.events.sampling import SamplingEvent
from jdp.events.whole_runs import WholeRunEvent

T = TypeVar("T")


@event
class GaussianSum(EventBase):
  """A sum of vectors was released with Gaussian noise.

  It is the privacy tuple (S, sigma) of arXiv 1812.06210.

  Attributes:
    clip_norm: S, the L2 bound on what one record contributes to the sum.
    stddev: The standard deviation sigma of the noise on each coordinate of the sum. `stddev /
      clip_norm` is the noise multiplier z. Zero means no privacy.

  >>> from jdp import accounting, ledger
  >>> from jdp.events import GaussianSum, PoissonSampling, Round
  >>> event = Round(PoissonSampling(0.01), GaussianSum(clip_norm=1.0, stddev=2.0))
  >>> round(accounting.epsilon(ledger.Ledger().append(event, count=1000), 1e-5), 2)
  0.62
  """

  clip_norm: float | jax.Array
  stddev: float | jax.Array

  def __post_init__(self):
    check_noised_sum(self)


@event
class LaplaceSum(EventBase):
  """A sum of vectors was released with Laplace noise.

  Attributes:
    clip_norm: The L1 bound on what one record contributes to the sum.
    scale: The scale of the noise on each coordinate of the sum. Zero means no privacy.

  >>> from jdp import accounting, ledger
  >>> from jdp.events import LaplaceSum, PoissonSampling, Round
  >>> event = Round(PoissonSampling(0.01), LaplaceSum(clip_norm=1.0, scale=2.0))
  >>> round(accounting.epsilon(ledger.Ledger().append(event, count=100), 1e-5), 3)
  0.153
  """

  clip_norm: float
  scale: float

  def __post_init__(self):
    _validate.positive(clip_norm=self.clip_norm)
    _validate.non_negative(scale=self.scale)


@event
class WeightedAverage(EventBase):
  """sum_k w_k D_k / max(W_min, sum_k w_k) was released with Gaussian noise.

  The weights w_k lie in [0, 1], and ||D_k|| <= S. It is the clipped-denominator estimator of arXiv
  1710.06963, Section 3.2.

  Attributes:
    clip_norm: S, the L2 bound on one record's vector.
    stddev: The standard deviation of the noise on each coordinate of the *average*.
    min_total_weight: W_min, the least value of the denominator. Public.

  >>> from jdp import accounting, ledger
  >>> from jdp.events import PoissonSampling, Round, WeightedAverage
  >>> query = WeightedAverage(clip_norm=1.0, stddev=0.2, min_total_weight=20.0)
  >>> event = Round(PoissonSampling(0.01), query)
  >>> round(accounting.epsilon(ledger.Ledger().append(event, count=1000), 1e-5), 2)
  0.58
  """

  clip_norm: float | jax.Array
  stddev: float | jax.Array
  min_total_weight: float

  def __post_init__(self):
    check_noised_sum(self)
    _validate.positive(min_total_weight=self.min_total_weight)


@event
class RandomizedResponse(EventBase):
  """One of `num_values` values was released: the true one, or a uniform one of all.

  Attributes:
    noise: The probability that the value is replaced by a uniform one, in `[0, 1]`. The uniform
      value may be the true one.
    num_values: The number of values, at least 2.
    uniform_null: Whether a uniform value is released for a null or absent record. If not, that
      record counts as a record of any value.

  >>> from jdp import accounting, ledger
  >>> from jdp.events import PoissonSampling, RandomizedResponse, Round
  >>> query = RandomizedResponse(noise=0.5, num_values=3, uniform_null=True)
  >>> event = Round(PoissonSampling(1.0), query, relation="zero_out")
  >>> round(accounting.epsilon(ledger.Ledger().append(event), delta=0.0), 3)
  0.693
  """

  noise: float
  num_values: int
  uniform_null: bool = False

  def __post_init__(self):
    _validate.probability(noise=self.noise)
    _validate.integer(2, num_values=self.num_values)


@event
class PureRelease(EventBase):
  """Something was released by an epsilon-DP mechanism, under the relation of its round.

  >>> from jdp import accounting, ledger
  >>> from jdp.events import PoissonSampling, PureRelease, Round
  >>> event = Round(PoissonSampling(0.1), PureRelease(epsilon=1.0))
  >>> round(accounting.epsilon(ledger.Ledger().append(event), delta=0.0), 3)
  0.159
  """

  epsilon: float

  def __post_init__(self):
    _validate.non_negative(epsilon=self.epsilon)


@event
class ConcentratedRelease(EventBase):
  """Something was released by a rho-zCDP mechanism, under the relation of its round.

  Source: arXiv 1605.02065.

  >>> from jdp import accounting, ledger
  >>> from jdp.events import ConcentratedRelease, PoissonSampling, Round
  >>> event = Round(PoissonSampling(1.0), ConcentratedRelease(rho=0.1))
  >>> round(accounting.epsilon(ledger.Ledger().append(event, count=5), 1e-5), 2)
  4.73
  """

  rho: float

  def __post_init__(self):
    _validate.non_negative(rho=self.rho)


@event
class NonPrivate(EventBase):
  """Something that depends on the data was released without protection: epsilon is infinite.

  >>> from jdp import accounting, ledger
  >>> from jdp.events import NonPrivate, PoissonSampling, Round
  >>> event = Round(PoissonSampling(0.01), NonPrivate())
  >>> accounting.epsilon(ledger.Ledger().append(event), 1e-5)
  inf
  """


@event
class GroupedSums(EventBase):
  """Several sums of the *same* sample were released, each with its own, independent noise.

  Attributes:
    parts: What was released of each group. Parts may be nested.
    labels: The groups' names, in the same order.

  >>> from jdp import accounting, ledger
  >>> from jdp.events import GaussianSum, GroupedSums, PoissonSampling, Round
  >>> query = GroupedSums((GaussianSum(1.0, 3.0), GaussianSum(0.5, 1.5)), ("body", "head"))
  >>> event = Round(PoissonSampling(0.01), query)
  >>> round(accounting.epsilon(ledger.Ledger().append(event, count=1000), 1e-5), 2)
  0.58
  """

  parts: tuple["QueryEvent", ...]
  labels: tuple[str, ...]

  def __post_init__(self):
    if not self.parts or len(self.parts) != len(self.labels):
      raise ValueError(f"Expected one label for each of at least one part, got {self.labels}.")


@event
class DistributedGaussianSum(EventBase):
  """A sum of vectors was released, each with its owner's share of Gaussian noise.

  Together the shares are N(0, stddev^2) per coordinate. If a record is zeroed or replaced, its
  share of noise stays. If it is removed, its share is removed too. So under add/remove the noise of
  neighbours differs in variance too.

  Attributes:
    clip_norm: S, the L2 bound on what one record contributes to the sum.
    stddev: The standard deviation of the noise that the observer could not subtract, as it came out
      of the round. Zero means no privacy.
    released: False if the round was abandoned before the observer saw anything of its sums.

  >>> from jdp import accounting, ledger
  >>> from jdp.events import DistributedGaussianSum, PoissonSampling, Round
  >>> query = DistributedGaussianSum(clip_norm=1.0, stddev=4.0, released=True)
  >>> event = Round(PoissonSampling(1.0), query, relation="zero_out")
  >>> round(accounting.epsilon(ledger.Ledger().append(event, count=10), 1e-5), 2)
  3.34
  """

  clip_norm: float | jax.Array
  stddev: float | jax.Array
  released: bool | jax.Array = True

  def __post_init__(self):
    check_noised_sum(self)


@event
class DiscreteGaussianSum(EventBase):
  """A sum of integer vectors was released, each with discrete Gaussian noise by its owner.

  The source is arXiv 2102.06387. One coordinate's noise is the sum of `num_shares` variables with
  P(x) proportional to e^(-x^2 / (2 share_stddev^2)). Removed records behave as those of
  `DistributedGaussianSum`.

  Attributes:
    l2_norm: The L2 bound on the integers that one record contributes.
    l1_norm: The L1 bound on these integers.
    share_stddev: The parameter sigma of one share. Zero means no privacy.
    num_shares: How many shares the released sum held. Without shares there is no privacy.
    dim: The number of coordinates.
    rounded: Whether the integers are randomly rounded real numbers. Then no record is known to
      contribute as much as the bounds allow.

  >>> from jdp import accounting, ledger
  >>> from jdp.events import DiscreteGaussianSum, PoissonSampling, Round
  >>> query = DiscreteGaussianSum(
  ...   10.0, 30.0, share_stddev=5.0, num_shares=100, dim=20, rounded=True
  ... )
  >>> event = Round(PoissonSampling(1.0), query, relation="zero_out")
  >>> round(accounting.epsilon(ledger.Ledger().append(event, count=10), 1e-5), 2)
  2.6
  """

  l2_norm: float
  l1_norm: float
  share_stddev: float
  num_shares: int | jax.Array
  dim: int
  rounded: bool = False

  def __post_init__(self):
    _validate.positive(l2_norm=self.l2_norm, l1_norm=self.l1_norm)
    _validate.non_negative(share_stddev=self.share_stddev)
    if_known(partial(_validate.integer, 0), num_shares=self.num_shares)
    _validate.integer(1, dim=self.dim)


@event
class SkellamSum(EventBase):
  """A sum of integer vectors was released, each with Skellam noise by its owner (arXiv 2110.04995).

  One coordinate's noise is the difference of two Poisson variables of mean num_shares
  share_variance / 2. Removed records behave as those of `DistributedGaussianSum`.

  Attributes:
    l2_norm: The L2 bound on the integers that one record contributes.
    l1_norm: The L1 bound on these integers.
    share_variance: The variance of one share. Zero means no privacy.
    num_shares: How many shares the released sum held. Without shares there is no privacy.
    rounded: As for `DiscreteGaussianSum`.
    released: As for `DistributedGaussianSum`.

  >>> from jdp import accounting, ledger
  >>> from jdp.events import PoissonSampling, Round, SkellamSum
  >>> query = SkellamSum(10.0, 30.0, share_variance=25.0, num_shares=100, rounded=True)
  >>> event = Round(PoissonSampling(1.0), query, relation="zero_out")
  >>> round(accounting.epsilon(ledger.Ledger().append(event, count=10), 1e-5), 2)
  2.82
  """

  l2_norm: float
  l1_norm: float
  share_variance: float
  num_shares: int | jax.Array
  rounded: bool = False
  released: bool | jax.Array = True

  def __post_init__(self):
    _validate.positive(l2_norm=self.l2_norm, l1_norm=self.l1_norm)
    _validate.non_negative(share_variance=self.share_variance)
    if_known(partial(_validate.integer, 0), num_shares=self.num_shares)


SumQueryEvent = (
  GaussianSum
  | LaplaceSum
  | WeightedAverage
  | RandomizedResponse
  | PureRelease
  | ConcentratedRelease
  | NonPrivate
  | GroupedSums
  | DistributedGaussianSum
  | DiscreteGaussianSum
  | SkellamSum
  | CorrelatedGaussianSum
  | DistributedCorrelatedSum
)
"""What a sum query of one round released."""

# At run time also a registered event (`register`).
QueryEvent = Annotated[SumQueryEvent | WholeRunEvent, EventBase]
"""What was released about one sample, or by a whole run."""

_REGISTERED: list[type] = []
_REGISTERED_SAMPLINGS: list[type] = []


@dataclass_transform(frozen_default=True)
def register(cls: type[T]) -> type[T]:
  """Makes a subclass of `EventBase` an event of what a query released, for ledgers.

  It is a decorator, for code outside the package. The fields of the subclass are annotated. The
  class becomes a frozen dataclass and a pytree. Its docstring says what was done, and its
  `__post_init__` checks the fields. Ledgers that hold it have an epsilon if it costs what another
  event does (`jdp.accounting.charge_as`), or has an analysis of its own
  (`jdp.accounting.register_query`). With a query that releases it
  (`jdp.queries.registry.register`) it is audited.

  Raises:
    ValueError: if it is not a subclass of `EventBase`. Also if another event type has its name,
      which identifies it in files.

  >>> @register
  ... class GaussianSum(EventBase):
  ...   scale: float
  Traceback (most recent call last):
  ...
  ValueError: Expected a name that no event type has, got GaussianSum; rename the class.
  """
  return _registered(cls, _REGISTERED)


@dataclass_transform(frozen_default=True)
def register_sampling(cls: type[T]) -> type[T]:
  """Makes a subclass of `EventBase` an event of a sampling, for ledgers. Otherwise as `register`.

  With `jdp.accounting.charge_as` ledgers that hold it have an epsilon.
  """
  return _registered(cls, _REGISTERED_SAMPLINGS)


def _registered(cls: type[T], kinds: list[type]) -> type[T]:
  if cls.__name__ in EVENT_TYPES:
    raise ValueError(
      f"Expected a name that no event type has, got {cls.__name__}; rename the class."
    )
  kinds.append(event(cls))
  return kinds[-1]


def query_event_types() -> tuple[type, ...]:
  """The types of all events that say what a query released.

  They are the types of this module, and the registered ones.
  """
  return (*typing.get_args(SumQueryEvent), *_REGISTERED)


def sampling_event_types() -> tuple[type, ...]:
  """The types of all events of samplings: jdp's own, and the registered ones."""
  return (*typing.get_args(SamplingEvent), *_REGISTERED_SAMPLINGS)


def registered_event_types() -> tuple[type, ...]:
  """The query and sampling event types that were registered from outside."""
  return (*_REGISTERED, *_REGISTERED_SAMPLINGS)
