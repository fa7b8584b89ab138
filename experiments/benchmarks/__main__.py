"""The command line of all benchmarks; see `experiments.benchmarks.harness`."""

import sys

from experiments.benchmarks import harness

if __name__ == "__main__":
  harness.main(sys.argv[1:])
