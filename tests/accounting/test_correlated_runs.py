"""Runs with correlated noise: never below the truth, whatever ledger somebody makes of them."""

import dataclasses
import itertools
import math
from contextlib import ExitStack, closing

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jdp import accounting, command_line
from jdp import matrix_factorization as mf
from jdp.accounting.analysis import Pattern
from jdp.events import (
  BallsInBins,
  CorrelatedGaussianSum,
  CyclicPoissonSampling,
  DistributedGaussianSum,
  FixedSizeSampling,
  GaussianSum,
  GroupedSums,
  LocalRelease,
  MinSeparationSampling,
  NonPrivate,
  PoissonSampling,
  PureRelease,
  RandomAllocation,
  Round,
  ShuffledBatches,
)
from jdp.federated.runs.run_records import MemoryRecords
from jdp.guarantees import PureDP
from jdp.ledger import DurableLedger, Ledger, correlated_gaussian, load, subsampled_gaussian
from tests.helpers.gaussian import gaussian_delta
from tests.matrix_factorization.test_strategies import brute_force, random_strategy

N, B, K = 12, 4, 3
PLAN = CorrelatedGaussianSum(1.0, 5.0, "a strategy", N, B, K, 2.5, 6, 1.0, 0)
NARROW = dataclasses.replace(PLAN, bands=B)  # its columns do not meet
TURNS = MinSeparationSampling(B, K, 100)
NAMED = MinSeparationSampling(B, K, 100, by_identity=True)
COINS = CyclicPoissonSampling(B, 0.1, 100, by_identity=True)


ALL = range(N)


def run(query=PLAN, sampling=TURNS, indices=ALL, relation="zero_out", others=()):
  """The ledger of rounds; each event once."""

  def released(index):
    sums = dataclasses.replace(query, index=index)
    return GroupedSums((sums, *others), ("sum", *map(str, others))) if others else sums

  return Ledger().extend((Round(sampling, released(index), relation), 1) for index in indices)


def epsilon(ledger, accountant="pld", **scope):
  return accounting.epsilon(ledger, 1e-5, accountant=accountant, **scope)


def gaussian(sensitivity, multiplier=5.0):
  """The exact epsilon of one Gaussian release."""
  return accounting.gaussian_epsilon(multiplier / sensitivity, 1e-5)


def near(expected, rel=1e-3):
  return pytest.approx(expected, rel=rel)


@pytest.mark.parametrize(
  ("multiplier", "squared", "expected"), [(1.411, 0.6, 3.4240073), (8.35, 2.0, 0.9935500)]
)
def test_published_whole_runs(multiplier, squared, expected):
  query = dataclasses.replace(
    PLAN, noise_multiplier=multiplier, squared_sensitivity=squared, largest_column_norm=0.7
  )
  _, upper = accounting.epsilon_interval(run(query), 1e-10)
  assert expected * (1 - 1e-6) <= upper <= expected * (1 + 1e-6)
  assert expected <= accounting.epsilon(run(query), 1e-10, accountant="rdp") <= 1.1 * expected


def test_a_run_is_charged_once_however_much_of_it_is_recorded():
  whole = epsilon(run())
  assert whole == near(gaussian(math.sqrt(2.5)))
  for indices in ([0], [11], range(5), range(5, 12), [3, 1, 2], [7, 7 + 4]):
    assert epsilon(run(indices=indices)) <= whole
  narrow = [epsilon(run(NARROW, indices=range(stop))) for stop in range(1, N + 1)]
  turns = [1] * 4 + [2] * 4 + [2.5] * 4  # three turns would be 3, if the plan did not say 2.5
  assert narrow == [near(gaussian(math.sqrt(number))) for number in turns]


def test_a_repeated_index_is_another_run():
  twice = run().extend(run(indices=[5]).entries)
  assert epsilon(twice) == near(gaussian(math.sqrt(2 * 2.5)))
  event = run(indices=[0]).entries[0][0]
  many = Ledger().append(event, count=7).extend(run(indices=range(1, N)).entries)
  assert epsilon(many) == near(gaussian(math.sqrt(7 * 2.5)))
  # Another clip norm is of another round, but not of another plan.
  clipped = dataclasses.replace(PLAN, clip_norm=0.1, index=5)
  assert epsilon(run().append(Round(TURNS, clipped, "zero_out"))) == near(
    gaussian(math.sqrt(2 * 2.5))
  )


