"""Starts a script in two processes that JAX knows of as one program."""

import os
import pathlib
import socket
import subprocess
import sys

import jax

ROOT = pathlib.Path(__file__).parents[3]


def start(script, output, *, devices):
  """Two processes `python SCRIPT PORT NUMBER OUTPUT` of so many devices each.

  The script is one of this folder. What the processes print can be read from them.
  """
  with socket.socket() as listener:
    listener.bind(("localhost", 0))
    port = listener.getsockname()[1]
  return [
    subprocess.Popen(
      [
        sys.executable,
        ROOT / "tests" / "helpers" / "processes" / script,
        str(port),
        str(number),
        output,
      ],
      cwd=ROOT,
      env={
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
      },
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
    )
    for number in range(2)
  ]


def joined():
  """Makes a process that `start` began one of the two. Its number, and where its output goes."""
  port, number, output = sys.argv[1:]
  jax.config.update("jax_cpu_collectives_implementation", "gloo")
  jax.distributed.initialize(f"localhost:{port}", 2, int(number))
  return int(number), pathlib.Path(output)


def finish(processes, seconds=300):
  """Waits for the processes; what they printed is shown if they failed."""
  try:
    for process in processes:
      text, _ = process.communicate(timeout=seconds)
      assert process.returncode == 0, text
  finally:
    for process in processes:
      process.kill()  # JAX takes a gentler signal for a notice.


def kill(processes, line):
  """Kills the processes (SIGKILL) once each has printed the line. Their exit statuses."""
  try:
    for process in processes:
      printed = []
      while not printed or printed[-1] not in (line + "\n", ""):
        printed.append(process.stdout.readline())
      assert printed[-1], "".join(printed)
  finally:
    for process in processes:
      process.kill()
      process.communicate()
  return [process.returncode for process in processes]
