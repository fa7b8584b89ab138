"""The mean estimation experiment: every estimator beside its closed form, the split, averaged SGD,
reports.
"""

import dataclasses
import math
import re

import jax
import numpy as np
import pytest
from scipy import stats

from experiments.mean_estimation import __main__ as binary
from experiments.mean_estimation import location_sgd, mirror_descent, sgd_asymptotics
from experiments.mean_estimation.gradients import gradients
from experiments.mean_estimation.report import agrees, split_part
from experiments.runner import files
from experiments.runner.estimators import ESTIMATORS, expected_error, report_bytes
from experiments.runner.reports.statistics import Interval
from jdp.accounting.local.separated import best_split
from jdp.mechanisms.registry import Setting
from tests.experiments import runs
from tests.helpers.statistical import assert_proportion

SMALL = {
  "task": ("error",),
  "epsilons": (4.0,),
  "num_projections": (16,),
  "dims": (64,),
  "cohorts": (20,),
  "repetitions": 30,
}


@pytest.fixture
def one_device(monkeypatch):
  """Sums on one device: four take longer to compile for, and change only the order of summation."""
  monkeypatch.setattr(binary, "client_mesh", lambda: None)


def run(tmp_path, **given):
  """The report, and the rows that were measured."""
  finished = runs.run(binary.EXPERIMENT, tmp_path / "run", **given)
  return finished.report, files.read_rows(finished.path / "results.jsonl")


def options(**changes):
  return dataclasses.replace(
    binary.MeanEstimationOptions(dims=SMALL["dims"]), **{**SMALL, **changes}
  )


def assert_mean_is(errors, theory, *, catches):
  """A right closed form fails with probability 1e-6 (Student's t); one wrong by a relative
  `catches` is refused.
  """
  standard_error = np.std(errors, ddof=1) / math.sqrt(len(errors))
  threshold = stats.t.isf(5e-7, len(errors) - 1) * standard_error
  assert threshold + 3.1 * standard_error < catches * theory
  assert abs(np.mean(errors) - theory) <= threshold


def test_every_estimator_takes_unit_vectors_and_says_what_it_sends():
  values = binary.unit_vectors(options(), 64, 3)
  sent = {}
  for name, estimator in ESTIMATORS.items():
    mechanism = estimator.make(Setting(64, 4.0, 16))
    assert mechanism.shape == (64,)
    assert mechanism.guarantee.epsilon == pytest.approx(4.0, rel=1e-6), name
    assert 0 < expected_error(estimator, mechanism, values) < math.inf
    sent[name] = report_bytes(mechanism)
  assert sent["priv_unit"] == sent["hemisphere"] == sent["gaussian"] == 4 * 64
  assert sent["separated"] == 4 * 64 + 4
  assert sent["priv_unit_on_grid"] == 64
  assert sent["priv_unit_linf"] == 64 // 8
  assert sent["proj_unit"] == sent["fast_proj_unit"] == sent["one_rotation"] == 4 * 16 + 8
  assert sent["one_projection"] == 4 * 16


@pytest.mark.usefixtures("one_device")
@pytest.mark.parametrize("dim", [64, 72], ids=["whole", "padded"])
def test_a_shared_projection_has_an_error_that_does_not_average_out(dim):
  """The closed form of 200 clients, of which the term without 1/n is most; it is not that of
  independent ones. Of a padded vector's error, part lies where the estimate has no coordinates.
  """
  own = options(cohorts=(200,), repetitions=150)
  row = binary.measure(own, binary.Point("one_projection", dim, 4.0, 200, 16))
  assert_mean_is(row["errors"], row["theory"], catches=0.2)
  independent = ESTIMATORS["fast_proj_unit"]
  mechanism = independent.make(Setting(dim, 4.0, 16))
  assert mechanism.parameters.width == (64 if dim == 64 else 128)
  assert row["theory"] > 2 * 200 * expected_error(
    independent, mechanism, binary.unit_vectors(own, dim, 200)
  )