@pytest.mark.parametrize(
  "changes",
  [
    {"noise_multiplier": 10.0},
    {"num_rounds": 24},
    {"squared_sensitivity": 5.0},
    {"largest_column_norm": 1.2},
    {"strategy": "another"},
  ],
  ids=str,
)
def test_runs_of_different_plans_add_up(changes):
  other = dataclasses.replace(PLAN, **changes)
  # One round of one record moves by a column.
  first_round = other.largest_column_norm**2 / other.noise_multiplier**2
  both = run() + run(other, indices=range(1))
  assert epsilon(both) == near(gaussian(math.sqrt(2.5 / 25 + first_round), 1.0))


@pytest.mark.slow
def test_no_pattern_that_a_sampler_allows_costs_more():
  """200 strategies, plans and samplers: the exact cost of the worst pattern is never more."""
  rng = np.random.default_rng(3)
  for _ in range(200):
    n = int(rng.integers(1, 11))
    strategy = random_strategy(rng, rng.choice(["decreasing", "signed", "banded"]), n)
    b, k = int(rng.integers(1, n + 1)), int(rng.integers(1, 4))
    query = mf.planned_sum(strategy, 3.0, min_separation=b, max_participations=k)
    separation, most = int(rng.integers(1, n + 1)), int(rng.integers(1, 4))
    sampling = [
      MinSeparationSampling(separation, most, 50),
      CyclicPoissonSampling(separation, 1.0, 50),
      PoissonSampling(0.5),
    ][rng.integers(3)]
    if not isinstance(sampling, MinSeparationSampling):
      most = n
      separation = 1 if isinstance(sampling, PoissonSampling) else separation
    reached = int(rng.integers(1, n + 1))
    relation = rng.choice(["zero_out", "replace_one"])
    ledger = run(query, sampling, range(reached), str(relation))
    block = strategy.matrix()[:reached, :reached]
    truth = brute_force(block, separation, min(most, -(-reached // separation)))
    scale = 2 if relation == "replace_one" else 1
    exact = gaussian_delta(3.0 / scale / math.sqrt(truth), 0.3)
    assert accounting.delta(ledger, 0.3) >= exact * (1 - 1e-9)


@pytest.mark.parametrize(
  ("sampling", "pairs"),
  [
    # The squares of the turns' columns, and twice their products: of those that can meet.
    (MinSeparationSampling(3, K, 100), 3 + 2 * 2),
    (CyclicPoissonSampling(3, 0.1, 100), 4 + 2 * 3),
    (PoissonSampling(0.1), 12 + 2 * (11 + 10 + 9 + 8 + 7)),
    (FixedSizeSampling(5, 10), 12 + 2 * (11 + 10 + 9 + 8 + 7)),
    (BallsInBins(20, True), 12 + 2 * (11 + 10 + 9 + 8 + 7)),  # 12 epochs, each broken off
  ],
  ids=str,
)
def test_samplers_that_do_not_keep_the_plan_are_charged_for_columns_that_meet(sampling, pairs):
  assert epsilon(run(sampling=sampling)) == near(gaussian(math.sqrt(pairs)))


def in_epochs(ledger, first=0, only=ALL):
  """The ledger of a run that begins in the middle of an epoch, of its rounds `only`."""

  def index(event):
    return getattr(event.query, "parts", (event.query,))[0].index

  def told(event):
    sampling = event.sampling
    starts = (index(event) + first) % sampling.num_batches == 0
    return dataclasses.replace(event, sampling=dataclasses.replace(sampling, starts_epoch=starts))

  return Ledger().extend(
    (told(event), count) for event, count in ledger.entries if index(event) in only
  )


def epoch_patterns(num_rounds, length, most, first):
  """All sets of a run's rounds, of which at most so many are in one epoch."""
  for size in range(num_rounds + 1):
    for rounds in itertools.combinations(range(num_rounds), size):
      epochs = [(index + first) // length for index in rounds]
      if all(epochs.count(epoch) <= most for epoch in epochs):
        yield list(rounds)


@pytest.mark.slow
def test_no_turns_in_epochs_cost_more():
  """120 strategies, plans and samplers of epochs, each from any round of an epoch on."""
  rng = np.random.default_rng(5)
  ratios = []
  for _ in range(120):
    n, length = int(rng.integers(1, 11)), int(rng.integers(1, 7))
    most, first = int(rng.integers(1, min(length, 2) + 1)), int(rng.integers(length))
    strategy = random_strategy(rng, rng.choice(["decreasing", "signed", "banded"]), n)
    query = mf.planned_sum(strategy, 3.0, max_participations=int(rng.integers(1, 5)))
    sampling = RandomAllocation(length, most, True)
    if most == 1:
      sampling = [BallsInBins, ShuffledBatches][rng.integers(2)](length, True)
    reached = int(rng.integers(1, n + 1))
    kept = sorted({*rng.choice(reached, int(rng.integers(1, reached + 1))).tolist(), reached - 1})
    whole = run(query, sampling, range(reached))
    ledger = in_epochs(whole, first, range(reached) if rng.integers(2) else kept)
    block = strategy.matrix()[:reached, :reached]
    gram = np.abs(block.T @ block)
    truth = max(
      gram[np.ix_(rounds, rounds)].sum() for rounds in epoch_patterns(reached, length, most, first)
    )
    exact = gaussian_delta(3.0 / math.sqrt(truth), 0.3)
    stated = accounting.delta(ledger, 0.3, accountant="pld")
    assert stated >= exact * (1 - 1e-6)
    ratios.append(stated < exact * (1 + 1e-6))
  assert sum(ratios) > 20  # some are exact


def test_turns_that_can_meet_are_counted_exactly():
  """Against all sets of rounds in 12: never fewer, and as many where epochs begin with the run."""
  exact = 0
  for length, most, bands in itertools.product(range(1, 7), (1, 2), range(1, 8)):
    pattern = Pattern(1, N, length, most)
    turns = pattern.within(N)
    meeting = max(
      sum(b - a < bands for a, b in itertools.combinations(rounds, 2))
      for rounds in epoch_patterns(N, length, most, 0)
      if len(rounds) == turns
    )
    assert meeting <= pattern.meeting(turns, bands)
    exact += meeting == pattern.meeting(turns, bands)
  assert exact > 40


def test_epochs_are_counted_from_where_they_begin():
  bins = run(dataclasses.replace(PLAN, bands=1), BallsInBins(4, True))
  for first, turns in ((0, 3), (1, 4), (3, 4)):
    assert epsilon(in_epochs(bins, first)) == near(gaussian(math.sqrt(turns)))
  # One round alone: if round 9 starts no epoch, round 1 does not, and rounds 0 to 9 are of three.
  assert epsilon(in_epochs(bins, only=[9])) == near(gaussian(math.sqrt(3)))
  assert epsilon(in_epochs(bins, only=[10])) == near(gaussian(math.sqrt(4)))
  slices = [in_epochs(bins).rounds(start, stop) for start, stop in ((0, 6), (3, 7), (5, 12))]
  for part, turns in zip(slices, (2, 2, 3), strict=True):
    assert epsilon(part) == near(gaussian(math.sqrt(turns)))
  # A sampler that begins anew in the middle of an epoch promises nothing of the run.
  broken = in_epochs(bins, only=range(6)).extend(in_epochs(bins, 2, only=range(6, N)).entries)
  assert epsilon(broken) == near(gaussian(math.sqrt(12)))


def with_positions(ledger, positions):
  """The ledger, its samplers' positions set."""
  return Ledger().extend(
    (
      dataclasses.replace(event, sampling=dataclasses.replace(event.sampling, position=position)),
      count,
    )
    for (event, count), position in zip(ledger.entries, positions, strict=True)
  )


@pytest.mark.parametrize(
  ("ledger", "message"),
  [
    # Rounds 0 and 1 with one sampler, and the others with a second one, that begins anew.
    (
      run(indices=range(2)).extend(
        run(sampling=MinSeparationSampling(B, 9, 100), indices=range(2, N)).entries
      ),
      "sampled alike, got 2 samplings",
    ),
    (
      run(indices=range(6)).extend(
        run(
          sampling=MinSeparationSampling(B, 9, 100),
          indices=range(6, N),
          others=(GaussianSum(1.0, 9.0),),
        ).entries
      ),
      "sampled alike, got 2 samplings",
    ),
    (with_positions(run(), [*range(6), *range(6)]), "position to grow with the index"),
    (with_positions(run(), [0] * N), "position to grow with the index"),
    (with_positions(run() + run(), range(2 * N)), "position to grow with the index"),
    (run(relation="add_remove"), "zero_out or replace_one for MinSeparationSampling"),
    (
      run(NARROW, CyclicPoissonSampling(B, 0.1, 100), relation="add_remove"),
      "zero_out or replace_one for CyclicPoissonSampling",
    ),
    (
      run(dataclasses.replace(PLAN, bands=1), FixedSizeSampling(5, 10), relation="add_remove"),
      "zero_out or replace_one for FixedSizeSampling",
    ),
    (
      run(dataclasses.replace(PLAN, bands=1), ShuffledBatches(20, True), relation="add_remove"),
      "zero_out or replace_one for ShuffledBatches",
    ),
    (run(others=(PureRelease(0.1),)), "Gaussian sums beside a correlated one, got PureRelease"),
    (
      run(others=(dataclasses.replace(PLAN, strategy="another", index=7),)),
      r"one index, got \[0, 7\]",
    ),
    (
      run(others=(DistributedGaussianSum(1.0, 2.0),), sampling=NAMED, relation="add_remove"),
      "Expected relation zero_out or replace_one for DistributedGaussianSum",
    ),
  ],
)  # fmt: skip
def test_ledgers_that_would_be_charged_too_little_are_refused(ledger, message):
  with pytest.raises(ValueError, match=message):
    epsilon(ledger)


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"index": N}, "index below num_rounds, 12, got 12"),
    ({"index": -1}, "index to be a whole number >= 0"),
    ({"squared_sensitivity": 0.5}, "squared_sensitivity between"),
    ({"squared_sensitivity": 9.5}, "squared_sensitivity between"),
    ({"largest_column_norm": 0.1}, "squared_sensitivity between"),
    ({"bands": 0}, "bands to be a whole number >= 1"),
    ({"bands": N + 1}, "bands to be a number in"),
    ({"noise_multiplier": math.nan}, "noise_multiplier to be a finite number >= 0"),
    ({"clip_norm": 0.0}, "clip_norm to be a finite number > 0"),
  ],
)
def test_inconsistent_plans_cannot_be_made(changes, message):
  with pytest.raises(ValueError, match=message):
    dataclasses.replace(PLAN, **changes)


