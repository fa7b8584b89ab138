"""The experiment of private federated learning from end to end; then killed and resumed."""

import functools
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import types

import jax
import numpy as np
import pytest

from experiments.private_federated import __main__ as private_federated
from experiments.private_federated import limits, report
from experiments.runner import launch
from experiments.runner.launch import Location
from experiments.runner.reports.statistics import Interval, mean_interval
from experiments.runner.reports.tables import epsilon
from experiments.runner.runs import sweep
from jdp import accounting, ledger
from jdp.events import GaussianSum, LocalRelease, NonPrivate, Round
from jdp.guarantees import ApproxDP
from tests.experiments import runs
from tests.helpers.compilations import compilations

ROOT = pathlib.Path(__file__).parents[3]
EXPERIMENT = private_federated.EXPERIMENT
run = functools.partial(runs.run, EXPERIMENT)
TINY = {
  "num_rounds": 5,
  "eval_every": 2,
  "cohort_size": 20,
  "examples_per_user": 10,
  "chunk_size": 8,
}
DELTA = 143**-1.1
LINE = r"run \d+ of \d+, \S+/\d: round \d+/5(, test accuracy \S+)?(, central epsilon \S+)?"


def resolve(**given):
  return launch.options.resolve(
    private_federated.PrivateFederatedOptions, {"noise_multiplier": 1.0, **given}
  )


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
  """A run of three settings, twice each, and the names of its programs."""
  path = tmp_path_factory.mktemp("private_federated") / "run"
  with compilations() as names:
    return run(path, epsilon_directions=(8.0,), seeds=2, **TINY), names


@pytest.fixture(scope="module")
def finished(compiled):
  return compiled[0]


def test_rounds_are_compiled_once_for_a_setting(compiled):
  assert sum("several_rounds" in name for name in compiled[1]) == 3


@pytest.mark.parametrize(
  ("setting", "kinds"),
  [("none", [Round]), ("central", [Round]), ("local_8", [Round, LocalRelease])],
)
@pytest.mark.parametrize("seed", "01")
def test_ledgers_hold_every_round_once(finished, setting, kinds, seed):
  path = finished.path / setting / seed / "ledger.jsonl"
  assert ledger.load_file(path).closed
  assert [type(event) for event in ledger.load(path)] == kinds * 5


def test_results_follow_from_ledgers_and_metrics(finished):
  content = finished.results
  assert content["not_private"] == ["the models of baseline 'none' were trained without privacy"]
  assert content["flags"]["num_rounds"] == 5
  assert [(result["setting"], result["seed"]) for result in content["runs"]] == [
    (setting, seed) for setting in ("none", "central", "local_8") for seed in (0, 1)
  ]
  for result in content["runs"]:
    name = f"{result['setting']}/{result['seed']}"
    assert [row["round"] for row in finished.rows(name)] == [0, 2, 4, 5]
    assert result["metrics"] == finished.rows(name)[-1]
    spent = accounting.epsilon(
      ledger.load(finished.path / name / "ledger.jsonl"), DELTA, observer="model"
    )
    assert (result["central"] is None) == (result["setting"] == "none")
    if result["central"]:
      assert (result["central"]["epsilon"], result["central"]["delta"]) == (spent, DELTA)
  for summary, setting in zip(content["summary"], ("none", "central", "local_8"), strict=True):
    accuracies = [r["metrics"]["test_accuracy"] for r in content["runs"] if r["setting"] == setting]
    assert summary["test_accuracy"] == mean_interval(accuracies)._asdict()


def test_the_parameters_are_the_last_rows(finished):
  task = private_federated.load_problem(resolve(examples_per_user=10))
  for setting in ("none", "central", "local_8"):
    with np.load(finished.path / setting / "1" / "params.npz") as file:
      params = {name: jax.numpy.asarray(file[name]) for name in file.files}
    accuracy = float(task.evaluate(params)["test_accuracy"])
    assert accuracy == pytest.approx(finished.rows(f"{setting}/1")[-1]["test_accuracy"], abs=1e-6)


def test_repetitions_differ(finished):
  for setting in ("none", "central", "local_8"):
    first, second = ((finished.path / setting / seed / "params.npz").read_bytes() for seed in "01")
    assert first != second


def test_no_two_runs_share_noise(finished):
  """A ledger's header names the run and a fingerprint of its noise key."""
  headers = [
    json.loads(path.read_text().split("\n")[0].split(" ", 1)[1])
    for path in finished.path.rglob("ledger.jsonl")
  ]
  fingerprints = {header["run"].split(" ")[-1] for header in headers}
  assert len(fingerprints) == len(headers) == 6


