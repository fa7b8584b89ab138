"""Integer noise with calibration under secure aggregation: exact sums, the noise of the event, no
opening too early.
"""

import sys
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jdp.federated.dropout.masked_rounds import calibrations, masked_round, total_variance
from jdp.federated.dropout.secure_aggregation_protocol import SecureAggregation, secure_aggregation
from jdp.numerics.modular_arithmetic import centred, reduce
from jdp.queries import discrete_sum
from tests.helpers import statistical

CLIENTS, DIM, BITS, STDDEV = 12, 4096, 14, 2.0
PROTOCOL = secure_aggregation(CLIENTS, degree=10, threshold=1, modulus_bits=BITS)
QUERY = discrete_sum(
  jnp.zeros(DIM), 1.0, STDDEV, num_clients=CLIENTS, modulus_bits=BITS, noise="skellam"
)
STATE = QUERY.init(jnp.zeros(DIM))
RECORDS = jnp.full((CLIENTS, DIM), 0.01)  # of norm 0.64
masked = masked_round(QUERY, PROTOCOL, min_clients=4)


def answering(*numbers):
  """The first so many clients at each stage."""
  return np.arange(CLIENTS) < np.array(numbers)[:, None]


def in_the_clear(protocol=PROTOCOL):
  """The same protocol without masks."""
  return SecureAggregation(
    protocol.setup,
    lambda setup, client, integers, stage=0: reduce(integers, BITS),
    lambda setup, total, present: (reduce(total, BITS), jnp.bool_(True)),
    lambda setup, present: True,
    BITS,
  )


@pytest.mark.optimised
@pytest.mark.slow
def test_masks_change_no_bit_of_the_sum():
  plain = masked_round(QUERY, in_the_clear())
  for present in (answering(12, 12), answering(9, 7), answering(6, 5)):
    results = [run(jax.random.key(5), STATE, RECORDS, present).result for run in (masked, plain)]
    assert np.array_equal(*results)


@pytest.mark.optimised
@pytest.mark.slow
def test_a_round_with_other_records_has_another_key():
  """Noise and masks of two rounds would else cancel in the difference of their messages."""
  changed = RECORDS.at[3, 7].add(0.01)
  first, again, other = (
    masked(jax.random.key(5), STATE, records, answering(12, 12)).result
    for records in (RECORDS, RECORDS, changed)
  )
  np.testing.assert_array_equal(first, again)
  # With one key, the difference would be the change itself, of norm 0.01.
  statistical.assert_normal_stddev(np.asarray(first - other), STDDEV * 2**0.5, catches=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
  ("numbers", "fraction"), [((12, 12), 1.0), ((8, 8), 1.0), ((8, 5), 2 / 3 + 5 / 24)]
)
def test_noise_is_that_of_the_event(key, numbers, fraction):
  keys = jax.random.split(key, 5)
  opened = [masked(k, STATE, RECORDS, answering(*numbers)) for k in keys]
  spacing = STDDEV / np.sqrt(opened[0].event.share_variance / fraction)
  np.testing.assert_allclose(
    opened[0].event.share_variance, fraction * (STDDEV / spacing) ** 2, rtol=1e-6
  )
  planned = masked(jax.random.clone(key), STATE, RECORDS, answering(12, 12)).event
  np.testing.assert_allclose(
    opened[0].event.share_variance, fraction * planned.share_variance, rtol=1e-5
  )
  errors = np.concatenate([o.result for o in opened]) - 0.01 * numbers[0]
  rounding = numbers[0] * spacing**2 / 4  # at most: less than a thousandth of the noise
  assert rounding < 1e-3 * STDDEV**2
  statistical.assert_normal_stddev(errors, STDDEV * fraction**0.5, catches=0.05)


@pytest.mark.optimised
@pytest.mark.slow
@pytest.mark.parametrize(
  "numbers", [(3, 3, 3), (12, 10, 10, 5), (8, 7, 7), (20, 20, 20), (1, 1, 1), (19, 1, 1)]
)
def test_few_survivors_who_calibrate_again_add_what_is_missing_and_no_more(
  key, monkeypatch, numbers
):
  """Of 20 clients. The event holds the exact variance of what was drawn, or a last bit less."""
  clients, drawn = 20, []
  protocol = in_the_clear(secure_aggregation(clients, degree=10, threshold=1, modulus_bits=BITS))
  query = discrete_sum(
    jnp.zeros(8), 1.0, STDDEV, num_clients=clients, modulus_bits=BITS, noise="skellam"
  )

  def draw(key, variance, shape):
    drawn.append(variance)
    return jnp.zeros(shape, jnp.int32)

  monkeypatch.setattr(sys.modules["jdp.federated.dropout.masked_rounds"], "skellam", draw)
  present, records = np.arange(clients) < np.array(numbers)[:, None], jnp.zeros((clients, 8))
  state = query.init(jnp.zeros(8))
  event = masked_round(query, protocol)(key, state, records, present).event
  report = query.preprocess(jax.random.key(1), state, records[0], jnp.float32(1))
  share = query.finalize(jax.random.key(0), state, report)[1].share_variance
  each = calibrations([clients, *numbers], share)
  assert drawn == [variance for variance in each if variance]
  exact = sum(
    number * Fraction(variance) for number, variance in zip(numbers, [share, *each], strict=True)
  )
  assert exact * (1 - Fraction(1, 2**50)) <= Fraction(event.share_variance) <= exact
  lost = np.prod(
    [1 - after / before for before, after in zip((clients, *numbers[:-1]), numbers, strict=True)]
  )
  assert float(exact) == pytest.approx(clients * share * (1 - lost), rel=1e-12)


