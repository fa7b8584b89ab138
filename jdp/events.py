"""Events: what a run did with private data, as the ledger records it.

An event is a frozen value, and its docstring is its mathematical definition. Somebody who writes an
accountant needs to know nothing else. An event never changes its meaning: a new meaning is a new
class. Events are checked when they are made.

Events are pytrees, so a jitted step can return them and a scan can stack them. Fields that hold
arrays are leaves, such as a clip norm that follows a schedule. Everything else is static: names,
policies and constants. Static values therefore stay float64 on their way through jit.

One leaf always exists, the event's number. So the events of a scan always have an axis, and a
ledger cannot take them for one event.
"""

import dataclasses
import typing
from collections.abc import Callable, Iterable
from typing import Annotated, Any, TypeVar, dataclass_transform

import jax
import numpy as np
from jax.typing import ArrayLike

from jdp import _validate
from jdp._arguments import convert_fields
from jdp.guarantees import AnyGuarantee, Observer, Relation, Unit

EVENT_TYPES: dict[str, type] = {}
"""Every event type, by the name that ledger files use for it."""

NO_NUMBER = np.int32(-1)
"""The number of an event that was given none."""

MARKS = ("key_exposed", "adaptive")
"""Fields that take no part in equality, but that ledgers and their files keep."""

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EventBase:
  """The fields that every event has beside what happened.

  They take no part in equality: rounds that cost the same are equal.

  Attributes:
    number: The number of the event's round, an int32 scalar, or -1. A `Round` without one has its
      query's. It is always a leaf of the pytree. So a scan stacks every event that is returned from
      it, the constant ones too.
    key_exposed: Whether the release's noise came from a key that `jdp.random.secure_key` did not
      make, or that drew something else too. Then the event's guarantee does not hold against anyone
      who knows or guesses that key.
    adaptive: Whether its noise multiplier, its sampling, or that it happened at all was chosen from
      what earlier events released. An epsilon that adds up such events is no guarantee. Only a
      filter or an odometer (`jdp.accounting.filters`) states one. A clip norm that follows earlier
      releases is not adaptive in this sense if the noise is in proportion.
  """

  number: ArrayLike = dataclasses.field(default=NO_NUMBER, compare=False, repr=False)
  key_exposed: bool | jax.Array = dataclasses.field(default=False, compare=False, repr=False)
  adaptive: bool = dataclasses.field(default=False, compare=False, repr=False)


@dataclass_transform(frozen_default=True)
def _event(cls: type[T]) -> type[T]:
  """Makes `cls` a frozen dataclass, a pytree, and known to the ledger's file by its name."""
  if not issubclass(cls, EventBase):
    raise ValueError(
      f"Expected a subclass of EventBase, got {cls.__name__}; derive it from EventBase, as a scan "
      "loses events without a number."
    )
  kind: Any = dataclasses.dataclass(frozen=True)(_converting(cls))
  names = tuple(f.name for f in dataclasses.fields(kind))

  def is_leaf(name: str, value: Any) -> bool:
    return name == "number" or isinstance(value, jax.Array | np.ndarray) or _holds_events(value)

  def flatten(event: Any) -> tuple[list[Any], tuple[Any, Any]]:
    values = [getattr(event, name) for name in names]
    # Decided for each value, as a field may hold a constant in one run and a schedule in another.
    traced = [is_leaf(name, value) for name, value in zip(names, values, strict=True)]
    leaves = [v for v, t in zip(values, traced, strict=True) if t]
    static = tuple((n, v) for n, v, t in zip(names, values, traced, strict=True) if not t)
    dynamic = tuple(n for n, t in zip(names, traced, strict=True) if t)
    return leaves, (dynamic, static)

  def unflatten(names_and_static: tuple[Any, Any], leaves: Iterable[Any]) -> Any:
    dynamic, static = names_and_static
    # Not by the constructor: its checks would meet tracers, and the placeholders that JAX puts in.
    event = object.__new__(kind)
    for name, value in (*zip(dynamic, leaves, strict=True), *static):
      object.__setattr__(event, name, value)
    return event

  jax.tree_util.register_pytree_node(kind, flatten, unflatten)
  EVENT_TYPES[kind.__name__] = kind
  return kind


def _converting(cls: type[T]) -> type[T]:
  """Makes the constructor of `cls` convert its fields before it checks them."""
  check: Callable[[Any], None] = getattr(cls, "__post_init__", lambda event: None)

  def __post_init__(event: Any) -> None:  # noqa: N807  # a dataclass calls it by this name
    convert_fields(event)
    check(event)

  cls.__post_init__ = __post_init__  # type: ignore[attr-defined]
  return cls


