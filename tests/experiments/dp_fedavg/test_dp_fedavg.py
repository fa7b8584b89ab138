"""The experiment of federated averaging: its noise, its rows, and a run from end to end, whole and
resumed.
"""

import dataclasses
import functools
import json
import math
import re
import shutil
import types
from collections import OrderedDict

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.dp_fedavg import __main__ as dp_fedavg
from experiments.dp_fedavg import report as dp_fedavg_report
from experiments.dp_fedavg import variations
from experiments.dp_fedavg.averages import make_average, make_federation, taken_as_public
from experiments.dp_fedavg.report import first_noise
from experiments.runner import launch
from experiments.runner.problems.learning_problem import LearningProblem
from experiments.runner.problems.prior import describe_start, load_start
from experiments.runner.reports import plots
from experiments.runner.reports.tables import epsilon
from jdp import accounting, data, ledger
from jdp.events import FixedSizeSampling, GaussianSum, PoissonSampling, Round
from jdp.federated.engine import shared_programs
from jdp.guarantees import Unit, rounded_up
from jdp.models import load_params
from tests.experiments import runs
from tests.helpers import statistical
from tests.helpers.compilations import compilations

EXPERIMENT = dp_fedavg.EXPERIMENT
run = functools.partial(runs.run, EXPERIMENT)
TINY = {
  "num_rounds": 4,
  "eval_every": 2,
  "cohort_size": 20,
  "examples_per_user": 10,
  "noise_multiplier": 1.3,
}
ONCE = {**TINY, "vary": (), "seeds": 1, "noise_seed": 3, "local_training": "gradient"}
START = {
  "b": np.zeros(10, np.float32),
  "w": np.random.default_rng(0).normal(size=(10, 64)).astype(np.float32),
}
PLAN = {"noise_cohort_size": 200, "noise_population": 10_000}


def options(**given):
  return launch.options.resolve(dp_fedavg.DPFedAvgOptions, given, TINY)


def finalized(average, params, steps=1):
  """The last of the averages of nobody, and all their events."""
  state, events = average.init(params), []
  for step in range(steps):
    contribution = average.preprocess(jax.random.key(0), state, params, jnp.float32(0))
    result, event, state = average.finalize(jax.random.key(step), state, contribution)
    events.append(event)
  return result, events


S, Z, C = 0.5, 1.3, 200 * 0.75  # of the plan, with users who weigh 3/4 on average


@pytest.mark.parametrize(
  ("given", "stddev"),
  [
    ({}, Z * S / C),
    ({"estimator": "clipped", "min_weight": 0.8}, 2 * Z * S / (0.8 * C + 1)),
    ({"clipping": "per_layer", "layer_shares": "dimension"}, Z * S / C),
    (
      {"clipping": "per_layer", "estimator": "clipped", "min_weight": 0.8},
      2 * Z * S / (0.8 * C + 1),
    ),
    (
      {"clipping": "adaptive", "clip_quantile": 0.5},
      Z / math.sqrt(1 - (Z / (2 * C / 20)) ** 2) * S / C,
    ),
  ],
  ids=["fixed", "clipped", "per layer", "per layer clipped", "adaptive"],
)
def test_noise_is_that_of_the_larger_cohorts_average(given, stddev):
  chosen = options(clip_norm=S, weights="examples", weight_cap=10.0, **PLAN, **given)
  federation = make_federation(chosen, 200, np.array([5, 10, 40, 5] * 50))
  params = {"a": {"w": jnp.zeros(20_000)}, "b": {"w": jnp.zeros(10_000)}}
  average = make_average(
    chosen, params, federation.actual.noise_multiplier, federation.expected_weight
  )
  result, (event,) = finalized(average, params)
  statistical.assert_normal_stddev(
    np.concatenate(jax.tree.leaves(jax.tree.map(np.ravel, result))), stddev, catches=0.04
  )
  assert federation.expected_weight == pytest.approx(20 * 0.75)
  assert first_noise(event, federation.expected_weight) == pytest.approx((S, stddev), rel=1e-6)
  assert federation.planned.noise_multiplier == Z
  assert federation.planned.delta == pytest.approx(10_000**-1.1)