def test_by_identity_add_remove_costs_what_zero_out_does():
  assert epsilon(run(sampling=NAMED, relation="add_remove")) == epsilon(run())
  assert epsilon(run(relation="replace_one")) == near(gaussian(2 * math.sqrt(2.5)))
  whole = dataclasses.replace(PLAN, min_separation=1, max_participations=N)
  for sampling in (PoissonSampling(1.0), BallsInBins(3, True)):
    assert epsilon(run(whole, sampling, relation="add_remove")) == epsilon(run(whole, sampling))


@pytest.mark.parametrize("relation", ["add_remove", "zero_out"])
def test_turns_with_coins_are_sampled_gaussians(relation):
  for stop, turns in ((1, 1), (4, 1), (5, 2), (12, 3)):
    ledger = run(NARROW, COINS, range(stop), relation)
    assert epsilon(ledger) == near(epsilon(subsampled_gaussian(0.1, 5.0, turns)), 1e-9)
  assert epsilon(run(NARROW, COINS)) < 0.5 * epsilon(run(NARROW))


def test_nothing_is_amplified_where_coins_do_not_hide_or_columns_meet():
  wide = run(PLAN, COINS)
  assert epsilon(wide) == near(gaussian(math.sqrt(2.5)))
  assert epsilon(run(NARROW, COINS, relation="replace_one")) == near(gaussian(2 * math.sqrt(2.5)))
  seen = run(NARROW, COINS).append(LocalRelease(PureDP(0.0), max_releases=1))
  assert epsilon(
    Ledger().extend(
      (dataclasses.replace(e, observer="server") if isinstance(e, Round) else
       LocalRelease(PureDP(0.0, relation="zero_out", observer="server", unit="user")), n)
      for e, n in seen.entries
    ),
    relation="zero_out",
  ) >= gaussian(math.sqrt(2.5)) * (1 - 1e-3)  # fmt: skip
  shares = run(NARROW, COINS, others=(DistributedGaussianSum(1.0, 50.0),))
  assert epsilon(shares) == near(gaussian(math.sqrt(2.5 / 25 + 3 / 2500), 1.0))


