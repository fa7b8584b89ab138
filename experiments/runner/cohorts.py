"""How cohorts are computed: options that change speed and rounding, and no guarantee."""

import dataclasses

from experiments.runner import checks
from experiments.runner.federation import UpdateOptions
from experiments.runner.options import option
from jdp.federated import CohortLayout
from jdp.federated.engine.default_layout import asked_layout

_SUBJECT = "Devices and speed"
_RULE = {"layout": ("rule",)}
_GHOST_NORMS = {"auto": None, "on": True, "off": False}


@dataclasses.dataclass(frozen=True)
class CohortOptions:
  """The options of every experiment whose rounds sum over a cohort of clients."""

  SUBJECT = _SUBJECT

  precision: str = option(
    "float32",
    "Of a client's forward and backward pass. Parameters, clipping, sums, noise and evaluation are "
    "as they are.",
    choices=("float32", "bfloat16"),
  )
  layout: str = option(
    "rule",
    "How many clients are computed side by side: by the flags below, or what is fastest on "
    "made-up clients. That is timed once for each setting, and kept for --resume.",
    choices=("rule", "fastest"),
  )
  chunk_size: int | None = option(
    None,
    "Clients computed side by side. Default: by the platform, model and client.",
    check=checks.count,
    when=_RULE,
  )


@dataclasses.dataclass(frozen=True)
class ShardOptions(CohortOptions):
  """The options of experiments whose clients' data can be dealt out over devices."""

  SUBJECT = _SUBJECT

  shard: bool = option(
    False,
    "Compute on all devices, and give each its share of the clients' data, not a copy of all.",
  )


@dataclasses.dataclass(frozen=True)
class GhostNormOptions(ShardOptions):
  """The options of experiments that can clip updates without making them."""

  SUBJECT = _SUBJECT

  ghost_norms: str | None = option(
    "auto",
    "Whether gradients are clipped without being made, one by one: with "
    "--local_training=gradient. auto: where that is faster, unless --chunk_size is given.",
    choices=tuple(_GHOST_NORMS),
    when=_RULE,
  )


def layout_of(options: CohortOptions) -> dict[str, int | None]:
  """The layout that the options ask for, as arguments of a training procedure.

  Raises:
    ValueError: if ghost norms are asked for without a gradient step.
  """
  given: dict[str, int | None] = {"chunk_size": options.chunk_size}
  if isinstance(options, GhostNormOptions):
    given["ghost_norms"] = wanted = _GHOST_NORMS[options.ghost_norms or "auto"]
    if wanted and isinstance(options, UpdateOptions) and options.local_training != "gradient":
      raise ValueError(
        "Expected --local_training=gradient with --ghost_norms=on, got "
        f"{options.local_training}; leave --ghost_norms out."
      )
  return given


def planned_layout(
  chunk_size: int | None, *, ghost_norms: bool | None = None
) -> CohortLayout | None:
  """`layout_of` for procedures that take a whole layout, or None for the rule."""
  if chunk_size is None and ghost_norms is None:
    return None
  return asked_layout(chunk_size, ghost_norms=bool(ghost_norms))
