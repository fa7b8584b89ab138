"""What a planned run's epsilon needs not import."""

import subprocess
import sys

_PLAN = (
  "import sys; from jdp.command_line import main;"
  "main('plan --population 10000 --cohort 200 --rounds 500 --delta 1e-5 --epsilon 2'.split());"
  "print([name for name in ('scipy.stats', 'flax', 'optax') if name in sys.modules])"
)


def test_a_plan_imports_none_of_what_takes_long():
  done = subprocess.run([sys.executable, "-c", _PLAN], capture_output=True, text=True, check=True)
  assert done.stdout.splitlines()[-1] == "[]"
