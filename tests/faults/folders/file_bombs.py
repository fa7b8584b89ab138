"""Reads files that ask for more memory or time than they are worth: `python -m` with a folder.

Prints what came of each of them, and the most memory in MB that reading one has had allocated. The
allocator counts it: the largest resident set of a process starts with that of its parent.
"""

import json
import os
import pathlib
import resource
import signal
import sys
import tempfile
import tracemalloc
import zipfile

import numpy as np

from jdp import ledger, matrix_factorization
from jdp.data.files import read_arrays
from jdp.events import GaussianSum, PoissonSampling, Round
from jdp.federated.runs.run_folder import kept_key
from jdp.federated.runs.whole_files import RowFile, read_rows, read_sealed
from jdp.ledger.file_format import _next_link, to_lines
from jdp.ledger.json_form import to_json
from jdp.models import load_params

_HUGE = 2_000_000_000
_EVENT = to_json(Round(PoissonSampling(0.1), GaussianSum(1.0, 1.0)))
_HEADER = {"format": "jdp-ledger", "version": 2, "run": "run"}


def written_ledger(path: pathlib.Path, record: dict) -> pathlib.Path:
  """A ledger with one record, whose links fit."""
  path.write_bytes(b"".join(line for line, _ in to_lines([_HEADER, record], b"", None)))
  return path


def written_arrays(path: pathlib.Path, shape: tuple[int, ...], content: bytes) -> pathlib.Path:
  """An npz file of one array whose header announces a shape."""
  with (
    zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
    archive.open("coefficients.npy", "w", force_zip64=True) as member,
  ):
    header = {"shape": shape, "fortran_order": False, "descr": "<f8"}
    np.lib.format.write_array_header_1_0(member, header)
    member.write(content)
  return path


def special_files(folder: pathlib.Path) -> list[pathlib.Path]:
  """A pipe without a writer, a device without an end, a folder."""
  os.mkfifo(folder / "pipe")
  return [folder / "pipe", pathlib.Path("/dev/zero"), folder]


def bombs(folder: pathlib.Path):
  """Pairs of a name and what sets it off."""
  sizes = [_HUGE, -1, 0, 1.5, 10**30, "1", None]
  for number, size in enumerate(sizes):
    path = written_ledger(folder / f"{number}", {"round": 0, "size": size, "events": [_EVENT]})
    yield f"ledger of {size} rounds", lambda path=path: ledger.load(path)
  deep = folder / "deep"
  text = b"[" * 100_000
  deep.write_bytes(b"%s %s\n" % (_next_link(b"", text, None).hex().encode(), text))
  yield "nested ledger", lambda: ledger.load(deep)
  empty = written_arrays(folder / "announced.npz", (10**9,), b"")
  zeros = written_arrays(folder / "zeros.npz", (10**8,), bytes(8 * 10**8))
  for path in (empty, zeros):
    yield f"strategy of {path.stem}", lambda path=path: matrix_factorization.load(path)
    yield f"data of {path.stem}", lambda path=path: read_arrays(path)
    yield f"parameters of {path.stem}", lambda path=path: load_params(path, {})
  for path in special_files(folder):
    readers = {
      "ledger": ledger.load,
      "strategy": matrix_factorization.load,
      "data": read_arrays,
      "parameters": lambda path: load_params(path, {}),
      "durable ledger": lambda path: ledger.DurableLedger(path, "run"),
      "rows": read_rows,
      "metrics": lambda path: RowFile(path, 1),
      "sealed": read_sealed,
      "key": lambda path: kept_key(path, begun=True),
    }
    for name, read in readers.items():
      yield f"{name} in {path.name}", lambda path=path, read=read: read(path)


def outcome(act) -> str:
  """What comes of it within ten seconds."""

  def late(*_):
    raise TimeoutError("it takes too long")

  signal.signal(signal.SIGALRM, late)
  signal.alarm(10)
  try:
    act()
  except ValueError as error:
    return f"refused: {error}"
  except BaseException as error:
    return f"{type(error).__name__}: {error}"
  finally:
    signal.alarm(0)
  return "accepted"


if __name__ == "__main__":
  resource.setrlimit(resource.RLIMIT_AS, (8 * 2**30,) * 2)
  with tempfile.TemporaryDirectory() as made:
    acts = dict(bombs(pathlib.Path(made)))
    tracemalloc.start()
    found = {name: outcome(act) for name, act in acts.items()}
  most = tracemalloc.get_traced_memory()[1] // 10**6
  json.dump({"outcomes": found, "megabytes": most}, sys.stdout)
