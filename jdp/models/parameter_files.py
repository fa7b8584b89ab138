"""A model's parameters as a file."""

import io
import os
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jdp import _files
from jdp._arguments import checked

PyTree = Any


@checked
def save_params(path: str | os.PathLike, params: PyTree) -> None:
  """Writes parameters as NumPy's npz: an array for each leaf, by its path in the tree.

  The file is whole or absent, whenever the process is killed. `load_params` reads it.
  """
  arrays = {name: np.asarray(leaf) for name, leaf in _by_name(params).items()}
  _files.write_arrays(pathlib.Path(path), arrays)


@checked
def load_params(path: str | os.PathLike | io.BytesIO, like: PyTree) -> PyTree:
  """The parameters in a file, such as the `params.npz` of a run's folder, bit for bit.

  Args:
    path: the file, or its content.
    like: parameters of the same structure, shapes and types, or their shapes: what `model.init`
      returns, or `jax.eval_shape(model.init, jax.random.key(0))`.

  Raises:
    ValueError: if the file is damaged, holds other parameters, or is not a file.
    FileNotFoundError: if there is no file.

  >>> import tempfile
  >>> from jdp import models
  >>> model = models.logistic_regression((3,), 2)
  >>> params = model.init(jax.random.key(0))
  >>> file = pathlib.Path(tempfile.mkdtemp()) / "params.npz"
  >>> save_params(file, params)
  >>> shapes = jax.eval_shape(model.init, jax.random.key(0))
  >>> jax.tree.map(jnp.shape, load_params(file, shapes))
  {'b': (2,), 'w': (2, 3)}
  """
  with path if isinstance(path, io.BytesIO) else _files.open_to_read(path) as file:
    arrays = _files.read_arrays(file, path)
  leaves = _by_name(like)
  # npz keeps the bytes of JAX's own types, such as bfloat16, but not their names.
  for name in arrays.keys() & leaves.keys():
    own = np.dtype(leaves[name].dtype)
    if arrays[name].dtype.kind == "V" and arrays[name].dtype.itemsize == own.itemsize:
      arrays[name] = arrays[name].view(own)
  expected, got = _described(leaves), _described(arrays)
  if got != expected:
    raise ValueError(
      f"Expected parameters {expected} in {path}, got {got}; name a run of the same model."
    )
  return jax.tree.unflatten(
    jax.tree.structure(like), [jnp.asarray(arrays[name]) for name in leaves]
  )


def _by_name(tree: PyTree) -> dict[str, Any]:
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  return {jax.tree_util.keystr(where, simple=True, separator="/"): leaf for where, leaf in leaves}


def _described(leaves: dict[str, Any]) -> dict[str, str]:
  """Shape and type of each leaf."""
  return {name: f"{np.dtype(leaf.dtype)}{list(leaf.shape)}" for name, leaf in leaves.items()}
