"""Statements of privacy: guarantees in words and table cells, and warnings if there are none."""

from collections.abc import Iterable, Mapping, Sequence

from experiments.runner.files import Row
from experiments.runner.reports.tables import epsilon
from experiments.runner.runs.costs import other_accountant
from experiments.runner.runs.layouts import Layout
from experiments.runner.runs.training import TrainingOptions
from jdp.accounting.statements.privacy_statements import SETTINGS_ARE_NOT_COVERED
from jdp.guarantees import AnyGuarantee, ApproxDP, SeparatedDP, Unit, compose, rounded_up
from jdp.ledger.json_form import from_json

FLOAT_NOISE = """Noise of floats is released on grids of a sixteenth of its standard deviation, with
random shifts, which hide its low-order bits. What float32 still adds to ε, tails included, is no
part of these figures: `jdp.accounting.grid_surcharge` bounds it for Gaussian and Laplace noise.
Noise of integers is exact."""


def not_private(options: TrainingOptions) -> list[str]:
  """Why no run with these options is private, whatever its ledger says.

  Empty if there is no such reason.
  """
  return exposed(options.noise_seed, diagnostics=options.diagnostics)


def exposed(noise_seed: int | None, *, diagnostics: bool) -> list[str]:
  """`not_private` of the options that decide it."""
  reasons = []
  if noise_seed is not None:
    reasons.append(
      f"sampling and noise came from --noise_seed={noise_seed}: whoever knows it can undo them"
    )
  if diagnostics:
    reasons.append("--diagnostics wrote diagnostics.jsonl, which tells what is not noised")
  return reasons


def notice(options: TrainingOptions) -> str:
  """The warning at the head of a report; empty for a run that claims to be private."""
  return warnings(not_private(options))


def warnings(reasons: Iterable[str]) -> str:
  """Paragraphs of reasons against a guarantee: those of `not_private`, or a `Ledger.caveats`."""
  return "".join(f"**NOT PRIVATE: {reason}.**\n\n" for reason in reasons)


def marked(title: str, options: TrainingOptions) -> str:
  """A plot's title, which says so if the run is not private."""
  return f"{title} (NOT PRIVATE)" if not_private(options) else title


def randomness(options: TrainingOptions) -> str:
  """Whether the results can be reproduced to the bit."""
  if options.noise_seed is not None:
    return "The noise is seeded: the same versions and devices give the same bits."
  return (
    "Noise is drawn from the operating system's entropy (ChaCha20): figures repeat up to their "
    "intervals."
  )


def computed(devices: Sequence[str], layouts: Mapping[str, Layout]) -> list[str]:
  """What changed the order of summation, and so the last bits of the results.

  Args:
    devices: the numbers of devices that the run was computed on, in turn, if they changed.
    layouts: what `--layout=fastest` measured, by setting.
  """
  said = []
  if devices:
    said.append(
      f"It was computed on devices: {', then '.join(devices)}. Any number of them gives these "
      "results, where its order of summation gives the same sums; other sums have other noise."
    )
  if layouts:
    of = "; ".join(f"{name}: {_layout(layout)}" for name, layout in layouts.items())
    said.append(f"The fastest layouts, measured once (`layouts.json`): {of}.")
  return said


def _layout(layout: Layout) -> str:
  return f"chunks of {layout['chunk_size']}{' by ghost norms' if layout.get('ghost_norms') else ''}"


def units(protects: Mapping[Unit, str]) -> str:
  r"""Paragraphs on what one record is; empty where the data has its own users and examples.

  >>> units({Unit.USER: "a piece of 20 consecutive tokens"})
  '**One user is a piece of 20 consecutive tokens.**\n\n'
  """
  return "".join(f"**One {unit} is {meaning}.**\n\n" for unit, meaning in protects.items())


def not_covered(*further: str) -> str:
  """What a report's guarantees are not about, and what they leave to floats.

  Args:
    *further: what is left out beside the choice of the settings.
  """
  left_out = (SETTINGS_ARE_NOT_COVERED, *further)
  return f"Not covered: {'; '.join(left_out)}.\n\n{FLOAT_NOISE}"


def short(guarantee: Row | None) -> str:
  """A guarantee as a cell: its epsilon, with its parts or its delta; infinity if there is none.

  >>> short({"type": "SeparatedDP", "direction": 8.0, "magnitude": 10.0})
  '18 (8 + 10)'
  """
  if guarantee is None:
    return "∞"
  value = from_json(guarantee)
  if isinstance(value, SeparatedDP):
    whole, *parts = (
      rounded_up(part, 4) for part in (value.epsilon, value.direction, value.magnitude)
    )
    return f"{whole} ({' + '.join(parts)})"
  if isinstance(value, ApproxDP):
    return f"{epsilon(value.epsilon)} (δ = {rounded_up(value.delta, 3)})"
  return rounded_up(value.epsilon, 4)


def guarantees(rows: Iterable[Row], kind: str, accountant: str = "") -> str:
  """A list of the settings' guarantees of one kind, in full; equal ones stand together.

  Args:
    rows: as `summarise` returns them. They hold "label" and the guarantees as JSON data.
    kind: "central", "release" or "local".
    accountant: of central guarantees. The epsilon by another one stands beside them.
  """
  labels: dict[str, list[str]] = {}
  for row in rows:
    stated = _stated(row, kind, accountant) if row[kind] else _none(row, kind)
    labels.setdefault(stated, []).append(row["label"])
  return "\n".join(f"- {', '.join(names)}: {stated}." for stated, names in labels.items())


def _stated(row: Row, kind: str, accountant: str) -> str:
  """A guarantee in full."""
  stated = str(from_json(row[kind]))
  if accountant:
    other = f'{epsilon(row["beside"])} by "{other_accountant(accountant)}"'
    stated += f', by the accountant "{accountant}" ({other})'
  return stated + _public([row], kind)


def _none(row: Row, kind: str) -> str:
  """That there is no guarantee, and why."""
  why = row.get("no_central", "").rstrip(".") if kind == "central" else ""
  return f"no guarantee: {why}" if why else "no guarantee"


def together(results: Iterable[Row], kind: str) -> str:
  """The total cost of all runs with such a guarantee, as they are about the same users."""
  stated = [result for result in results if result[kind]]
  if not stated:
    return ""
  # The runs are about the same users, so their guarantees add up.
  total: AnyGuarantee = compose([from_json(result[kind]) for result in stated])
  public = _public(stated, kind)
  return f"All {len(stated)} such runs together, by basic composition: {total}{public}."


def together_by_scope(results: Iterable[Row]) -> str:
  """The total central cost of the runs about each unit, under each relation."""
  groups: dict[tuple[str, str], list[Row]] = {}
  for result in results:
    if stated := result["central"]:
      groups.setdefault((stated["unit"], stated["relation"]), []).append(result)
  return "\n\n".join(together(group, "central") for group in groups.values())


def _public(rows: Iterable[Row], kind: str) -> str:
  """The end of a central guarantee's sentence: what it takes as public of the protected data."""
  said = dict.fromkeys(row["public"] for row in rows if kind == "central" and row.get("public"))
  if not said:
    return ""
  return f", taking as public what was computed from the protected data: {'; '.join(said)}"
