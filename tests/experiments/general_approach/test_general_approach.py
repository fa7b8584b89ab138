"""The experiment of the general approach: its queries, its samplers, and a run from end to end,
whole and resumed.
"""

import dataclasses
import functools
import math
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.general_approach import __main__ as general_approach
from experiments.general_approach import report as general_approach_report
from experiments.general_approach import tutorials, two_vectors
from experiments.general_approach.queries import make_groups, make_query
from experiments.runner import launch
from experiments.runner.options import resolve
from experiments.runner.reports.statistics import Interval
from experiments.runner.reports.tables import epsilon
from jdp import accounting, ledger
from jdp.events import GaussianSum, GroupedSums, Round
from jdp.events.base import NO_NUMBER
from jdp.federated.iterative import record_like
from jdp.federated.runs import training
from tests.experiments import runs

EXPERIMENT = general_approach.EXPERIMENT
run = functools.partial(runs.run, EXPERIMENT)
Z = 1.3
TINY = {"num_rounds": 4, "eval_every": 2, "batch_size": 40, "chunk_size": 4, "noise_multiplier": Z}
SEPARATE = ("proportional", "dimension", "given")


def prepared(**given):
  options = general_approach.GeneralApproachOptions(**{**TINY, **given})
  task = general_approach.load_groups_task(options)
  shapes = jax.eval_shape(task.init, jax.random.key(0))
  return options, task, make_groups(options, shapes), record_like(shapes)


def event_of(query, record, evaluate=jax.eval_shape):
  """What the query says it did. Its static numbers alone need no evaluation."""

  def release(record):
    state = query.init(record)
    contribution = query.preprocess(jax.random.key(0), state, record, jax.numpy.float32(1))
    return query.finalize(jax.random.key(1), state, contribution)[1]

  event = evaluate(release, record)
  return dataclasses.replace(event, number=NO_NUMBER)  # A shape is not a number.


@pytest.mark.parametrize("name", [*SEPARATE, "joint"])
@pytest.mark.parametrize("layers", [True, False])
def test_every_query_has_the_noise_multiplier_asked_for(name, layers):
  options, task, groups, record = prepared(layers=layers)
  event = event_of(make_query(options, groups, name, 40), record)
  sampling = next(iter(task.records.values())).sampler("poisson", 40).event(())
  spent = accounting.epsilon(ledger.Ledger().append(Round(sampling, event), count=50), 1e-5)
  plan = ledger.Ledger().append(Round(sampling, GaussianSum(1.0, Z)), count=50)
  assert spent == pytest.approx(accounting.epsilon(plan, 1e-5), rel=1e-6)
  if name != "joint":
    assert 1 / math.hypot(*(part.clip_norm / part.stddev for part in event.parts)) == pytest.approx(
      Z
    )


def test_rows_have_rates_of_their_own(monkeypatch):
  make, found = general_approach.iterative_training, []

  def iterative_training(model, query, sampler, optimizer, **options):
    step, _ = optimizer.update(jnp.ones(()), optimizer.init(jnp.zeros(())))
    found.append(-float(step))
    return make(model, query, sampler, optimizer, **options)

  monkeypatch.setattr(general_approach, "iterative_training", iterative_training)
  given = {"runs": ("none", "microbatch"), "record_size": (2, 5), "learning_rate": 0.25}
  for rates in ((), (0.25, 2.0, 2.0)):
    options = resolve(
      general_approach.GeneralApproachOptions, {**TINY, **given, "row_rates": rates}
    )
    general_approach.prepare(options)
  assert found == [0.25, 0.25, 0.25, 0.25, 2.0, 2.0]


def test_noise_is_divided_as_the_runs_say():
  options, _, groups, record = prepared(given_stddevs=(1.0, 3.0, 2.0))
  assert list(groups.clip_norms) == ["convolutions", "dense layers", "metrics", "moments"]
  assert math.hypot(
    groups.clip_norms["convolutions"], groups.clip_norms["dense layers"]
  ) == pytest.approx(1.0)
  assert groups.dimensions == {
    "convolutions": 304,
    "dense layers": 8618,
    "metrics": 2,
    "moments": 96,
  }
  stddevs = {
    name: np.array(
      [part.stddev for part in event_of(make_query(options, groups, name, 40), record).parts]
    )
    for name in SEPARATE
  }
  bounds = np.array(list(groups.clip_norms.values()))
  sizes = np.array([groups.dimensions[name] for name in groups.clip_norms])
  np.testing.assert_allclose(stddevs["proportional"], 2 * Z * bounds)
  np.testing.assert_allclose(stddevs["dimension"], Z * bounds * np.sqrt(sizes.sum() / sizes))
  np.testing.assert_allclose(stddevs["given"] / stddevs["given"][0], [1.0, 1.0, 2.0, 3.0])
  joint = event_of(make_query(options, groups, "joint", 40), record)
  # by default, nothing that separate clipping leaves alone is clipped
  assert joint == GaussianSum(2.0, 2 * Z)
  assert event_of(make_query(options, groups, "clipped", 40), record) == GaussianSum(2.0, 0.0)


