"""What the bits of a round depend on besides its arguments: versions, settings and the machine."""

import functools
import hashlib
import importlib.metadata
import itertools
import os
import pathlib
import platform
import re
import sys

import jax

_PACKAGES = ("jax", "jaxlib", "numpy", "scipy", "flax", "optax")
# Settings of JAX that change what a program computes, or the order in which it rounds.
_SETTINGS = (
  "jax_enable_x64",
  "jax_default_matmul_precision",
  "jax_default_prng_impl",
  "jax_threefry_partitionable",
  "jax_threefry_gpu_kernel_lowering",
  "jax_random_seed_offset",
  "jax_numpy_dtype_promotion",
  "jax_numpy_rank_promotion",
  "jax_default_dtype_bits",
  "jax_disable_jit",
  "jax_disable_most_optimizations",
  "jax_optimization_level",
  "jax_exec_time_optimization_effort",
  "jax_use_shardy_partitioner",
)
_DEVICE_COUNT = re.compile(r"--xla_force_host_platform_device_count=\S*")
MAY_CHANGE = frozenset({"devices"})
"""The settings that may differ when a run is resumed."""

# Variables from which XLA and its libraries take settings.
_VARIABLES = ("XLA_FLAGS", "LIBTPU_INIT_ARGS", "NVIDIA_TF32_OVERRIDE")
# Lines of Linux's /proc/cpuinfo. Processors that differ in them get different machine code.
_PROCESSOR = ("model name", "cpu family", "model", "stepping", "flags", "Features", "CPU part")


def environment() -> dict[str, str]:
  """What two processes must have in common so that a round computed by both has the same bits.

  Only the number of devices (`MAY_CHANGE`) may differ. It changes the order of summation.
  """
  devices = jax.devices()
  settings = {name.removeprefix("jax_"): getattr(jax.config, name, None) for name in _SETTINGS}
  variables = {name: _without_count(os.environ.get(name)) for name in _VARIABLES}
  return {
    "python": platform.python_version(),
    **{name: importlib.metadata.version(name) for name in _PACKAGES},
    "platform": f"{sys.platform} {platform.machine()}",
    "processor": _processor(),
    "kind of device": devices[0].device_kind,
    "devices": _counted(len(devices), jax.process_count()),
    "settings": _words({**settings, **variables}),
    "source": source_fingerprint(pathlib.Path(__file__).parents[2]),
  }


@functools.cache
def source_fingerprint(package: pathlib.Path) -> str:
  """A hash of the code in a package's folder: an edited line may change a round's bits."""
  digest = hashlib.sha256()
  for path in sorted(package.rglob("*.py")):
    digest.update(path.read_bytes())
  return digest.hexdigest()[:16]


@functools.cache
def _processor() -> str:
  """The processor, a hash of its features, and the number of cores that may be used.

  XLA compiles for the first two, and divides some sums among the cores.
  """
  lines: dict[str, str] = {}
  if sys.platform == "linux":
    with open("/proc/cpuinfo") as file:
      first = itertools.takewhile(str.strip, file)
      pairs = (line.partition(":") for line in first)
      lines = {name.strip(): value.strip() for name, _, value in pairs}
  found = "".join(lines.get(name, "") for name in _PROCESSOR)
  name = lines.get("model name") or platform.processor() or platform.machine()
  cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
  return f"{name}, {cores} cores, {hashlib.sha256(found.encode()).hexdigest()[:8]}"


def _without_count(flags: str | None) -> str | None:
  """XLA's flags without the number of simulated devices."""
  return flags and (" ".join(_DEVICE_COUNT.sub("", flags).split()) or None)


def _counted(devices: int, processes: int) -> str:
  """The devices in words: "2", or "2 of 2 processes"."""
  return f"{devices}" if processes == 1 else f"{devices} of {processes} processes"


def _words(settings: dict[str, object]) -> str:
  """The settings that have a value, as text."""
  return " ".join(f"{name}={value}" for name, value in settings.items() if value is not None)
