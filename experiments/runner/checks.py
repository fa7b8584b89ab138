"""Checks of options that several experiments have, and the option of a seed."""

from functools import partial
from typing import Any

from experiments.runner.options import option
from jdp import _validate

count = partial(_validate.integer, 1)
count_or_zero = partial(_validate.integer, 0)
delta = partial(_validate.in_range, 1e-300, 0.5)
epsilon = partial(_validate.in_range, 1e-3, 1e4)


def seed(default: int | None, help: str) -> Any:  # noqa: A002  # as `option` has it
  """The field of a seed: of 32 bits, as NumPy and JAX take them."""
  return option(default, help, check=count_or_zero, most=2**32 - 1)
