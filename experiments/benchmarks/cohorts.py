r"""Clients per second of DP-FedAvg and examples per second of DP-SGD, beside three peers.

    python -m experiments.benchmarks.cohorts --pfl_python=PFL/bin/python \
      --opacus_python=OPACUS/bin/python --jax_privacy_python=JAX_PRIVACY/bin/python

The peers are pfl-research, Opacus and jax_privacy. Each lives in an environment of its own: `pip
install pfl torch`, `pip install opacus`, `pip install jax_privacy optax flax`. A peer whose Python
is not named is left out.

Every case is a process, and the processes take turns. DP-FedAvg has 500 users of 10 examples, one
local step, clipping and Gaussian noise. DP-SGD has batches of 256 single examples.

Every layout of jdp stands beside what is chosen where nobody chooses: by a binary, by a bare
script, and by a script that calls `use_all_cores` first. Layouts and the binary's are compiled as a
block of rounds. The scripts call `train`, which starts each round from Python.

`--baseline=CHECKOUT` compares this checkout with another one instead, case by case.
"""

import os
from collections.abc import Sequence

from absl import app, flags

from experiments.benchmarks import checkouts, harness

PYTHONS = {
  "pfl_research": flags.DEFINE_string(
    "pfl_python", None, "Python of an environment with pfl-research and PyTorch."
  ),
  "opacus_ghost": flags.DEFINE_string(
    "opacus_python", None, "Python of an environment with Opacus."
  ),
  "jax_privacy_sgd": flags.DEFINE_string(
    "jax_privacy_python", None, "Python of an environment with jax_privacy."
  ),
}
TASKS = flags.DEFINE_list("tasks", ["federated", "example"], "DP-FedAvg, DP-SGD.")
MODELS = flags.DEFINE_list("models", ["logistic", "mlp", "cnn"], "Models to compare on.")

_PEERS = {"federated": ["pfl_research"], "example": ["opacus_ghost", "jax_privacy_sgd"]}
_UNITS = {"federated": "clients", "example": "examples"}


# Clients side by side, without and with ghost norms, beside the default sizes of 1 and 64.
_CHUNKS = {0: (4, 16), 1: (16, 256)}
_DEFAULTS = {
  "jdp, a binary's default": "binary",
  "jdp, a bare script": "script",
  "jdp, a script on all cores": "cores",
}


def _kinds(model: str) -> tuple[int, ...]:
  """Whether ghost norms are tried: they are for dense layers, and this network has others."""
  return (0,) if model == "cnn" else (0, 1)


def _default_chunks(task: str, model: str) -> dict[str, checkouts.Command]:
  """jdp's cases by name, in chunks of the default size."""
  cores, cases = os.cpu_count() or 1, {}
  for ghost in _kinds(model):
    for devices in sorted({1, cores}):
      name = f"jdp{', ghost norms' if ghost else ''}, {devices} device{'s' if devices > 1 else ''}"
      cases[name] = checkouts.Command(["jdp_rounds.py", task, model, str(ghost)], devices)
  return cases


def _layouts(task: str, model: str) -> dict[str, checkouts.Command]:
  """Every layout, and what is chosen where nobody chooses, by name."""
  cores, cases = os.cpu_count() or 1, _default_chunks(task, model)
  for ghost in _kinds(model):
    for size in _CHUNKS[ghost]:
      name = f"jdp{', ghost norms' if ghost else ''}, {cores} devices, chunks of {size}"
      cases[name] = checkouts.Command(["jdp_rounds.py", task, model, f"{ghost}:{size}"], cores)
  for name, layout in _DEFAULTS.items():
    cases[name] = checkouts.Command(["jdp_rounds.py", task, model, layout], None)
  return cases


def _peers(task: str, model: str) -> dict[str, checkouts.Command]:
  """The peers whose Python is named, by name; the first one is the baseline."""
  named = ((peer, PYTHONS[peer].value) for peer in _PEERS[task])
  return {
    peer: checkouts.Command([f"{peer}.py", task, model], python=python)
    for peer, python in named
    if python
  }


def main(argv: Sequence[str]) -> None:
  """Prints a table for each task and model.

  Ratios refer to the first row, or with --baseline to the row above.
  """
  del argv
  for task in TASKS.value:
    for model in MODELS.value:
      if baseline := checkouts.BASELINE.value:
        timings = checkouts.before_and_after(_default_chunks(task, model), baseline)
      else:
        timings = checkouts.compare(_peers(task, model) | _layouts(task, model))
      harness.report(f"{task}, {model}", timings, _UNITS[task], json_path=harness.JSON.value)


if __name__ == "__main__":
  app.run(main)
