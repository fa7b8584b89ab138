"""A device for every core of a CPU."""

import os
import sys
from typing import Any

import jax

_config: Any = jax.config  # JAX's settings are attributes without type annotations


def use_all_cores() -> None:
  """Makes each core that this process may use a device of its own. A script calls it first.

  `train` computes a cohort over as many devices as pay off for its size. On a CPU, JAX has one
  device by default, and several cores serve one device badly: the operations of a small model
  cannot be divided among them.

  A number of devices that the user chose stays: `jax_num_cpu_devices`, or
  `--xla_force_host_platform_device_count` in XLA_FLAGS. Choose it where several processes share a
  machine. GPUs and TPUs are not affected.

  Raises:
    RuntimeError: if JAX has started its devices already.
  """
  cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
  chosen = "--xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
  if chosen or _config.jax_num_cpu_devices > 0 or cores == 1:
    return
  try:
    jax.config.update("jax_num_cpu_devices", cores)
  except RuntimeError:
    started = len(jax.devices("cpu"))
    raise RuntimeError(
      f"Expected use_all_cores before JAX starts its devices, got {started} started already; call "
      "it right after the imports, before any array is made."
    ) from None
