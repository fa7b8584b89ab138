"""Strategies as files, so that a run resumed on another machine has the same numbers."""

import dataclasses
import os
import pathlib
import typing

from jdp import _files
from jdp._arguments import checked
from jdp.matrix_factorization.banded_matrices import BandedStrategy
from jdp.matrix_factorization.buffered import BufferedStrategy
from jdp.matrix_factorization.strategies import Strategy
from jdp.matrix_factorization.toeplitz import ToeplitzStrategy
from jdp.matrix_factorization.trees import TreeStrategy

_KINDS: dict[str, type] = {
  kind.__name__: kind for kind in (BandedStrategy, BufferedStrategy, ToeplitzStrategy, TreeStrategy)
}


@checked
def save(strategy: Strategy, path: str | os.PathLike) -> None:
  """Writes a strategy's numbers, bit for bit, as an `.npz` file; `load` reads it back.

  Args:
    strategy: made by this package.
    path: the file, replaced if it exists.

  Raises:
    ValueError: if the strategy is of another type.
  """
  name = type(strategy).__name__
  if _KINDS.get(name) is not type(strategy):
    raise ValueError(
      f"Expected a strategy of jdp.matrix_factorization, got {name}; save its numbers yourself."
    )
  fields = {f.name: getattr(strategy, f.name) for f in dataclasses.fields(strategy)}  # type: ignore[arg-type]
  named = {"kind": name, "fingerprint": strategy.fingerprint, **fields}
  _files.write_arrays(pathlib.Path(path), named)


@checked
def load(path: str | os.PathLike) -> Strategy:
  """The strategy that `save` wrote.

  Raises:
    ValueError: if the file holds no strategy, or its numbers are not those that were saved.

  >>> import tempfile
  >>> from jdp.matrix_factorization import banded_toeplitz
  >>> with tempfile.TemporaryDirectory() as folder:
  ...   path, strategy = pathlib.Path(folder) / "strategy.npz", banded_toeplitz(10, 2)
  ...   save(strategy, path)
  ...   load(path).fingerprint == strategy.fingerprint
  True
  """
  path = pathlib.Path(path)
  try:
    with _files.open_to_read(path) as file:
      saved = _files.read_arrays(file, path)
    kind = _KINDS[str(saved.pop("kind"))]
    fingerprint = str(saved.pop("fingerprint"))
    types = typing.get_type_hints(kind)
    strategy = kind(**{name: v.item() if types[name] is int else v for name, v in saved.items()})
    if strategy.fingerprint != fingerprint:
      raise ValueError("other numbers than its fingerprint says")
  except (ValueError, KeyError, TypeError) as error:
    raise ValueError(
      f"Expected a strategy in path {path}, got a file that holds none: {error}; save it anew."
    ) from error
  return strategy