def test_sums_are_averaged_over_the_expected_cohort_and_clipped_where_the_options_say(monkeypatch):
  made = {}
  monkeypatch.setattr(private_federated, "average", lambda query, denominator: (query, denominator))
  monkeypatch.setattr(
    private_federated, "private_federated", lambda update, query, *_, **kwargs: (query, kwargs)
  )
  for radius in (None, 0.25):
    options = resolve(
      noise_multiplier=2.0, cohort_size=20, max_update_norm=0.5, projection_radius=radius
    )
    task = private_federated.load_problem(options)
    plan = private_federated.make_plan(options, task.num_users)
    for row in private_federated.make_rows(options, task, plan):
      (query, denominator), kwargs = row.setting.algorithm
      total = np.zeros(task.dim, np.float32)
      _, event, _ = query.finalize(jax.random.key(0), query.init(total), total)
      made[radius, row.setting.name] = denominator, event, kwargs["mechanism"]
  for (radius, name), (denominator, event, mechanism) in made.items():
    assert denominator == 20
    if name == "none":
      assert event == NonPrivate()
    else:
      clip_norm = 0.5 if mechanism is None else radius or mechanism.max_norm
      assert event == GaussianSum(clip_norm, 2.0 * clip_norm)


def test_a_part_that_is_switched_off_is_missing_and_no_other(monkeypatch):
  monkeypatch.setattr(private_federated, "average", lambda query, _: query)
  monkeypatch.setattr(
    private_federated, "private_federated", lambda update, query, *_, **kwargs: (query, kwargs)
  )
  options = resolve(
    noise_multiplier=2.0, cohort_size=20, max_update_norm=0.5, projection_radius=0.25,
    baselines=(), epsilon_directions=(8.0,), switched_off=limits.PARTS,
  )  # fmt: skip
  task = private_federated.load_problem(options)
  rows = private_federated.make_rows(
    options, task, private_federated.make_plan(options, task.num_users)
  )
  vector = np.full(task.dim, 1.0, np.float32)
  made = {}
  for row in rows:
    query, kwargs = row.setting.algorithm
    _, event, _ = query.finalize(jax.random.key(0), query.init(vector), 0 * vector)
    made[row.setting.name.removeprefix("local_8")] = event, kwargs["mechanism"]
  (full, local), exact = made[""], made["_without_local_mechanism"][1]
  assert full == GaussianSum(0.25, 0.5)
  for part in ("local_mechanism", "clipping"):
    event, mechanism = made[f"_without_{part}"]
    assert event == full
    assert mechanism.guarantee.epsilon == math.inf
  clear = exact.privatize(jax.random.key(1), vector)
  np.testing.assert_allclose(clear, vector / np.linalg.norm(vector) / 2, rtol=1e-5)
  lengths = [
    float(np.linalg.norm(made["_without_clipping"][1].privatize(jax.random.key(1), scale * vector)))
    for scale in (1.0, 3.0)
  ]
  assert lengths[1] == pytest.approx(3 * lengths[0], rel=1e-5)
  assert made["_without_central_noise"] == (GaussianSum(0.25, 0.0), local)
  assert made["_without_projection"] == (GaussianSum(local.max_norm, 0.5), local)


def test_runs_that_lack_a_part_stand_beside_the_full_one():
  options = resolve(epsilon_directions=(8.0, 32.0), switched_off=("central_noise", "clipping"))
  values = {"central": 0.9, "local_32": 0.5, "local_8": 0.3}
  values |= {f"local_{eps}_without_central_noise": eps / 100 for eps in (8, 32)}
  values |= {f"local_{eps}_without_clipping": eps / 50 for eps in (8, 32)}
  summary = [
    {"setting": name, "label": name, "test_accuracy": Interval(value, None)}
    for name, value in values.items()
  ]
  problem = types.SimpleNamespace(headline="test_accuracy")
  cells = [
    re.split(r" *\| *", line) for line in report._limits(options, problem, summary).split("\n")
  ]
  assert [cell[1:-1] for cell in cells if len(cell) == 6 and "%" in cell[2]] == [
    ["local ε₁ = 8", "30.0 %", "8.0 %", "16.0 %"],
    ["local ε₁ = 32", "50.0 %", "32.0 %", "64.0 %"],
  ]
  (axes,) = report._limits_figure(options, problem, summary).axes
  assert {line.get_label(): line.get_ydata()[1] for line in axes.lines} == {
    "all on": 0.5, "no central noise": 0.32, "no clipping": 0.64, "central": 0.9,
  }  # fmt: skip


