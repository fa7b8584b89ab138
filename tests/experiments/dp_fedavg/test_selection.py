"""--select=private: the noise that its target leaves, what it refuses, and a run to its report."""

import pytest

from experiments.dp_fedavg import __main__ as dp_fedavg
from experiments.dp_fedavg.selection import paid
from experiments.runner import launch
from jdp import accounting, ledger
from tests.experiments import runs

TINY = {
  "num_rounds": 2,
  "eval_every": 2,
  "cohort_size": 20,
  "examples_per_user": 10,
  "target_epsilon": 6.0,
  "select": "private",
  "vary": ("local_learning_rate=0.1,1",),
}


def options(**given):
  return launch.options.resolve(dp_fedavg.DPFedAvgOptions, given, TINY)


@pytest.mark.parametrize(
  ("given", "message"),
  [
    ({"max_epsilon": 2.0}, "--max_epsilon=None with --select"),
    ({"diagnostics": True}, "--diagnostics=False with --select"),
    ({"clipping": "adaptive"}, "events follow the data"),
    ({"vary": ("clipping=flat,adaptive",)}, "events follow the data"),
    ({"vary": ("cohort_size=10,20",)}, "cost nothing with --select"),
    ({"score_noise": 0.01}, "target"),
  ],
)
def test_what_a_choice_does_not_heed_or_cannot_pay_is_refused(tmp_path, given, message):
  with pytest.raises(ValueError, match=message):
    runs.prepare(dp_fedavg.EXPERIMENT, tmp_path / "run", **TINY | given)
  assert not (tmp_path / "run").exists()


def test_options_of_a_choice_need_one():
  with pytest.raises(ValueError, match="--score_noise only with --select=private"):
    launch.options.resolve(
      dp_fedavg.DPFedAvgOptions, {"score_noise": 3.0}, {**TINY, "select": None}
    )


@pytest.mark.slow
def test_a_choice_states_one_epsilon_and_what_is_beside_it_is_marked(tmp_path):
  one = {"vary": ("local_learning_rate=1",), "select_beside": True, "seeds": 1}
  path, printed, _ = found = runs.run(dp_fedavg.EXPERIMENT, tmp_path / "run", **TINY | one)
  results = found.results
  choice, default, unpaid = results["summary"]
  assert 5.9 < choice["epsilon"] <= 6.0
  assert 5.9 < default["epsilon"] <= 6.0
  # The event of the ledger is that of a plan, and its noise more than that of one run alone.
  kept = ledger.load(path / "selected" / "0" / "ledger.jsonl")
  assert len(kept) == 1
  delta = 143**-1.1
  assert accounting.epsilon(kept, delta) == pytest.approx(choice["epsilon"])
  (event,) = kept
  problem = dp_fedavg.load_problem(options())
  noise = paid(options(), problem).noise_multiplier
  stated = event.query.rounds[0].query
  assert stated.stddev / stated.clip_norm == pytest.approx(noise)
  single = accounting.calibrate_noise_multiplier(6.0, delta, 20 / 143, 2)
  assert 1.05 * single < noise < 2 * single
  assert not any("score" in row for row in results["runs"])  # the exact ones are secret
  (reason,) = results["not_private"]
  assert "a score without noise" in reason
  assert "NOT PRIVATE" in unpaid["choice"]
  assert printed.count("NOT PRIVATE") >= 2
  assert "its duration tells of the number of runs" in found.report
  # Of the choice, the folder has what is released, and nothing of other runs.
  files = {file.name for file in (path / "selected" / "0").iterdir()}
  assert files == {"ledger.jsonl", "metrics.jsonl", "params.npz"}
  assert not (tmp_path / "run.secret").exists()
