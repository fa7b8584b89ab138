"""What XLA compiles meanwhile."""

import contextlib
import logging
import re
from collections.abc import Iterator

import jax


class _Handler(logging.Handler):
  def __init__(self):
    super().__init__()
    self.names = []

  def emit(self, record):
    if match := re.match(r"Finished XLA compilation of (\S+)", record.getMessage()):
      self.names.append(match[1])


@contextlib.contextmanager
def compilations() -> Iterator[list[str]]:
  """The names of the programs that are compiled, or taken from JAX's cache on disk."""
  handler, logger = _Handler(), logging.getLogger("jax._src.dispatch")
  logger.addHandler(handler)
  jax.config.update("jax_log_compiles", True)
  try:
    yield handler.names
  finally:
    jax.config.update("jax_log_compiles", False)
    logger.removeHandler(handler)
