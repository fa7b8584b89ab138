"""Samples of fixed size."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jdp import _validate
from jdp._arguments import checked
from jdp._loop_carries import vary_like
from jdp.events import FixedSizeSampling
from jdp.sampling import registry
from jdp.sampling.base import Sampler, check_population, first_members, integers, pack, until_done

# Drawing a few words takes as long as drawing a thousand. So for small samples, one draw serves
# several turns.
_WORDS, _TURNS = 1024, 4


@checked
def fixed_size(population: int, sample_size: int) -> Sampler:
  """A uniformly random subset of `sample_size` of `population` records, anew each round.

  Formal guarantee: the event is a `FixedSizeSampling`, analysed under replace-one and zero-out.
  Adding or removing a record would change the population, which is public. The size of the sample
  is public, and there is no padding.

  The subset is exactly uniform, for ideal random bits: no float takes part in it. Slots are drawn
  as integers. Slots that repeat another are drawn again until none does. The procedure only asks
  whether two draws are equal. So it treats all records alike, and every subset is as likely as any
  other.

  For more than half of the population the complement is drawn. For m up to N/2, a round takes time
  in proportion to m log m, whatever the population. For larger m, it takes time in proportion to N.

  Args:
    population: N, a public constant below 2^31.
    sample_size: m in [1, N].

  Returns:
    A `Sampler` without state. `indices` are in ascending order.

  Raises:
    ValueError: if an argument is out of range.

  >>> import jax
  >>> sampler = fixed_size(1_000_000, 1000)
  >>> sample, _ = sampler.sample(jax.random.key(0), sampler.init())
  >>> sample.indices.shape, len(set(sample.indices.tolist())), float(sample.weights.min())
  ((1000,), 1000, 1.0)
  """
  check_population(population)
  event = FixedSizeSampling(sample_size, population)
  _validate.integer(1, sample_size=sample_size)

  def sample(key, state):
    if sample_size <= population // 2:
      members = uniform_subset(key, population, sample_size)
      return first_members(members, jnp.int32(sample_size), population), state
    others = uniform_subset(key, population, population - sample_size)
    return pack(jnp.ones(population, bool).at[others].set(False), sample_size), state

  return Sampler(
    init=lambda: (),
    sample=sample,
    event=lambda state: event,
    population=population,
    expected_size=float(sample_size),
    capacity=sample_size,
  )


def uniform_subset(key: jax.Array, population: int, size: int) -> jax.Array:
  """A uniform subset of `size` records, ascending: int32 [size]."""
  if size == 0:
    return jnp.zeros(0, jnp.int32)

  # Draws are sorted, so repetitions are neighbours: all but the first are unfit. The number
  # `population` stands for a draw that failed.
  def unfit(slots):
    return jnp.concatenate([jnp.zeros(1, bool), slots[1:] == slots[:-1]]) | (slots == population)

  turns = min(_TURNS, max(1, _WORDS // size))

  def redraw(key, slots):
    drawn = integers(key, population, turns * size).reshape(turns, size)

    def turn(carry):
      number, slots, _ = carry
      slots = jnp.sort(jnp.where(unfit(slots), drawn[number], slots))
      return number + 1, slots, ~jnp.any(unfit(slots))

    begun = jnp.int32(0), *vary_like((slots, jnp.bool(False)), slots, drawn)
    return lax.while_loop(lambda carry: (carry[0] < turns) & ~carry[2], turn, begun)[1:]

  return until_done(key, redraw, jnp.full(size, population, np.int32))


registry.register(
  "fixed_size", lambda population, size: fixed_size(population, round(size)), factory=fixed_size
)
