"""Models in which one part is trained, and the rest stays as it is."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from jdp._arguments import Arrays, checked
from jdp.models.base import Model, check_parameters
from jdp.models.language.recurrent import LanguageModel

PyTree = Any
AnyModel = TypeVar("AnyModel", Model, LanguageModel)


@checked
def freeze(
  model: AnyModel, params: Arrays, is_trained: Callable[[str], bool] | None = None
) -> AnyModel:
  """The model that trains some leaves of `params`, and holds the others constant.

  Trained leaves are clipped and noised. Frozen ones are not: they must be public, or their cost
  must be in the ledger (`prior`). Training a small part costs less accuracy than training all: the
  noise has as many coordinates as there are trained numbers.

  Args:
    model: the whole model, a `Model` or a `LanguageModel`.
    params: its parameters, such as those of a published model. Leaves that are not float32 (whole
      numbers, half precision) are always frozen.
    is_trained: a leaf's path, such as "head/kernel" -> whether it is trained. None: all float32
      leaves are.

  Returns:
    The model. Its parameters are `params` with None in place of frozen leaves. Its `init` returns
    the given values for every key. `unfreeze` turns trained parameters into all parameters.

  Raises:
    ValueError: if nothing is trained, or `is_trained` chooses a leaf that is not float32.

  >>> model = Model(lambda key: {}, lambda params, x: x @ params["body"] @ params["head"])
  >>> params = {"body": jnp.ones((3, 4)), "head": jnp.zeros((4, 2)), "version": jnp.int32(3)}
  >>> small = freeze(model, params, lambda path: path == "head")
  >>> jax.tree.map(jnp.shape, small.init(jax.random.key(0)))
  {'body': None, 'head': (4, 2), 'version': None}
  >>> small.apply(small.init(jax.random.key(0)), jnp.ones((5, 3))).shape
  (5, 2)
  """

  def chosen(path: Any, leaf: Any) -> Any:
    if is_trained is None:
      return leaf if leaf.dtype == jnp.float32 else None
    return leaf if is_trained(jax.tree_util.keystr(path, simple=True, separator="/")) else None

  start = jax.tree_util.tree_map_with_path(chosen, params)
  check_parameters(start)

  def merged(apply: Callable[..., Any]) -> Callable[..., Any]:
    return lambda trained, *rest: apply(unfreeze(jax.tree.map(_usable, params), trained), *rest)

  functions = {name: function and merged(function) for name, function in model._asdict().items()}
  return model._replace(**(functions | {"init": lambda key: start}))


def _usable(leaf: Any) -> Any:
  """The leaf, for a round over the mesh that it lies on.

  Inside a `shard_map`, JAX cannot index an array that lies on its mesh, only one computed from it.
  """
  on_a_mesh = not jax.typeof(leaf).sharding.mesh.empty
  return jax.lax.optimization_barrier(leaf) if on_a_mesh else leaf


def unfreeze(params: PyTree, trained: PyTree) -> PyTree:
  """All parameters: the trained ones, with the values of `params` in place of None.

  Raises:
    ValueError: if the two differ in structure.

  >>> unfreeze({"body": 1, "head": 2}, {"body": None, "head": 3})
  {'body': 1, 'head': 3}
  """
  try:
    return jax.tree.map(
      lambda new, old: old if new is None else new, trained, params, is_leaf=lambda x: x is None
    )
  except (ValueError, TypeError):
    raise ValueError(
      "Expected trained to be params with None in some places, got another structure; give what "
      "the frozen model's init returned, or a run's result."
    ) from None