def test_every_sampling_policy_has_an_epsilon_under_its_relation():
  options, task, groups, record = prepared(runs=("proportional", "microbatch", "user"))
  assert [(kind, str(records.unit)) for kind, records in task.records.items()] == [
    ("example", "example"),
    ("microbatch_10", "microbatch"),
    ("user_10", "user"),
  ]
  event = event_of(make_query(options, groups, "proportional", 40), record)
  for policy, relation in general_approach.RELATIONS.items():
    for records in task.records.values():
      examples = records.examples.labels.shape[1]
      sampler = records.sampler(policy, 40)
      assert sampler.expected_size * examples == pytest.approx(40, rel=0.2)
      spent = ledger.Ledger().append(
        Round(sampler.event(sampler.init()), event, relation, records.unit)
      )
      assert 0 < accounting.epsilon(spent, 1e-5) < math.inf


def test_groups_have_the_shares_of_classes_and_every_kind_of_noise():
  options, _, groups, record = prepared(class_shares=True)
  assert (groups.clip_norms["classes"], groups.dimensions["classes"]) == (1.0, 10)
  zeros = jax.tree.map(lambda x: jax.numpy.zeros(x.shape, x.dtype), record)

  def made(run):
    query = make_query(options, groups, run, 40)
    return jax.device_get(event_of(query, zeros, lambda f, x: jax.jit(f)(x)))

  adaptive, discrete = made("adaptive").parts[0], made("discrete").parts[0]
  # Sum and count of one of five groups, together; the first round's S is as given.
  assert general_approach_report._multiplier(adaptive) == pytest.approx(5**0.5 * Z, rel=1e-5)
  assert adaptive.parts[1].clip_norm == pytest.approx(1.0)
  assert discrete.dim == 16  # ten classes, padded for the rotation
  # One of 40 shares of the noise.
  shares = general_approach_report._multiplier(discrete) * 40**0.5
  assert 0.98 * 5**0.5 * Z < shares <= 5**0.5 * Z
  made_on_grid = event_of(make_query(options, groups, "grid", 40), record)
  assert general_approach_report._multiplier(made_on_grid) == pytest.approx(Z)


def test_joint_clipping_needs_least_noise_where_a_record_has_one_of_two_vectors():
  found = {
    name: [values.mean() for values in two_vectors.errors(query, jax.random.key(number)).values()]
    for number, (name, query) in enumerate(two_vectors.make_queries(1.0).items())
  }
  # Means of 100 root mean squares of 20 coordinates: standard errors of 1.6 %.
  assert found["as one vector"] == pytest.approx([100.0, 1.0], rel=0.08)
  assert found["separate clipping"] == pytest.approx([2**0.5, 2**0.5], rel=0.08)
  assert found["joint clipping"] == pytest.approx([1.0, 1.0], rel=0.08)


def test_members_of_a_record_are_fixed_and_in_no_other():
  options, task, *_ = prepared(runs=("microbatch", "user"))
  _, again, *_ = prepared(runs=("microbatch", "user"))
  for kind, records in task.records.items():
    np.testing.assert_array_equal(records.examples.inputs, again.records[kind].examples.inputs)
    assert records.examples.labels.shape[1] == options.record_size[0]
    assert (
      len(set(map(bytes, records.examples.inputs.reshape(-1, 64))))
      > 0.99 * records.examples.mask.sum()
    )
  labels = task.records["user_10"].examples.labels
  # two shards, each of neighbouring labels
  assert max(len(set(user)) for user in labels.tolist()) <= 4


@pytest.mark.parametrize("number", [1, 2])
def test_the_tutorials_presets_are_the_published_rows(number):
  """TensorFlow Privacy's MNIST tutorial: epsilons 1.19 and 3.01 at delta 1e-5."""
  kind = general_approach.GeneralApproachOptions
  flags = launch.options.read_flagfile(kind, EXPERIMENT.presets[f"tutorial_{number}"])
  options = launch.options.resolve(kind, {"data_dir": "."}, flags)
  row = tutorials.tutorial_of(options)
  assert row == tutorials.TUTORIALS[number - 1]
  assert row.rounds == options.num_rounds
  assert tutorials.tutorial_of(dataclasses.replace(options, metrics=True)) is None
  # The tutorial converts from RDP as the moments accountant did, over fewer orders.
  spent = row.ledger(row.rounds)
  assert accounting.epsilon(spent, 1e-5) < row.epsilon
  moments = accounting.epsilon(spent, 1e-5, accountant="moments")
  assert moments == pytest.approx(row.epsilon, rel=0.02)


