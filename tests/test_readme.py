"""The README's Python runs as it stands."""

import pathlib
import re

import jax
import pytest

README = (pathlib.Path(__file__).parents[1] / "README.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, re.S | re.M)


def run(block, names=None):
  """Runs a block as a user would, who has no strict promotion."""
  names = {} if names is None else names
  with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
    exec(compile(block, "README.md", "exec"), names)
  return names


def test_a_model_and_data_of_ones_own_train_within_their_target():
  names = run(BLOCKS[0])
  epsilon = names["jdp"].accounting.epsilon(names["result"].ledger, 1e-3)
  assert 7.92 < epsilon <= 8.0
  assert names["result"].metrics[-1]["accuracy"] > 0.7


@pytest.mark.slow
def test_the_second_block_goes_on_from_the_first():
  names = run(BLOCKS[1], run(BLOCKS[0]))
  result = names["jdp"].federated.train(
    names["algorithm"], names["result"].params, names["clients"]
  )
  assert 7.92 < names["jdp"].accounting.epsilon(result.ledger, 1e-3) <= 8.0


@pytest.mark.slow
@pytest.mark.parametrize("block", BLOCKS[2:])
def test_the_other_blocks_run(block):
  run(block)