def _holds_events(value: Any) -> bool:
  """Whether a field's value is an event, or a tuple of events."""
  inner = value if isinstance(value, tuple) else (value,)
  return bool(inner) and all(type(v) in EVENT_TYPES.values() for v in inner)


@_event
class PoissonSampling(EventBase):
  """Each record takes part independently with probability `probability`.

  Attributes:
    probability: The rate q, in `[0, 1]`, as realised by the sampler. That is its integer threshold
      divided by the range.
    overflow_probability: The probability that a sample outgrew the public capacity and surplus
      records were dropped, whatever they held. The accountant adds `(1 + e^epsilon)` times the sum
      of it over rounds to delta.
    population: N, the public number of records. None in a plan that names none.
  """

  probability: float
  overflow_probability: float = 0.0
  population: int | None = None

  def __post_init__(self):
    _validate.probability(
      probability=self.probability, overflow_probability=self.overflow_probability
    )
    if self.population is not None:
      _validate.integer(1, population=self.population)


@_event
class FixedSizeSampling(EventBase):
  """A uniformly random subset of fixed size takes part, drawn anew for each round.

  It is drawn without replacement.

  Attributes:
    sample_size: The number m of records in the sample, in `[1, population]`.
    population: N, the public number of records.
  """

  sample_size: int
  population: int

  def __post_init__(self):
    _validate.integer(1, population=self.population, sample_size=self.sample_size)
    if self.sample_size > self.population:
      raise ValueError(
        f"Expected sample_size <= population, got {self.sample_size} > {self.population}."
      )


@_event
class ShuffledBatches(EventBase):
  """The round's records are the next batch of an epoch.

  An epoch is the records in a fresh uniform permutation, cut in pieces. Each record is in at most
  one batch of an epoch.

  Attributes:
    num_batches: The rounds of a whole epoch. Public.
    starts_epoch: Whether this round is the first after a new permutation.
    keeps_partial: Whether the last batch of an epoch is smaller than the others when the batch size
      does not divide the population. If False, the records left over sit that epoch out.
    population: N, the public number of records. None in a plan that names none.
  """

  num_batches: int
  starts_epoch: bool | jax.Array
  keeps_partial: bool = False
  population: int | None = None

  def __post_init__(self):
    _validate.integer(1, num_batches=self.num_batches)
    if self.population is not None:
      _validate.integer(1, population=self.population)


@_event
class BallsInBins(EventBase):
  """The round's records are those that picked it.

  Each record picks one round of every epoch, uniformly and independently.

  Attributes:
    num_batches: The rounds of a whole epoch. Public.
    starts_epoch: Whether this round is the first after the records picked anew.
    overflow_probability: As for `PoissonSampling`.
    population: N, the public number of records. None in a plan that names none.
  """

  num_batches: int
  starts_epoch: bool | jax.Array
  overflow_probability: float = 0.0
  population: int | None = None

  def __post_init__(self):
    _validate.integer(1, num_batches=self.num_batches)
    _validate.probability(overflow_probability=self.overflow_probability)
    if self.population is not None:
      _validate.integer(1, population=self.population)


@_event
class GaussianSum(EventBase):
  """A sum of vectors was released with Gaussian noise.

  It is the privacy tuple (S, sigma) of arXiv 1812.06210.

  Attributes:
    clip_norm: S, the L2 bound on what one record contributes to the sum.
    stddev: The standard deviation sigma of the noise on each coordinate of the sum. `stddev /
      clip_norm` is the noise multiplier z. Zero means no privacy.
  """

  clip_norm: float | jax.Array
  stddev: float | jax.Array

  def __post_init__(self):
    # Values that vary are traced arrays inside jit; the ledger checks them when they arrive.
    if not isinstance(self.clip_norm, jax.Array):
      _validate.positive(clip_norm=self.clip_norm)
    if not isinstance(self.stddev, jax.Array):
      _validate.non_negative(stddev=self.stddev)


@_event
class LaplaceSum(EventBase):
  """A sum of vectors was released with Laplace noise.

  Attributes:
    clip_norm: The L1 bound on what one record contributes to the sum.
    scale: The scale of the noise on each coordinate of the sum. Zero means no privacy.
  """

  clip_norm: float
  scale: float

  def __post_init__(self):
    _validate.positive(clip_norm=self.clip_norm)
    _validate.non_negative(scale=self.scale)


