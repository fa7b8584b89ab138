"""Poisson sampling into a fixed number of slots, which may be near the mean sample size."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from jdp import _validate, random
from jdp._arguments import checked
from jdp.events import TruncatedPoissonSampling
from jdp.random import draws
from jdp.sampling import registry
from jdp.sampling.base import Sampler, check_population, first_members, permutation
from jdp.sampling.subsets import uniform_subset


@checked
def truncated_poisson(population: int, probability: float, capacity: int) -> Sampler:
  """Each record is drawn independently. If more than `capacity` are, a uniform subset takes part.

  Formal guarantee: the event is a `TruncatedPoissonSampling`, analysed for Gaussian sums under
  add/remove or zero-out (arXiv 2508.15089). `poisson` needs slots for almost all samples, and adds
  to delta the probability that a surplus is dropped. Here the capacity may be near the mean, as a
  round's cost includes that of a full sample. Under add/remove the guarantee is about one of the N
  records leaving. If one is added, a full sample is likelier, and the event that costs as much has
  a population of N + 1 (`jdp.accounting.privacy_statements` says so).

  One coin for each record decides how many are drawn. The members are a uniform subset of that
  size, or of `capacity` if it is smaller. This is the same distribution, exactly uniform for ideal
  random bits.

  Args:
    population: N, a public constant below 2^31.
    probability: q in (0, 1], the rate of the draws. The event records the rate that the coins
      realise.
    capacity: B in [1, N], the slots of a sample.

  Returns:
    A `Sampler` without state. Its `expected_size` is the mean size of the truncated sample.

  Raises:
    ValueError: if an argument is out of range.

  >>> sampler = truncated_poisson(60_000, 0.01, capacity=620)
  >>> sampler.capacity, round(sampler.expected_size, 1)
  (620, 597.1)
  >>> sample, _ = sampler.sample(jax.random.key(0), sampler.init())
  >>> int(sample.size) == int(sample.weights.sum()) <= 620
  True
  """
  check_population(population)
  _validate.positive(probability=probability)
  event = TruncatedPoissonSampling(draws.realised_probability(probability), capacity, population)
  _validate.in_range(1, population, capacity=capacity)

  def sample(key, state):
    coin_key, order_key = jax.random.split(key)
    drawn = jnp.sum(random.bernoulli(coin_key, probability, (population,)), dtype=np.int32)
    indices = _ordered_subset(order_key, population, capacity)
    return first_members(indices, jnp.minimum(drawn, capacity), population), state

  return Sampler(
    init=lambda: (),
    sample=sample,
    event=lambda state: event,
    population=population,
    expected_size=population * event.inclusion_probability,
    capacity=capacity,
  )


def _ordered_subset(key: jax.Array, population: int, size: int) -> jax.Array:
  """A uniform subset in a uniform order, so that any first part is one too: int32 [size]."""
  if size > population // 2:
    return permutation(key, population)[:size]
  subset_key, order_key = jax.random.split(key)
  return uniform_subset(subset_key, population, size)[permutation(order_key, size)]


registry.register(
  "truncated_poisson",
  lambda population, size: truncated_poisson(
    population, size / population, min(population, math.ceil(size + math.sqrt(size)))
  ),
  factory=truncated_poisson,
)
