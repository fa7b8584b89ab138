"""The runner's smaller parts: plans, intervals, guarantees, tables, progress."""

import dataclasses
import io
import math
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

from experiments.private_federated import __main__ as private_federated
from experiments.runner import federation, options
from experiments.runner.problems import images
from experiments.runner.reports import plots, statements, statistics, tables
from experiments.runner.runs import costs
from experiments.runner.runs.progress import progress
from experiments.runner.runs.workdir import Workdir
from jdp import accounting, data
from jdp.events import GaussianSum, LocalRelease, NonPrivate, PoissonSampling, Round
from jdp.guarantees import ApproxDP, SeparatedDP
from jdp.ledger import Ledger
from jdp.ledger.json_form import to_json


def resolve(**given):
  return options.resolve(
    private_federated.PrivateFederatedOptions, given, {"noise_multiplier": 1.0}
  )


@pytest.mark.parametrize(
  ("num_rounds", "probability"), [(1, 0.5), (7, 0.3), (200, 0.1), (1000, 0.001), (5, 1.0)]
)
def test_the_participation_cap_loses_a_thousandth(num_rounds, probability):
  counts = np.arange(num_rounds + 1)
  law = stats.binom.pmf(counts, num_rounds, probability)

  def lost(cap):
    return np.sum(law * np.maximum(counts - cap, 0)) / np.sum(law * counts)

  cap = federation.default_participation_cap(num_rounds, probability)
  assert 1 <= cap <= num_rounds
  assert lost(cap) <= 1e-3 < lost(cap - 1)


def test_a_plan():
  plan = federation.make_plan(resolve(cohort_size=50, num_rounds=20), 200)
  assert plan.sampler.expected_size == 50
  assert plan.sampler.max_participations == federation.default_participation_cap(20, 0.25)
  assert plan.delta == 200**-1.1
  assert plan.noise_multiplier == 1.0
  own = federation.make_plan(resolve(cohort_size=50, participation_cap=3, delta=1e-6), 200)
  assert (own.sampler.max_participations, own.delta) == (3, 1e-6)
  with pytest.raises(ValueError, match="Expected --cohort_size of at most 49 users, got 50"):
    federation.make_plan(resolve(cohort_size=50), 49)


@pytest.mark.parametrize("target", [0.5, 20.0])
def test_calibrated_noise_meets_the_target(target):
  plan = federation.make_plan(resolve(target_epsilon=target, cohort_size=30, num_rounds=40), 300)
  assert plan.sampler.event(()).overflow_probability == 0

  def spent(noise):
    return accounting.epsilon(
      Ledger().append(Round(plan.sampler.event(()), GaussianSum(1.0, noise)), count=40), plan.delta
    )

  assert spent(plan.noise_multiplier) <= target < spent(0.99 * plan.noise_multiplier)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_server_optimizers(optimizer):
  expected = {
    "sgd": optax.sgd(0.1),
    "momentum": optax.sgd(0.1, momentum=0.9),
    "adam": optax.adam(0.1),
  }[optimizer]
  made = federation.server_optimizer(resolve(server_optimizer=optimizer, server_learning_rate=0.1))
  params, gradient = jnp.ones(2), jnp.array([1.0, -2.0])
  state, theirs = made.init(params), expected.init(params)
  for _ in range(2):
    update, state = jax.jit(made.update)(gradient, state, params)
    with jax.numpy_dtype_promotion("standard"):
      same, theirs = expected.update(gradient, theirs, params)
    np.testing.assert_allclose(update, same, rtol=1e-6)


@pytest.mark.parametrize("kind", ["gradient", "sgd", "proximal"])
def test_local_training(kind):
  """Each moves a quadratic towards its minimum, 3: a gradient step by half the way at learning rate
  1/2.
  """
  chosen = resolve(local_training=kind, local_learning_rate=0.5)
  client = data.Examples(jnp.full((1, 1), 3.0), jnp.zeros(1, jnp.int32), jnp.ones(1))

  def loss(params, examples):
    return 0.5 * jnp.sum(examples.mask * jnp.sum((params[None] - examples.inputs) ** 2, 1))

  moved = float(federation.local_update(chosen, loss)(jax.random.key(0), jnp.zeros(1), client)[0])
  # The proximal point minimises (x - 3)^2 / 2 + x^2, at 1.
  assert moved == pytest.approx({"gradient": 1.5, "sgd": 1.5, "proximal": 1.0}[kind], rel=1e-3)


