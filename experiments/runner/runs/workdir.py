"""Where an experiment keeps its files: the work directory, and its secret sibling.

The work directory can be published as far as its runs are private. `results.json` names those that
are not (baselines among them) under "not_private".

Of several processes, the first one alone has these folders.

`<workdir>.secret` holds the noise key, the checkpoints and digests of the data. Whoever has them
can remove the noise, or see who took part. It is readable by its owner alone, and removed when the
experiment is finished.

A run is begun when `flags.json` is there. What a process left that was killed before is taken over.
"""

import pathlib
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import IO, NamedTuple

import jax
import numpy as np

import experiments
from experiments.runner import files, processes
from experiments.runner.files import Row
from experiments.runner.problems.own_model import code_digest
from jdp import random
from jdp.federated.runs import environment as library
from jdp.federated.runs.run_folder import LEDGER, kept_key, refuse_other_environment
from jdp.federated.runs.secret_folder import hold
from jdp.federated.runs.whole_files import read_sealed, write_sealed

FLAGS = "flags.json"
DEVICES = "devices.json"
_KEY = "noise_key"
# What a process leaves that is killed before its run is begun.
_BEFORE_FLAGS, _SECRET_BEFORE_FLAGS = {f"{FLAGS}.tmp"}, {"lock"}


class Workdir(NamedTuple):
  """The two folders of an experiment."""

  path: pathlib.Path

  @property
  def secret(self) -> pathlib.Path:
    """The folder that must not be published."""
    return self.path.with_name(self.path.name + ".secret")


def create(
  path: str | None,
  experiment: str,
  preset: str,
  flags: Mapping[str, object],
  fill: Callable[[Workdir], None] = lambda folder: None,
) -> Workdir:
  """A new work directory with `flags.json` in it.

  Args:
    path: a folder that is missing or empty. None makes a new one under ./runs.
    experiment: the binary's name.
    preset: the preset's name.
    flags: the options of the run, as JSON data.
    fill: writes what the run begins with, before it counts as begun.

  Raises:
    ValueError: if the folder is not empty, has a secret sibling, or is taken by another process.
  """
  if path is None:
    pathlib.Path("runs").mkdir(exist_ok=True)
    path = tempfile.mkdtemp(prefix=time.strftime(f"{experiment}-%Y%m%d-%H%M%S-"), dir="runs")
  workdir = Workdir(pathlib.Path(path).resolve())
  _refuse_used(workdir)
  workdir.path.mkdir(parents=True, exist_ok=True)
  content = {
    "experiment": experiment,
    "preset": preset,
    "flags": flags,
    "environment": environment(flags),
  }
  with lock(workdir):
    _refuse_used(workdir)  # Another process may have begun there in the meantime.
    fill(workdir)
    write_sealed(workdir.path / FLAGS, content)
  return workdir


def reopen(path: str | None, experiment: str) -> tuple[Workdir, str, Row]:
  """The work directory, preset and flags of a run to be resumed.

  Raises:
    ValueError: if there is none, or its flags were changed. Also if it was made by another
      experiment or in another environment. There the same rounds need not have the same bits.
  """
  if path is None:
    raise ValueError(
      "Expected --workdir with --resume, got none; name the folder of the run to continue."
    )
  workdir = Workdir(pathlib.Path(path).resolve())
  if not (workdir.path / FLAGS).exists():
    advice = ": no run was started there; leave out --resume."
    if _names(workdir.path) - _BEFORE_FLAGS:
      advice = " beside other files; restore it from a copy, or start anew in another folder."
    raise ValueError(f"Expected {FLAGS} in {workdir.path}, got none{advice}")
  saved = read_sealed(workdir.path / FLAGS)
  begun = {"experiment": saved["experiment"], **saved["environment"]}
  now = environment(saved["flags"])
  refuse_other_environment(workdir.path, begun, {"experiment": experiment, **now})
  return workdir, saved["preset"], saved["flags"]


def note_devices(workdir: Workdir) -> None:
  """Keeps in `devices.json` on how many devices the run goes on, if the number changed.

  Its results are then those of the first devices where its sums have the same bits.
  """
  before, now = used_devices(workdir), environment()["devices"]
  if before[-1] != now:
    files.write_json(workdir.path / DEVICES, [*before, now])


def used_devices(workdir: Workdir) -> list[str]:
  """The numbers of devices that the run was computed on, in turn."""
  return changed_devices(workdir) or [read_sealed(workdir.path / FLAGS)["environment"]["devices"]]


def changed_devices(workdir: Workdir) -> list[str]:
  """The numbers of devices that the run was computed on, in turn; none if there was only one."""
  path = workdir.path / DEVICES
  return list(files.read_json(path)) if path.exists() else []


def lock(workdir: Workdir) -> IO[bytes]:
  """Makes the secret folder, and locks it against other processes.

  The lock is held until the returned file is closed or the process ends.

  Raises:
    ValueError: if another process holds the lock, or the folder is not its owner's alone (`hold`).
  """
  workdir.secret.mkdir(mode=0o700, exist_ok=True)
  return hold(workdir.secret)


def remove_secrets(workdir: Workdir) -> None:
  """Removes the noise key and the checkpoints; nothing is left to resume."""
  shutil.rmtree(workdir.secret)


def noise_key(workdir: Workdir, seed: int | None) -> jax.Array:
  """The key of all sampling and noise.

  It lies in the secret folder, and is made there if no round was done yet. The first of several
  processes tells it the others, as all compute the noise.

  Args:
    workdir: held.
    seed: makes the key reproducible and the run NOT private. None takes 256 bits from the operating
      system.

  Raises:
    ValueError: if rounds were done with a key that is lost. Other noise on the same rounds would be
      a second release, while the ledger would hold one.
  """
  if seed is not None:
    return random.seeded_key(seed)

  def words() -> list[int]:
    key = kept_key(workdir.secret / _KEY, begun=any(workdir.path.rglob(LEDGER)))
    return np.asarray(jax.random.key_data(key)).tolist()

  return random.restore_key(np.array(processes.told(words), np.uint32))


def environment(flags: Mapping[str, object] = MappingProxyType({})) -> dict[str, str]:
  """What the bits of a result depend on besides these flags, the code that they name included."""
  model = str(flags.get("model") or "")
  return {
    **library.environment(),
    "experiments": library.source_fingerprint(pathlib.Path(str(experiments.__file__)).parent),
    **({f"the code of {model}": code_digest(model)} if ":" in model else {}),
  }


def _refuse_used(workdir: Workdir) -> None:
  """Refuses the folders of another run, but takes over those of one that was never begun."""
  if names := _names(workdir.path) - _BEFORE_FLAGS:
    advice = "add --resume to continue there" if FLAGS in names else "name another"
    raise ValueError(f"Expected a missing or empty --workdir, got {workdir.path}; {advice}.")
  if _names(workdir.secret) - _SECRET_BEFORE_FLAGS:
    raise ValueError(
      f"Expected no {workdir.secret}, got one left by another run; remove it if that run is over."
    )


def _names(folder: pathlib.Path) -> set[str]:
  """The names in a folder; none if there is no folder."""
  return {path.name for path in folder.iterdir()} if folder.exists() else set()
