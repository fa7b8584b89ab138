"""Seconds of an import in a new process, beside those of `import jax`.

    python -m experiments.benchmarks.imports --opacus_python=OPACUS/bin/python \
      --jax_privacy_python=JAX_PRIVACY/bin/python

Each peer lives in an environment of its own (see `cohorts`). A peer whose Python is not named is
left out.
"""

import functools
import subprocess
import sys
from collections.abc import Sequence

from absl import app, flags

from experiments.benchmarks import harness

PYTHONS = {
  "jax_privacy": flags.DEFINE_string(
    "jax_privacy_python", None, "Python of an environment with jax_privacy."
  ),
  "opacus": flags.DEFINE_string("opacus_python", None, "Python of an environment with Opacus."),
}
_OWN = {
  "jax": "import jax",
  "jdp": "import jdp",
  "jdp, with mechanisms and accounting": "from jdp import mechanisms, accounting",
  "jdp, with all that trains a model": "from jdp import accounting, data, federated, models",
}


def _import(python: str, statement: str) -> None:
  """Runs a statement in a new process."""
  subprocess.run([python, "-c", statement], check=True)


def main(argv: Sequence[str]) -> None:
  """Prints a table; ratios refer to `import jax`."""
  del argv
  commands = {name: (sys.executable, statement) for name, statement in _OWN.items()}
  for name, python in PYTHONS.items():
    if python.value:
      commands[name] = (python.value, f"import {name}")
  cases = {
    name: harness.Case(functools.partial(_import, *command), 1.0)
    for name, command in commands.items()
  }
  timings = harness.compare(cases, baseline="jax", rounds=harness.ROUNDS.value)
  harness.report("import", timings, "imports", json_path=harness.JSON.value)


if __name__ == "__main__":
  app.run(main)
