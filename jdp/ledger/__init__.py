"""The privacy ledger: what was done, as a value and as a durable file.

A `Ledger` is an immutable sequence of events, run-length encoded. It knows nothing of epsilons:
`jdp.accounting` reads it afterwards. It does know reasons to doubt them, such as noise whose key
was not secret (`Ledger.caveats`).

A `DurableLedger` is a file that grows. A run appends each round's events to it *before* the round's
result is used for anything that leaves the process. The file has these properties:

* It survives a kill at any moment, as a torn last line is repaired, and a failed write, which is
  rolled back.
* It takes the same round of the same run only once.
* It has one writer at a time.
* Its lines are a chain with an end. So a file that lost a line is refused when it is read, and a
  file that lost its last lines is not taken for a finished run (`LedgerFile.remarks`).

Both classes refuse an event if its number shows that earlier events are missing.
"""

from jdp.ledger.durable import DurableLedger
from jdp.ledger.reading import load, load_file
from jdp.ledger.value import Ledger, correlated_gaussian, subsampled_gaussian

__all__ = [
  "DurableLedger",
  "Ledger",
  "correlated_gaussian",
  "load",
  "load_file",
  "subsampled_gaussian",
]