def weighed(**given):
  """The expected weight of 20 of 200 users who weigh 3/4 on average, and what the guarantee takes
  as public.
  """
  chosen = options(weights="examples", weight_cap=10.0, **given)
  sizes = np.array([5, 10, 40, 5] * 50)
  task = LearningProblem(None, None, None, None, sizes, "", {})
  return make_federation(chosen, len(sizes), sizes).expected_weight, taken_as_public(chosen, task)


def test_weights_of_the_users_are_said_to_be_public_where_no_flag_fixes_them():
  assert weighed() == (pytest.approx(20 * 0.75), "N = 200 users, W = 150, the users' total weight")
  assert weighed(mean_weight=0.5) == (pytest.approx(20 * 0.5), "N = 200 users")
  task = LearningProblem(None, None, None, None, np.array([5, 10]), "", {}, equal=False)
  assert taken_as_public(options(), task) == "N = 2 users, n = 10, the examples of the largest user"


@pytest.mark.parametrize(
  "given", [{"weights": "equal"}, {"weights": "examples", "mean_weight": 2.0}]
)
def test_a_mean_weight_without_weights_or_above_one_is_refused(given):
  with pytest.raises(ValueError, match="Expected --mean_weight"):
    options(**{"mean_weight": 0.5, **given})


def test_a_target_is_met_by_the_plan():
  chosen = options(target_epsilon=2.0, **PLAN)
  federation = make_federation(chosen, 200, np.full(200, 10))
  z, delta = federation.planned.noise_multiplier, federation.planned.delta
  assert accounting.epsilon(ledger.subsampled_gaussian(0.02, z, 4), delta) == pytest.approx(
    2.0, rel=1e-3
  )
  assert federation.actual.noise_multiplier == pytest.approx(z * 20 / 200)


def test_a_schedule_lowers_clip_norm_and_noise_together():
  params = {"w": jnp.zeros(3)}
  average = make_average(options(clip_norm=S, clip_decay=0.5, clip_decay_rounds=2), params, Z, 10.0)
  _, events = finalized(average, params, steps=5)
  np.testing.assert_allclose([event.clip_norm for event in events], [S, S, S / 2, S / 2, S / 4])
  np.testing.assert_allclose([event.stddev / event.clip_norm for event in events], Z, rtol=1e-6)


@pytest.fixture(scope="module")
def task():
  return dp_fedavg.load_problem(options())


def test_rows_say_what_their_guarantees_take_as_public(task):
  chosen = options(
    runs=("none", "private", "dp_sgd"),
    weights="examples",
    vary=("mean_weight=0.1,0.5",),
  )
  said = {row.setting.name: row.setting.public for row in dp_fedavg.make_rows(chosen, task)}
  users = "N = 143 users"
  assert said == {
    "none": "",
    "private_0.1": users,
    "private_0.5": users,
    "dp_sgd": "N = 1430 examples",
  }
  (row,) = dp_fedavg.make_rows(options(runs=("private",), weights="examples"), task)
  # 10 of 100 examples each
  assert row.setting.public == f"{users}, W = 14.3, the users' total weight"


def test_values_make_rows_of_what_they_concern(task):
  def names(**given):
    return [
      row.setting.name
      for row in dp_fedavg.make_rows(options(runs=("none", "private"), **given), task)
    ]

  assert names() == ["none", "private"]
  assert names(vary=("clip_norm=1,0.5",)) == ["none", "private_1", "private_0.5"]
  assert names(vary=("weights=equal",)) == ["none_equal", "private_equal"]
  # Each --vary is a dimension of its own; runs have those that concern them.
  assert names(vary=("clip_norm=1,0.5", "weights=equal,examples")) == [
    *("none_equal", "none_examples"),
    *("private_1_equal", "private_1_examples", "private_0.5_equal", "private_0.5_examples"),
  ]
  crossed = options(runs=("private",), vary=("clip_norm=1,0.5", "noise_multiplier=3"))
  assert [
    (row.setting.label, row.options.clip_norm, row.options.noise_multiplier)
    for row in dp_fedavg.make_rows(crossed, task)
  ] == [
    ("private, clip norm 1, noise multiplier 3", 1.0, 3.0),
    ("private, clip norm 0.5, noise multiplier 3", 0.5, 3.0),
  ]
  chosen = options(vary=("estimator:target_epsilon=clipped:2",), **PLAN)
  (_, row) = dp_fedavg.make_rows(chosen, task)
  assert row.setting.label == "private, estimator clipped, target epsilon 2"
  assert (row.options.min_weight, row.options.noise_multiplier, row.options.target_epsilon) == (
    1.0,
    None,
    2.0,
  )
  assert row.options.noise_population == PLAN["noise_population"]


