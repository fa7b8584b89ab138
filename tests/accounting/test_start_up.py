"""What a planned run's epsilon needs not import, and what stands in for it."""

import subprocess
import sys

import numpy as np
import scipy

from jdp.accounting import calibration_search

_PLAN = (
  "import sys; from jdp.command_line import main;"
  "main('plan --population 10000 --cohort 200 --rounds 500 --delta 1e-5 --epsilon 2'.split());"
  "print([name for name in ('scipy.optimize', 'scipy.stats', 'flax', 'optax')"
  " if name in sys.modules])"
)


def test_a_plan_imports_none_of_what_takes_long():
  done = subprocess.run([sys.executable, "-c", _PLAN], capture_output=True, text=True, check=True)
  assert done.stdout.splitlines()[-1] == "[]"


def test_roots_are_scipy_s():
  """The same root to the last bit, by the same number of evaluations."""
  rng = np.random.default_rng(0)
  for shift, slope, curve in rng.uniform([-3, 0.1, 0], [3, 3, 1], (200, 3)).tolist():
    counts = {"ours": 0, "scipy": 0}

    def function(x, name, shift=shift, slope=slope, curve=curve, counts=counts):
      counts[name] += 1
      return float(np.arctan(slope * (x - shift)) + curve * (x - shift) ** 3)

    found = calibration_search.root(lambda x, f=function: f(x, "ours"), -4.0, 4.5)
    expected = scipy.optimize.brentq(
      lambda x, f=function: f(x, "scipy"), -4.0, 4.5, xtol=calibration_search.STEP
    )
    assert found == expected
    assert counts["ours"] <= counts["scipy"] + 1  # the first point, which callers have cached
