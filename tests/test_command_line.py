"""The command `jdp`: what it prints holds, and what it cannot answer is a sentence."""

import importlib.metadata
import json
import subprocess
import sys

import pytest

import jdp
from jdp import _distribution, accounting, events, guarantees, ledger, mechanisms
from jdp.command_line import main
from jdp.events.base import EVENT_TYPES
from jdp.mechanisms import registry

POPULATION = "plan --population 10000 --delta 1e-5 "
PLAN = POPULATION + "--cohort 200 "


def rows(capsys):
  """Rounds, multiplier, epsilon and least epsilon of each row below the table's header."""
  cells = [line.split() for line in capsys.readouterr().out.splitlines()[3:-5]]
  return [[*row[1:3], *row[4:6]] for row in cells]


def test_printed_noise_meets_the_target_and_a_thousandth_less_does_not(capsys):
  assert main((PLAN + "--rounds 100 500 --epsilon 1 2").split()) == 0
  found = rows(capsys)
  assert len(found) == 4
  for (rounds, z, epsilon, lower), target in zip(found, (1, 2, 1, 2), strict=True):
    run = ledger.subsampled_gaussian(0.02, float(z), int(rounds))
    assert accounting.epsilon(run, 1e-5) <= float(epsilon) <= target
    assert accounting.epsilon(run, 1e-5, accountant="pld") >= float(lower) > 0
    less = ledger.subsampled_gaussian(0.02, 0.998 * float(z), int(rounds))
    assert accounting.epsilon(less, 1e-5) > target


def test_rounds_and_epsilon_are_found_from_the_other_two(capsys):
  assert main((PLAN + "--noise-multiplier 1.1 --epsilon 2").split()) == 0
  ((rounds, _, epsilon, _),) = rows(capsys)
  assert main((PLAN + f"--noise-multiplier 1.1 --rounds {rounds} {int(rounds) + 1}").split()) == 0
  within, beyond = rows(capsys)
  assert within[2] == epsilon
  assert float(within[2]) <= 2 < float(beyond[2])


def test_the_largest_cohort_is_found_and_noise_is_compared_by_the_average(capsys):
  words = POPULATION + "--rounds 100 --epsilon 2 --noise-multiplier 1"
  assert main(words.split()) == 0
  (cohort, rounds, z, noise, *_) = capsys.readouterr().out.splitlines()[3].split()
  assert (rounds, z) == ("100", "1")
  assert float(noise) == pytest.approx(1 / int(cohort), rel=1e-2)
  for size, within in ((int(cohort), True), (int(cohort) + 1, False)):
    run = ledger.subsampled_gaussian(size / 10_000, 1.0, 100)
    assert (accounting.epsilon(run, 1e-5) <= 2) == within


def test_a_delta_that_promises_nothing_is_named(capsys):
  words = "plan --population 100 --cohort 10 --rounds 1 --noise-multiplier 9 --delta 0.01"
  assert main(words.split()) == 0
  assert "--delta below 1 / 100, got 0.01" in capsys.readouterr().err


def test_a_table_goes_on_where_no_plan_meets_a_target(capsys):
  assert main((PLAN + "--noise-multiplier 0.3 1.1 --epsilon 1").split()) == 0
  *found, reason = rows(capsys)
  assert found[0] == ["none", "0.3", "1", "none"]
  assert int(found[1][0]) >= 1
  assert reason[:2] == ["Expected", "a"]


def test_a_ledger_is_read_for_each_observer_and_says_what_speaks_against_it(capsys, tmp_path):
  event = events.Round(events.PoissonSampling(0.1), events.GaussianSum(1.0, 2.0), key_exposed=True)
  spent = ledger.Ledger().append(event, count=10)
  spent.save(tmp_path / "ledger.jsonl")
  assert main(["epsilon", str(tmp_path / "ledger.jsonl"), "--delta", "1e-5"]) == 0
  statement, gain = capsys.readouterr().out.splitlines()
  (said,) = accounting.privacy_statements(spent, 1e-5)
  assert statement == str(said)
  assert statement.startswith("NOT PRIVATE: the noise of 10 of 10 events")
  assert str(accounting.attacker_gain(spent)) in gain


