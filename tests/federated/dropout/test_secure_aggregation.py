"""Masked reports add up to the sum of those who reported, exactly, and one by one look like uniform
words.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jdp.random
from jdp.federated.dropout.secure_aggregation_protocol import secure_aggregation
from jdp.numerics.modular_arithmetic import centred, reduce
from tests.helpers import statistical

CLIENTS, DIM, BITS = 200, 50, 16
PROTOCOL = secure_aggregation(CLIENTS, degree=40, threshold=5, modulus_bits=BITS)
unmask = jax.jit(PROTOCOL.unmask)
mask_all = jax.jit(jax.vmap(PROTOCOL.mask, (None, 0, 0)))


def sum_of(rows, reported):
  return jnp.sum(jnp.where(reported[:, None], rows, rows.dtype.type(0)), axis=0)


@pytest.fixture(scope="module")
def round_of_reports():
  setup = PROTOCOL.setup(jdp.random.seeded_key(7))
  values = jnp.asarray(np.random.default_rng(0).integers(-150, 150, (CLIENTS, DIM)), jnp.int32)
  return setup, values, mask_all(setup, jnp.arange(CLIENTS), values)


@pytest.mark.optimised
@pytest.mark.slow
@pytest.mark.parametrize("dropout", [0.0, 0.1, 0.3, 0.5])
def test_the_unmasked_sum_is_exact(round_of_reports, dropout):
  setup, values, reports = round_of_reports
  reported = jnp.asarray(np.random.default_rng(1).permutation(CLIENTS) >= dropout * CLIENTS)
  total, recovered = unmask(setup, sum_of(reports, reported), reported[None])
  assert recovered
  assert np.array_equal(centred(total, BITS), np.asarray(values)[np.asarray(reported)].sum(axis=0))
  assert PROTOCOL.connected(setup, reported)


@pytest.mark.slow
@pytest.mark.parametrize(("threshold", "expected"), [(2, True), (3, False)])
def test_a_client_too_few_of_whose_neighbours_reported_keeps_the_sum_closed(
  key, threshold, expected
):
  protocol = secure_aggregation(12, degree=4, threshold=threshold, modulus_bits=BITS)
  setup = protocol.setup(key)
  reported = setup.seats >= 2  # the client on seat 2 keeps two of its four neighbours
  total, recovered = jax.jit(protocol.unmask)(setup, jnp.arange(3), reported[None])
  assert bool(recovered) == expected
  assert bool(jnp.any(total != 0)) == expected


@pytest.mark.slow
def test_a_cut_circle_is_not_connected(round_of_reports):
  setup, _, _ = round_of_reports
  seats = np.asarray(setup.seats)
  gap = (seats < 20) | ((seats >= 100) & (seats < 120))
  assert not PROTOCOL.connected(setup, ~gap)
  assert PROTOCOL.connected(setup, seats >= 20)


@pytest.mark.optimised
@pytest.mark.slow
def test_reports_are_uniform_words(key):
  protocol = secure_aggregation(4, 2, 1, 8)
  values = jnp.full((60_000,), 3, jnp.int32)
  setup = protocol.setup(key)
  report = np.asarray(jax.jit(protocol.mask)(setup, jnp.int32(0), values))
  uniform = np.full(256, 1 / 256)
  biased = uniform * np.where(np.arange(256) < 128, 1.1, 0.9)
  statistical.assert_frequencies(np.bincount(report, minlength=256), uniform, catches=biased)
  bits = (report[:, None] >> np.arange(8)) % 2
  statistical.assert_uncorrelated(2.0 * bits - 1, catches=0.08)


@pytest.mark.optimised
@pytest.mark.slow
def test_reports_given_their_sum_are_independent_of_the_values(key):
  """All but one report of a connected graph are jointly uniform: signs of their products show no
  relation.
  """
  protocol = secure_aggregation(5, 4, 1, 8)
  setup = protocol.setup(key)
  values = jnp.broadcast_to(jnp.arange(5)[:, None] * 20, (5, 20_000)).astype(jnp.int32)
  mask = jax.jit(
    lambda values: jax.lax.map(lambda args: protocol.mask(setup, *args), (jnp.arange(5), values))
  )
  reports = mask(values)
  opened = reports - mask(0 * values)
  # the masks do not depend on what they hide
  assert np.array_equal(reduce(opened, 8), reduce(values, 8))
  signs = np.where(np.asarray(reports) >= 128, 1.0, -1.0)[:4].T
  products = np.stack(
    [signs[:, 0] * signs[:, 1], signs[:, 2] * signs[:, 3], signs.prod(axis=1)], axis=1
  )
  statistical.assert_uncorrelated(np.concatenate([signs, products], axis=1), catches=0.08)


@pytest.mark.slow
def test_own_masks_hide_a_report_that_came_late(round_of_reports):
  """Whoever is taken for lost has its pairs' masks revealed: its report is still masked."""
  setup, values, reports = round_of_reports
  reported = jnp.arange(CLIENTS) != 3
  late, _ = unmask(setup, jnp.sum(reports, axis=0), reported[None])
  surplus = reduce(late - sum_of(values, reported).astype(jnp.uint32), BITS)
  assert not np.any(np.asarray(surplus) == np.asarray(reduce(values[3], BITS)))


def test_rounds_share_no_mask(key):
  protocol = secure_aggregation(4, 2, 1, 32)
  first, second = (protocol.setup(k) for k in jax.random.split(key))
  values = jnp.zeros(1000, jnp.int32)
  mask = jax.jit(protocol.mask)
  assert not np.any(np.asarray(mask(first, 0, values)) == np.asarray(mask(second, 0, values)))


@pytest.mark.optimised
@pytest.mark.parametrize("bits", [1, 8, 16, 31, 32])
def test_centred_undoes_reduce(bits):
  bound = 2 ** (bits - 1)
  values = jnp.array([-bound, -1 if bits > 1 else 0, 0, bound - 1], jnp.int32)
  assert np.array_equal(centred(reduce(values, bits), bits), values)


@pytest.mark.parametrize(
  "arguments",
  [(2, 2, 1, 8), (9, 3, 1, 8), (9, 10, 1, 8), (9, 4, 5, 8), (9, 4, 0, 8), (9, 4, 2, 33)],
)
def test_invalid_arguments_are_refused(arguments):
  with pytest.raises(ValueError, match="Expected"):
    secure_aggregation(*arguments)
