"""What an epsilon needs not import."""

import subprocess
import sys

import pytest

_PLANNED = (
  "from jdp.command_line import main;"
  "main('plan --population 10000 --cohort 200 --rounds 500 --delta 1e-5 --epsilon 2'.split())"
)
_CAPPED = (
  "from jdp import accounting, ledger;"
  "from jdp.events import GaussianSum, PoissonSampling, Round;"
  "event = Round(PoissonSampling(0.1, max_participations=5), GaussianSum(1.0, 2.0));"
  "print(accounting.epsilon(ledger.Ledger().append(event, count=40), 1e-5))"
)


@pytest.mark.parametrize("program", [_PLANNED, _CAPPED], ids=["planned", "capped"])
def test_an_epsilon_imports_none_of_what_takes_long(program):
  loaded = "print([name for name in ('scipy.stats', 'flax', 'optax') if name in sys.modules])"
  command = [sys.executable, "-c", f"import sys; {program}; {loaded}"]
  done = subprocess.run(command, capture_output=True, text=True, check=True)
  assert done.stdout.splitlines()[-1] == "[]"
