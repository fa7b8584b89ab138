"""The files of a training run: those to publish, and separately those to keep secret.

The run's folder holds its ledger and its metrics. The secret folder holds the noise key, the
checkpoints and digests of the data. Whoever has these can remove the noise, or see who took part.
Remove the secret folder when the run is over and its result is saved.
"""

import hashlib
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import numpy as np

from jdp import random
from jdp._files import read_bytes
from jdp.federated.runs.environment import MAY_CHANGE
from jdp.federated.runs.whole_files import read_sealed, write, write_sealed
from jdp.ledger.durable import LedgerMark

LEDGER = "ledger.jsonl"
METRICS = "metrics.jsonl"
PARAMS = "params.npz"
DESCRIPTION = "run.json"
_KEY_BYTES, _CHECK_BYTES = 32, 8


class Counter(NamedTuple):
  """A place outside a run's folders that remembers how far its ledger has grown.

  A copy of the folders, or an older one that was restored, knows nothing of rounds that were done
  elsewhere. The counter does: a run whose ledger lacks the mark that was written last is refused.
  Keep one for each run where a copy of the folders does not reach, such as in a database.

  Attributes:
    read: () -> the mark written last; None before the first.
    write: keeps a mark, for good when it returns.
  """

  read: Callable[[], LedgerMark | None]
  write: Callable[[LedgerMark], None]


class RunFolder(NamedTuple):
  """Where a run keeps its files.

  Attributes:
    path: the folder of what may be published.
    secret: the folder of what must not be published. Only its owner has access.
    name: the run's name in its ledger.
    counter: the counter by which copies and roll-backs are refused. None: they are not noticed.
  """

  path: pathlib.Path
  secret: pathlib.Path
  name: str
  counter: Counter | None = None


def run_folder(workdir: str | os.PathLike | RunFolder) -> RunFolder:
  """Makes the folders of a run in `workdir` if they are missing.

  They are `workdir` itself, and `<workdir>.secret` for its owner alone.
  """
  if not isinstance(workdir, RunFolder):
    path = pathlib.Path(workdir).resolve()
    workdir = RunFolder(path, path.with_name(path.name + ".secret"), path.name)
  workdir.path.mkdir(parents=True, exist_ok=True)
  workdir.secret.mkdir(mode=0o700, parents=True, exist_ok=True)
  return workdir


def kept_key(path: pathlib.Path, *, begun: bool) -> jax.Array:
  """The key in a file of mode 0600.

  If the run has not begun and there is no file, the key is a new one of 256 bits from the operating
  system.

  Args:
    path: the file.
    begun: whether rounds were done.

  Raises:
    ValueError: if rounds were done with a key that is lost or damaged. Other noise on the same
      rounds would be a second release of them, while the ledger would hold one.
  """
  name = path.name.replace("_", " ")
  if path.exists():
    content = read_bytes(path)
    if content != _checked(content[:_KEY_BYTES]):
      raise ValueError(
        f"Expected the {name} of the run in {path}, got a damaged file; restore it from a copy, or "
        "start anew in another folder."
      )
    return random.restore_key(np.frombuffer(content[:_KEY_BYTES], np.uint32))
  if begun:
    raise ValueError(
      f"Expected the {name} of the run in {path}, got none; it cannot be resumed, start anew."
    )
  key = random.secure_key()
  write(path, _checked(np.asarray(jax.random.key_data(key)).tobytes()), mode=0o600)
  return key


def _checked(content: bytes) -> bytes:
  """The content, with a digest that tells whether it is damaged."""
  return content + hashlib.sha256(b"checked" + content).digest()[:_CHECK_BYTES]


def check_description(
  folder: RunFolder, digests: Mapping[str, str], environment: Mapping[str, str], budget: str
) -> None:
  """Compares a run with what it was begun with, which the secret folder keeps.

  Args:
    folder: the run's folder, locked by this process.
    digests: digests of what is private, name -> digest. They appear in no message.
    environment: what may be shown, name -> value.
    budget: what the run may spend, in words that may be shown.

  Raises:
    ValueError: if something else was there when the run was begun. A round that is done again could
      then have other bits, with the same noise. And a budget that is chosen after a look at
      releases is not a guarantee.
  """
  path = folder.secret / DESCRIPTION
  if not path.exists():
    if (folder.path / LEDGER).exists():
      raise ValueError(
        f"Expected in {path} what the run {folder.name} was begun with, got no such file; restore "
        "it from a copy, or start anew in another folder."
      )
    description = {"digests": digests, "environment": environment, "budget": budget}
    write_sealed(path, description, mode=0o600)
    return
  begun = read_sealed(path)
  for name, value in digests.items():
    if begun["digests"].get(name) != value:
      raise ValueError(
        f"Expected the {name} that the run {folder.name} was begun with, got another: rounds that "
        "are done again would be a second release of them; give what it was begun with, or start "
        "anew in another folder."
      )
  refuse_other_environment(folder.path, begun["environment"], environment)
  if begun.get("budget") != budget:
    raise ValueError(
      f"Expected the budget that the run {folder.name} was begun with, {begun.get('budget')}, got "
      f"{budget}: a budget that is chosen after a look at releases is no guarantee; give the one "
      "of before, or begin a run in another folder whose prior is this one's ledger."
    )


def refuse_other_environment(
  path: pathlib.Path, begun: Mapping[str, str], now: Mapping[str, str]
) -> None:
  """Refuses to go on where a repeated round could differ by more than the order of its sums.

  Args:
    path: the run's folder.
    begun: what it was begun with, name -> value.
    now: the same for this process.
  """
  for name, value in now.items():
    if name not in MAY_CHANGE and begun.get(name) != value:
      raise ValueError(
        f"Expected to resume with {name} {begun.get(name)}, as {path} was begun, got {value}; a "
        "repeated round could differ in its bits: resume as it was begun, or start anew."
      )


def fingerprint(key: jax.Array) -> str:
  """Tells keys of 256 bits apart, and says nothing else about them."""
  return hashlib.sha256(
    b"fingerprint" + np.asarray(jax.random.key_data(key)).tobytes()
  ).hexdigest()[:16]