@pytest.mark.slow
def test_calibration_asks_for_variances_that_can_be_drawn_and_events_state_no_more():
  """10,000 rounds of up to 10,000 clients and six calibrations, with all patterns of survivors."""
  rng = np.random.default_rng(0)
  for _ in range(10_000):
    announced = int(10 ** rng.uniform(0, 4))
    numbers = [announced]
    for _ in range(rng.integers(1, 8)):
      fewer = (
        numbers[-1],
        int(rng.integers(1, numbers[-1] + 1)),
        max(1, numbers[-1] - int(rng.integers(0, 3))),
      )
      numbers.append(fewer[rng.integers(3)])
    share = float(10 ** rng.uniform(-6, 5))
    each = calibrations(numbers, share)
    assert len(each) == len(numbers) - 2
    assert all(variance == 0 or variance >= 1e-6 for variance in each)
    exact = sum(number * Fraction(x) for number, x in zip(numbers[1:], [share, *each], strict=True))
    stated = Fraction(total_variance(numbers[1:], [share, *each]))
    assert (
      exact * (1 - Fraction(1, 2**50))
      <= stated
      <= exact
      <= announced * Fraction(share) * (1 + Fraction(1, 2**45))
    )


@pytest.mark.parametrize(
  ("present", "records", "message"),
  [
    (answering(9, 9)[:, 1:], RECORDS, r"of the protocol's 12 clients, got shape \(2, 11\)"),
    (answering(9, 9)[0], RECORDS, r"of the protocol's 12 clients, got shape \(12,\)"),
    (answering(9, 9), RECORDS[1:], "population of 12 that is sampled from, got 11"),
    (
      answering(9, 9),
      jnp.concatenate([RECORDS, RECORDS[:1]]),
      "population of 12 that is sampled from, got 13",
    ),
    (answering(8, 9), RECORDS, "that are lost at a stage to stay lost"),
  ],
)
def test_other_clients_than_the_protocols_are_refused(key, present, records, message):
  with pytest.raises(ValueError, match=message):
    masked(key, STATE, records, present)


@pytest.mark.slow
def test_a_floor_too_low_for_exact_draws_is_refused_before_anything_is_sent(key):
  query = discrete_sum(
    jnp.zeros(4), 1e-3, 1.0, num_clients=CLIENTS, modulus_bits=17, noise="skellam"
  )
  state, records, sent = query.init(jnp.zeros(4)), jnp.zeros((CLIENTS, 4)), []
  protocol = in_the_clear()._replace(
    mask=lambda setup, client, integers, stage=0: sent.append(stage), modulus_bits=17
  )
  with pytest.raises(
    ValueError, match=r"Expected min_clients of at least [0-9]+, to make up for the others' noise"
  ):
    masked_round(query, protocol)(key, state, records, answering(12, 12))
  assert not sent


@pytest.mark.slow
def test_rounds_that_would_open_with_too_little_noise_stay_closed(key):
  assert masked(jax.random.clone(key), STATE, RECORDS, answering(9, 3)) is None  # below the floor
  lost = in_the_clear()._replace(unmask=lambda setup, total, present: (total, jnp.bool_(False)))
  assert masked_round(QUERY, lost)(jax.random.clone(key), STATE, RECORDS, answering(9, 9)) is None
  torn = PROTOCOL._replace(connected=lambda setup, present: bool(present.sum() > 8))
  assert masked_round(QUERY, torn)(key, STATE, RECORDS, answering(9, 8)) is None


@pytest.mark.slow
def test_the_sum_of_the_reports_alone_does_not_open():
  """What was revealed after two stages does not unmask the first: the own masks of those who
  answered are missing.
  """
  setup = PROTOCOL.setup(jax.random.key(3))
  values, present = jnp.ones((CLIENTS, 500), jnp.int32), jnp.asarray(answering(9, 7))
  mask = jax.jit(jax.vmap(PROTOCOL.mask, (None, 0, 0)))
  reports = jnp.sum(mask(setup, jnp.arange(CLIENTS), values)[:9], axis=0, dtype=jnp.uint32)
  unmask = jax.jit(PROTOCOL.unmask)
  opened, _ = unmask(setup, reports, present)
  assert np.mean(np.abs(np.asarray(centred(opened, BITS))) > 20) > 0.99
  alone, _ = unmask(setup, reports, present[:1])
  assert np.all(alone == 9)


@pytest.mark.parametrize("more", [-2, 2])
def test_a_modulus_above_the_protocols_is_refused(more):
  """Sums would wrap at the protocol's, and be read at the query's."""
  protocol = secure_aggregation(CLIENTS, degree=10, threshold=1, modulus_bits=BITS + more)
  run = masked_round(QUERY, protocol)
  if more > 0:
    found = run(jax.random.key(5), STATE, RECORDS, answering(12)).result
    assert np.array_equal(found, masked(jax.random.key(5), STATE, RECORDS, answering(12)).result)
  else:
    with pytest.raises(ValueError, match=f"wrap as those of the protocol, modulo 2.{BITS + more},"):
      run(jax.random.key(5), STATE, RECORDS, answering(12))


@pytest.mark.slow
def test_other_noise_is_refused():
  query = discrete_sum(jnp.zeros(4), 1.0, 1.0, num_clients=CLIENTS)
  with pytest.raises(ValueError, match="Expected a discrete_sum with noise='skellam'"):
    masked_round(query, PROTOCOL)(
      jax.random.key(0), query.init(None), jnp.zeros((CLIENTS, 4)), answering(9)
    )