def test_other_sums_of_the_samples_are_charged_in_every_turn():
  beside = run(others=(GaussianSum(2.0, 20.0),))
  assert epsilon(beside) == near(gaussian(math.sqrt(2.5 / 25 + 3 / 100), 1.0))
  amplified = run(NARROW, COINS, others=(GaussianSum(2.0, 20.0),))
  joint = 1 / math.sqrt(1 / 25 + 1 / 100)
  assert epsilon(amplified) == near(epsilon(subsampled_gaussian(0.1, joint, 3)), 1e-9)
  both = run(others=(dataclasses.replace(PLAN, strategy="b"),), indices=[0])
  assert epsilon(both) == near(gaussian(math.sqrt(2)))
  for lost in (NonPrivate(), GaussianSum(1.0, 0.0)):
    assert epsilon(run(others=(lost,))) == math.inf
  assert epsilon(run(dataclasses.replace(PLAN, noise_multiplier=0.0))) == math.inf


def test_overflows_of_every_round_are_charged():
  sampling = dataclasses.replace(COINS, overflow_probability=1e-8)
  ledger = run(NARROW, sampling)
  assert accounting.epsilon(ledger, 2 * N * 1e-8) == math.inf
  assert accounting.epsilon(ledger, 5 * N * 1e-8) < math.inf


