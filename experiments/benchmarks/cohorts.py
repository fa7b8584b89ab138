r"""Clients per second of DP-FedAvg and examples per second of DP-SGD, beside three peers.

    python -m experiments.benchmarks.cohorts --pfl_python=PFL/bin/python \
      --opacus_python=OPACUS/bin/python --jax_privacy_python=JAX_PRIVACY/bin/python

The peers are pfl-research, Opacus and jax_privacy. Each lives in an environment of its own: `pip
install pfl torch`, `pip install opacus`, `pip install jax_privacy optax flax`. A peer whose Python
is not named is left out.

The cases take turns, in an order that changes from turn to turn. DP-FedAvg has 500 users of 10
examples, one local step, clipping and Gaussian noise. DP-SGD has batches of 256 single examples.

Layouts of jdp stand beside what `train` does where nobody chooses. It is called in a binary, or a
script that calls `use_all_cores` first, and in a bare script that does not. Layouts are compiled as
a block of rounds. The share that a choice has of a layout's rate is the median over the turns, with
an interval of 95 %. Its share of the best is the least of them: noise makes it smaller.

`--json=FILE` gets a row for each task and model, and `--table` prints such a file in Markdown.

`--baseline=CHECKOUT` compares this checkout with another one instead, case by case.
"""

import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import app, flags
from scipy import stats

from experiments.benchmarks import checkouts, harness
from experiments.benchmarks.checkouts import Turn

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
TABLE = flags.DEFINE_string("table", None, "Print this file of results, and time nothing.")
MODELS = flags.DEFINE_list("models", ["logistic", "mlp", "cnn"], "Models to compare on.")

_PEERS = {"federated": ["pfl_research"], "example": ["opacus_ghost", "jax_privacy_sgd"]}
_UNITS = {"federated": "clients", "example": "examples"}
_TITLES = {
  "federated": "DP-FedAvg, 500 clients of 10 examples, one step: clients/s",
  "example": "DP-SGD, batches of 256 examples: examples/s",
}
_SIZES = {"logistic": "logistic, 7,850", "mlp": "MLP, 79,510", "cnn": "CNN, 26,010"}

# Clients side by side, without and with ghost norms, beside the default sizes of 1 and 64.
_CHUNKS = {"0": ("4", "16"), "1": ("16", "256")}
_BINARY, _SCRIPT, _BEST = "jdp, a binary", "jdp, a bare script", "jdp, the best layout"
_BY_TIME: dict[str, Callable[[Turn], float]] = {
  "wall": lambda turn: turn.rate,
  "cpu": lambda turn: turn.work / turn.cpu if turn.cpu else float("nan"),
}


def _layouts(model: str) -> list[str]:
  """The layouts to try. Ghost norms are for dense layers, and the CNN has others."""
  kinds = ("0",) if model == "cnn" else ("0", "1")
  return [kind + size for kind in kinds for size in ("", *(f":{n}" for n in _CHUNKS[kind]))]


def _layouts_by_devices(model: str) -> dict[int, list[str]]:
  """The layouts by the number of devices: all on all cores, and few on one device."""
  layouts = _layouts(model)
  return {1: [x for x in layouts if ":" not in x], os.cpu_count() or 1: layouts}


def _default_chunks(task: str, model: str) -> dict[str, checkouts.Command]:
  """jdp's cases by name, in chunks of the default size, each in a process of its own."""
  cases = {}
  for layout in _layouts(model):
    for devices in sorted({1, os.cpu_count() or 1}):
      if ":" not in layout:
        cases[_name(layout, devices)] = checkouts.Command(
          ("jdp_rounds.py", task, model, layout), devices, case=layout
        )
  return cases


def _name(layout: str, devices: int) -> str:
  ghost, _, size = layout.partition(":")
  return (
    f"jdp{', ghost norms' if ghost == '1' else ''}, {devices} device{'s' if devices > 1 else ''}"
    f"{f', chunks of {size}' if size else ''}"
  )


def _cases(task: str, model: str) -> dict[str, checkouts.Command]:
  """The peers whose Python is named, and all of jdp's cases, in two processes, by name."""
  layouts, script = _layouts_by_devices(model), ("jdp_rounds.py", task, model)
  commands = {
    devices: checkouts.Command((*script, *own, "train", *(["cores"] if devices > 1 else [])), None)
    for devices, own in layouts.items()
  }
  named = ((peer, PYTHONS[peer].value) for peer in _PEERS[task])
  cases = {
    peer: checkouts.Command((f"{peer}.py", task, model), python=python)
    for peer, python in named
    if python
  }
  for devices, command in commands.items():
    cases |= {_name(own, devices): command._replace(case=own) for own in layouts[devices]}
  return cases | {
    _BINARY: commands[max(commands)]._replace(case="train"),
    _SCRIPT: commands[1]._replace(case="train"),
  }


