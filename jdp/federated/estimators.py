"""Averages of weighted updates: estimators, and ways of clipping (arXiv 1710.06963).

All take one noise multiplier.

| estimator | average of the members' updates D_k, weighted by w_k | moved by a user by at most |
| --- | --- | --- |
| `fixed_denominator` | sum_k w_k D_k / (q W) | S / (q W) |
| `clipped_denominator` | sum_k w_k D_k / max(q W_min, sum_k w_k) | 2S / (q W_min) |
| `adaptive_average` | `fixed_denominator` with an S that follows the updates' norms | S / (q W) |
| `true_average` | sum_k w_k D_k / sum_k w_k, not private | |

Each is a `SumQuery` whose records are updates, and whose result is their average.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from jdp import _validate, accounting
from jdp._arguments import Arrays, checked
from jdp.events import GaussianSum, NonPrivate, WeightedAverage
from jdp.guarantees import Relation
from jdp.matrix_factorization.strategies import Strategy
from jdp.queries import (
  SumQuery,
  adaptive_clipped_sum,
  average,
  correlated_gaussian_sum,
  gaussian_sum,
  grouped,
  weighted_average,
)
from jdp.queries.base import Schedule, times, unbounded
from jdp.queries.per_layer_clipping import layer_bounds, layers

PyTree = Any
ClipNorm = float | Schedule


class Clipping(NamedTuple):
  """How an update is bounded.

  Attributes:
    clip_norm: S, the bound of the whole update, a number or a schedule (round -> S).
    query: (makes a query of a bound) -> the query of the whole update.
  """

  clip_norm: ClipNorm
  query: Callable[[Callable[[ClipNorm], SumQuery]], SumQuery]


@checked
def flat_clipping(clip_norm: ClipNorm) -> Clipping:
  """Scales the whole update down to an L2 norm of S, a number or a schedule (round -> S).

  >>> clipping = flat_clipping(0.5)
  >>> query = fixed_denominator(clipping, noise_multiplier=2.0, expected_weight=100.0)
  >>> round(query.noise, 4)  # of the average: 2.0 * 0.5 / 100
  0.01
  """
  return Clipping(clip_norm, lambda make: make(clip_norm))


@checked
def per_layer_clipping(params: Arrays, clip_norm: ClipNorm, *, shares: str = "equal") -> Clipping:
  """Scales every layer j down to its own S_j, with sum_j S_j^2 = S^2.

  Args:
    params: the model's parameters or their shapes.
      `jdp.queries.per_layer_clipping.layers` says what a layer is.
    clip_norm: S, a number or a schedule (round -> S).
    shares: "equal" or "dimension", see `jdp.queries.per_layer`.

  >>> import jax
  >>> params = {"body": {"w": jax.numpy.zeros((3, 25))}, "head": {"w": jax.numpy.zeros((5, 5))}}
  >>> clipping = per_layer_clipping(params, 1.0, shares="dimension")
  >>> query = fixed_denominator(clipping, noise_multiplier=2.0, expected_weight=100.0)
  >>> clipped = query.clip(query.init(params), jax.tree.map(lambda x: x + 1, params))
  >>> {layer: round(float(jax.numpy.linalg.norm(x["w"])), 3) for layer, x in clipped.items()}
  {'body': 0.866, 'head': 0.5}
  """
  bounds = layer_bounds(params, clip_norm, shares)

  def query(make):
    return grouped({name: make(bound) for name, bound in bounds.items()}, layers)

  return Clipping(clip_norm, query)


@checked
def fixed_denominator(
  clipping: Clipping,
  noise_multiplier: float,
  expected_weight: float,
  *,
  relation: Relation | str = Relation.ADD_REMOVE,
  strategy: Strategy | None = None,
  min_separation: int = 1,
  max_participations: int | None = None,
) -> SumQuery:
  """sum_k w_k D_k / (q W): unbiased, and of the smaller sensitivity.

  Formal guarantee, to whoever sees the average: that of a Gaussian mechanism with noise multiplier
  z under `relation`. It holds for any updates and weights (see `jdp.queries.gaussian_sum`). The
  noise on each coordinate of the average has a standard deviation of z S / (q W), and twice that
  under replace-one. Where S follows a schedule, the noise follows S, and no round costs more than
  another.

  With a strategy the noise of later rounds cancels part of earlier rounds' noise
  (`jdp.queries.correlated_gaussian_sum`). Then a whole run is one Gaussian mechanism with the noise
  multiplier z over the strategy's sensitivity, if the sampler keeps to `min_separation` and
  `max_participations`.

  Args:
    clipping: `flat_clipping` or `per_layer_clipping`.
    noise_multiplier: z >= 0. At 0 nothing is private.
    expected_weight: q W > 0, the expected total weight of a sample, public. W must not be computed
      from the users whom the guarantee is for. Fix it beforehand.
    relation: the neighbouring relation that z is stated for.
    strategy: how noise is correlated over the rounds (`jdp.matrix_factorization`). None: it is
      independent.
    min_separation: with a strategy, the least distance between two rounds of one user.
    max_participations: with a strategy, the most rounds of one user. None: as many as fit.

  Raises:
    ValueError: if a number is out of range, or there is a separation without a strategy.

  >>> import jax
  >>> query = fixed_denominator(flat_clipping(1.0), noise_multiplier=0.5, expected_weight=100.0)
  >>> query.finalize(jax.random.key(0), query.init(0.0), jax.numpy.zeros(1))[1]
  GaussianSum(clip_norm=1.0, stddev=0.5)
  """
  _check_numbers(noise_multiplier, expected_weight=expected_weight)
  own_multiplier = stddev_of(noise_multiplier, relation)
  if strategy is None:
    if min_separation != 1 or max_participations is not None:
      raise ValueError(
        "Expected a strategy with min_separation or max_participations, got none; independent "
        "noise is charged by the round."
      )
    stddev = times(own_multiplier, clipping.clip_norm)
    return average(clipping.query(lambda bound: gaussian_sum(bound, stddev)), expected_weight)

  def make(bound: ClipNorm) -> SumQuery:
    # Every coordinate gets the noise of the whole update, whatever its layer's own bound.
    share = _first(bound) / _first(clipping.clip_norm)
    return correlated_gaussian_sum(
      bound,
      own_multiplier / share,
      strategy,
      min_separation=min_separation,
      max_participations=max_participations,
    )

  return average(clipping.query(make), expected_weight)


@checked
def clipped_denominator(
  clipping: Clipping,
  noise_multiplier: float,
  least_weight: float,
  *,
  relation: Relation | str = Relation.ADD_REMOVE,
) -> SumQuery:
  """sum_k w_k D_k / max(q W_min, sum_k w_k): the sample's true average if the sample has enough
  weight.

  Formal guarantee, to whoever sees the average: that of a Gaussian mechanism with noise multiplier
  z under `relation`, for any updates and weights. The noise on each coordinate of the average has a
  standard deviation of z times the sensitivity. The sensitivity is 2S / (q W_min) under replace-one
  (Lemma 1). It is 2S / (q W_min + 1) if a user comes or goes and q W_min >= 1 (see
  `jdp.queries.weighted_average`).

  Args:
    clipping: `flat_clipping` or `per_layer_clipping`.
    noise_multiplier: z >= 0.
    least_weight: q W_min > 0, public.
    relation: the neighbouring relation that z is stated for.

  Raises:
    ValueError: if a number is out of range.

  >>> query = clipped_denominator(flat_clipping(1.0), 0.5, least_weight=99.0)
  >>> query.init(0.0).step.item()
  0
  """
  _check_numbers(noise_multiplier, least_weight=least_weight)
  multiplier = accounting.noise_multiplier(WeightedAverage(1.0, 1.0, least_weight), relation)
  stddev = times(noise_multiplier / multiplier, clipping.clip_norm)
  return clipping.query(
    lambda bound: weighted_average(bound, stddev, min_total_weight=least_weight)
  )


@checked
def adaptive_average(noise_multiplier: float, expected_weight: float, **settings: Any) -> SumQuery:
  """The average over a fixed denominator whose S follows a quantile of the updates' norms.

  The method is that of arXiv 1905.03871.

  Formal guarantee: that of a Gaussian mechanism with noise multiplier z, for average and clip norms
  together, under add/remove or zero-out. Local training is not projected: if no update were longer
  than S, S could only fall.

  Args:
    noise_multiplier: z >= 0.
    expected_weight: q W > 0, public.
    **settings: further arguments of `jdp.queries.adaptive_clipped_sum`.

  >>> import jax
  >>> query = adaptive_average(1.0, 40.0, initial_clip_norm=4.0, quantile=0.5, count_stddev=2.0)
  >>> state = query.init(jax.numpy.zeros(2))
  >>> update = query.preprocess(jax.random.key(0), state, jax.numpy.zeros(2), jax.numpy.float32(1))
  >>> _, event, _ = query.finalize(jax.random.key(1), state, update)
  >>> event.labels, float(event.parts[1].clip_norm)
  (('count', 'sum'), 4.0)
  """
  _check_numbers(noise_multiplier, expected_weight=expected_weight)
  return average(
    adaptive_clipped_sum(noise_multiplier, expected_weight, **settings), expected_weight
  )


def true_average() -> SumQuery:
  """The average over the sample's own weight, neither clipped nor noised, for comparison.

  Epsilon is infinite. An empty sample's average is zero. An update that holds NaN or infinity
  counts as zero.
  """
  # Bounds that no usable update or weight reaches, so the query neither clips nor floors.
  least, largest = _validate.FLOAT32_SAFE
  query = weighted_average(largest, 0.0, min_total_weight=least)

  def finalize(key, state, total):
    result, _, state = query.finalize(key, state, total)
    return result, NonPrivate(), state

  return query._replace(finalize=finalize, clip=unbounded)


def stddev_of(noise_multiplier: float, relation: Relation | str) -> float:
  """The standard deviation that gives a sum with S = 1 this multiplier under the relation."""
  # The multiplier of a sum with S = stddev = 1 is 1, and 1/2 under replace-one.
  return noise_multiplier / accounting.noise_multiplier(GaussianSum(1.0, 1.0), relation)


def _first(bound: ClipNorm) -> float:
  """The bound, or its value in the first round."""
  return float(bound(0)) if callable(bound) else bound  # type: ignore[arg-type]


def _check_numbers(noise_multiplier: float, **weight: float) -> None:
  """Refuses numbers that float32 would turn into zero or infinity."""
  if noise_multiplier:
    _validate.float32_safe(noise_multiplier=noise_multiplier)
  _validate.float32_safe(**weight)