@pytest.mark.parametrize("preset", list(EXPERIMENT.presets))
def test_presets_have_values_that_can_be_taken(preset):
  flags = launch.options.read_flagfile(dp_fedavg.DPFedAvgOptions, EXPERIMENT.presets[preset])
  chosen = launch.options.resolve(dp_fedavg.DPFedAvgOptions, flags)
  axes = [variations.parse(text, dp_fedavg._OF_AVERAGES) for text in chosen.vary]
  for row in variations.combinations(axes):
    made = vars(dp_fedavg._varied(chosen, row))
    assert all(type(made[name])(value) == made[name] for name, value in row.items())


def test_examples_of_all_users_are_in_a_row_without_padding(task):
  examples = jax.tree.map(np.asarray, task.clients.examples)
  padded = data.group(examples, [np.array([3, 1]), np.array([2])], max_examples=2)
  np.testing.assert_array_equal(dp_fedavg.as_examples(padded).labels, examples.labels[[3, 1, 2]])
  assert dp_fedavg.as_examples(task.clients).labels.shape == (1430,)


SIZES, SLOPES = np.array([1, 2, 3, 4]), np.array([0.2, 1.0, 1.8])


def uneven(params, examples):
  """A bowl around the mean of a client's examples, with steep and shallow sides; padding is
  zero.
  """
  mean = jnp.sum(examples.inputs, axis=0) / jnp.maximum(jnp.sum(examples.mask), 1.0)
  return 0.5 * jnp.sum(jnp.asarray(SLOPES, jnp.float32) * (params - mean) ** 2)


@pytest.mark.parametrize(("projection", "weights"), [("batch", "examples"), ("end", "equal")])
def test_a_round_is_the_published_algorithm(projection, weights):
  inputs = np.random.default_rng(0).normal(size=(SIZES.sum(), 3))
  parts = np.split(np.arange(len(inputs)), np.cumsum(SIZES)[:-1])
  clients = data.pack(data.examples(inputs, np.zeros(len(inputs))), parts)
  task = LearningProblem(
    lambda key: jnp.ones(3), uneven, lambda params: {}, clients, SIZES, "accuracy", {}
  )
  local = {
    "local_training": "sgd",
    "local_epochs": 3,
    "local_batch_size": 4,
    "local_learning_rate": 0.9,
  }
  averaged = {
    "projection": projection,
    "weights": weights,
    "clip_norm": 0.5,
    "noise_multiplier": 0.0,
  }
  capped = {"weight_cap": 3.0} if weights == "examples" else {}
  (row,) = dp_fedavg.make_rows(
    options(runs=("private",), cohort_size=4, **local, **averaged, **capped), task
  )
  algorithm = row.setting.algorithm
  start = algorithm.init(task.init(jax.random.key(0)))
  state, _, _ = jax.jit(algorithm.round)(jax.random.key(1), jax.random.key(2), start, clients)

  def clipped(x):
    return x / max(1.0, np.linalg.norm(x) / 0.5)

  w, total = np.minimum(SIZES / 3, 1) if weights == "examples" else np.ones(4), np.zeros(3)
  for weight, part in zip(w, parts, strict=True):
    difference = np.zeros(3)
    for _ in range(3):  # Its examples fit into one batch.
      difference = difference - 0.9 * SLOPES * (1 + difference - inputs[part].mean(axis=0))
      difference = clipped(difference) if projection == "batch" else difference
    total += weight * clipped(difference)
  np.testing.assert_allclose(state.params, 1 + total / w.sum(), rtol=1e-5)


