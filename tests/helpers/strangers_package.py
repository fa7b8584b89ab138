"""What a stranger adds: a mechanism, and a query and a sampler with events of their own.

It is imported by its name (`--import`), as any module would be that is not part of jdp.
"""

import jax
import jax.numpy as jnp

from jdp import accounting, events, mechanisms, queries, sampling


def negated_laplace(epsilon):
  """Laplace noise on the negative of a value."""
  plain = mechanisms.laplace(epsilon, 2.0)

  def encode(key, value):
    return -plain.encode(key, value)

  return plain._replace(
    encode=encode,
    decode=lambda report: plain.decode(-report),
    privatize=lambda key, value: plain.decode(-encode(key, value)),
  )


mechanisms.registry.register(
  "negated_laplace", lambda setting: negated_laplace(setting.epsilon), factory=negated_laplace
)


@events.register
class ScaledSum(events.EventBase):
  """A Gaussian sum of multiplier `noise_multiplier` was released, times a public factor."""

  noise_multiplier: float
  factor: float


accounting.charge_as(ScaledSum, lambda event: events.GaussianSum(1.0, event.noise_multiplier))


def scaled_sum(noise_multiplier, factor):
  """A sum query of clip norm 1 that multiplies a Gaussian sum by a public factor."""
  query = queries.gaussian_sum(1.0, noise_multiplier)

  def finalize(key, state, total):
    result, event, state = query.finalize(key, state, total)
    scaled = jax.tree.map(lambda x: jnp.float32(factor) * x, result)
    marks = {"number": event.number, "key_exposed": event.key_exposed}
    return scaled, ScaledSum(noise_multiplier, factor, **marks), state

  return query._replace(finalize=finalize, noise=None)


queries.registry.register("scaled_sum", lambda: scaled_sum(1.0, 4.0), factory=scaled_sum)


@events.register_sampling
class TwoCoins(events.EventBase):
  """Each record takes part if two fresh coins of its own say so.

  Attributes:
    probability: that both do.
    overflow_probability: as for `PoissonSampling`.
    population: the public number of records.
  """

  probability: float
  overflow_probability: float
  population: int


def _amplified(event, released, relation, release):
  """What one coin of both coins' probability makes of a release."""
  known = accounting.sampling_analysis(events.PoissonSampling(event.probability))
  return known.amplified(event, released, relation, release)


accounting.register_sampling(
  TwoCoins,
  accounting.SamplingAnalysis(
    inclusion=lambda event: event.probability,
    anew=True,
    amplified=_amplified,
    stays=lambda event: True,
    attained=lambda event, sample_known: (
      accounting.Attained.SEEN if sample_known else accounting.Attained.POISSON
    ),
  ),
)


def two_coins(population, rate) -> sampling.Sampler:
  """A sampler by two coins, each of probability `rate`."""
  drawn = sampling.poisson(population, rate**2)
  known = drawn.event(drawn.init())
  event = TwoCoins(known.probability, known.overflow_probability, population)
  return drawn._replace(event=lambda state: event)


sampling.registry.register(
  "two_coins", lambda n, size: two_coins(n, (size / n) ** 0.5), factory=two_coins
)
