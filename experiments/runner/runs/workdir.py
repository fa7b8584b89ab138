"""Where an experiment keeps its files: the work directory, and its secret sibling.

The work directory can be published as far as its runs are private. `results.json` names those that
are not (baselines among them) under "not_private".

`<workdir>.secret` holds the noise key and the checkpoints. Whoever has them can remove the noise,
or see who took part. It is readable by its owner alone, and removed when the experiment is
finished.
"""

import fcntl
import functools
import hashlib
import importlib.metadata
import pathlib
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import IO, Any, NamedTuple

import jax

import experiments
import jdp
from experiments.runner import files
from jdp import random
from jdp.federated.runs.run_folder import LEDGER, kept_key

FLAGS = "flags.json"
_KEY = "noise_key"


class Workdir(NamedTuple):
  """The two folders of an experiment."""

  path: pathlib.Path

  @property
  def secret(self) -> pathlib.Path:
    """The folder that must not be published."""
    return self.path.with_name(self.path.name + ".secret")


def create(path: str | None, experiment: str, preset: str, flags: Mapping[str, Any]) -> Workdir:
  """A new work directory with `flags.json` in it.

  Args:
    path: a folder that is missing or empty. None makes a new one under ./runs.
    experiment: the binary's name.
    preset: the preset's name.
    flags: the options of the run, as JSON data.

  Raises:
    ValueError: if the folder is not empty, or has a secret sibling.
  """
  if path is None:
    pathlib.Path("runs").mkdir(exist_ok=True)
    path = tempfile.mkdtemp(prefix=time.strftime(f"{experiment}-%Y%m%d-%H%M%S-"), dir="runs")
  workdir = Workdir(pathlib.Path(path).resolve())
  if workdir.path.exists() and any(workdir.path.iterdir()):
    raise ValueError(
      f"Expected a missing or empty --workdir, got {workdir.path}; add --resume to continue there."
    )
  if workdir.secret.exists():
    raise ValueError(
      f"Expected no {workdir.secret}, got one left by another run; remove it if that run is over."
    )
  workdir.path.mkdir(parents=True, exist_ok=True)
  content = {
    "experiment": experiment,
    "preset": preset,
    "flags": flags,
    "environment": environment(),
  }
  files.write_json(workdir.path / FLAGS, content)
  return workdir


def reopen(path: str | None, experiment: str) -> tuple[Workdir, str, dict[str, Any]]:
  """The work directory, preset and flags of a run to be resumed.

  Raises:
    ValueError: if there is none, or if it was made by another experiment or in another environment.
      There the same rounds need not have the same bits.
  """
  if path is None:
    raise ValueError(
      "Expected --workdir with --resume, got none; name the folder of the run to continue."
    )
  workdir = Workdir(pathlib.Path(path).resolve())
  if not (workdir.path / FLAGS).exists():
    raise ValueError(
      f"Expected {FLAGS} in {workdir.path}, got none: no run was started there; leave out --resume."
    )
  saved = files.read_json(workdir.path / FLAGS)
  # All of these may change the bits of a repeated round, which would be a second release.
  expected = {"experiment": saved["experiment"], **saved["environment"]}
  for name, value in {"experiment": experiment, **environment()}.items():
    if expected.get(name) != value:
      raise ValueError(
        f"Expected to resume with {name} {expected.get(name)}, as {workdir.path} was begun, got "
        f"{value}; a repeated round could differ in its bits."
      )
  return workdir, saved["preset"], saved["flags"]


def lock(workdir: Workdir) -> IO[str]:
  """Makes the secret folder, and locks it against other processes.

  The lock is held until the returned file is closed or the process ends.

  Raises:
    ValueError: if another process holds the lock.
  """
  workdir.secret.mkdir(mode=0o700, exist_ok=True)
  file = open(workdir.secret / "lock", "w")  # noqa: SIM115  # The caller closes it.
  try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError as error:
    file.close()
    raise ValueError(
      f"Expected no other process in {workdir.path}, got one; wait for it to end."
    ) from error
  return file


def remove_secrets(workdir: Workdir) -> None:
  """Removes the noise key and the checkpoints; nothing is left to resume."""
  shutil.rmtree(workdir.secret)


def noise_key(workdir: Workdir, seed: int | None) -> jax.Array:
  """The key of all sampling and noise.

  It lies in the secret folder, and is made there if no round was done yet.

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
  return kept_key(workdir.secret / _KEY, begun=any(workdir.path.rglob(LEDGER)))


@functools.cache
def _source_fingerprint() -> str:
  """A hash of the code of jdp and of the experiments: an edited line may change a round's bits."""
  roots = [pathlib.Path(module.__file__).parent for module in (jdp, experiments) if module.__file__]
  digest = hashlib.sha256()
  for path in sorted(path for root in roots for path in root.rglob("*.py")):
    digest.update(path.read_bytes())
  return digest.hexdigest()[:16]


def environment() -> dict[str, str]:
  """What the bits of a result depend on besides the flags: versions, devices and source code."""
  devices = jax.devices()
  packages = ("jax", "jaxlib", "numpy", "scipy", "flax", "optax")
  return {
    "python": platform.python_version(),
    **{name: importlib.metadata.version(name) for name in packages},
    "platform": f"{sys.platform} {platform.machine()}",
    "devices": f"{len(devices)} x {devices[0].device_kind}",
    "source": _source_fingerprint(),
  }
