r"""Time and memory of a round against the size of its cohort, and against the number of devices.

    python -m experiments.benchmarks.cohort_sizes --json=results/cohort_sizes.jsonl --plot=FILE.png

Rounds of DP-FedAvg take cohorts of 60,000 users with an image each, in a new process for each size.
A round's time should grow as its cohort does, and its memory should not: that is the chunk's.

Weak scaling gives every device as many clients: to one, to all cores, to eight simulated devices,
and to two processes. What the machine has two of, eight devices share.

Memory is what rounds take beyond what was there after compiling, the users' data included. `--plot`
draws the rows of `--json`; with `--sizes= --each=0` it does nothing else.
"""

import json
import os
import pathlib
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from absl import app, flags
from matplotlib import pyplot as plt

from experiments.benchmarks import harness

_MODELS = flags.DEFINE_list("models", ["logistic", "cnn"], "Models to train.")
_SIZES = flags.DEFINE_list(
  "sizes", ["100", "300", "1000", "3000", "10000", "30000", "50000"], "Clients of a round."
)
_EACH = flags.DEFINE_integer("each", 1000, "Clients of each device, for weak scaling; 0: none.")
_PLOT = flags.DEFINE_string("plot", None, "A picture of what the file --json holds.")

_HERE = pathlib.Path(__file__).parents[2]
_SCRIPT = pathlib.Path("experiments", "benchmarks", "peers", "jdp_cohort.py")
_LABELS = {"logistic": "logistic, 7,850 weights", "cnn": "CNN, 26,010 weights"}


def measure(model: str, clients: int, devices: int, processes: int = 1) -> dict[str, Any]:
  """The medians of some rounds, each of whose processes has so many devices."""
  together = [str(_free_port()), str(processes)] if processes > 1 else []
  environment = os.environ | {
    "PYTHONPATH": str(_HERE),
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
  }
  workers = [
    subprocess.Popen(
      [sys.executable, str(_HERE / _SCRIPT), model, str(clients), *own],
      stdout=subprocess.PIPE,
      stderr=subprocess.DEVNULL,
      env=environment,
      text=True,
    )
    for own in ([*together, str(number)] if together else [] for number in range(processes))
  ]
  said = [worker.communicate()[0] for worker in workers]
  if any(worker.returncode for worker in workers):
    raise RuntimeError(
      f"Expected {model} to run with {clients} clients, got an error; run "
      f"{_SCRIPT} {model} {clients} to see it."
    )
  found = [json.loads(lines.splitlines()[-1]) for lines in said]
  return {
    "model": model,
    "clients": clients,
    "devices": devices,
    "processes": processes,
    "seconds": max(own["seconds"] for own in found),
    "cpu_seconds": sum(own["cpu_seconds"] for own in found),
    "resident_mib": max(own["resident_mib"] for own in found),
    "peak_mib": max(own["peak_mib"] for own in found),
  }


def _free_port() -> int:
  with socket.socket() as found:
    found.bind(("localhost", 0))
    return found.getsockname()[1]


def plot(rows: Sequence[Mapping[str, Any]], path: pathlib.Path) -> None:
  """Draws time and memory against the size of the cohort."""
  made, (time, memory) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
  for model, marker in zip(_LABELS, "os", strict=True):
    own = sorted((r for r in rows if r["model"] == model), key=lambda row: row["clients"])
    sizes = [row["clients"] for row in own]
    time.plot(sizes, [row["seconds"] for row in own], marker=marker, label=_LABELS[model])
    beyond = [row["peak_mib"] - row["resident_mib"] for row in own]
    memory.plot(sizes, beyond, marker=marker, label=_LABELS[model])
  time.set(xscale="log", yscale="log", xlabel="clients of a round", ylabel="seconds of a round")
  memory.set(
    xscale="log", ylim=(0, None), xlabel="clients of a round", ylabel="MiB that rounds take"
  )
  for axes in (time, memory):
    axes.grid(alpha=0.3)
    axes.legend()
  made.savefig(path, dpi=120)


def main(argv: Sequence[str]) -> None:
  """Measures and prints a row for each size, and for each way to weak scaling."""
  del argv
  if _PLOT.value and not harness.JSON.value:
    raise app.UsageError("Expected --json with --plot, which draws its rows; name a file.")
  cores = os.cpu_count() or 1
  cases = [(int(size), cores, 1, "size") for size in _SIZES.value if size]
  if _EACH.value:
    ways = [(1, 1), (cores, 1), (8, 1), (1, 2)]
    cases += [(_EACH.value * d * p, d, p, "weak scaling") for d, p in ways]
  print(
    f"{'':<14} {'model':<9} clients devices processes  s/round  CPU s  clients/s  MiB of rounds"
  )
  for model in _MODELS.value:
    for clients, devices, processes, title in cases:
      row = {"title": title, **measure(model, clients, devices, processes)}
      print(
        f"{title:<14} {model:<9} {clients:>7} {devices:>7} {processes:>9} {row['seconds']:>8.3f} "
        f"{row['cpu_seconds']:>6.2f} {clients / row['seconds']:>10,.0f} "
        f"{row['peak_mib'] - row['resident_mib']:>16.0f}",
        flush=True,
      )
      if harness.JSON.value:
        with pathlib.Path(harness.JSON.value).open("a") as file:
          file.write(json.dumps({**row, "machine": harness.machine()}) + "\n")
  if _PLOT.value and harness.JSON.value:
    lines = pathlib.Path(harness.JSON.value).read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if row["title"] == "size"]
    plot(rows, pathlib.Path(_PLOT.value))


if __name__ == "__main__":
  app.run(main)
