r"""Clients per second of DP-FedAvg and examples per second of DP-SGD, beside three peers.

    python -m experiments.benchmarks.cohorts --pfl_python=PFL/bin/python \
      --opacus_python=OPACUS/bin/python --jax_privacy_python=JAX_PRIVACY/bin/python

The peers are pfl-research, Opacus and jax_privacy. Each lives in an environment of its own: `pip
install pfl torch`, `pip install opacus`, `pip install jax_privacy optax flax`. A peer whose Python
is not named is left out.

Every case is a process, and the processes take turns. DP-FedAvg has 500 users of 10 examples, one
local step, clipping and Gaussian noise. DP-SGD has batches of 256 single examples.

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
MODELS = flags.DEFINE_list("models", ["logistic", "mlp", "cnn"], "Models to compare on.")

_PEERS = {"federated": ["pfl_research"], "example": ["opacus_ghost", "jax_privacy_sgd"]}
_UNITS = {"federated": "clients", "example": "examples"}


def _jdp(task: str, model: str) -> dict[str, checkouts.Command]:
  """jdp's cases by name."""
  cores, cases = os.cpu_count() or 1, {}
  # Ghost norms are for dense layers; the network with convolutions has none.
  for ghost in (0, 1) if model != "cnn" else (0,):
    for devices in sorted({1, cores}):
      name = f"jdp{', ghost norms' if ghost else ''}, {devices} device{'s' if devices > 1 else ''}"
      cases[name] = checkouts.Command(["jdp_rounds.py", task, model, str(ghost)], devices)
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
  for task, unit in _UNITS.items():
    for model in MODELS.value:
      if baseline := checkouts.BASELINE.value:
        timings = checkouts.before_and_after(_jdp(task, model), baseline)
      else:
        timings = checkouts.compare(_peers(task, model) | _jdp(task, model))
      harness.report(f"{task}, {model}", timings, unit, json_path=harness.JSON.value)


if __name__ == "__main__":
  app.run(main)