def share(
  turns: Sequence[Mapping[str, Turn]], choice: str, layouts: Sequence[str], measure: str
) -> dict[str, Any]:
  """The choice's share of the best layout's rate.

  Args:
    turns: a `Turn` for each case by name.
    choice: a case.
    layouts: the cases to compare it with.
    measure: "wall" or "cpu".

  Returns:
    The "median" of the ratios to the layout for which it is the least, the "low" and the "high" end
    of its interval of 95 %, and the name of that layout, "best".
  """
  rate = _BY_TIME[measure]
  ratios = {
    layout: sorted(rate(turn[choice]) / rate(turn[layout]) for turn in turns) for layout in layouts
  }
  best = min(ratios, key=lambda layout: statistics.median(ratios[layout]))
  own = ratios[best]
  # Fewer than `tail` of the ratios lie below the median with a probability of at most 2.5 %.
  tail = max(0, int(stats.binom.ppf(0.025, len(own), 0.5)) - 1)
  return {"median": statistics.median(own), "low": own[tail], "high": own[-1 - tail], "best": best}


def _compare(task: str, model: str) -> None:
  """Times a task and a model, and reports it."""
  cases = _cases(task, model)
  turns = checkouts.take_turns(cases)
  by_devices = {
    n: [_name(layout, n) for layout in own] for n, own in _layouts_by_devices(model).items()
  }
  anywhere = sorted({name for names in by_devices.values() for name in names})
  shares = {
    # Processor time is compared where as many devices share the work.
    _BINARY: {
      "wall": share(turns, _BINARY, anywhere, "wall"),
      "cpu": share(turns, _BINARY, by_devices[max(by_devices)], "cpu"),
    },
    _SCRIPT: {
      "wall": share(turns, _SCRIPT, anywhere, "wall"),
      "cpu": share(turns, _SCRIPT, by_devices[1], "cpu"),
    },
  }
  harness.report(
    f"{task}, {model}",
    checkouts.summary(turns, cases),
    _UNITS[task],
    shares=shares,
    json_path=harness.JSON.value,
  )


def table(rows: Sequence[Mapping[str, Any]]) -> str:
  """The Markdown of a file's rows. Of rows of one task and model, the last one counts."""
  found = {row["title"]: row for row in rows}
  parts = [
    f"Load of the machine: {min(r['machine']['load'] for r in rows):.1f} to "
    f"{max(r['machine']['load'] for r in rows):.1f}."
  ]
  for task, title in _TITLES.items():
    columns = [found[f"{task}, {model}"] for model in _SIZES if f"{task}, {model}" in found]
    if columns:
      sizes = [size for model, size in _SIZES.items() if f"{task}, {model}" in found]
      lines = [[title, *sizes], ["---"] * (1 + len(sizes)), *_lines(columns)]
      parts.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
  return "\n\n".join(parts)


def _lines(columns: Sequence[Mapping[str, Any]]) -> list[list[str]]:
  """A table's lines below its head."""
  names = [t["name"] for t in columns[0]["timings"] if not t["name"].startswith("jdp")]
  lines = [
    [name, *(_rate(column, name) for column in columns)] for name in (*names, _SCRIPT, _BINARY)
  ]
  lines.append([_BEST, *(_rate(c, c["shares"][_BINARY]["wall"]["best"]) for c in columns)])
  for measure, time in {"wall": "wall time", "cpu": "processor time"}.items():
    shares = [column["shares"][_BINARY][measure] for column in columns]
    lines.append(
      [
        f"the binary's share of the best, {time}",
        *(f"{s['median']:.2f} ({s['low']:.2f} to {s['high']:.2f})" for s in shares),
      ]
    )
  return lines


def _rate(column: Mapping[str, Any], name: str) -> str:
  """A case's rate, with its ratio to the first, and the layout of jdp's best."""
  timing = next(t for t in column["timings"] if t["name"] == name)
  first = column["timings"][0]["name"]
  ratio = "" if name == first else f" ({timing['ratio']:.2g}x)"
  chosen = "" if name in (first, _BINARY, _SCRIPT) or "jdp" not in name else f": {name[5:]}"
  return f"{timing['rate']:,.0f}{ratio}{chosen}"


def main(argv: Sequence[str]) -> None:
  """Prints a table for each task and model.

  Ratios refer to the first row, or with --baseline to the row above.
  """
  del argv
  if TABLE.value:
    print(table(harness.read(TABLE.value)))
    return
  for task in TASKS.value:
    for model in MODELS.value:
      if baseline := checkouts.BASELINE.value:
        timings = checkouts.before_and_after(_default_chunks(task, model), baseline)
        harness.report(f"{task}, {model}", timings, _UNITS[task], json_path=harness.JSON.value)
      else:
        _compare(task, model)


if __name__ == "__main__":
  app.run(main)
