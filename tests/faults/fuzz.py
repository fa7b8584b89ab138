"""A fuzz of what users type: hostile arguments of public functions, hostile flags of experiments.

  python -m tests.faults.fuzz --calls 20000
  python -m tests.faults.fuzz --flags 5000

It prints how many calls gave a result, were refused with the argument's name, or were faults, and
exits with 1 if there was a fault. With `--record` it writes them to
`tests/faults/results/fuzz.json`, each seed as a part of its own, so that many can be run one after
another.
"""

import argparse
import os
import resource
import sys

os.environ.setdefault("JAX_PLATFORMS", "cpu")


_MOST_MEMORY = 8 * 2**30  # A call that asks for more is a fault, not the end of the machine.


def main():
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--calls", type=int, default=0)
  parser.add_argument("--flags", type=int, default=0)
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--record", action="store_true", help="Write the figures that docs show.")
  options = parser.parse_args()
  resource.setrlimit(resource.RLIMIT_DATA, (_MOST_MEMORY, _MOST_MEMORY))
  from tests.faults import results
  from tests.faults.calls import api_calls, flag_values

  failed = False
  rows = {"calls": "arguments", "flags": "flag values"}
  for what, fuzz in (("calls", api_calls.fuzz), ("flags", flag_values.fuzz)):
    number = getattr(options, what)
    counts, faults = fuzz(
      number, options.seed, told=lambda fault: print(*fault, sep=" | ", flush=True)
    )
    if number:
      print(f"{number} {what}: {dict(counts)}")
    if number and options.record:
      results.put(
        "fuzz",
        rows[what],
        f"seed {options.seed}",
        {
          "tried": number,
          "result": counts["result"],
          "refused": counts["refused"],
          "fault": len(faults),
        },
      )
    failed |= bool(faults)
  return 1 if failed else 0


if __name__ == "__main__":
  sys.exit(main())