def test_a_task_of_digits():
  task = images.image_problem(resolve(examples_per_user=10), arrange=data.group)
  assert (task.num_users, task.dim, task.clients.inputs.shape) == (143, 650, (143, 10, 8, 8))
  again, other = (
    images.image_problem(resolve(examples_per_user=10, data_seed=seed)) for seed in (0, 1)
  )
  np.testing.assert_array_equal(task.clients.labels.ravel(), again.clients.examples.labels[:1430])
  assert np.any(np.asarray(again.clients.examples.labels != other.clients.examples.labels))
  by_label = resolve(partition="label", examples_per_user=10)
  labels = images.image_problem(by_label, arrange=data.group).clients.labels
  # Two shards may touch a third label.
  assert np.mean([len(set(user)) for user in labels.tolist()]) < 3


def test_the_first_users_alone_take_part():
  all_users, few = (
    images.image_problem(resolve(examples_per_user=10, num_users=number), arrange=data.group)
    for number in (None, 20)
  )
  assert few.num_users == 20
  np.testing.assert_array_equal(few.clients.labels, all_users.clients.labels[:20])
  with pytest.raises(ValueError, match="Expected --num_users of at most 143"):
    images.image_problem(resolve(examples_per_user=10, num_users=144))


def test_images_of_public_users_are_learnt_first_and_are_no_clients(tmp_path):
  given = {"public_users": 100, "public_passes": 2}
  everybody = images.image_problem(resolve(examples_per_user=10), arrange=data.group)
  task = images.image_problem(resolve(examples_per_user=10, **given), arrange=data.group)
  np.testing.assert_array_equal(task.clients.labels, everybody.clients.labels[100:])
  begun = task.completed(Workdir(tmp_path))
  start = begun.init(jax.random.key(1))
  # 1,000 images of ten digits: guessing is right for a tenth.
  assert float(task.evaluate(start)["test_accuracy"]) > 0.7
  again = task.completed(Workdir(tmp_path)).init(jax.random.key(2))
  jax.tree.map(np.testing.assert_array_equal, again, start)


@pytest.mark.parametrize(
  ("given", "message"),
  [
    ({"public_users": 3}, "Expected --public_users and --public_passes together"),
    ({"public_users": 1437, "public_passes": 1}, "Expected --public_users below the 1437 users"),
    ({"partition": "writer"}, "Expected data with writers for --partition=writer, got digits"),
    ({"model": "cnn"}, "Expected images of at least 16 x 16 pixels"),
    ({"dataset": "mnist"}, "Expected data_dir for mnist, got none"),
  ],
)
def test_tasks_that_cannot_be(given, message):
  with pytest.raises(ValueError, match=message):
    images.image_problem(resolve(**given))


def test_intervals_are_students():
  """95 % of 4,000 intervals from 3 normal values hold the mean; off by 1.6 % (5 standard errors)
  would be caught.
  """
  samples = np.random.default_rng(0).normal(7.0, 2.0, (4000, 3))
  intervals = [statistics.mean_interval(row) for row in samples]
  covered = np.mean([abs(interval.mean - 7.0) <= interval.half_width for interval in intervals])
  assert abs(covered - 0.95) < 5 * math.sqrt(0.95 * 0.05 / 4000)
  expected = stats.t.interval(0.95, 2, loc=np.mean(samples[0]), scale=stats.sem(samples[0]))
  assert intervals[0].mean - intervals[0].half_width == pytest.approx(expected[0])
  assert statistics.mean_interval([3.0]) == (3.0, None)
  with pytest.raises(ValueError, match="Expected finite values"):
    statistics.mean_interval([1.0, math.nan])


