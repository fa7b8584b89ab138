"""The options of the conformance kit."""

import dataclasses
from functools import partial

from experiments.conformance import adapters
from experiments.runner import checks
from experiments.runner.options import option
from jdp import _validate
from jdp.conformance.suite import PART_TYPES

_KINDS = tuple(kind.__name__ for kind in PART_TYPES)


@dataclasses.dataclass(frozen=True)
class ConformanceOptions:
  """The options of this experiment."""

  task: tuple[str, ...] = option(
    ("libraries", "faults"), "What is checked.", choices=("libraries", "faults")
  )
  libraries: tuple[str, ...] = option(
    ("jdp",), "Whose parts; one that is not installed is left out.", choices=adapters.LIBRARIES
  )
  parts: tuple[str, ...] = option(_KINDS, "Kinds of parts of the libraries.", choices=_KINDS)
  error: float = option(
    1e-6,
    "The most probable that one check fails what is correct.",
    check=partial(_validate.in_range, 1e-12, 0.1),
  )
  seed: int = checks.seed(0, "Seed of all that is drawn.")
