"""Noise by the clients: what it comes to when clients vanish, in the measured noise, in the events,
in the epsilon.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jdp import accounting
from jdp.accounting import gaussian_epsilon
from jdp.audits.bounds import epsilon_bound
from jdp.audits.residues import audit_residues
from jdp.events import PoissonSampling, Round
from jdp.ledger import Ledger
from jdp.queries.distributed.float_sums import distributed_sum
from jdp.queries.distributed.noise_schemes import calibrated, central, excess, uncalibrated
from tests.helpers import statistical

SCHEMES = {
  "uncalibrated": uncalibrated(),
  "calibrated": calibrated(),
  "outside": calibrated(inside=False),
  "twice": calibrated(2),
  "excess": excess(0.5),
  "central": central(),
}
N, M, A, B = 20, 14, 11, 9  # announced, reported, answered once, answered twice


def counts_of(scheme, *numbers):
  return jnp.array(numbers[: 2 + scheme.num_calibrations], jnp.int32)


EXPECTED = {  # server, model
  "uncalibrated": (M / N, M / N),
  "calibrated": (M / N + A * (1 / M - 1 / N),) * 2,
  "outside": (M / N, M / N + A * (1 / M - 1 / N)),
  "twice": (1 - (1 - M / N) * (1 - A / M) * (1 - B / A),) * 2,
  "excess": (A / M + (M - A) / 10,) * 2,
  "central": (0.0, 1.0),
}


@pytest.mark.parametrize("name", SCHEMES)
def test_realised_variance_is_the_formula(name):
  counts = counts_of(SCHEMES[name], N, M, A, B)
  np.testing.assert_allclose(SCHEMES[name].realised(counts, counts), EXPECTED[name], rtol=1e-6)


@pytest.mark.parametrize("name", SCHEMES)
def test_nobody_lost_is_the_planned_noise(name):
  counts = counts_of(SCHEMES[name], N, N, N, N)
  server, model = SCHEMES[name].realised(counts, counts)
  np.testing.assert_allclose([server, model], [0.0 if name == "central" else 1.0, 1.0], rtol=1e-6)


def added(function, keys, number, *args):
  """The sum over the first `number` clients."""
  return jnp.sum(jax.jit(jax.vmap(function, (0, None, None)))(keys, *args)[:number], axis=0)


def noise_by_the_parties(query, key, like, counts):
  """The sum of everything that the clients and the server add, party by party."""
  n, reported, *answered = counts.tolist()
  report_key, server_key = jax.random.split(key)
  keys = jax.random.split(report_key, n)
  total = added(query.share, jax.random.clone(keys), reported, like, jnp.int32(n))
  for stage, number in enumerate(answered):
    total += added(query.calibrate, jax.random.clone(keys), number, like, counts[: 2 + stage])
  return query.finalize(server_key, total, counts)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEMES)
def test_shares_add_up_to_the_recorded_noise(key, name):
  query = distributed_sum(2.0, 3.0, SCHEMES[name])
  counts = counts_of(query.scheme, N, M, A, B)
  result, events = noise_by_the_parties(query, key, jnp.zeros(90_000), counts)
  np.testing.assert_allclose(float(events.model.stddev), 6 * EXPECTED[name][1] ** 0.5, rtol=1e-6)
  np.testing.assert_allclose(float(events.server.stddev), 6 * EXPECTED[name][0] ** 0.5, rtol=1e-6)
  statistical.assert_normal_stddev(result, 6 * EXPECTED[name][1] ** 0.5, catches=0.02)


@pytest.mark.parametrize("name", SCHEMES)
def test_noise_at_once_has_the_law_of_the_shares(key, name):
  query = distributed_sum(2.0, 3.0, SCHEMES[name])
  counts = counts_of(query.scheme, N, M, A, B)
  noise_key, server_key = jax.random.split(key)
  total = query.noise(noise_key, jnp.zeros(90_000), counts)
  result, events = query.finalize(server_key, total, counts)
  statistical.assert_normal_stddev(result, float(events.model.stddev), catches=0.02)


def test_contributions_are_clipped(key):
  query = distributed_sum(2.0, 0.0, calibrated())
  for record in (jnp.array([30.0, 40.0]), jnp.array([jnp.nan, 1.0])):
    assert np.linalg.norm(query.share(jax.random.clone(key), record, jnp.int32(3))) <= 2.0


@pytest.mark.sweep
@pytest.mark.parametrize(
  ("dropout", "expected"), [(0.0, 1.000), (0.1, 1.060), (0.2, 1.1305), (0.3, 1.217), (0.5, 1.465)]
)
def test_epsilon_of_1500_rounds(dropout, expected):
  n, multiplier, rounds = 1000, 144.49, 1500
  left = round(n * (1 - dropout))

  def epsilons(scheme):
    counts = counts_of(scheme, n, left, left)
    _, events = distributed_sum(1.0, multiplier, scheme).finalize(
      jax.random.key(0), jnp.zeros(1), counts
    )
    run = Ledger()
    for observer in ("server", "model"):
      event = Round(PoissonSampling(1.0), getattr(events, observer), "zero_out", observer=observer)
      run = run.append(event, count=rounds)
    exact = accounting.gaussian_epsilon(float(events.server.stddev) / rounds**0.5, 1e-5)
    return exact, *(
      accounting.epsilon(run, 1e-5, accountant="pld", observer=o) for o in ("server", "model")
    )

  def agree(epsilons, expected):
    np.testing.assert_allclose(epsilons, expected, rtol=2e-4, atol=5e-4)

  plain = epsilons(uncalibrated())
  agree(plain, (expected,) * 3)
  agree(epsilons(calibrated()), (1.0,) * 3)
  agree(epsilons(excess(0.5)), (1.0,) * 3)
  agree(epsilons(calibrated(inside=False)), (plain[0], plain[1], 1.0))


def test_dishonest_clients_leave_the_honest_share():
  counts, honest = jnp.array([100, 80, 60]), jnp.array([75, 60, 45])
  for scheme in (calibrated(), excess(0.4)):
    whole, part = scheme.realised(counts, counts).server, scheme.realised(counts, honest).server
    np.testing.assert_allclose(part, 0.75 * whole, rtol=1e-6)
  query = distributed_sum(1.0, 2.0, calibrated())
  _, events = query.finalize(jax.random.key(0), jnp.zeros(1), counts, honest)
  np.testing.assert_allclose(float(events.server.stddev) ** 2, 4 * 0.75 * 0.95, rtol=1e-6)


@pytest.mark.parametrize(
  ("name", "counts", "released"),
  [
    ("calibrated", (20, 14, 11), (True, True)),
    ("calibrated", (20, 14, 4), (False, False)),
    ("outside", (20, 14, 4), (True, False)),
    ("excess", (20, 14, 4), (True, False)),
    ("outside", (20, 4, 4), (False, False)),
    ("uncalibrated", (20, 4), (False, False)),
  ],
)
def test_a_round_below_the_floor_costs_what_was_opened(name, counts, released):
  query = distributed_sum(1.0, 2.0, SCHEMES[name], min_clients=10)
  result, events = query.finalize(jax.random.key(0), jnp.ones(3), jnp.array(counts))
  assert (bool(events.server.released), bool(events.model.released)) == released
  expected = np.full(3, float(released[1]))
  half_a_spacing = float(events.model.stddev) / 32 * (1 + 1e-5)
  np.testing.assert_allclose(result, expected, rtol=0, atol=half_a_spacing if released[1] else 0)
  ledger = Ledger().append(
    Round(PoissonSampling(1.0), events.server, "zero_out", observer="server")
  )
  assert (accounting.epsilon(ledger, 1e-5) > 0) == released[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["outside", "excess"])
@pytest.mark.parametrize("is_opened", [True, False])
def test_a_sum_that_opens_before_the_last_noise_hides_its_float_bits(key, name, is_opened):
  """Through `open` nothing is refuted (at 99.9 % a case). The bare sum of reports is: the residues
  of a sum near zero are finer.
  """
  query, counts = distributed_sum(1.0, 1.0, SCHEMES[name]), counts_of(SCHEMES[name], 1, 1, 1)

  def sums(key, record, counts):
    share_key, opening_key = jax.random.split(key)
    total = query.share(share_key, record, counts[0])
    return query.open(opening_key, total, counts) if is_opened else total

  zeros, ones = (
    np.asarray(jax.jit(jax.vmap(sums, (0, None, None)))(keys, record, counts))
    for keys, record in zip(jax.random.split(key, (2, 200_000)), jnp.float32([0, 1]), strict=True)
  )
  proved = audit_residues(zeros, ones, epsilon_bound(1 - 1e-3, 1e-5)).bound
  assert (proved <= gaussian_epsilon(1.0, 1e-5)) == is_opened


def test_add_remove_is_refused():
  _, events = distributed_sum(1.0, 2.0, calibrated()).finalize(
    jax.random.key(0), jnp.ones(3), jnp.array([9, 9, 9])
  )
  ledger = Ledger().append(Round(PoissonSampling(1.0), events.model, "zero_out"))
  with pytest.raises(
    ValueError,
    match=r"Expected relation zero_out or replace_one .* takes a share of the noise along",
  ):
    accounting.epsilon(ledger, 1e-5, relation="add_remove")
  ratio = accounting.epsilon(ledger, 1e-5, relation="replace_one") / accounting.epsilon(
    ledger, 1e-5
  )
  assert ratio > 1.9


def test_the_variance_of_a_removed_share_costs_what_the_module_says():
  # Order 2 between N(0, 1) and N(0, 1 - 1/m): log E (dP/dQ)^2 = -log(1 - e^2) / 2 + ... in closed
  # form
  ratio = 1 - 1 / 100  # of the variances
  one = -0.5 * np.log(ratio) - 0.5 * np.log((2 - ratio) / 1)  # N(0, ratio) against N(0, 1)
  # N(0, 1) against N(0, ratio)
  other = 0.5 * np.log(ratio) - 0.5 * np.log(2 * ratio - 1) + 0.5 * np.log(ratio)
  assert round(7850 * max(one, other), 2) == 0.40


@pytest.mark.parametrize("share", ["report", "calibrate"])
def test_each_client_and_leaf_has_noise_of_its_own(key, share):
  like, counts = {"a": jnp.zeros(40_000), "b": jnp.zeros(40_000)}, jnp.array([4, 2])
  argument = counts[0] if share == "report" else counts
  draws = jax.vmap(lambda k: getattr(calibrated(), share)(k, like, argument))(
    jax.random.split(key, 2)
  )
  columns = np.concatenate(list(draws.values())).T / 0.5  # both shares have variance 1/4 here
  statistical.assert_normal_stddev(columns, 1.0, catches=0.02)
  statistical.assert_uncorrelated(columns, catches=0.05)


def test_one_compilation_serves_all_numbers_of_clients(key):
  query = distributed_sum(1.0, 2.0, calibrated(), min_clients=3)
  finalize = jax.jit(lambda k, total, counts: query.finalize(k, total, counts))
  for k, numbers in zip(jax.random.split(key, 3), ([9, 9, 9], [9, 5, 4], [9, 1, 0]), strict=True):
    finalize(k, jnp.zeros(2), jnp.array(numbers))
  assert finalize._cache_size() == 1


@pytest.mark.parametrize(
  "make",
  [
    lambda: distributed_sum(0.0, 1.0, calibrated()),
    lambda: distributed_sum(1.0, np.nan, calibrated()),
    lambda: distributed_sum(1.0, 1.0, calibrated(), min_clients=0),
    lambda: excess(1.0),
    lambda: excess(-0.1),
    lambda: calibrated(-1),
  ],
)
def test_invalid_arguments_are_refused(make):
  with pytest.raises(ValueError, match="Expected"):
    make()