@_event
class WeightedAverage(EventBase):
  """sum_k w_k D_k / max(W_min, sum_k w_k) was released with Gaussian noise.

  The weights w_k lie in [0, 1], and ||D_k|| <= S. It is the clipped-denominator estimator of arXiv
  1710.06963, Section 3.2.

  Attributes:
    clip_norm: S, the L2 bound on one record's vector.
    stddev: The standard deviation of the noise on each coordinate of the *average*.
    min_total_weight: W_min, the least value of the denominator. Public.
  """

  clip_norm: float | jax.Array
  stddev: float | jax.Array
  min_total_weight: float

  def __post_init__(self):
    if not isinstance(self.clip_norm, jax.Array):
      _validate.positive(clip_norm=self.clip_norm)
    if not isinstance(self.stddev, jax.Array):
      _validate.non_negative(stddev=self.stddev)
    _validate.positive(min_total_weight=self.min_total_weight)


@_event
class RandomizedResponse(EventBase):
  """One of `num_values` values was released: the true one, or a uniform one of all.

  Attributes:
    noise: The probability that the value is replaced by a uniform one, in `[0, 1]`. The uniform one
      may be the true one.
    num_values: The number of values, at least 2.
  """

  noise: float
  num_values: int

  def __post_init__(self):
    _validate.probability(noise=self.noise)
    _validate.integer(2, num_values=self.num_values)


@_event
class PureRelease(EventBase):
  """Something was released by an epsilon-DP mechanism, under the relation of its round."""

  epsilon: float

  def __post_init__(self):
    _validate.non_negative(epsilon=self.epsilon)


@_event
class ConcentratedRelease(EventBase):
  """Something was released by a rho-zCDP mechanism, under the relation of its round.

  Source: arXiv 1605.02065.
  """

  rho: float

  def __post_init__(self):
    _validate.non_negative(rho=self.rho)


@_event
class NonPrivate(EventBase):
  """Something that depends on the data was released without protection: epsilon is infinite."""


@_event
class GroupedSums(EventBase):
  """Several sums of the *same* sample were released, each with its own, independent noise.

  Attributes:
    parts: What was released of each group. Parts may be nested.
    labels: The groups' names, in the same order.
  """

  parts: tuple["QueryEvent", ...]
  labels: tuple[str, ...]

  def __post_init__(self):
    if not self.parts or len(self.parts) != len(self.labels):
      raise ValueError(f"Expected one label for each of at least one part, got {self.labels}.")
    if any(part.adaptive for part in self.parts):
      object.__setattr__(self, "adaptive", True)


@_event
class DistributedGaussianSum(EventBase):
  """A sum of vectors was released, each with its owner's share of Gaussian noise.

  Together the shares are N(0, stddev^2) per coordinate. A record that is zeroed or replaced leaves
  its share where it is. One that is removed takes it along. So under add/remove the noise of
  neighbours differs in variance too.

  Attributes:
    clip_norm: S, the L2 bound on what one record contributes to the sum.
    stddev: The standard deviation of the noise that the observer could not subtract, as it came out
      of the round. Zero means no privacy.
    released: False if the round was abandoned before the observer saw anything of its sums.
  """

  clip_norm: float | jax.Array
  stddev: float | jax.Array
  released: bool | jax.Array = True

  def __post_init__(self):
    if not isinstance(self.clip_norm, jax.Array):
      _validate.positive(clip_norm=self.clip_norm)
    if not isinstance(self.stddev, jax.Array):
      _validate.non_negative(stddev=self.stddev)


@_event
class DiscreteGaussianSum(EventBase):
  """A sum of integer vectors was released, each with discrete Gaussian noise by its owner.

  The source is arXiv 2102.06387. One coordinate's noise is the sum of `num_shares` variables with
  P(x) proportional to e^(-x^2 / (2 share_stddev^2)). Removed records behave as those of
  `DistributedGaussianSum`.

  Attributes:
    l2_norm: The L2 bound on the integers that one record contributes.
    l1_norm: The L1 bound on them.
    share_stddev: The parameter sigma of one share. Zero means no privacy.
    num_shares: How many shares the released sum held. Without any there is no privacy.
    dim: The number of coordinates.
  """

  l2_norm: float
  l1_norm: float
  share_stddev: float
  num_shares: int | jax.Array
  dim: int

  def __post_init__(self):
    _validate.positive(l2_norm=self.l2_norm, l1_norm=self.l1_norm)
    _validate.non_negative(share_stddev=self.share_stddev)
    if not isinstance(self.num_shares, jax.Array):
      _validate.integer(0, num_shares=self.num_shares)
    _validate.integer(1, dim=self.dim)