@pytest.mark.usefixtures("one_device")
def test_signs_cost_the_linf_mechanism_what_directions_cost():
  row = binary.measure(
    options(values="signs", repetitions=150), binary.Point("priv_unit_linf", 64, 4.0, 5, None)
  )
  assert_mean_is(row["errors"], row["theory"], catches=0.12)
  direction = ESTIMATORS["priv_unit"].make(Setting(64, 4.0)).mean_squared_error(1.0)
  assert row["theory"] == pytest.approx(direction, rel=0.1)


@pytest.mark.parametrize("kind", ["normal", "signs", "digits"])
def test_values_are_unit_vectors_and_synthetic_ones_have_a_mean(kind):
  dim = 650 if kind == "digits" else 400
  values = binary.unit_vectors(options(values=kind), dim, 300)
  np.testing.assert_allclose(np.linalg.norm(values, axis=1), 1, rtol=1e-6)
  assert len(np.unique(values, axis=0)) > 250
  if kind != "digits":  # whose classes' gradients cancel
    assert np.linalg.norm(values.mean(axis=0)) > 0.4
  if kind == "signs":
    assert set(np.abs(values).ravel().tolist()) == {float(np.float32(0.05))}


@pytest.mark.usefixtures("one_device")
def test_the_report_states_guarantees_theory_and_bytes(tmp_path):
  names = ("priv_unit", "fast_proj_unit", "gaussian")
  report, rows = run(tmp_path, mechanisms=names, **(SMALL | {"dims": (64, 128), "cohorts": (5,)}))
  assert [(row["mechanism"], row["dim"]) for row in rows] == [
    (name, dim) for name in names for dim in (64, 128)
  ]
  assert "6 of 6 intervals hold the theory" in report
  assert "- priv_unit, fast_proj_unit: 4-DP per value (replace one), against the server." in report
  assert "- gaussian: (4, 1e-06)-DP per value" in report
  assert "unit vectors, N(v, I/d) normalised" in report
  ratio = re.search(
    r"\| fast_proj_unit +\| 64 +\| 4 +\| 5 +\| 16 +\| ([\d.]+) +\| ([\d.]+) +\|$", report, re.M
  )
  theory = {row["mechanism"]: row["theory"] for row in rows if row["dim"] == 64}
  assert float(ratio[2]) == pytest.approx(theory["fast_proj_unit"] / theory["priv_unit"], abs=1e-4)
  assert (tmp_path / "run" / "error_dim.png").stat().st_size > 10_000


def test_an_interrupted_run_continues_with_the_same_bits(tmp_path, monkeypatch):
  given = SMALL | {
    "mechanisms": ("gaussian", "laplace"),
    "dims": (8, 16),
    "cohorts": (2,),
    "repetitions": 3,
  }
  whole = run(tmp_path / "whole", **given)[1]
  measure, calls = binary.measure, []

  def interrupted(*args):
    calls.append(args)
    if len(calls) > 2:
      raise KeyboardInterrupt
    return measure(*args)

  monkeypatch.setattr(binary, "measure", interrupted)
  with pytest.raises(KeyboardInterrupt):
    run(tmp_path / "cut", **given)
  assert len(files.read_rows(tmp_path / "cut" / "run" / "results.jsonl")) == 2
  monkeypatch.setattr(binary, "measure", measure)
  assert run(tmp_path / "cut", resume=True)[1] == whole


def test_an_interval_that_misses_the_closed_form_is_named():
  row = {"mechanism": "priv_unit", "theory": 10.0}
  assert agrees(row, Interval(10.4, 0.5))
  assert not agrees(row, Interval(10.6, 0.5))
  assert not agrees(row, Interval(9.4, 0.5))
  bound = {"mechanism": "priv_unit_on_grid", "theory": 10.0}
  assert agrees(bound, Interval(9.4, 0.5))
  assert not agrees(bound, Interval(10.6, 0.5))