def test_magnitudes_are_released_as_the_options_say():
  """At a hundredth of r_max the one error exceeds the magnitude, the other does not."""
  for name, least, most in (("scalar_dp", 1.0, 10.0), ("scalar_rel_dp", 0.0, 1.0)):
    mechanism = limits.MAGNITUDES[name](10.0, 0.5)
    assert least < limits.relative_error(mechanism, 0.005) < most
    assert mechanism.guarantee.epsilon == pytest.approx(10.0)


@pytest.mark.parametrize(
  ("noise_multiplier", "baselines"), [(1e-6, ()), (0.2, ("central",))], ids=["local", "central"]
)
def test_errors_are_those_of_an_average(noise_multiplier, baselines):
  """Everybody's update is the same, of the largest norm: whatever else the model moves by is error.

  The squared error over 650 weights and 8 rounds has a relative standard deviation of 2 %, so that
  a tenth is exceeded with probability 1e-6, and an error stated 8 % too large or too small is
  caught with probability .99.
  """
  options = resolve(
    noise_multiplier=noise_multiplier, examples_per_user=10, cohort_size=143, num_rounds=8,
    max_update_norm=0.5, epsilon_directions=(8.0,), baselines=baselines, chunk_size=143,
  )  # fmt: skip
  task = private_federated.load_problem(options)
  task = task._replace(
    loss=lambda params, _: 100.0 * sum(map(jax.numpy.sum, jax.tree.leaves(params)))
  )
  plan = private_federated.make_plan(options, task.num_users)
  for row in private_federated.make_rows(options, task, plan):
    algorithm, key = row.setting.algorithm, jax.random.key(1)
    state = algorithm.init(task.init(key))
    step, moves = jax.jit(algorithm.round), []
    for _ in range(8):
      before, (state, *_) = state, step(key, key, state, task.clients)
      moves.append(
        jax.flatten_util.ravel_pytree(jax.tree.map(np.subtract, state.params, before.params))[0]
      )
    expected = -0.5 / np.sqrt(650)
    squared = np.mean(np.sum((np.array(moves) - expected) ** 2, axis=1))
    assert squared == pytest.approx(row.local_error**2 + row.central_error**2, rel=0.1), (
      row.setting.name
    )


def test_the_report_says_what_was_guaranteed_to_whom(finished):
  report = finished.report
  book = ledger.load(finished.path / "local_8/0/ledger.jsonl")
  spent = accounting.epsilon(book, DELTA, observer="model")
  central = ApproxDP(spent, DELTA, relation="add_remove", unit="user", observer="model")
  by_rdp = accounting.epsilon(book, DELTA, accountant="rdp", observer="model")
  by = f'by the accountant "tightest" ({epsilon(by_rdp)} by "rdp")'
  public = "taking as public what was computed from the protected data: N = 143 users"
  for text in (report, finished.out):
    assert "- no privacy: no guarantee: Nothing protects 5 of the releases" in text
    assert f"\n- central only, local ε₁ = 8: {central}, {by}, {public}." in text
  release = next(event for event in book if isinstance(event, LocalRelease))
  assert (release.relation, release.unit, release.observer) == ("replace_one", "user", "server")
  for part, asked in (("direction", 8.0), ("magnitude", 10.0)):
    assert asked - 1e-6 <= getattr(release.guarantee, part) <= asked
  assert f"- local ε₁ = 8: {release.guarantee}." in report
  assert f"is {release.max_releases} of 5 rounds" in " ".join(report.split())
  assert f"- local ε₁ = 8: {accounting.local_guarantee(book)}." in report
  for text in (
    "ledger.jsonl",
    "python -m experiments.private_federated --flagfile=<folder>/run.flags",
  ):
    assert text in report
  assert f"\n- jax: {jax.__version__}\n" in report
  assert "NOT PRIVATE" not in report + finished.out
  assert book.caveats == ()
  accuracy = finished.results["summary"][2]["test_accuracy"]
  cells = [epsilon(spent), f"{100 * accuracy['mean']:.1f} % ± {100 * accuracy['half_width']:.1f}"]
  for table in (report, finished.out):
    row = next(line for line in table.splitlines() if line.startswith("| local ε₁ = 8"))
    assert "| 18 (8 + 10) " in row
    assert all(cell in row for cell in cells)