@_event
class SkellamSum(EventBase):
  """A sum of integer vectors was released, each with Skellam noise by its owner (arXiv 2110.04995).

  One coordinate's noise is the difference of two Poisson variables of mean num_shares
  share_variance / 2. Removed records behave as those of `DistributedGaussianSum`.

  Attributes:
    l2_norm: The L2 bound on the integers that one record contributes.
    l1_norm: The L1 bound on them.
    share_variance: The variance of one share. Zero means no privacy.
    num_shares: How many shares the released sum held. Without any there is no privacy.
  """

  l2_norm: float
  l1_norm: float
  share_variance: float
  num_shares: int | jax.Array

  def __post_init__(self):
    _validate.positive(l2_norm=self.l2_norm, l1_norm=self.l1_norm)
    _validate.non_negative(share_variance=self.share_variance)
    if not isinstance(self.num_shares, jax.Array):
      _validate.integer(0, num_shares=self.num_shares)


SamplingEvent = PoissonSampling | FixedSizeSampling | ShuffledBatches | BallsInBins
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
)
QueryEvent = Annotated[SumQueryEvent, EventBase]  # at run time a registered one too (`register`)


@_event
class Round(EventBase):
  """One sample was drawn and its noised sum released.

  Attributes:
    sampling: How the records of the round were chosen.
    query: What was released about them.
    relation: The neighbouring relation that the run declares. The accountant computes for another
      on request, where an analysis is proved for it.
    unit: What one record is.
    observer: Who sees the release. For a noised sum, this is anyone who sees the models.
  """

  sampling: SamplingEvent
  query: QueryEvent
  relation: Relation = Relation.ADD_REMOVE
  unit: Unit = Unit.USER
  observer: Observer = Observer.MODEL

  def __post_init__(self):
    # The query's event has the number and the mark of its key, as it is made where the sum is
    # released. They are compared by identity, because both may be tracers.
    for name, unknown in (("number", NO_NUMBER), ("key_exposed", False), ("adaptive", False)):
      if getattr(self, name) is unknown:
        object.__setattr__(self, name, getattr(self.query, name))
    if self.sampling.adaptive:
      object.__setattr__(self, "adaptive", True)


@_event
class LocalRelease(EventBase):
  """Each unit that took part in a round released one value through a local mechanism.

  Attributes:
    guarantee: What one release costs, with its relation, unit and observer.
    max_releases: The most releases that one unit makes over the whole run. This is the
      participation cap times the releases it makes in a round. None means as many as there are
      rounds.
  """

  guarantee: AnyGuarantee
  max_releases: int | None = None

  def __post_init__(self):
    if self.max_releases is not None:
      _validate.integer(1, max_releases=self.max_releases)

  @property
  def relation(self) -> Relation:
    """The relation of the release's guarantee."""
    return self.guarantee.relation

  @property
  def unit(self) -> Unit:
    """The unit of the release's guarantee."""
    return self.guarantee.unit

  @property
  def observer(self) -> Observer:
    """The observer of the release's guarantee."""
    return self.guarantee.observer


Event = Round | LocalRelease

_REGISTERED: list[type] = []


@dataclass_transform(frozen_default=True)
def register(cls: type[T]) -> type[T]:
  """Makes a subclass of `EventBase` an event of what a query released, for ledgers.

  It is a decorator, for code outside the package. The fields of the subclass are annotated. The
  class becomes a frozen dataclass and a pytree. Its docstring says what was done, and its
  `__post_init__` checks the fields. With an analysis (`jdp.accounting.register_analysis`) ledgers
  that hold it have an epsilon. With a query that releases it (`jdp.queries.registry.register`) it
  is audited.

  Raises:
    ValueError: if it is no subclass of `EventBase`. Also if another event type has its name, by
      which files know it.

  >>> @register
  ... class GaussianSum(EventBase):
  ...   scale: float
  Traceback (most recent call last):
  ...
  ValueError: Expected a name that no event type has, got GaussianSum; rename the class.
  """
  if cls.__name__ in EVENT_TYPES:
    raise ValueError(
      f"Expected a name that no event type has, got {cls.__name__}; rename the class."
    )
  kind = _event(cls)
  _REGISTERED.append(kind)
  return kind


def query_event_types() -> tuple[type, ...]:
  """The types of all events that say what a query released.

  They are those of this module, and the registered ones.
  """
  return (*typing.get_args(SumQueryEvent), *_REGISTERED)
