"""Progress: a bar on a terminal, plain lines in a pipe.

A round's duration tells how many users were in its sample, which is private. Lines in a pipe may be
kept, so no time is printed there. The bar shows a throughput, in expected clients per second. It
vanishes with the bar.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator

Report = Callable[[int, str], None]


@contextlib.contextmanager
def progress(num_rounds: int, cohort_size: float) -> Iterator[Report]:
  """Yields report(rounds, message): so many further rounds are done, and the message to show.

  Args:
    num_rounds: of all runs together.
    cohort_size: expected number of clients in a round.
  """
  if not sys.stderr.isatty():
    yield lambda rounds, message: print(message, file=sys.stderr, flush=True)
    return
  from tqdm import tqdm  # Not needed in a pipe.

  with tqdm(
    total=num_rounds, unit=" clients", unit_scale=cohort_size, leave=False, dynamic_ncols=True
  ) as bar:

    def report(rounds, message):
      bar.update(rounds)
      bar.set_description(message)

    yield report
