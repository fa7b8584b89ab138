"""Several processes compute what one process computes."""

import jax
import numpy as np
import pytest

from jdp.federated import client_mesh
from jdp.federated.engine.rounds import replicate
from tests.helpers.processes import one_process_script, two_process_scripts
from tests.helpers.processes.two_processes import train


@pytest.mark.optimised
@pytest.mark.slow
def test_two_processes_train_as_one_device(tmp_path):
  """Bit for bit, on two devices and on eight, with data sharded: no sum is rounded."""
  processes = two_process_scripts.start("two_processes.py", tmp_path / "found.npz", devices=4)
  alone, two = (train(client_mesh(jax.devices()[:count]), replicate) for count in (1, 2))
  two_process_scripts.finish(processes)
  found = np.load(tmp_path / "found.npz")
  assert found["devices"] == 8
  for array in ("w", "b"):
    assert np.any(alone[array] != 0)
    np.testing.assert_array_equal(found[f"two_{array}"], two[array])
    np.testing.assert_array_equal(two[array], alone[array])
    np.testing.assert_array_equal(found[f"eight_{array}"], alone[array])


@pytest.mark.slow
@pytest.mark.parametrize("loop", ["federated", "transformed"])
def test_a_loop_that_looks_at_no_result_survives(loop):
  """Before states waited for themselves, such loops were aborted after a minute."""
  one_process_script.printed("unsynchronised_rounds.py", loop, devices=2)