@pytest.mark.parametrize(
  ("given", "message"),
  [
    ({"num_projections": (65,)}, "Expected --num_projections of at most 64"),
    ({"values": "digits", "dims": None, "cohorts": (1438,)}, "Expected --cohorts of at most 1437"),
    ({"values": "digits"}, "Expected --dims only with --values=normal or signs"),
    ({"epsilons": (0.0,)}, "Expected --epsilons"),
    ({"repetitions": 1}, "Expected --repetitions"),
  ],
)
def test_refusals_come_before_anything_is_written(tmp_path, given, message):
  merged = {name: value for name, value in (SMALL | given).items() if value is not None}
  with pytest.raises(ValueError, match=message):
    run(tmp_path, **merged)
  assert not (tmp_path / "run").exists()


def test_the_best_split_is_the_best_of_the_table_and_as_measured():
  part = split_part(binary.MeanEstimationOptions(budgets=(8.0,)))
  cells = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in part.text.splitlines()
    if line[:1] == "|"
  ]
  best, worst_case, halves = cells[2:]
  norms = np.linalg.norm(gradients("test"), axis=1)
  expected = best_split(650, 8.0, math.ceil(10 * norms.max()) / 10, norms)
  assert float(best[2]) == pytest.approx(expected.direction, rel=1e-3)
  assert float(best[4]) < min(float(worst_case[4]), float(halves[4]))
  measured, half_width = map(float, best[5].split(" +- "))
  assert half_width < 0.1 * measured
  # 1e-6 for normal means: 4.9 standard errors
  assert abs(measured - float(best[4])) <= 2.5 * half_width


def test_averaged_sgd_has_the_covariance_of_the_theory():
  """1,500 runs: variances 30 % too large, or without the mechanism's part, are told apart."""
  release = sgd_asymptotics.releases()["PrivUnit 4 + ScalarDP 4"]
  steps = sgd_asymptotics.Steps(1000)
  count = 1500
  run = jax.jit(lambda key: sgd_asymptotics.averages(key, release.mechanism, steps, count))
  squares = np.asarray(run(jax.random.key(0)), float) ** 2
  expected = sgd_asymptotics.covariance(release.noise(), steps)
  low, high = stats.chi2.ppf([1e-6 / 6, 1 - 1e-6 / 6], count) / count
  ratios = squares.mean(axis=0) / expected
  # iterates are not at x*: more noise
  assert np.all((low * 0.99 <= ratios) & (ratios <= high * 1.06))
  assert high * 1.06 < 1.3
  without_privacy = sgd_asymptotics.covariance(sgd_asymptotics.CURVATURES, steps)
  assert np.all(squares.mean(axis=0) > 1.5 * without_privacy)


def test_the_covariance_of_finitely_many_steps_tends_to_the_limit():
  noise = np.array([1.0, 2.0, 3.0])
  counts, limit = (500, 50_000), sgd_asymptotics.limit(noise)
  ratios = [sgd_asymptotics.covariance(noise, sgd_asymptotics.Steps(n)) / limit - 1 for n in counts]
  assert np.all(np.abs(ratios[1]) < 0.4 * np.abs(ratios[0]))
  assert np.all(np.abs(ratios[1]) < 0.03)


def test_averaged_sgd_of_many_dimensions_has_the_error_of_the_theory():
  """400 runs: of a chi-squared sum of 20 coordinates, 12 % more or less is told apart."""
  steps = sgd_asymptotics.Steps(100)
  mechanism = ESTIMATORS["priv_unit"].make(Setting(20, 4.0, 2, 1.0))
  run = jax.jit(
    lambda key: location_sgd.squared_distances(key, mechanism, dim=20, steps=steps, repetitions=400)
  )
  found = np.asarray(run(jax.random.key(0)), float)
  expected = location_sgd.spread(steps, np.ones(1))[0] * (1 + mechanism.mean_squared_error(1.0))
  assert_mean_is(found, expected, catches=0.2)


