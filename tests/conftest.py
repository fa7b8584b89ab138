"""A strict environment for every test: four simulated devices, no silent promotion, no key used
twice.
"""

import os
import pathlib
import sys
import tempfile

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Most of XLA's time goes into optimising. Tests of bits and of laws, `optimised`, run both ways.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ["XLA_FLAGS"] = (
  os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
)

import jax
import numpy as np
import pytest

from jdp.queries import gaussian
from jdp.random import binding, draws

# Programs, small ones too, are compiled once for all workers and the processes that tests start.
_programs = tempfile.TemporaryDirectory(prefix="jdp-programs-")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", _programs.name)
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_legacy_prng_key", "error")
jax.config.update("jax_debug_key_reuse", True)


def pytest_unconfigure():
  _programs.cleanup()


@pytest.fixture
def key():
  """A fixed key: a stochastic test that passes today passes tomorrow."""
  return jax.random.key(20181204)


@pytest.fixture
def noise_draws(monkeypatch):
  """Sums' draws of noise during the test: (data of the key, how many arrays it fills)."""
  drawn, normal_like = [], draws.normal_like

  def recorded(key, tree):
    if not isinstance(key, jax.core.Tracer):  # to trace is not to draw
      data = tuple(np.asarray(jax.random.key_data(key)).tolist())
      drawn.append((data, len(jax.tree.leaves(tree))))
    return normal_like(key, tree)

  monkeypatch.setattr(draws, "normal_like", recorded)
  return drawn


@pytest.fixture
def all_devices(monkeypatch):
  """A test of what `train` does with all devices, which it would take for larger cohorts."""
  monkeypatch.setattr("jdp.federated.engine.placement._LEAST_WORK", 1e-9)


@pytest.fixture(autouse=True)
def _one_device(request, monkeypatch):
  """`train` takes one device where no mesh is given: four take much longer to compile for."""
  placement = sys.modules.get("jdp.federated.engine.placement")
  if placement is not None and "all_devices" not in request.fixturenames:
    monkeypatch.setattr(placement, "mesh_for", lambda *arguments: None)


@pytest.fixture(scope="module")
def undithered():
  """Noised sums before their dither, in a module that compares releases of one key.

  What the sum moves by is compared there. The dither is post-processing, and moves by a spacing.
  Sums that differ get the same noise there.
  """
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(gaussian, "dithered", lambda key, tree, spacing: tree)
    patch.setattr(binding, "bind", lambda key, hidden: key)
    yield


@pytest.fixture
def undone(monkeypatch):
  """Registries of parts, events and analyses, as they were after the test."""
  # Imported here, as few tests need them.
  from jdp import events
  from jdp.accounting import registration
  from jdp.events.base import EVENT_TYPES
  from jdp.mechanisms import registry as mechanisms
  from jdp.queries import registry as queries
  from jdp.sampling import registry as samplers

  monkeypatch.setattr(mechanisms, "_MECHANISMS", mechanisms.registered())
  monkeypatch.setattr(queries, "_QUERIES", queries.registered())
  monkeypatch.setattr(samplers, "_SAMPLERS", samplers.registered())
  monkeypatch.setattr(events.queries, "_REGISTERED", [])
  monkeypatch.setattr(events.queries, "_REGISTERED_SAMPLINGS", [])
  monkeypatch.setattr(registration, "_RULES", {})
  monkeypatch.setattr(registration, "_QUERIES", dict(registration._QUERIES))
  monkeypatch.setattr(registration, "_SAMPLINGS", dict(registration._SAMPLINGS))
  known = set(EVENT_TYPES)
  yield
  for name in set(EVENT_TYPES) - known:
    del EVENT_TYPES[name]


# Their subject is what optimisation may change: the bits of a sum, the law of what is drawn.
_OPTIMISED = {"numerics", "random"}


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items):
  """Marks all cases of a `sweep` but the first as slow, and whole folders as `optimised`."""
  tests, begun = pathlib.Path(__file__).parent, set()
  for item in items:
    if any(tests / folder in item.path.parents for folder in _OPTIMISED):
      item.add_marker("optimised")
    test = item.nodeid.partition("[")[0]
    if item.get_closest_marker("sweep") and test in begun:
      item.add_marker("slow")
    begun.add(test)
