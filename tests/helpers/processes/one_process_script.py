"""Runs a script of this folder in a process of its own, with devices of its own."""

import os
import pathlib
import subprocess
import sys

FOLDER = pathlib.Path(__file__).parent


def printed(script, *arguments, devices):
  """What the script prints; it must succeed."""
  done = subprocess.run(
    [sys.executable, FOLDER / script, *arguments],
    env={
      **os.environ,
      "PYTHONPATH": str(FOLDER.parents[2]),
      "JAX_PLATFORMS": "cpu",
      "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
    },
    timeout=300,
    check=False,
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stderr
  return done.stdout
