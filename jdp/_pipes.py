"""What a command does when the reader of its output goes away, such as `head`."""

import contextlib
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def ends_with_its_reader() -> Iterator[None]:
  """Ends the program without a traceback if nobody reads what the block prints."""
  try:
    try:
      yield
    finally:
      sys.stdout.flush()
  except BrokenPipeError:
    # Python flushes once more at exit, and would raise there.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(1) from None
