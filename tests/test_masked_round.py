"""Integer noise with calibration under secure aggregation: exact sums, the noise of the event, no opening too early."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import statistical

from jdp.federated.masked_round import masked_round
from jdp.federated.secure_aggregation import SecureAggregation, secure_aggregation
from jdp.queries import discrete_sum
from jdp.queries.modular import centred, reduce

CLIENTS, DIM, BITS, STDDEV = 12, 4096, 14, 2.0
PROTOCOL = secure_aggregation(CLIENTS, degree=10, threshold=1, modulus_bits=BITS)
QUERY = discrete_sum(jnp.zeros(DIM), 1.0, STDDEV, num_clients=CLIENTS, modulus_bits=BITS, noise="skellam")
STATE = QUERY.init(jnp.zeros(DIM))
RECORDS = jnp.full((CLIENTS, DIM), 0.01)  # of norm 0.64
masked = masked_round(QUERY, PROTOCOL, min_clients=4)


def answering(*numbers):
  """The first so many clients at each stage."""
  return np.arange(CLIENTS) < np.array(numbers)[:, None]


def in_the_clear():
  """The same protocol without masks."""
  return SecureAggregation(
    PROTOCOL.setup,
    lambda setup, client, integers, stage=0: reduce(integers, BITS),
    lambda setup, total, present: (reduce(total, BITS), jnp.bool_(True)),
    lambda setup, present: True,
  )


def test_masks_change_no_bit_of_the_sum():
  plain = masked_round(QUERY, in_the_clear())
  for present in (answering(12, 12), answering(9, 7), answering(6, 5)):
    results = [run(jax.random.key(5), STATE, RECORDS, present).result for run in (masked, plain)]
    assert np.array_equal(*results)


@pytest.mark.parametrize(("numbers", "fraction"), [((12, 12), 1.0), ((8, 8), 1.0), ((8, 5), 2 / 3 + 5 / 24)])
def test_noise_is_that_of_the_event(key, numbers, fraction):
  keys = jax.random.split(key, 5)
  opened = [masked(k, STATE, RECORDS, answering(*numbers)) for k in keys]
  spacing = STDDEV / np.sqrt(opened[0].event.share_variance / fraction)
  np.testing.assert_allclose(opened[0].event.share_variance, fraction * (STDDEV / spacing) ** 2, rtol=1e-6)
  planned = masked(jax.random.clone(key), STATE, RECORDS, answering(12, 12)).event
  np.testing.assert_allclose(opened[0].event.share_variance, fraction * planned.share_variance, rtol=1e-5)
  errors = np.concatenate([o.result for o in opened]) - 0.01 * numbers[0]
  rounding = numbers[0] * spacing**2 / 4  # at most: less than a thousandth of the noise
  assert rounding < 1e-3 * STDDEV**2
  statistical.assert_normal_stddev(errors, STDDEV * fraction**0.5, catches=0.05)


def test_rounds_that_would_open_with_too_little_noise_stay_closed(key):
  assert masked(jax.random.clone(key), STATE, RECORDS, answering(9, 3)) is None  # below the floor
  lost = in_the_clear()._replace(unmask=lambda setup, total, present: (total, jnp.bool_(False)))
  assert masked_round(QUERY, lost)(jax.random.clone(key), STATE, RECORDS, answering(9, 9)) is None
  torn = PROTOCOL._replace(connected=lambda setup, present: bool(present.sum() > 8))
  assert masked_round(QUERY, torn)(key, STATE, RECORDS, answering(9, 8)) is None


def test_the_sum_of_the_reports_alone_does_not_open():
  """What was revealed after two stages does not unmask the first: the own masks of those who answered are missing."""
  setup = PROTOCOL.setup(jax.random.key(3))
  values, present = jnp.ones((CLIENTS, 500), jnp.int32), jnp.asarray(answering(9, 7))
  mask = jax.jit(jax.vmap(PROTOCOL.mask, (None, 0, 0)))
  reports = jnp.sum(mask(setup, jnp.arange(CLIENTS), values)[:9], axis=0, dtype=jnp.uint32)
  unmask = jax.jit(PROTOCOL.unmask)
  opened, _ = unmask(setup, reports, present)
  assert np.mean(np.abs(np.asarray(centred(opened, BITS))) > 20) > 0.99
  alone, _ = unmask(setup, reports, present[:1])
  assert np.all(alone == 9)


def test_other_noise_is_refused():
  query = discrete_sum(jnp.zeros(4), 1.0, 1.0, num_clients=CLIENTS)
  with pytest.raises(ValueError, match="Expected a discrete_sum with noise='skellam'"):
    masked_round(query, PROTOCOL)(jax.random.key(0), query.init(None), jnp.zeros((CLIENTS, 4)), answering(9))
