"""The reconstruction experiment: attacks stay below the bound where it holds, and would not if a
mechanism lied.
"""

import math
import re
import types

import numpy as np
import pytest

from experiments.reconstruction import __main__ as binary
from experiments.reconstruction import images, spheres
from experiments.reconstruction.spheres import Case, measure
from experiments.runner.estimators import ESTIMATORS
from jdp import mechanisms
from jdp.accounting.local import priv_unit, reconstruction
from jdp.guarantees import PureDP
from tests.experiments import runs
from tests.helpers import statistical

EXPERIMENT = binary.EXPERIMENT
TRIALS = 10_000


@pytest.mark.parametrize(
  "case",
  [
    Case("priv_unit", 2.0, 3, 3, 10.0),
    Case("priv_unit_g", 4.0, 10, 20),
    Case("separated", 4.0, 10, 10, 3.0),
    Case("laplace", 3.0, 3, 3),
    Case("gaussian", 8.0, 10, 10),
  ],
  ids=lambda case: case.mechanism,
)
def test_attacks_stay_below_both_bounds(case):
  """Lower limits of 99.9 %: were a mechanism on the bound at both alphas, it would fail for 2 of
  1,000 seeds.
  """
  for row in measure(case, (1.0, 0.5), TRIALS, seed=1):
    assert row["successes"] > 0
    assert row["lower"] <= min(row["bound"], row["sharp"])


def test_a_mechanism_that_spends_more_than_it_says_is_caught(monkeypatch):
  def liar(setting):
    return mechanisms.priv_unit(setting.dim, setting.epsilon)._replace(
      guarantee=PureDP(setting.epsilon / 4)
    )

  monkeypatch.setitem(ESTIMATORS, "priv_unit", ESTIMATORS["priv_unit"]._replace(make=liar))
  (row,) = measure(Case("priv_unit", 4.0, 3, 3), (0.5,), TRIALS, seed=1)
  assert row["lower"] > row["bound"]


def test_priv_units_chance_of_success_in_closed_form():
  """The ball of success lies in the mechanism's cap, so it holds p times its share of the cap; 10 %
  off is caught.
  """
  case, alpha = Case("priv_unit", 4.0, 3, 3), 0.5
  own = priv_unit.optimal_cap(3, 4.0)
  assert 1 - alpha**2 / 2 > own.gamma
  expected = own.p * math.exp(reconstruction.log_guess(3, alpha) - own.log_q)
  (row,) = measure(case, (alpha,), TRIALS, seed=2)
  statistical.assert_proportion(row["successes"], row["trials"], expected, catches=0.1)


def test_a_prior_within_its_density_ratio():
  """A cap of a fifth of the sphere: a tenth of it is half of that; an error of 10 % is caught."""
  values = spheres.values_of(Case("priv_unit", 1.0, 4, 9, 5.0), np.random.default_rng(0), 20_000)
  np.testing.assert_allclose(np.linalg.norm(values, axis=1), 1.0, atol=1e-5)
  heights = values[:, 0] / np.linalg.norm(values[:, :4], axis=1)
  rim, middle = (float(priv_unit.quantile(4, math.log(share))[0]) for share in (0.2, 0.1))
  assert heights.min() >= rim - 1e-6
  statistical.assert_proportion(np.sum(heights >= middle), len(values), 0.5, catches=0.1)


def test_an_epsilon_that_a_mechanism_refuses_is_left_out_before_any_work():
  """So little noise that float32 ends: a run of minutes stopped there."""
  own = types.SimpleNamespace(directions=np.zeros((1, 784)))
  offered, refused = images.mechanisms_of(("priv_unit", "gaussian"), (8.0, 2048.0), own)
  assert list(offered) == [("priv_unit", 8.0), ("priv_unit", 2048.0), ("gaussian", 8.0)]
  (reason,) = refused
  assert re.match("gaussian at epsilon 2048: Expected delta above", reason)
  with pytest.raises(ValueError, match="gaussian at epsilon 2048"):
    images.mechanisms_of(("gaussian",), (2048.0,), own)


def test_the_whole_report(tmp_path):
  given = {
    "mechanisms": ("separated",),
    "epsilons": (64.0,),
    "dims": (3, 784),
    "density_ratios": (1.0,),
    "ambient": 3,
    "trials": 500,
    "users": 60,
    "releases": 3,
    "cohort": 20,
    "cnn_epsilons": (500.0,),
    "cnn_users": 1,
    "cnn_steps": 2,
  }
  given |= {"task": ("bound", "spheres", "images", "cnn")}
  finished = runs.run(EXPERIMENT, tmp_path / "run", **given)
  report = finished.report
  assert re.search(r"^\| 784 +\| 1 +\| 3.4655e-51 +\| 109.281", report, re.M)
  exact = float(re.search(r"relative error of at most (\S+)\.", report).group(1))
  assert exact < 1e-5
  lines = [re.split(r" *\| *", row) for row in report.splitlines()]
  cells = {(line[1], line[3], line[4]): line[5:] for line in lines if len(line) == 9}
  assert cells["no privacy", "one release", "none"][0].startswith("100.0 %")
  shares = [
    float(cells["separated", view, "none"][2])
    for view in ("sum of 20", "one release", "3 releases")
  ]
  assert shares == sorted(shares)  # cosines: more is seen of a user alone, and of more releases
  cosines = {
    line[1]: float(line[2]) for line in lines if len(line) == 6 and re.match("∞|500", line[1])
  }
  assert list(cosines) == ["∞", "∞, no prior", "500", "500, no prior", "500, 3 releases"]
  # In two steps an attack hardly leaves its start: the public image of the nearest gradient, or
  # grey.
  assert cosines["∞"] > 0.9 > 0.8 > cosines["∞, no prior"]
  # The judges differ, the reconstructions are the same: from an exact gradient both succeed.
  bases = {line[1]: line[3:7] for line in lines if len(line) == 8 and "%" in line[3]}
  assert [cell[:7] for cell in bases["no privacy"]] == ["100.0 %"] * 4
  assert bases["separated"][0] == cells["separated", "one release", "public"][0]
  kept = finished.results
  (exact_row, private_row) = kept["images.jsonl"]
  assert exact_row["views"][1]["successes"] == {"dct": [60, 60], "haar": [60, 60]}
  assert private_row["epsilon"] == 64.0
  assert len(kept["spheres.jsonl"]) == 1
  for name in ("protection", "spheres", "images", "pictures", "cnn"):
    assert (tmp_path / "run" / f"{name}.png").stat().st_size > 5000


@pytest.mark.parametrize(
  ("given", "message"),
  [
    ({"density_ratios": (1.5,)}, "density_ratios"),
    ({"cohort": 201}, "cohort"),
    ({"users": 361, "task": ("images",)}, "360, the test images"),
    ({"alphas": (1.5,)}, "alphas"),
  ],
)
def test_wrong_options_are_refused(tmp_path, given, message):
  with pytest.raises(ValueError, match=message):
    runs.prepare(EXPERIMENT, tmp_path / "run", **given)