DRAWN = {}
RATES = ("server_learning_rate", "local_learning_rate")


def keeping_lines(save):
  """`plots.save` that keeps what is drawn, by the plot's name and each line's label."""

  def keep(made, path):
    axes = made.axes[0]
    lines = {
      line.get_label(): np.transpose([line.get_xdata(), line.get_ydata()]).tolist()
      for line in axes.lines
    }
    DRAWN[path.stem] = axes.get_ylabel(), lines
    save(made, path)

  return keep


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
  path = tmp_path_factory.mktemp("dp_fedavg") / "run"
  np.savez(path.parent / "params.npz", **START)
  start = str(path.parent / "params.npz")
  given = {"warm_start": start, "warm_start_public": True, "smoothing": 3, "sgd_batch_size": 40}
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(plots, "save", keeping_lines(plots.save))
    return run(path, runs=("private", "none", "dp_sgd"), **given, **PLAN, **ONCE)


def test_what_the_plot_draws_is_in_the_metrics_files(finished):
  """With --smoothing too: every point of every line is a round and what was measured there."""
  ylabel, lines = DRAWN["accuracy_over_rounds"]
  assert ylabel == "test accuracy"
  summary = finished.results["summary"]
  measured = {row["label"]: finished.rows(f"{row['setting']}/0") for row in summary}
  assert lines == {
    label: [[row["round"], row["test_accuracy"]] for row in rows]
    for label, rows in measured.items()
  }
  assert all(rows[0]["round"] == 0 for rows in measured.values())


def test_a_smoothed_end_never_reaches_over_round_0(finished):
  for row in finished.results["summary"]:
    values = [found["test_accuracy"] for found in finished.rows(f"{row['setting']}/0")]
    assert len(values) == 3  # no more than are smoothed
    assert row["smoothed"]["mean"] == pytest.approx(np.mean(values[1:]))
  assert "mean of the last 3 evaluations" in finished.out
  # stopped before it was trained
  assert dp_fedavg_report.smoothed_end([{"round": 0, "x": 0.1}], "x", 3) == 0.1


def test_results_follow_from_ledgers_and_metrics(finished):
  private, none, sgd = finished.results["summary"]
  spent = {
    row["setting"]: ledger.load(finished.path / row["setting"] / "0" / "ledger.jsonl")
    for row in (private, none, sgd)
  }
  # Of what each protects.
  for row, unit, delta in ((private, "user", 143**-1.1), (sgd, "example", 1430**-1.1)):
    assert {type(event.query) for event in spent[row["setting"]]} == {GaussianSum}
    epsilon = accounting.epsilon(spent[row["setting"]], delta)
    assert (row["central"]["epsilon"], row["central"]["delta"], row["central"]["unit"]) == (
      epsilon,
      delta,
      unit,
    )
    assert finished.rows(f"{row['setting']}/0")[-1]["central_epsilon"] == epsilon
  (event,) = set(spent["private"])
  assert event.query.stddev == pytest.approx(1.3 * 20 / 200)
  assert isinstance(event.sampling, PoissonSampling)
  assert event.sampling.probability == pytest.approx(20 / 143)
  assert (none["central"], none["planned"]) == (None, None)
  assert {type(event.sampling) for event in spent["none"]} == {FixedSizeSampling}
  assert private["stddev"] == pytest.approx(1.3 / 200)
  assert sgd["stddev"] == pytest.approx(1.3 / 40)
  metrics = finished.rows("none/0")
  assert [row["round"] for row in metrics] == [0, 2, 4]
  assert none["test_accuracy"]["mean"] == metrics[-1]["test_accuracy"] > metrics[0]["test_accuracy"]
  smoothed = (metrics[1]["test_accuracy"] + metrics[2]["test_accuracy"]) / 2
  assert none["smoothed"]["mean"] == pytest.approx(smoothed)
  assert none["difference"]["mean"] == pytest.approx(smoothed - private["smoothed"]["mean"])


