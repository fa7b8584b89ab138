"""What dropout costs, computed without training.

It tabulates epsilons and rounds at the publication's setting, collusion, and bits.
"""

import functools
import math
from collections.abc import Callable
from typing import TypeVar

import jax.numpy as jnp
from matplotlib.figure import Figure

from experiments.runner.reports import plots, style, tables
from experiments.runner.reports.tables import by_column, percent, table
from jdp import accounting
from jdp.guarantees import rounded_up
from jdp.queries import calibrated, central, distributed_sum, excess, uncalibrated
from jdp.queries.distributed.float_sums import DistributedSum
from jdp.queries.distributed.integer_sums import plan_grid

Z, ROUNDS, DELTA, CLIENTS = 144.49, 1500, 1e-5, 1000
Number = TypeVar("Number")
_RATES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
_SCHEMES = {
  "no calibration": uncalibrated(),
  "calibration inside": calibrated(),
  "calibration outside": calibrated(inside=False),
  "excess noise removed": excess(0.5),
  "central noise": central(),
}
_CLAIMS = {0.1: 15, 0.3: 50}  # Dropout -> percent by which calibration improves protection.


@functools.cache
def _query(name: str) -> DistributedSum:
  """The query under a scheme; made late, as its constants start JAX's devices."""
  return distributed_sum(1.0, Z, _SCHEMES[name])


def epsilon(
  name: str, observer: str, rate: float, *, rounds: float = ROUNDS, later=0.0, dishonest=0.0
) -> float:
  """The exact epsilon of a run.

  Args:
    name: of the scheme.
    observer: "server" or "model".
    rate: the share of clients lost before they report.
    rounds: number of rounds.
    later: the share of those who reported that is lost before it calibrates.
    dishonest: the share of clients that leave out their noise. They are lost at the same rate as
      the others.
  """
  query = _query(name)
  reported = round(CLIENTS * (1 - rate))
  # Announced, then reported, then left at each calibration: the counts that the events need.
  counts = [CLIENTS, reported] + [round(reported * (1 - later))] * query.scheme.num_calibrations
  honest = [round(count * (1 - dishonest)) for count in counts]
  stddev = float(getattr(query.events(jnp.array(counts), jnp.array(honest)), observer).stddev)
  return accounting.gaussian_epsilon(stddev / math.sqrt(rounds), DELTA) if stddev else math.inf


def possible_rounds(name: str, observer: str, rate: float) -> int:
  """The most rounds within the epsilon of the planned run.

  The rounds of a Gaussian sum compose to one Gaussian sum, so their number is proportional to the
  variance.
  """
  query = _query(name)
  left = round(CLIENTS * (1 - rate))
  counts = jnp.array([CLIENTS, left] + [left] * query.scheme.num_calibrations)
  realised = float(getattr(query.scheme.realised(counts, counts), observer))
  # The margin undoes float32: a fraction of 1 must give all rounds.
  return math.floor(ROUNDS * realised * (1 + 1e-6))


def _by_rate(value: Callable[[str, str, float], Number], form: Callable[[Number], str]) -> str:
  rows = (
    [name, observer, *(form(value(name, observer, rate)) for rate in _RATES)]
    for name in _SCHEMES
    for observer in ("server", "model")
  )
  return table(["noise", "against", *(f"{percent(rate, 0)} lost" for rate in _RATES)], rows)


def epsilon_table() -> str:
  """Epsilon against dropout, for every scheme and observer."""
  return _by_rate(epsilon, tables.epsilon)


def rounds_table() -> str:
  """Rounds at the planned epsilon against dropout."""
  return _by_rate(possible_rounds, str)


def variances_table() -> str:
  """The variance of a client's noise that keeps the average's guarantee when clients vanish.

  It is the publication's Table 1, for its z. The unit is C^2, with the bound C on a client.
  """
  planned = Z**2 / CLIENTS
  rows = []
  for rate in (0.0, *_CLAIMS):
    left = round(CLIENTS * (1 - rate))
    needed = Z**2 / left
    rows.append(
      [
        f"{left} ({percent(rate, 0)} lost)",
        f"{planned:.3f}",
        f"{needed:.3f}",
        f"{needed - planned:.3f}",
        f"{planned / left:.5f}",
        f"{needed / left:.5f}",
      ]
    )
  header = [
    "clients left",
    "a client's noise, planned",
    "needed",
    "added by the calibration",
    "the average's noise, uncalibrated",
    "needed",
  ]
  return table(header, rows)


