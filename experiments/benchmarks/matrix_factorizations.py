r"""The searches for strategies, beside jax_privacy's: error and seconds.

    python -m experiments.benchmarks.matrix_factorizations \
      --jax_privacy_python=JAX_PRIVACY/bin/python

jax_privacy lives in an environment of its own (`pip install jax_privacy`). If its Python is not
named it is left out. Each of its searches is a process. Its time does not count imports, but what
it compiles, as a user waits for that. Both strategies' errors are computed here, by the same code,
as errors times sensitivity for the participation that the setting is for.
"""

import json
import pathlib
import subprocess
import tempfile
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from absl import app, flags

from experiments.benchmarks import harness
from jdp import matrix_factorization as mf
from jdp.matrix_factorization.banded_matrices import BandedStrategy
from jdp.matrix_factorization.toeplitz import from_coefficients

_PYTHON = flags.DEFINE_string(
  "jax_privacy_python", None, "Python of an environment with jax_privacy."
)
_ONLY = flags.DEFINE_list("settings", [], "Numbers of the settings, from 0. Default: all.")
_LIMIT = flags.DEFINE_float("limit", 600.0, "Seconds after which a peer's search is stopped.")
_SCRIPT = pathlib.Path(__file__).parent / "peers" / "jax_privacy_strategies.py"
_LAST = 60  # characters of what a search that failed says, of which the first repeat themselves
_EQUAL = 1 + 1e-6  # the errors' ratio up to which neither strategy counts as worse


class Setting(NamedTuple):
  """What to search for.

  Attributes:
    kind: banded_toeplitz, banded or buffered.
    num_rounds: n.
    size: bands, or buffers.
    objective: "mean" or "max".
    separation: least distance of one user's rounds.
    most: the most participations.
  """

  kind: str
  num_rounds: int
  size: int
  objective: str
  separation: int
  most: int


SETTINGS = (
  Setting("banded_toeplitz", 100, 8, "mean", 8, 1),
  Setting("banded_toeplitz", 1000, 16, "mean", 16, 1),
  Setting("banded_toeplitz", 1000, 64, "max", 64, 1),
  Setting("banded_toeplitz", 10_000, 32, "mean", 32, 1),
  Setting("banded", 64, 8, "mean", 8, 1),
  Setting("banded", 200, 16, "mean", 16, 1),
  Setting("banded", 400, 8, "mean", 8, 1),
  Setting("banded", 10_000, 32, "mean", 32, 1),
  Setting("buffered", 100, 2, "max", 1, 1),
  Setting("buffered", 1000, 3, "max", 1, 1),
  Setting("buffered", 10_000, 3, "max", 1, 1),
  Setting("buffered", 1000, 2, "mean", 100, 10),
  Setting("buffered", 2000, 3, "max", 342, 6),
)


def search(setting: Setting) -> mf.Strategy:
  """The strategy by jdp."""
  n, size, objective = setting.num_rounds, setting.size, setting.objective
  if setting.kind == "buffered":
    return mf.buffered_toeplitz(
      n,
      buffers=size,
      objective=objective,
      min_separation=setting.separation,
      max_participations=setting.most,
    )
  make = mf.banded if setting.kind == "banded" else mf.banded_toeplitz
  return make(n, size, objective=objective)


def error(strategy: mf.Strategy, setting: Setting) -> float:
  """The objective: the error of the setting's participation, at a noise multiplier of 1."""
  measure = strategy.root_mean_squared_error if setting.objective == "mean" else strategy.max_error
  return measure(min_separation=setting.separation, max_participations=setting.most)


def _strategy(setting: Setting, numbers: np.ndarray) -> mf.Strategy:
  """The peer's strategy of its numbers."""
  n = setting.num_rounds
  if setting.kind == "banded":
    inside = np.arange(setting.size)[:, None] + np.arange(n) < n
    diagonals = np.where(inside, numbers, 0.0)
    return BandedStrategy(diagonals / np.linalg.norm(diagonals, axis=0))
  if setting.kind == "buffered":
    decay, scale = numbers
    numbers = np.append(1.0, decay ** np.arange(n - 1)[:, None] @ scale)
  return from_coefficients(numbers, n, 0)


def _theirs(setting: Setting, python: str) -> dict[str, Any]:
  """Seconds and error of the peer, or why there are none."""
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / "strategy.npy"
    # By its path: as a module it would import `experiments`, which needs more than a peer has.
    command = [python, str(_SCRIPT), *map(str, setting), str(path)]
    try:
      done = subprocess.run(
        command, capture_output=True, text=True, timeout=_LIMIT.value, check=True
      )
    except subprocess.TimeoutExpired:
      return {"seconds": _LIMIT.value, "error": None, "note": "stopped"}
    except subprocess.CalledProcessError as failed:
      return {"seconds": None, "error": None, "note": failed.stderr.strip()[-_LAST:]}
    seconds = float(done.stdout.split()[-1])
    return {"seconds": seconds, "error": error(_strategy(setting, np.load(path)), setting)}


def _ours(setting: Setting) -> dict[str, Any]:
  start = time.perf_counter()
  strategy = search(setting)
  seconds = time.perf_counter() - start
  return {"seconds": seconds, "error": error(strategy, setting)}


def _verdict(ours: dict[str, Any], theirs: dict[str, Any] | None) -> str:
  """How the two compare, in words."""
  if theirs is None or theirs["seconds"] is None:
    return "no peer"
  faster = f"{theirs['seconds'] / ours['seconds']:.1f} times as fast"
  if theirs["error"] is None:
    return f"more than {faster}"
  worse = ours["error"] > theirs["error"] * _EQUAL
  return f"{'WORSE' if worse else 'no worse'}, {faster}"


def main(argv: Sequence[str]) -> None:
  """Prints a row for each setting, and appends it to the file named by --json."""
  del argv
  mf.banded(2, 2)  # so that what searches import does not count
  for setting in [SETTINGS[int(number)] for number in _ONLY.value] or SETTINGS:
    ours = _ours(setting)
    theirs = _theirs(setting, _PYTHON.value) if _PYTHON.value else None
    row = {"setting": setting._asdict(), "jdp": ours, "jax_privacy": theirs}
    print(*setting, ours, theirs, _verdict(ours, theirs), flush=True)
    if harness.JSON.value:
      with pathlib.Path(harness.JSON.value).open("a") as file:
        file.write(json.dumps({**row, "machine": harness.machine()}) + "\n")


if __name__ == "__main__":
  app.run(main)