def test_ledgers_are_saved_and_grow_by_the_same_for_every_round(tmp_path, capsys):
  ledger = correlated_gaussian(NARROW, COINS)
  ledger.save(tmp_path / "saved.jsonl")
  assert load(tmp_path / "saved.jsonl") == ledger
  durable = DurableLedger(tmp_path / "run.jsonl", "run")
  for number, event in enumerate(ledger):
    durable.append(number, [event])
  durable.finish()
  durable.close()
  assert load(tmp_path / "run.jsonl") == ledger
  sizes = {len(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()[1:-1]}
  assert max(sizes) - min(sizes) < 8  # digits of the numbers
  assert command_line.main(["epsilon", str(tmp_path / "run.jsonl"), "--delta=1e-5"]) == 0
  printed = float(capsys.readouterr().out.removeprefix("(").split(",")[0])
  assert epsilon(ledger) <= printed <= epsilon(ledger, "rdp") * 1.001


def lower(ledger, **scope):
  return accounting.epsilon_interval(ledger, 1e-5, **scope)[0]


def test_lower_ends_are_what_some_record_attains():
  """60 strategies: by the distance of the released rows themselves, of groups that take turns."""
  rng = np.random.default_rng(7)
  for _ in range(60):
    n, b, k = int(rng.integers(1, 9)), int(rng.integers(1, 5)), int(rng.integers(1, 4))
    strategy = random_strategy(rng, rng.choice(["decreasing", "signed", "banded"]), n)
    query = mf.planned_sum(strategy, 3.0, min_separation=b, max_participations=k)
    sampling = MinSeparationSampling(b, k, 50)
    inverse = np.linalg.inv(strategy.matrix())
    precision = np.linalg.inv(9.0 * inverse @ inverse.T)  # of the rows that are released
    turns = [[*range(group, n, b)][:k] for group in range(b)]
    chosen = [
      some for all_of in turns for m in (1, 2, 3) for some in itertools.combinations(all_of, m)
    ]
    distance = max(math.sqrt(max(precision[np.ix_(r, r)].sum(), 0.0)) for r in chosen)
    exact = accounting.gaussian_epsilon(1 / distance, 1e-5)
    ledger = with_positions(run(query, sampling, range(n)), range(n))
    stated, upper = accounting.epsilon_interval(ledger, 1e-5)
    assert (stated > 0) == (n <= b * k)
    assert stated <= exact * (1 + 1e-9) <= upper * (1 + 2e-9)


def test_lower_ends_are_of_whole_runs_that_a_record_may_be_in():
  def in_all(query, **fields):
    return lower(run(query, PoissonSampling(1.0), **fields))

  assert in_all(NARROW) == near(gaussian(math.sqrt(2.5)), 2e-3)
  assert in_all(NARROW, relation="replace_one") == near(gaussian(2 * math.sqrt(2.5)), 2e-3)
  assert in_all(PLAN) == near(gaussian(1.0), 2e-3)  # columns meet: one turn
  whole, cut = (run(NARROW, PoissonSampling(1.0), range(n)) for n in (N, 5))
  assert lower(whole + whole) == near(gaussian(math.sqrt(5)), 2e-3)
  assert lower(whole + cut) == near(lower(whole))
  turns = with_positions(run(NARROW), range(N))
  assert lower(turns) == near(gaussian(1.0), 2e-3)
  alone = dataclasses.replace(
    PLAN, bands=1, min_separation=1, max_participations=N, squared_sensitivity=12.0
  )
  assert in_all(alone) == near(gaussian(math.sqrt(12)), 2e-3)
  both = turns.append(Round(PoissonSampling(1.0), GaussianSum(1.0, 4.0), "zero_out"))
  assert lower(both) == near(gaussian(math.sqrt(1.0 / 25 + 1 / 16), 1.0), 2e-3)


def test_no_record_need_have_the_longest_columns_of_two_runs():
  """Of groups that take turns, one has round 0 and another round 1."""
  sampling, total = MinSeparationSampling(3, 2, 30), Ledger()
  for columns in ((2.0, 1.0, 1.0, 1.0, 1.0, 1.0), (1.0, 2.0, 1.0, 1.0, 1.0, 1.0)):
    name = f"diagonal {columns}"
    query = CorrelatedGaussianSum(1.0, 5.0, name, 6, 3, 2, 5.0, 1, 2.0, 0)
    total += with_positions(run(query, sampling, range(6)), range(6))
  moved = math.sqrt(5.0 + 2.0)  # of group 0: columns 2 and 1 of the first run, 1 and 1 of the other
  assert 0 < lower(total) <= gaussian(moved)


@pytest.mark.parametrize(
  "ledger",
  [
    run(NARROW),  # of which nobody knows whether it is the sampler's first
    run(NARROW, indices=range(N - 1)),
    run(NARROW, others=(GaussianSum(1.0, 9.0),)),
    with_positions(run(NARROW), range(B, N + B)),
    run(NARROW, COINS),
    run(NARROW, BallsInBins(4, True)),
    run(NARROW, PoissonSampling(1.0, max_participations=2)),
    run(NARROW, FixedSizeSampling(5, 10)),
  ],
)
def test_lower_ends_are_zero_where_no_record_is_known_to_attain_them(ledger):
  assert lower(ledger) == 0


def test_a_scan_stacks_the_rounds_of_a_run():
  def step(index, _):
    query = dataclasses.replace(PLAN, index=index)
    sampling = dataclasses.replace(TURNS, position=index)
    return index + 1, Round(sampling, query, "zero_out")

  _, stacked = jax.jit(lambda: jax.lax.scan(step, jnp.int32(0), length=N))()
  ledger = Ledger().append(stacked)
  assert ledger == correlated_gaussian(PLAN, TURNS, relation="zero_out")
  with pytest.raises(ValueError, match="index below num_rounds"):
    Ledger().append(jax.jit(lambda: step(jnp.int32(N), None)[1])())


def test_noise_is_calibrated_over_a_plan():
  def plan(noise_multiplier):
    query = dataclasses.replace(NARROW, noise_multiplier=noise_multiplier)
    return correlated_gaussian(query, TURNS, relation="zero_out")

  z = accounting.calibrate_noise(2.0, 1e-5, plan, accountant="pld")
  exact = accounting.gaussian_noise_multiplier(2.0, 1e-5) * math.sqrt(2.5)
  assert exact * (1 - 1e-6) <= z <= exact * 1.002


def with_queries(ledger, query_of):
  """The ledger with other queries: query_of takes the round's number and its query."""
  return Ledger().extend(
    (dataclasses.replace(event, query=query_of(number, event.query)), count)
    for number, (event, count) in enumerate(ledger.entries)
  )


@pytest.mark.parametrize(
  "query_of",
  [
    lambda number, query: query,
    lambda number, query: GaussianSum(1.0, 5.0),
    lambda number, query: dataclasses.replace(query, clip_norm=1.0 + number),  # that adapts
    lambda number, query: GroupedSums((query, GaussianSum(1.0, 50.0)), ("a", "b")),
  ],
)
def test_parts_of_two_runs_are_not_taken_for_one(query_of):
  """They could be: rounds 0 to 4 of one and 5 on of another have the numbers of a single run."""
  one = with_queries(correlated_gaussian(NARROW, NAMED), query_of)
  with pytest.raises(ValueError, match=r"begin with round 0, got .* of round 5 at first"):
    one.rounds(0, 5) + one.rounds(5, N)
  with pytest.raises(ValueError, match=r"begin with round 0, got .* of round 5 at first"):
    one.rounds(5, N) + one.rounds(0, 5)
  two = one + one
  with pytest.raises(ValueError, match="Expected start=0 in a ledger of several runs"):
    two.rounds(5, N + 5)
  assert epsilon(two.rounds(0, N + 5)) == near(epsilon(one + one.rounds(0, 5)))
  assert epsilon(one) < epsilon(one + one.rounds(0, 5)) <= epsilon(two)


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize(("start", "stop", "refused"), [(5, N, True), (0, N, False), (0, 5, False)])
def test_a_later_part_is_no_prior_of_a_numbered_run(on_disk, start, stop, refused, tmp_path):
  one = correlated_gaussian(NARROW, NAMED)
  prior, event = one.rounds(start, stop), one.entries[0][0]
  plain = dataclasses.replace(event, sampling=PoissonSampling(0.5), query=GaussianSum(1.0, 5.0))
  with ExitStack() as stack:
    if on_disk:
      file = DurableLedger(tmp_path / "ledger.jsonl", "run", prior)
      record = stack.enter_context(closing(file)).append
    else:
      memory = MemoryRecords(prior, exposed=False, identity="a")

      def record(number, events):
        memory.append_events(number, [tuple(events)])

    record(0, [plain])
    if refused:
      stack.enter_context(pytest.raises(ValueError, match="begin with round 0"))
    record(1, [event])


def test_a_slice_of_a_run_costs_no_more_than_the_run():
  ledger = correlated_gaussian(NARROW, NAMED)
  for start, stop in itertools.combinations(range(0, N + 1, 3), 2):
    assert epsilon(ledger.rounds(start, stop)) <= epsilon(ledger)


@pytest.mark.parametrize("others", [(), (GaussianSum(1.0, 50.0),)])
def test_a_slice_of_a_run_in_epochs_costs_no_more_either(others):
  whole = in_epochs(run(NARROW, BallsInBins(4, True), others=others))
  for start, stop in ((0, 6), (3, 7), (5, 12)):
    assert epsilon(whole.rounds(start, stop)) <= epsilon(whole)


def test_one_release_has_the_multiplier_of_the_run():
  assert accounting.noise_multiplier(PLAN, "zero_out") == pytest.approx(5 / math.sqrt(2.5))
  assert accounting.noise_multiplier(PLAN, "replace_one") == pytest.approx(2.5 / math.sqrt(2.5))


def test_turns_are_counted_over_all_rounds_of_a_sampler():
  """Every other round of groups in twos is of a run: a record may have all of the rest."""
  query = dataclasses.replace(NARROW, noise_multiplier=1e4)
  shared = Ledger()
  for index in range(N):
    other = Round(MinSeparationSampling(2, N, 100), GaussianSum(1.0, 3.0), "zero_out")
    shared = shared.append(
      Round(other.sampling, dataclasses.replace(query, index=index), "zero_out")
    )
    shared = shared.append(other)
  assert epsilon(shared) >= accounting.gaussian_epsilon(3.0 / math.sqrt(N), 1e-5)
  with pytest.raises(ValueError, match="rounds by BallsInBins to be of runs with correlated noise"):
    epsilon(
      run(NARROW, BallsInBins(2, True)).append(
        Round(BallsInBins(2, False), GaussianSum(1.0, 3.0), "zero_out")
      )
    )