def test_costs_are_the_ledgers():
  release = SeparatedDP(8.0, 2.0, unit="user")
  noised = Round(PoissonSampling(0.1), GaussianSum(1.0, 2.0))
  local = LocalRelease(release, max_releases=3)
  book = Ledger().extend([(noised, 1), (local, 1)] * 10)
  expected = accounting.epsilon(Ledger().append(noised, count=10), 1e-5)
  by_rdp = accounting.epsilon(Ledger().append(noised, count=10), 1e-5, accountant="rdp")
  assert costs.costs(book, 1e-5, "tightest") == (
    ApproxDP(expected, 1e-5, relation="add_remove", unit="user", observer="model"),
    by_rdp,
    release,
    release.repeat(3),
  )
  assert costs.costs(Ledger().append(noised, count=10), 1e-5, "rdp")[1:] == (expected, None, None)
  in_the_clear = Round(PoissonSampling(0.1), NonPrivate())
  assert costs.costs(Ledger().append(in_the_clear), 1e-5, "rdp") == (None, None, None, None)
  assert math.isinf(costs.central_epsilon(Ledger().append(in_the_clear), 1e-5))
  assert costs.central_epsilon(Ledger(), 1e-5) == 0
  assert costs.costs(Ledger(), 1e-5, "rdp") == (None, None, None, None)


def test_guarantees_in_reports():
  guarantee = ApproxDP(2.0, 1e-5, relation="add_remove", unit="user", observer="model")
  central = to_json(guarantee)
  rows = [{"label": label, "central": central} for label in ("a", "b")] + [
    {"label": "c", "central": None}
  ]
  assert statements.guarantees(rows, "central") == f"- a, b: {guarantee}.\n- c: no guarantee."
  twice = f"All 2 such runs together, by basic composition: {guarantee.repeat(2)}."
  assert statements.together(rows, "central") == twice
  assert statements.together([{"central": None}], "central") == ""
  other = {"central": to_json(dataclasses.replace(guarantee, relation="zero_out"))}
  alone = statements.together([other], "central")
  assert statements.together_by_scope([*rows, other]) == f"{twice}\n\n{alone}"
  assert statements.short(central) == "2.000 (δ = 1e-05)"
  assert statements.short(None) == "∞"
  assert statements.short(to_json(ApproxDP(1.00049, 1.00049e-5))) == "1.001 (δ = 1.01e-05)"
  assert tables.percent(statistics.Interval(0.5, 0.0125)) == "50.0 % ± 1.2"
  assert tables.percent(statistics.Interval(0.5, None)) == "50.0 %"


def test_a_guarantee_says_what_it_takes_as_public():
  guarantee = ApproxDP(2.0, 1e-5, relation="add_remove", unit="user", observer="model")
  rows = [
    {"label": n, "central": to_json(guarantee), "public": f"N = {n} users"} for n in ("7", "8")
  ]
  said = "taking as public what was computed from the protected data"
  assert statements.guarantees(rows, "central") == "\n".join(
    f"- {n}: {guarantee}, {said}: N = {n} users." for n in "78"
  )
  assert statements.together(rows, "central").endswith(
    f"{guarantee.repeat(2)}, {said}: N = 7 users; N = 8 users."
  )
  local = [{**row, "local": row["central"]} for row in rows]
  # of one's own releases alone
  assert statements.guarantees(local, "local") == f"- 7, 8: {guarantee}."


def test_not_private():
  assert statements.notice(resolve()) == ""
  notice = statements.notice(resolve(noise_seed=3, diagnostics=True))
  assert notice.count("**NOT PRIVATE: ") == 2
  assert "--noise_seed=3" in notice


def test_curves_merge_over_the_rounds_that_all_reached():
  repetitions = [
    [{"round": 0, "a": 1.0}, {"round": 5, "a": 2.0}],
    [{"round": 0, "a": 3.0}, {"round": 5, "a": 2.0}, {"round": 9, "a": 7.0}],
  ]
  rounds, intervals = plots.merge(repetitions, "a")
  assert rounds == [0, 5]
  assert intervals == [statistics.mean_interval([1.0, 3.0]), statistics.mean_interval([2.0, 2.0])]


class Terminal(io.StringIO):
  def isatty(self):
    return True


@pytest.mark.parametrize("terminal", [False, True])
def test_progress(monkeypatch, terminal):
  stream = Terminal() if terminal else io.StringIO()
  monkeypatch.setattr(sys, "stderr", stream)
  with progress(10, 20.0) as report:
    for _ in range(2):
      report(5, "halfway")
  if terminal:
    assert "halfway" in stream.getvalue()
    assert "200" in stream.getvalue()  # Expected clients of all rounds.
    assert re.search(r"\r *\r$", stream.getvalue())  # Nothing is left on the screen.
  else:
    assert stream.getvalue() == "halfway\nhalfway\n"