def test_both_guarantees_are_side_by_side(finished):
  path, out, _ = finished
  (private, *_) = finished.results["summary"]
  planned = ledger.subsampled_gaussian(0.02, 1.3, 4)
  plan = accounting.epsilon(planned, 10_000**-1.1, accountant="rdp")
  assert private["planned"]["rdp"] == pytest.approx(plan)
  assert private["central"]["epsilon"] > 100 * plan
  line, *_ = (line for line in out.splitlines() if line.startswith("| private"))
  cells = [cell.strip() for cell in line.split("|")]
  assert cells[2:6] == ["0.0065", "1", "143", "20"]
  assert cells[6].startswith(epsilon(private["central"]["epsilon"]))
  assert cells[7:10] == ["10000", "200", f"{epsilon(plan)} (δ = 3.99e-05)"]
  report = finished.report
  for text in (
    line,
    "NOT PRIVATE",
    "per user (add/remove)",
    "per example (add/remove)",
    "and nobody was",
  ):
    assert text in report
  for unit, number in (("user", 143), ("example", 1430)):
    stated = (
      rf"DP per {unit} \(add/remove\), against whoever sees the models, "
      rf"taking .*: N = {number} {unit}s\."
    )
    assert re.search(stated, out)
    assert re.search(stated, report)
  assert (path / "accuracy_over_rounds.png").read_bytes().startswith(b"\x89PNG")


def test_runs_begin_with_an_earlier_ones_parameters(finished, task):
  path = finished.path
  accuracy = task.evaluate(load_params(path.parent / "params.npz", START))["test_accuracy"]
  assert accuracy > 0.1
  for setting in ("private", "none", "dp_sgd"):
    before, *_ = finished.rows(f"{setting}/0")
    assert (before["round"], before["test_accuracy"]) == (0, pytest.approx(float(accuracy)))
  assert f"Not counted: what {path.parent / 'params.npz'} was trained on" in finished.report
  with pytest.raises(
    ValueError, match=r"Expected parameters .*'w': 'float32\[2, 3\]'.* in .*params.npz, got"
  ):
    load_params(path.parent / "params.npz", {"b": jnp.zeros(10), "w": jnp.zeros((2, 3))})


AGAIN = {**ONCE, "num_rounds": 2, "noise_multiplier": 2.6, "clip_norm": 0.5}


def copy_with_secret_noise(run, path, setting):
  """A run's first repetition as if nobody knew the seed of its noise."""
  shutil.copytree(run / setting / "0", path / setting / "0")
  marked = ledger.load(run / setting / "0" / "ledger.jsonl")
  unmarked = functools.partial(dataclasses.replace, key_exposed=False)
  secret = ((unmarked(e, query=unmarked(e.query)), count) for e, count in marked.entries)
  ledger.Ledger().extend(secret).save(path / setting / "0" / "ledger.jsonl")
  (path / setting / "0" / "result.json").unlink()  # it was stated for the marked ledger
  made = json.loads((run / "flags.json").read_text())
  made["flags"]["noise_seed"] = None
  (path / "flags.json").write_text(json.dumps(made))


def test_an_earlier_run_of_the_same_users_is_counted(finished, tmp_path):
  path = tmp_path / "earlier"
  copy_with_secret_noise(finished.path, path, "private")
  found = run(
    tmp_path / "run", runs=("private",), warm_start=str(path / "private/0/params.npz"), **AGAIN
  )
  (private,) = found.results["summary"]
  earlier = ledger.load(path / "private/0/ledger.jsonl")
  book = ledger.load(tmp_path / "run/private/0/ledger.jsonl")
  assert list(book)[:4] == list(earlier)
  own = ledger.Ledger().extend((event, 1) for event in list(book)[4:])
  assert {float(event.query.stddev) for event in own} == {1.3}
  assert len(own) == 2
  delta = 143**-1.1
  assert (
    private["central"]["epsilon"]
    == accounting.epsilon(earlier + own, delta)
    > accounting.epsilon(earlier, delta)
  )
  assert found.rows("private/0")[0]["central_epsilon"] == accounting.epsilon(earlier, delta)
  line, *_ = (line for line in found.out.splitlines() if line.startswith("| private"))
  # of its own rounds: z S / C
  assert [cell.strip() for cell in line.split("|")][2:4] == ["0.065", "0.5"]
  assert "and its ledger and ε with what that cost: alone ε =" in found.report