def test_a_part_of_a_tutorial_stands_beside_the_whole():
  row = tutorials.TUTORIALS[1]
  text = tutorials.tutorial_table(row, 4688, 1e-5, Interval(0.95, None))
  here, whole, published = (line.split("|")[1:-1] for line in text.splitlines()[2:])
  assert [cell.strip() for cell in here[:3]] == ["here", "4,688", "20.0"]
  assert float(here[3]) < float(whole[3]) == pytest.approx(float(published[3]), rel=0.02)
  assert whole[-1].strip() == ""
  assert published[-1].strip() == "96.6 %"
  assert "not run" not in tutorials.tutorial_table(row, row.rounds, 1e-5, Interval(0.95, None))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
  path = tmp_path_factory.mktemp("general_approach") / "run"
  return run(path, runs=("joint", "none", "user", "clipped"), noise_seed=3, **TINY)


def test_results_follow_from_ledgers_and_metrics(finished):
  path, out, _ = finished
  content = finished.results
  assert [row["setting"] for row in content["summary"]] == ["joint", "none", "user", "clipped"]
  for name in ("none", "clipped"):
    assert (
      f"the model of run '{name}' was trained without privacy, and its training metrics carry no "
      "noise"
    ) in content["not_private"]
  for row, number in zip(content["summary"][:3:2], (1437, 143), strict=True):
    said = f"taking as public what was computed from the protected data: N = {number} units."
    assert said in out
    assert said in finished.report
    spent = ledger.load(path / row["setting"] / "0" / "ledger.jsonl")
    assert len(spent) == TINY["num_rounds"]
    assert row["central"]["epsilon"] == accounting.epsilon(spent, 1e-5)
    by_rdp = accounting.epsilon(spent, 1e-5, accountant="rdp")
    assert row["beside"] == by_rdp > row["central"]["epsilon"]
    for found in (by_rdp, row["central"]["epsilon"]):
      assert epsilon(found) in out
  assert [row["central"] and row["central"]["unit"] for row in content["summary"]] == [
    "example",
    None,
    "user",
    None,
  ]
  (event,) = {type(event.query) for event in ledger.load(path / "user/0/ledger.jsonl")}
  assert event is GroupedSums


def test_the_report_says_what_was_guaranteed_and_how_noise_was_divided(finished):
  report = finished.report
  for text in (
    "per user (add/remove), against whoever sees the models",
    "per example (add/remove)",
    "no guarantee",
  ):
    assert text in report
  (line,) = (
    line
    for line in report.splitlines()
    if line.startswith("| proportional, users") and "1.41" in line
  )
  assert line.rstrip(" |").endswith(f"{Z}")
  assert (finished.path / "accuracy_over_rounds.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("rounds", "cell"), [(0, "none"), (4, "62.5 %")])
def test_what_was_never_released_is_not_shown_as_a_released_accuracy(rounds, cell):
  metrics = {"test_accuracy": Interval(0.1, None), "train_accuracy": Interval(0.625, None)}
  row = {"label": "a", "central": None, "beside": None, "rounds": Interval(rounds, None), **metrics}
  table = general_approach_report._table(types.SimpleNamespace(accountant="rdp"), [row])
  assert table.splitlines()[-1].split("|")[-2].strip() == cell


def test_an_interrupted_run_resumes_to_the_same_bits(finished, tmp_path, monkeypatch):
  path, advance = tmp_path / "run", training._advance

  def die_in_the_second_block(run, state, *rounds):
    if int(state.round):
      raise KeyboardInterrupt
    return advance(run, state, *rounds)

  flags = {"runs": ("joint",), "noise_seed": 3, **TINY}
  monkeypatch.setattr(training, "_advance", die_in_the_second_block)
  with pytest.raises(KeyboardInterrupt):
    run(path, **flags)
  monkeypatch.undo()
  assert len(ledger.load(path / "joint/0/ledger.jsonl")) == 2
  run(path, resume=True)
  # also the first run of the whole sweep
  for name in ("params.npz", "metrics.jsonl", "ledger.jsonl"):
    one, other = ((folder / "joint/0" / name).read_bytes() for folder in (path, finished.path))
    assert one == other


@pytest.mark.parametrize(
  ("given", "message"),
  [
    (
      {"runs": ("none", "microbatch"), "record_size": (5, 10), "row_rates": (0.5, 1.0)},
      "Expected --row_rates of 3 rows, got 2",
    ),
    (
      {"given_stddevs": (1.0,)},
      "Expected --given_stddevs of gradients, moments, metrics, got 1 numbers",
    ),
    (
      {"batch_size": 2000},
      "Expected --batch_size to be from one record to all 1437, got 2000 records",
    ),
    ({"batch_size": 5, "runs": ("user",)}, "got 0.5 records"),
    ({"data_dir": "x"}, "Expected --data_dir only with --dataset=mnist"),
    ({"model": "cnn"}, "Expected images of at least 16 x 16"),
  ],
)
def test_bad_flags_are_refused_before_anything_is_written(tmp_path, given, message):
  with pytest.raises(ValueError, match=message):
    run(tmp_path / "run", **given)
  assert list(tmp_path.iterdir()) == []


def test_discrete_noise_is_refused_where_a_records_owner_could_leave(tmp_path):
  with pytest.raises(ValueError, match="fixed_size or shuffled with --runs=discrete, got poisson"):
    runs.prepare(EXPERIMENT, tmp_path / "run", runs=("discrete",))