def test_gradient_descent_on_vertices_has_the_error_of_the_theory():
  """400 runs: a relative 20 % is told apart, as the release's variance or the start's share."""
  case = mirror_descent.MirrorCase("PrivUnit-infinity, gradient descent", "dense", 20, 4.0)
  mechanism = ESTIMATORS["priv_unit_linf"].make(Setting(20, 4.0, 2, 20**-0.5))
  target = jax.numpy.asarray(mirror_descent.optimum(case.optimum, case.dim), jax.numpy.float32)
  run = jax.jit(
    lambda key: mirror_descent.squared_distances(key, target, case, mechanism, 100, 400)
  )
  found = np.asarray(run(jax.random.key(0)), float)
  assert_mean_is(found, mirror_descent.expected(case, mechanism, 100), catches=0.2)


def test_the_bound_of_mirror_descent_is_by_the_largest_entry_and_the_sum():
  """G = d^(1/q) / m and p = q / (q - 1); gradient descent has the L2 norms in their place."""
  dim, steps = 1000, 500
  mechanism = ESTIMATORS["priv_unit_linf"].make(Setting(dim, 4.0, 2, dim**-0.5))
  largest = math.sqrt(1 + mechanism.mean_squared_error(1.0))  # 1/m
  bounds = {
    (method, kind): mirror_descent.bound(
      mirror_descent.MirrorCase(method, kind, dim, 4.0), mechanism, steps
    )[1]
    for method in mirror_descent.METHODS
    for kind in mirror_descent.OPTIMA
  }
  q = 2 * math.log(dim)
  size = (4 * 0.5 ** (q / (q - 1))) ** ((q - 1) / q)
  mirrored = size * math.sqrt(math.e) * largest * math.sqrt((q - 1) / steps)
  assert bounds["PrivUnit-infinity, mirror descent", "sparse"] == pytest.approx(mirrored)
  euclidean = math.sqrt(dim / steps) * largest
  for kind in mirror_descent.OPTIMA:
    assert bounds["PrivUnit-infinity, gradient descent", kind] == pytest.approx(euclidean)
  assert mirrored < euclidean < bounds["PrivUnit-infinity, mirror descent", "dense"]


def test_mirror_descent_in_the_report(tmp_path):
  given = {"task": ("mirror",), "dims": (40,), "epsilons": (8.0,), "sgd_steps": 300}
  report, _ = run(tmp_path, sgd_repetitions=20, **given)
  rows = files.read_json(tmp_path / "run" / "results.json")["mirror.jsonl"]
  errors = {(row["method"], row["optimum"]): row["measured"]["mean"] for row in rows}
  # Half of gradient descent's on a sparse optimum, and twice it on a dense one, by wide margins.
  for row in rows:
    assert 0 < row["measured"]["mean"] < row["bound"]
  mirror, euclidean = "PrivUnit-infinity, mirror descent", "PrivUnit-infinity, gradient descent"
  assert errors[mirror, "sparse"] < errors[euclidean, "sparse"]
  assert errors[mirror, "dense"] > errors[euclidean, "dense"]
  assert re.search(r"^\| sparse +\| 40 +\| PrivUnit, gradient descent +\|", report, re.M)
  assert (tmp_path / "run" / "mirror.png").stat().st_size > 5000


def test_samplers_draw_from_their_parts_as_often_as_they_say(tmp_path):
  """4,000 draws: with probability 1e-6 a share is further off; 10 % of p is told apart."""
  count = 4000
  given = {"task": ("samplers",), "dims": (3,), "epsilons": (2.0,), "repetitions": count}
  text, _ = run(tmp_path, **given)
  lines = [re.split(r" *\| *", line)[1:-1] for line in text.splitlines() if "| 3 " in line]
  assert [line[0] for line in lines] == ["hemisphere", "priv_unit"]
  for name, _, _, gamma, p, drawn, _, error, theory in lines:
    assert (float(gamma) == 0) == (name == "hemisphere")
    assert_proportion(round(float(drawn) * count), count, float(p), catches=0.1)
    mean, half_width = map(float, error.split(" +- "))
    assert abs(mean - float(theory)) < 2.5 * half_width  # 4.9 standard errors: 1e-6
  hemispheres, caps = (float(line[-1]) for line in lines)
  assert caps < hemispheres
  assert (tmp_path / "run" / "samplers.png").stat().st_size > 5000