@pytest.mark.parametrize("setting", ["private", "none"])
def test_what_was_released_in_the_clear_costs_everything(finished, setting):
  # of seeded noise, or of none
  _, spent = load_start(
    str(finished.path / setting / "0/params.npz"), START, options(), public=False
  )
  assert len(spent) > 0
  assert accounting.epsilon(spent, 1e-5) == math.inf


def test_nothing_that_begins_with_a_baseline_of_the_same_users_is_private(finished, tmp_path):
  start = str(finished.path / "none/0/params.npz")
  found = run(tmp_path / "run", runs=("private",), warm_start=start, **AGAIN)
  (private,) = found.results["summary"]
  assert private["central"] is None
  assert "no run that begins with it has a guarantee" in found.report


@pytest.mark.parametrize(
  ("start", "given", "message"),
  [
    ("../params.npz", {}, "Expected ledger.jsonl of the run that made --warm_start"),
    (None, {"warm_start_public": True}, "Expected --warm_start_public with --warm_start"),
    (
      "private/0/params.npz",
      {"runs": ("dp_sgd",)},
      "Expected earlier releases per example .* got Round per user",
    ),
    ("dp_sgd/0/params.npz", {}, "Expected earlier releases per user .* got Round per example"),
    ("none/0/params.npz", {"max_epsilon": 1e6}, "Expected --max_epsilon of at least the inf "),
    (
      "private/0/params.npz",
      {"data_seed": 1},
      "Expected an earlier run of the same users .*--data_seed=1, got",
    ),
    (
      "private/0/params.npz",
      {"warm_start_public": True},
      "Expected --warm_start_public with a model of other users'",
    ),
  ],
)
def test_starts_that_cannot_be_counted_are_refused(finished, tmp_path, start, given, message):
  given = {
    **AGAIN,
    "runs": ("private",),
    **given,
    **({"warm_start": str(finished.path / start)} if start else {}),
  }
  with pytest.raises(ValueError, match=message):
    run(tmp_path / "run", **given)
  assert list(tmp_path.iterdir()) == []


def test_a_budget_for_examples_is_at_their_delta(finished, tmp_path):
  copy_with_secret_noise(finished.path, tmp_path / "earlier", "dp_sgd")
  spent = ledger.load(tmp_path / "earlier/dp_sgd/0/ledger.jsonl")
  of_users, of_examples = (accounting.epsilon(spent, records**-1.1) for records in (143, 1430))
  given = {"runs": ("dp_sgd",), "max_epsilon": (of_users + of_examples) / 2}
  with pytest.raises(ValueError, match=f"at least the {rounded_up(of_examples)} that was spent"):
    run(
      tmp_path / "run",
      warm_start=str(tmp_path / "earlier/dp_sgd/0/params.npz"),
      **{**AGAIN, **given},
    )


def test_a_target_is_for_earlier_releases_too():
  prior = ledger.Ledger().append(Round(PoissonSampling(1.0), GaussianSum(1.0, 2.5)))
  chosen = options(target_epsilon=2.0)
  plan = make_federation(chosen, 200, np.full(200, 10), prior).actual
  spent = prior + ledger.subsampled_gaussian(0.1, plan.noise_multiplier, 4)
  assert accounting.epsilon(spent, plan.delta) == pytest.approx(2.0, rel=1e-3)
  assert (
    plan.noise_multiplier
    > 1.05 * make_federation(chosen, 200, np.full(200, 10)).actual.noise_multiplier
  )