def test_the_report_says_how_tight_epsilons_are_and_what_an_attacker_gains(finished):
  report = finished.report
  part = report.partition("## What an attacker gains")[2].partition("\n## ")[0]
  assert "no privacy" not in part  # no table row, as there is no guarantee
  book = ledger.load(finished.path / "local_8/0/ledger.jsonl")
  lower, upper = accounting.epsilon_interval(book, DELTA, observer="model")
  rates = accounting.trade_off(book, [0.001, 0.01], observer="model")
  row = next(line for line in part.splitlines() if "local ε₁ = 8" in line)
  _, _, between, *found = [cell.strip() for cell in row.split("|")][:5]
  stated = re.fullmatch(r"between (\S+) and (\S+)", between)
  assert float(stated[1]) <= lower <= upper <= float(stated[2]) < 1.01 * upper
  assert np.all(rates <= [float(cell.rstrip("% ")) / 100 for cell in found])


def test_what_lies_in_the_work_directory(finished):
  names = {path.name for path in finished.path.iterdir()}
  pictures = (
    "accuracy_over_rounds",
    "accuracy_against_epsilon",
    "attacker",
    "relative_error_of_magnitudes",
  )
  plots = {f"{name}.{kind}" for name in pictures for kind in ("png", "pdf")}
  assert names == plots | {
    "none",
    "central",
    "local_8",
    "flags.json",
    "run.flags",
    "results.json",
    "report.md",
  }
  for name in pictures:
    assert (finished.path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert (finished.path / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    assert f"({name}.png)" in finished.report
  assert not finished.path.with_name("run.secret").exists()


def test_lines_in_a_pipe_tell_no_time_and_no_size(finished):
  lines = finished.err.splitlines()
  assert len(lines) == 6 * 4
  assert all(re.fullmatch(LINE, line) for line in lines)


def test_a_finished_run_is_not_computed_again(finished, monkeypatch):
  before = {path: path.read_bytes() for path in finished.path.rglob("*") if path.is_file()}
  monkeypatch.setattr(sweep, "train_run", None)
  again = run(finished.path, resume=True)
  assert again.out == finished.out
  assert {path: path.read_bytes() for path in finished.path.rglob("*") if path.is_file()} == before
  assert not finished.path.with_name("run.secret").exists()


def test_changed_flags_are_refused(finished):
  for name, begun, changed in (("num_rounds", 5, 6), ("max_epsilon", None, 3.0)):
    with pytest.raises(
      ValueError, match=f"Expected --{name}={begun}, with which the run was begun, got {changed}"
    ):
      run(finished.path, resume=True, **{name: changed})
  with pytest.raises(
    ValueError, match="Expected --preset=smoke, with which the run was begun, got mnist_cnn_1"
  ):
    launch.prepare(EXPERIMENT, {}, Location("mnist_cnn_1", str(finished.path), resume=True))


@pytest.mark.parametrize(
  ("given", "message"),
  [
    (
      {"local_batch_size": 3},
      "Expected --local_batch_size only with --local_training=sgd, got --local_training=gradient",
    ),
    (
      {"proximal_iterations": 3},
      "Expected --proximal_iterations only with --local_training=proximal",
    ),
    ({"data_dir": "x"}, "Expected --data_dir only with --dataset=mnist"),
    (
      {"noise_multiplier": 1.0, "target_epsilon": 1.0},
      "Expected exactly one of --noise_multiplier and --target_eps",
    ),
    ({"cohort_size": 2000}, "Expected --cohort_size of at most 1437 users, got 2000"),
    ({"epsilon_directions": (2.0, -1.0)}, "Expected --epsilon_directions to be a number in"),
    ({"baselines": (), "epsilon_directions": ()}, "Expected something to run"),
    ({"model": "cnn"}, "Expected images of at least 16 x 16"),
  ],
)
def test_bad_flags_are_refused_before_anything_is_written(tmp_path, given, message):
  with pytest.raises(ValueError, match=message):
    run(tmp_path / "run", **given)
  assert list(tmp_path.iterdir()) == []


def test_runs_that_are_not_private_say_so(tmp_path):
  flags = {**TINY, "num_rounds": 2, "epsilon_directions": (), "baselines": ("central",)}
  flags |= {"local_training": "sgd", "server_optimizer": "momentum"}
  loud = run(tmp_path / "a", noise_seed=3, diagnostics=True, **flags)
  for text in (loud.out, loud.report):
    assert text.count("NOT PRIVATE") == 2
    assert "--noise_seed=3" in text
  assert len(loud.results["not_private"]) == 2
  for made in loud.results["runs"]:
    (caveat,) = ledger.load(tmp_path / f"a/central/{made['seed']}/ledger.jsonl").caveats
    assert made["not_private"] == [caveat]
  (row,) = loud.rows("central/0", "diagnostics")
  assert set(row) == {"round", "cohort_size", "update_norm", "release_norm"}
  run(tmp_path / "b", noise_seed=3, diagnostics=True, **flags)
  assert (tmp_path / "a/central/0/params.npz").read_bytes() == (
    tmp_path / "b/central/0/params.npz"
  ).read_bytes()


def test_mirror_descent_with_releases_bounded_by_coordinate(tmp_path):
  """Each coordinate of an average is then of one size at most, and steps move few weights far."""
  flags = {**TINY, "num_rounds": 2, "baselines": (), "epsilon_directions": (8.0,), "seeds": 1}
  found = run(
    tmp_path / "run",
    direction_mechanism="priv_unit_linf",
    server_optimizer="mirror",
    noise_seed=3,
    **flags,
  )
  (row,) = found.results["runs"]
  assert row["rounds"] == 2
  with np.load(tmp_path / "run/local_8/0/params.npz") as arrays:
    moved = np.sort(np.abs(np.concatenate([arrays[name].ravel() for name in arrays])))[::-1]
  # of normal entries a tenth have 0.2 of the sum
  assert np.sum(moved[: len(moved) // 10]) > 0.8 * np.sum(moved) > 0


def test_a_budget_stops_private_runs_only(tmp_path):
  stopped = run(tmp_path / "run", epsilon_directions=(), max_epsilon=0.8, seeds=1, **TINY)
  none, central = stopped.results["runs"]
  assert (none["rounds"], none["stopped"], central["stopped"]) == (5, False, True)
  assert 0 < central["rounds"] < 5
  book = ledger.load(tmp_path / "run/central/0/ledger.jsonl")
  assert len(book) == central["rounds"]
  assert central["central"]["epsilon"] == accounting.epsilon(book, DELTA) <= 0.8
  assert accounting.epsilon(book.append(next(iter(book))), DELTA) > 0.8
  assert "NOT PRIVATE" not in stopped.out


def environment(tmp_path):
  """As many devices as here, whose compiled programs then serve, and a cache if there is none."""
  names = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
  names.setdefault("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "cache"))
  return names


def test_killed_processes_leave_what_a_whole_one_does(tmp_path):
  flags = ["--baselines=central", "--epsilon_directions=8", "--seeds=1"]
  flags += [f"--{name}={value}" for name, value in TINY.items()]
  script = pathlib.Path(__file__).with_name("killed.py")
  killed, whole = tmp_path / "run", tmp_path / "run_whole"
  done = subprocess.run(
    [sys.executable, script, killed, *flags],
    env=environment(tmp_path),
    text=True,
    capture_output=True,
    timeout=300,
  )
  assert done.returncode == 0, done.stderr
  assert int(re.search(r"killed (\d+) times", done.stdout)[1]) >= 4
  kept = [path.relative_to(whole) for path in whole.rglob("*") if path.is_file()]
  assert sorted(kept) == sorted(
    path.relative_to(killed) for path in killed.rglob("*") if path.is_file()
  )
  for path in kept:
    assert (killed / path).read_bytes() == (whole / path).read_bytes(), path
  assert {path.name for path in tmp_path.iterdir()} - {"cache"} == {"run", "run_whole"}


def test_the_command_line(finished, tmp_path):
  def call(*flags):
    command = [sys.executable, "-m", "experiments.private_federated", *flags]
    return subprocess.run(
      command,
      env=environment(tmp_path),
      cwd=tmp_path,
      text=True,
      capture_output=True,
      timeout=120,
      check=False,
    )

  refused = call(f"--flagfile={finished.path / 'run.flags'}", "--cohort_size=99999")
  assert refused.returncode != 0
  assert refused.stderr.endswith(
    "private_federated: Expected --cohort_size of at most 143 users, got 99999.\n"
  )
  shown = call("--help")
  assert shown.returncode == 0
  for name in (
    "--preset=NAME",
    "cifar10_1, cifar10_public",
    "--workdir=FOLDER",
    "--resume",
    "--epsilon_directions=2.0,8.0,32.0,128.0",
    "--target_epsilon",
  ):
    assert name in shown.stdout
  assert {path.name for path in tmp_path.iterdir()} <= {"cache"}  # No run was begun.
