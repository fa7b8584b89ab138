"""Libraries as the conformance kit sees them: a module for each, imported when it is asked for."""

import importlib
import importlib.util

from jdp.conformance import Implementation

_MODULES = {
  "jdp": "jdp_parts",
  "dp_accounting": "dp_accounting_parts",
  "jax_privacy": "jax_privacy_parts",
  "opacus": "opacus_parts",
  "pfl": "pfl_parts",
}
LIBRARIES = tuple(_MODULES)


def is_installed(library: str) -> bool:
  """Whether a library can be imported; nothing is imported for it."""
  return importlib.util.find_spec(library) is not None


def implementation(library: str) -> Implementation:
  """An installed library with all its parts.

  Raises:
    ImportError: if the library, or what it needs, cannot be imported.
  """
  return importlib.import_module(f"{__name__}.{_MODULES[library]}").implementation()