def test_a_ledgers_statements_are_json_too_and_a_picture(capsys, tmp_path):
  spent = ledger.subsampled_gaussian(0.1, 2.0, 10)
  local = events.LocalRelease(guarantees.PureDP(1.0, unit="user"), max_releases=2)
  spent.append(local, count=3).save(tmp_path / "ledger.jsonl")
  words = ["epsilon", str(tmp_path / "ledger.jsonl"), "--delta", "1e-5"]
  assert main([*words, "--json", "--plot", str(tmp_path / "curve.png")]) == 0
  model, server = json.loads(capsys.readouterr().out)["statements"]
  assert model["epsilon"] == accounting.epsilon(spent, 1e-5)
  assert (model["relation"], model["unit"], model["caveats"]) == ("add_remove", "user", [])
  assert (server["observer"], server["relation"]) == ("server", "replace_one")
  assert server["epsilon"] == pytest.approx(2.0, rel=1e-4)
  assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
  ("command", "message"),
  [
    (PLAN + "--rounds 10", "Expected three of"),
    (PLAN + "--rounds 10 --epsilon 1 --noise-multiplier 1", "got 4"),
    (PLAN + "--rounds 0 --epsilon 1", "Expected"),
    (PLAN + "--rounds 10 --epsilon nan", "Expected target_epsilon"),
    (PLAN.replace("10000", "100") + "--rounds 10 --epsilon 1", "--cohort from 1 to 100"),
    ("epsilon missing.jsonl --delta 1e-5", "no such file"),
    ("audit nothing", "Expected registered names"),
    ("audit --import=no_such_package laplace", "Expected --import to name a module"),
    ("audit --import=.x laplace", "Expected --import to name a module"),
    ("audit --import= laplace", "Expected --import to name a module"),
    (PLAN + "--noise-multiplier 0.1 0.2 --epsilon 1", "Expected a target_epsilon that one round"),
  ],
)
def test_what_cannot_be_answered_is_a_sentence(capsys, command, message):
  assert main(command.split()) == 2
  assert message in capsys.readouterr().err


def test_a_strangers_registrations_are_imported(capsys, monkeypatch, tmp_path, undone):
  (tmp_path / "my_package.py").write_text(
    "from jdp import accounting, events, mechanisms\n"
    "@events.register\n"
    "class MySum(events.EventBase):\n"
    "  noise: float\n"
    "accounting.charge_as(MySum, lambda event: events.GaussianSum(1.0, event.noise))\n"
    "mechanisms.registry.register('mine', lambda setting: mechanisms.laplace(setting.epsilon, 2.0))"
  )
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, "path", [*sys.path])
  monkeypatch.delitem(sys.modules, "my_package", raising=False)
  assert main(["audit", "mine"]) == 2
  assert main(["audit", "mine", "--import=my_package", "--samples", "2000"]) == 0
  assert "mine, per value" in capsys.readouterr().out
  event = EVENT_TYPES["MySum"](2.0)
  run = ledger.Ledger().append(events.Round(events.PoissonSampling(0.1), event))
  run.save("ledger.jsonl")
  assert main(["epsilon", "ledger.jsonl", "--delta", "1e-5", "--import=my_package"]) == 0
  assert "-DP per user" in capsys.readouterr().out


@pytest.mark.slow
def test_an_audit_of_a_broken_mechanism_fails(capsys, monkeypatch):
  assert main(["audit", "laplace", "--samples", "20000"]) == 0
  assert "not refuted" in capsys.readouterr().out
  monkeypatch.setattr(registry, "_MECHANISMS", dict(registry._MECHANISMS))

  def make(setting):  # a fourth of the noise that it states
    return mechanisms.laplace(4 * setting.epsilon, 2.0)._replace(
      guarantee=mechanisms.laplace(setting.epsilon, 2.0).guarantee
    )

  registry.register("broken", make)
  assert main(["audit", "broken", "--samples", "20000"]) == 1
  assert "REFUTED" in capsys.readouterr().out


@pytest.mark.slow
def test_the_command_starts_no_backend():
  """A plan needs no device: two processes may hold the accelerator."""
  code = (
    "import sys; from jdp.command_line import main; main(sys.argv[1:]);"
    "from jax._src import xla_bridge; sys.exit(bool(xla_bridge._backends))"
  )
  command = [sys.executable, "-c", code, *(PLAN + "--rounds 10 --epsilon 1").split()]
  assert subprocess.run(command, check=False, capture_output=True).returncode == 0


def test_the_version_is_that_of_the_installed_distribution():
  assert jdp.__version__ == importlib.metadata.version(_distribution.NAME)


_JDP = [sys.executable, "-c", "import sys; from jdp.command_line import main; sys.exit(main())"]


@pytest.mark.slow
@pytest.mark.parametrize(
  "command",
  [
    [*_JDP, "--help"],
    [*_JDP, *(PLAN + "--rounds 5 --noise-multiplier 1").split()],
    pytest.param(
      [sys.executable, "-m", "experiments.accounting", "--help"], marks=pytest.mark.slow
    ),
  ],
  ids=["help", "plan", "experiment"],
)
def test_a_reader_that_goes_away_gets_no_traceback(command):
  with subprocess.Popen(
    command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
  ) as process:
    process.stdout.close()  # before a word is printed, as imports take longer
    assert process.stderr.read() == ""
