"""Runs an experiment in processes that are killed, one after the other, at a commit to disk; then
to its end.

    python killed.py <workdir> <flag>...

The first process starts the run, later ones resume it, each killed a few commits later than the one
before. After the first kill the work directory and its secrets are copied to `<workdir>_whole`, and
resumed there without a kill. Prints how many were killed. Processes are forked, so that the imports
are paid for once.
"""

import os
import shutil
import signal
import sys

# Imported before the fork: each process would need them.
import orbax.checkpoint  # noqa: F401
import scipy.optimize  # noqa: F401

from experiments.private_federated import __main__ as private_federated
from experiments.runner import launch

# The first process gets as far as the first run; a later one further by so many commits.
FIRST, LATER = 8, 11


def die_at(number):
  """Makes this process kill itself in place of its `number`-th commit to disk."""
  done = 0
  for name in ("fsync", "replace", "rename"):
    original = getattr(os, name)

    def commit(*arguments, original=original, **options):
      nonlocal done
      done += 1
      if done == number:
        os.kill(os.getpid(), signal.SIGKILL)
      return original(*arguments, **options)

    setattr(os, name, commit)


def run(arguments, number=None):
  """Whether a process with these flags was killed at its `number`-th commit; else it must
  succeed.
  """
  child = os.fork()
  if not child:
    if number:
      die_at(number)
    sys.argv = ["private_federated", *arguments]
    launch.launch(private_federated.EXPERIMENT)
  status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
  if status not in (0, -signal.SIGKILL):
    sys.exit(status)
  return status < 0


def main(workdir, *flags):
  if not run([f"--workdir={workdir}", *flags], FIRST):
    sys.exit("The first process was not killed.")
  for suffix in ("", ".secret"):
    shutil.copytree(workdir + suffix, f"{workdir}_whole{suffix}")
  kills, resume = 1, "--resume"
  while run([f"--workdir={workdir}", resume], 2 + LATER * kills):
    kills += 1
  run([f"--workdir={workdir}_whole", resume])
  print(f"killed {kills} times")


if __name__ == "__main__":
  main(*sys.argv[1:])