def claims_table() -> str:
  """The publication's claims, beside what calibration achieves by exact accounting."""
  rows = []
  for rate, claim in _CLAIMS.items():
    names = "no calibration", "calibration inside"
    without, with_it = (epsilon(name, "model", rate) for name in names)
    fewer, more = (possible_rounds(name, "model", rate) for name in names)
    rows.append(
      {
        "dropout": percent(rate, 0),
        "claimed": percent(claim / 100, 0),
        "ε": f"{tables.epsilon(without)} → {tables.epsilon(with_it)}",
        "ε falls by": percent(1 - with_it / without),
        "ε without is larger by": percent(without / with_it - 1),
        "rounds at ε = 1": f"{fewer} → {more}",
        "more rounds": percent(more / fewer - 1),
      }
    )
  return by_column(rows)


def calibration_table() -> str:
  """What remains of the calibration if clients vanish during it, or leave out their noise."""
  cases = [
    ("all calibrate", 0.0, 0.0),
    ("10 % vanish before they calibrate", 0.1, 0.0),
    ("50 % vanish", 0.5, 0.0),
  ]
  cases += [
    (f"{percent(liars, 0)} leave out their noise", 0.0, liars) for liars in (0.1, 0.25, 0.5)
  ]
  rates = (0.1, 0.3, 0.5)
  against_server = functools.partial(epsilon, "calibration inside", "server")
  rows = []
  for label, later, liars in cases:
    found = (against_server(rate, later=later, dishonest=liars) for rate in rates)
    rows.append([label, *map(tables.epsilon, found)])
  lost = (f"{percent(rate, 0)} lost" for rate in rates)
  return table(["calibration inside, against the server", *lost], rows)


def rounds_figure() -> Figure:
  """Epsilon over the rounds at 30 % dropout.

  The observer is the server, and also the model's observer where the two differ.
  """
  made, axes = plots.figure(
    "rounds", f"ε of the run so far (δ = {DELTA})", f"30 % of the clients lost (z = {Z})"
  )
  rounds = [1, *range(100, ROUNDS + 1, 100)]
  lines = [
    ("no calibration", "server"),
    ("calibration outside", "server"),
    ("calibration inside", "server"),
    ("excess noise removed", "server"),
    ("calibration outside", "model"),
    ("central noise", "model"),
  ]
  # Lines that coincide are drawn once, under all their names.
  names: dict[str, list[str]] = {}
  found = {}
  for name, observer in lines:
    epsilons = [epsilon(name, observer, 0.3, rounds=count) for count in rounds]
    names.setdefault(rounded_up(epsilons[-1], 5), []).append(f"{name}, against the {observer}")
    found[rounded_up(epsilons[-1], 5)] = epsilons
  looks = style.distinct(["\n".join(group) for group in names.values()])
  for epsilons, (label, look) in zip(found.values(), looks.items(), strict=True):
    axes.plot(rounds, epsilons, label=label, **look)
  return made


def bits_table(dim: int, num_clients: int, noise_multiplier: float) -> str:
  """The bits that a client sends per weight, and their cost.

  Integers of so many bits add to the sensitivity, and so to the noise.
  """
  rows = [["float32, and as much again for a calibration", "32", "1", "none", "0"]]
  for bits in (12, 14, 16, 18, 20):
    grid = plan_grid(dim, 1.0, noise_multiplier, num_clients=num_clients, modulus_bits=bits)
    share = noise_multiplier / grid.spacing / math.sqrt(num_clients)
    factor = grid.l2_norm * grid.spacing
    rows.append(
      [
        *(f"integers, padded to {dim}", str(bits), rounded_up(factor, 4), f"{share:.3g} units"),
        rounded_up(grid.wrap_probability, 2),
      ]
    )
  header = [
    "a client sends",
    "bits per weight",
    "bound S over C",
    "stddev of its noise",
    "P(any wrap) ≤",
  ]
  return table(header, rows)
