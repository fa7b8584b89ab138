"""Everything that an experiment prints or plots holds: epsilons, deltas and enough noise up, what
is proved down.

Every accountant is made to say 22/3, and every audit to prove 23/3. Rounded to the nearest, the
first is too small and the second too large, in however many digits.
"""

import importlib
import re

import pytest
from matplotlib.text import Text

from experiments.accounting import __main__ as accounting_binary
from experiments.audit import __main__ as audit_binary
from experiments.client_dropout import report as client_dropout_report
from experiments.runner.reports import plots
from jdp import accounting
from jdp.audits.one_run import OneRunAudit
from jdp.conformance import auditing
from jdp.events import GaussianSum, LocalRelease, PoissonSampling, Round
from jdp.guarantees import PureDP
from jdp.ledger import Ledger
from tests.experiments import runs
from tests.experiments.client_dropout import test_client_dropout_experiment
from tests.experiments.correlated_noise import test_correlated_noise_experiment
from tests.experiments.dp_fedavg import test_dp_fedavg
from tests.experiments.draw_and_discard import test_draw_and_discard_experiment
from tests.experiments.general_approach import test_general_approach
from tests.experiments.private_federated import test_private_federated

EPSILON, PROVED, DELTA = 22 / 3, 23 / 3, 22e-6 / 3
TOO_SMALL, TOO_LARGE = (
  re.compile(rf"(?<![\d.]){digits}(?!\d)\S*") for digits in (r"7\.3{1,14}", r"7\.6*7|8\.0*")
)
ACCURACY = re.compile(r"[\d.]+ %( ± [\d.]+)?")  # is measured, and may be 7.3 %
# Runs have the shapes of each experiment's own tests, which compile their programs.
PRINTED = {"noise_seed": 3, "delta": DELTA}
FEDERATED = {**PRINTED, "noise_multiplier": EPSILON}
RUNS = {
  "accounting plan": {"task": "plan", "rounds": (10,), "delta": DELTA},
  "accounting calibrate": {
    "task": "calibrate",
    "target_epsilon": (EPSILON,),
    "delta": DELTA,
    "q": (0.1,),
  },
  "accounting published": {"task": "published"},
  "accounting ledger": {"task": "ledger", "delta": DELTA},
  "audit": {
    **{
      "task": ("local", "central"),
      "mechanisms": ("laplace",),
      "epsilons": (EPSILON,),
      "num_samples": 400_000,
    },
    **{
      "noise_multipliers": (1.0,),
      "participations": (0.5,),
      "num_rounds": 2,
      "num_canaries": 50,
      "num_guesses": 20,
    },
    **{"examples_per_user": 10, "delta": DELTA},
  },
  "client_dropout": {
    **test_client_dropout_experiment.TINY,
    **PRINTED,
    **{"target_epsilon": 2.0, "schemes": ("integers",), "dropouts": (0.3,)},
  },
  "correlated_noise": {
    **test_correlated_noise_experiment.TINY,
    **FEDERATED,
    "target_epsilon": None,
    "runs": ("tree", "banded"),
  },
  "dp_fedavg": {
    **test_dp_fedavg.TINY,
    **FEDERATED,
    "runs": ("private", "dp_sgd"),
    "noise_cohort_size": 2000,
    "noise_population": 100_000,
  },
  "draw_and_discard": {
    **test_draw_and_discard_experiment.TINY,
    **PRINTED,
    "batch_sizes": (),
    "epsilons": (EPSILON,),
  },
  "draw_and_discard spam": {
    "task": "spam",
    "num_rounds": 2,
    "epsilons": (EPSILON,),
    "noise_seed": 3,
  },
  "general_approach": {**test_general_approach.TINY, **PRINTED, "runs": ("joint",)},
  "mean_estimation": {
    **{"task": ("error", "sgd"), "sgd_steps": 20, "sgd_repetitions": 20},
    **{
      "mechanisms": ("priv_unit",),
      "epsilons": (EPSILON,),
      "num_projections": (16,),
      "dims": (64,),
    },
    **{"cohorts": (5,), "repetitions": 3, "noise_seed": 3},
  },
  "mean_estimation split": {"task": ("split",), "budgets": (EPSILON,)},
  "private_federated": {
    **test_private_federated.TINY,
    **FEDERATED,
    "max_epsilon": 100.0,
    **{"epsilon_directions": (EPSILON,), "epsilon_magnitude": EPSILON, "baselines": ("central",)},
  },
  "reconstruction": {
    **{
      "task": ("bound", "spheres"),
      "mechanisms": ("separated",),
      "epsilons": (EPSILON,),
      "dims": (3,),
    },
    **{"density_ratios": (1.0,), "ambient": 3, "trials": 500},
  },
}


@pytest.fixture
def drawn(monkeypatch) -> list[str]:
  """The words of all plots: titles, axes, legends and what is written at ticks; nothing is
  saved.
  """
  words: list[str] = []

  def save(made, path):
    del path
    words.extend(text.get_text() for text in made.findobj(Text))
    words.extend(label for axes in made.axes for label in axes.get_legend_handles_labels()[1])
    plots.plt.close(made)

  monkeypatch.setattr(plots, "save", save)
  return words


def _audit_all(subjects, key, *, report, **options):
  found = auditing.Audit(EPSILON, 0.0, PROVED, 0.999, ("first", "second"), "value", 9, 1, 10)
  for case in subjects:
    report(case, found)
  return dict.fromkeys(subjects, found)


@pytest.fixture(autouse=True)
def _stated(monkeypatch, tmp_path):
  """Accountants and audits that always say the same, and a ledger with a round and a release."""
  for name, value in (("epsilon", EPSILON), ("gaussian_epsilon", EPSILON), ("delta", DELTA)):
    monkeypatch.setattr(accounting, name, lambda *args, value=value, **kwargs: value)
  for module in (auditing, audit_binary):
    monkeypatch.setattr(module, "audit_all", _audit_all)
  monkeypatch.setattr(audit_binary, "audit_one_run", lambda *a, **k: OneRunAudit(PROVED, 9, 10, 50))
  # Four devices take longer to compile for.
  monkeypatch.setattr("experiments.mean_estimation.__main__.client_mesh", lambda: None)
  # a measurement, not a promise
  monkeypatch.setattr(client_dropout_report, "_multiplier", lambda query: 1.0)
  for name in ("z", "rounds"):
    monkeypatch.setitem(accounting_binary._CALIBRATIONS, name, lambda *args, **kwargs: EPSILON)
  Ledger().extend(
    [(Round(PoissonSampling(0.1), GaussianSum(1.0, 1.0)), 1), (LocalRelease(PureDP(EPSILON)), 1)]
  ).save(tmp_path / "ledger.jsonl")


@pytest.mark.parametrize("name", RUNS)
def test_what_is_printed_holds(name, tmp_path, drawn):
  binary = importlib.import_module(f"experiments.{name.split()[0]}.__main__")
  given = dict(RUNS[name])
  if given.get("task") == "ledger":
    given["ledger"] = str(tmp_path / "ledger.jsonl")
  finished = runs.run(binary.EXPERIMENT, tmp_path / "run", **given)
  report = finished.report
  assert re.search(r"(?<![\d.])7\.3*4", report)  # 22/3 is printed, and rounded up
  for text in (ACCURACY.sub("", text) for text in (finished.out, finished.err, report, *drawn)):
    assert TOO_SMALL.findall(text) == []
    if name == "audit":
      assert TOO_LARGE.findall(text) == []
