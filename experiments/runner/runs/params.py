"""A model's parameters as a file."""

import io
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.runner import files
from jdp import _files

PyTree = Any


def save_params(path: pathlib.Path, params: PyTree) -> None:
  """Writes parameters as NumPy's npz: an array for each leaf, by its path in the tree."""
  arrays: dict[str, Any] = {name: np.asarray(leaf) for name, leaf in _by_name(params).items()}
  content = io.BytesIO()
  np.savez(content, **arrays)
  files.write(path, content.getvalue())


def load_params(path: str | pathlib.Path | io.BytesIO, like: PyTree) -> PyTree:
  """The parameters in a file that `save_params` wrote.

  Args:
    path: the file, or its content.
    like: parameters of the same structure and shapes or their shapes.

  Raises:
    ValueError: if the file is damaged, holds other parameters, or is no file.
    FileNotFoundError: if there is none.
  """
  with path if isinstance(path, io.BytesIO) else _files.open_to_read(path) as file:
    arrays = _files.read_arrays(file, path)
  # Names and shapes must agree: parameters of another model are refused.
  expected = {name: tuple(leaf.shape) for name, leaf in _by_name(like).items()}
  got = {name: array.shape for name, array in arrays.items()}
  if got != expected:
    raise ValueError(
      f"Expected parameters {expected} in {path}, got {got}; name a run of the same model."
    )
  return jax.tree.unflatten(
    jax.tree.structure(like), [jnp.asarray(arrays[name]) for name in expected]
  )


def _by_name(tree: PyTree) -> dict[str, Any]:
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  return {jax.tree_util.keystr(where, simple=True, separator="/"): leaf for where, leaf in leaves}