def test_examples_have_a_delta_of_their_own(task):
  chosen = options(runs=("private", "dp_sgd"), target_epsilon=2.0, sgd_batch_size=143)
  private, sgd = dp_fedavg.make_rows(chosen, task)
  assert (private.setting.delta, sgd.setting.delta) == (143**-1.1, 1430**-1.1)
  spent = ledger.subsampled_gaussian(0.1, sgd.federation.actual.noise_multiplier, 4)
  assert accounting.epsilon(spent, 1430**-1.1) == pytest.approx(2.0, rel=1e-3)


@pytest.mark.parametrize(("unit", "delta"), [(Unit.USER, 143**-1.1), (Unit.EXAMPLE, 1430**-1.1)])
def test_what_a_start_cost_is_said_at_the_delta_of_its_unit(task, unit, delta):
  prior = ledger.Ledger().append(Round(PoissonSampling(1.0), GaussianSum(1.0, 2.5), unit=unit))
  cost = accounting.epsilon(prior, delta)
  assert f"alone ε = {rounded_up(cost)}" in describe_start(
    "params.npz", task._replace(prior=prior), options(), public=False
  )


@pytest.mark.parametrize(
  ("given", "message"),
  [
    ({"runs": ()}, "Expected --runs of at least one element"),
    (
      {"noise_cohort_size": 50},
      "Expected --noise_cohort_size and --noise_population together, got 50 and None",
    ),
    (
      {"noise_cohort_size": 50, "noise_population": 40},
      "Expected --noise_cohort_size of at most 40 users, got 50",
    ),
    ({"cohort_size": 200}, "Expected --cohort_size of at most 143 users, got 200"),
    (
      {"clipping": "adaptive", "estimator": "clipped"},
      "Expected --estimator=fixed and --clip_decay=1",
    ),
    (
      {"vary": ("clip_norm",)},
      "Expected 1 joined by colons in each value of --vary=clip_norm, got none; write "
      "--vary=clip_norm=VALUE",
    ),
    (
      {"vary": ("clip_norm=1:2",)},
      "Expected 1 joined by colons in each value of --vary=clip_norm, got 1:2",
    ),
    ({"vary": ("seeds=1,2",)}, "Expected --vary of options of averaging, got seeds; choose from "),
    (
      {"vary": ("clip_norm=1,2", "clip_norm:weights=3:equal")},
      "Expected each option in one --vary, got clip_norm, clip_norm, weights",
    ),
    (
      {"vary": [f"{n}={','.join(map(str, range(1, 40)))}" for n in RATES]},
      "Expected --vary of at most 1000 rows",
    ),
    ({"vary": ("clip_norm=1,1",)}, "Expected --vary=clip_norm without repetitions, got 1,1"),
    ({"vary": ("clip_norm=one",)}, "Expected --vary of values that --clip_norm can take, got one"),
    ({"vary": ("clip_norm=-1",)}, "Expected --clip_norm to be a finite number > 0"),
    ({"warm_start": "/no/params.npz"}, "No such file"),
  ],
)
def test_bad_flags_are_refused_before_anything_is_written(tmp_path, given, message):
  with pytest.raises((ValueError, FileNotFoundError), match=message):
    run(tmp_path / "run", **{**ONCE, **given})
  assert list(tmp_path.iterdir()) == []


def test_rows_of_other_noise_share_their_rounds(tmp_path, monkeypatch):
  monkeypatch.setattr(shared_programs, "_programs", OrderedDict())
  varied = {"runs": ("private",), "vary": ("noise_multiplier=1.2,1.3,1.4",)}
  with compilations() as names:
    run(tmp_path / "run", **{**ONCE, **varied})
  assert sum("several_rounds" in name for name in names) == 1


def test_noise_too_small_for_any_epsilon_has_its_cost_shown():
  options = dp_fedavg.DPFedAvgOptions()
  variants = [types.SimpleNamespace(options=options, federation=given) for given in (None, 1, 1)]
  rows = [{"stddev": stddev, "central": None} for stddev in (None, 0.1, 0.0)]
  pairs = list(dp_fedavg_report._pairs(variants, rows))
  assert pairs == [(options, rows[0], rows[1])]
