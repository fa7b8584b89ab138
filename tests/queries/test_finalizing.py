"""Every release goes through `finalized`, whose noise no other sum has."""

import ast
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jdp
from jdp import queries, random
from jdp.matrix_factorization import banded_inverse_square_root, banded_toeplitz, tree
from jdp.queries.finalizing import finalized

_SIZE = 4096
_ROOT = pathlib.Path(jdp.__file__).parent
# A query made of another one's, what draws its noise before the sum, and checks of the parts.
_PARTS = {"queries", "conformance", "dropout", "estimators.py"}


def test_nothing_is_released_around_it():
  calls = {
    str(path.relative_to(_ROOT))
    for path in _ROOT.rglob("*.py")
    if _PARTS.isdisjoint(path.relative_to(_ROOT).parts)
    for node in ast.walk(ast.parse(path.read_text()))
    if isinstance(node, ast.Call)
    and getattr(node.func, "attr", "") == "finalize"
    and ast.unparse(node.func) != "weakref.finalize"
  }
  assert calls == {"transforms.py"}  # the event of a step that is not released


@pytest.mark.sweep
@pytest.mark.parametrize(
  "make",
  [
    lambda z: queries.gaussian_sum(1.0, z),
    lambda z: queries.correlated_gaussian_sum(1.0, z, banded_toeplitz(4, 3)),
    lambda z: queries.correlated_gaussian_sum(1.0, z, banded_inverse_square_root(4, 3)),
    lambda z: queries.correlated_gaussian_sum(1.0, z, tree(4)),
  ],
  ids=["gaussian", "bands", "bands of the inverse", "tree"],
)
def test_histories_that_part_have_independent_noise_from_there(make):
  """Sums that are equal again after they differed, and other noise levels, too."""
  key = random.seeded_key(7)

  def run(query, sums):
    @jax.jit
    def step(number, state, total):
      result, _, state = finalized(query, jax.random.fold_in(key, number), state, total)
      return result - total, state

    state, noises = query.init(jnp.zeros(_SIZE)), []
    for number, x in enumerate(sums):
      noise, state = step(number, state, jnp.full(_SIZE, x))
      noises.append(np.asarray(noise))
    return noises

  one, two = make(1.0), make(2.0)
  first = run(one, [0.0, 0.0, 0.0])
  assert np.array_equal(first, run(one, [0.0, 0.0, 0.0]))
  other = run(one, [0.0, 2.0**-30, 0.0])
  assert np.array_equal(first[0], other[0])
  louder = run(two, [0.0, 0.0, 0.0])

  def differences(noises):
    """What each round has that no combination of the first round's noise makes."""
    return noises[1] - (noises[1] @ noises[0]) / (noises[0] @ noises[0]) * noises[0]

  pairs = [
    (differences(first), differences(other)),
    *((mine, loud) for mine in first for loud in louder),
  ]
  # 5 standard errors: each comparison fails by chance with probability 6e-7.
  assert all(abs(np.corrcoef(*pair)[0, 1]) < 5 / np.sqrt(_SIZE) for pair in pairs)
