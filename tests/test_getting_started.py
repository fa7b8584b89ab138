"""The Python of the documentation's first page runs as it stands."""

import pathlib
import re

import equinox as eqx
import jax
import pytest
from flax import nnx

PAGE = pathlib.Path(__file__).parents[1] / "docs/getting_started.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.S | re.M)


def run(block, names=None):
  """Runs a block as a user would, who has no strict promotion."""
  names = {} if names is None else names
  with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
    exec(compile(block, PAGE.name, "exec"), names)
  return names


@pytest.mark.slow
def test_a_model_and_data_of_ones_own_train_within_their_target():
  names = run(BLOCKS[0])
  epsilon = names["jdp"].accounting.epsilon(names["result"].ledger, 1e-3)
  assert 7.92 < epsilon <= 8.0
  assert names["result"].metrics[-1]["accuracy"] > 0.7


class Dropped(nnx.Module):
  def __init__(self, rngs):
    self.hidden = nnx.Linear(64, 32, rngs=rngs)
    self.dropout = nnx.Dropout(0.1, rngs=rngs)
    self.out = nnx.Linear(32, 10, rngs=rngs)

  def __call__(self, x):
    return self.out(self.dropout(nnx.relu(self.hidden(x.reshape(x.shape[0], -1)))))


class Flat(eqx.Module):
  mlp: eqx.nn.MLP

  def __init__(self, key):
    self.mlp = eqx.nn.MLP(64, 10, width_size=32, depth=1, key=key)

  def __call__(self, x):
    return self.mlp(x.reshape(-1))


@pytest.mark.slow
@pytest.mark.parametrize(
  ("constructor", "module"),
  [("from_flax", Dropped), ("from_equinox", Flat)],
  ids=["nnx", "equinox"],
)
def test_modules_of_other_libraries_need_another_constructor_alone(constructor, module):
  linen = "jdp.models.from_flax(Net(), "
  assert BLOCKS[0].count(linen) == 1
  names = run(BLOCKS[0].replace(linen, f"jdp.models.{constructor}(Own, "), {"Own": module})
  assert len(set(names["clients"].counts.tolist())) > 1
  assert 7.92 < names["jdp"].accounting.epsilon(names["result"].ledger, 1e-3) <= 8.0
  assert names["result"].metrics[-1]["accuracy"] > 0.6


@pytest.mark.slow
def test_the_second_block_goes_on_from_the_first():
  names = run(BLOCKS[1], run(BLOCKS[0]))
  result = names["jdp"].federated.train(
    names["algorithm"], names["result"].params, names["clients"]
  )
  assert 7.92 < names["jdp"].accounting.epsilon(result.ledger, 1e-3) <= 8.0


@pytest.mark.slow
def test_one_value_is_made_private_on_the_client(capsys):
  names = run(BLOCKS[2])
  assert capsys.readouterr().out == f"{stated(BLOCKS[2], 'print(mechanism.guarantee)')}\n"
  assert names["estimates"].shape == (256, 1000)
  # The two sums are unbiased releases of one sum: each is within 6 deviations of it, but for 1e-8.
  deviation = jax.numpy.std(names["estimates"], axis=0).mean() * 256**0.5
  for total in (names["total"], names["estimates"].sum(0)):
    assert abs(total.mean() - 2.56) < 6 * deviation / 1000**0.5


@pytest.mark.slow
def test_a_planned_run_is_accounted_for_before_it_is_made():
  names = run(BLOCKS[3])
  lower, upper = names["accounting"].epsilon_interval(names["plan"], delta=1e-5)
  stated = names["accounting"].epsilon(names["plan"], delta=1e-5)
  assert lower <= min(upper, stated)
  assert stated == pytest.approx(upper, rel=1e-3)


@pytest.mark.slow
def test_a_loop_of_ones_own_reaches_what_its_comment_says(capsys):
  names = run(BLOCKS[4])
  comment = stated(BLOCKS[4], "# close to", after=False)
  assert comment.startswith("1, -1, 0.5, 2 at epsilon 4.18,")
  assert abs(names["weights"] - jax.numpy.array([1.0, -1.0, 0.5, 2.0])).max() < 0.5
  assert round(names["accounting"].epsilon(names["spent"], delta=1e-5), 2) == 4.18


def stated(block, code, *, after=True):
  """The comment after some code of a block, or the rest of the comment that begins so."""
  (line,) = [line for line in block.splitlines() if line.startswith(code)]
  return line.split("#")[1].strip() if after else line.removeprefix(code).strip()
