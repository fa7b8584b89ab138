"""The noise that libraries plan for one request, and what each plan then costs.

Run it as `python -m experiments.benchmarks.planned_noise --json=FILE`. Every request is an epsilon
at a delta, of a Poisson-sampled Gaussian sum over many rounds. jdp's default answers it, and so do
those that are installed of dp_accounting (which TF Privacy plans by), Opacus and jax_privacy
(`experiments.conformance.adapters`). jdp's certified interval then says what each multiplier costs:
if its lower end is above the request, so little noise does not keep it.

It ends with a status of 1 if jdp needs .2 % more noise than the least that may keep the request, or
spends less than .995 of it.
"""

import json
import pathlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from absl import app, flags

from experiments.conformance import adapters
from experiments.runner.reports.tables import table
from jdp import accounting
from jdp.conformance import Calibration, Plan, add_remove_ledger

JSON = flags.DEFINE_string("json", None, "A JSON Lines file to append the results to.")
REQUESTS = flags.DEFINE_integer("requests", 20, "How many plans.", lower_bound=1)
_LIBRARIES = ("dp_accounting", "opacus", "jax_privacy")
_MORE, _SPENT = 1.002, 0.995
_Noise = Callable[[Plan, float], float]


class Request(NamedTuple):
  """An epsilon, and the run that is to keep it."""

  plan: Plan
  epsilon: float


def requests(number: int) -> Iterator[Request]:
  """Runs of 1e4 to 1e7 records in batches, of 1 to 300 passes, with a delta of 1 / records^1.1."""
  rng = np.random.default_rng(0)
  for epsilon in np.geomspace(0.3, 12.0, number):
    records, batch = 10 ** rng.uniform(4, 7), 10 ** rng.uniform(1.5, 3.5)
    passes = 10 ** rng.uniform(0, 2.5)
    q = round(batch) / round(records)
    yield Request(Plan(q, max(1, round(passes / q)), round(records) ** -1.1), float(epsilon))


def planners() -> Iterator[tuple[str, _Noise]]:
  """What plans noise, by name."""

  def by_default(plan: Plan, epsilon: float) -> float:
    q, rounds = plan.sampling_probability, plan.num_rounds
    return accounting.calibrate_noise_multiplier(epsilon, plan.delta, q, rounds)

  yield "jdp", by_default
  for library in filter(adapters.is_installed, _LIBRARIES):
    for part in adapters.implementation(library).parts:
      if isinstance(part, Calibration):
        yield part.call, part.noise_multiplier


class Answer(NamedTuple):
  """The noise that a planner answers with, and the interval of what the run then costs."""

  planner: str
  noise: float
  lower: float
  upper: float


def answers(request: Request) -> list[Answer]:
  """What each planner answers to a request."""
  found = []
  for name, noise in planners():
    try:
      z = float(noise(*request))
    except Exception as error:
      print(f"{name} refuses {request}: {error}", file=sys.stderr)
      continue
    spent = add_remove_ledger(request.plan, z)
    found.append(Answer(name, z, *accounting.epsilon_interval(spent, request.plan.delta)))
  return found


def is_answered(request: Request, found: Sequence[Answer]) -> bool:
  """Whether jdp, the first, plans no more noise than is needed."""
  ours, *_ = found
  least = min(one.noise for one in found if one.lower <= request.epsilon)
  return ours.noise <= _MORE * least and ours.upper >= _SPENT * request.epsilon


def cells(request: Request, found: Sequence[Answer]) -> Iterator[list[str]]:
  """A line of the table for each answer."""
  (q, rounds, delta), epsilon = request
  for one in found:
    yield [
      *(f"{value:.4g}" for value in (epsilon, delta, q, rounds)),
      one.planner,
      f"{one.noise:.5f}",
      f"{one.noise / found[0].noise:.4f}",
      f"{one.lower:.5g} to {one.upper:.5g}",
      "no" if one.lower > epsilon else "yes",
    ]


def main(argv: Sequence[str]) -> None:
  """Prints a row for each request and planner."""
  del argv
  lines: list[list[str]] = []
  failed: list[Request] = []
  for request in requests(REQUESTS.value):
    found = answers(request)
    lines += cells(request, found)
    if not is_answered(request, found):
      failed.append(request)
    if JSON.value:
      asked = {**request.plan._asdict(), "asked": request.epsilon}
      with pathlib.Path(JSON.value).open("a") as file:
        file.writelines(f"{json.dumps(asked | one._asdict())}\n" for one in found)
  header = "epsilon", "delta", "q", "rounds", "planner", "z", "over jdp's", "spends", "may keep it"
  print(table(header, lines))
  for request in failed:
    print(f"FAILS {request}")
  sys.exit(bool(failed))


if __name__ == "__main__":
  app.run(main)
