"""Several processes compute what one process computes."""

import pathlib
import socket
import subprocess
import sys

import numpy as np
import pytest

SCRIPT = pathlib.Path(__file__).with_name("two_processes.py")


def free_port():
  with socket.socket() as listener:
    listener.bind(("localhost", 0))
    return listener.getsockname()[1]


def start(devices, processes, output):
  """Starts `processes` processes of so many devices together; what they print is shown if they fail."""
  port = free_port()
  return [
    subprocess.Popen(
      [sys.executable, SCRIPT, str(port), str(processes), str(number), output],
      cwd=SCRIPT.parent.parent,
      env={
        "PYTHONPATH": str(SCRIPT.parent.parent),
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices // processes}",
      },
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
    )
    for number in range(processes)
  ]


@pytest.mark.parametrize(("devices", "tolerance"), [(2, 0.0), (8, 1e-8)])
def test_two_processes_train_as_one(devices, tolerance, tmp_path):
  """With a device each bit for bit, as a sum of two has one order; else up to the order of summation."""
  outputs = [tmp_path / "one.npz", tmp_path / "two.npz"]
  started = [start(devices, processes, output) for processes, output in zip((1, 2), outputs, strict=True)]
  for process in [p for group in started for p in group]:
    text, _ = process.communicate(timeout=300)
    assert process.returncode == 0, text
  one, two = (dict(np.load(output)) for output in outputs)
  assert one["devices"] == two["devices"] == devices
  for name in ("w", "b"):
    np.testing.assert_allclose(two[name], one[name], rtol=0, atol=tolerance)
    assert np.any(one[name] != 0)
