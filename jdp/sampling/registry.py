"""The registry of samplers, which conformance, experiments, benchmarks, tables and tests use.

Code outside the package registers its own samplers with `register`.
"""

from collections.abc import Callable
from typing import NamedTuple

from jdp.sampling.base import Sampler


class RegisteredSampler(NamedTuple):
  """A sampler as the registry holds it; see `register`."""

  make: Callable[[int, float], Sampler]
  factory: Callable[..., Sampler]


_SAMPLERS: dict[str, RegisteredSampler] = {}


def register(
  name: str, make: Callable[[int, float], Sampler], *, factory: Callable[..., Sampler] | None = None
) -> None:
  """Makes a sampler known to conformance, which compares its draws with the law of its event.

  Args:
    name: its name in the registry.
    make: (population, expected size) -> a sampler of about that many records a round. Sizes are
      from 1 to the population.
    factory: the public function that `make` calls. `jdp.conformance.unaudited` reports a public
      factory that is in no entry. Default: `make`.

  Raises:
    ValueError: if the name is taken.

  >>> from jdp.sampling import fixed_size, registry
  >>> registry.register("fixed_size", lambda population, size: fixed_size(population, round(size)))
  Traceback (most recent call last):
  ...
  ValueError: Expected a name that no sampler has, got 'fixed_size'; choose another.
  """
  if name in _SAMPLERS:
    raise ValueError(f"Expected a name that no sampler has, got {name!r}; choose another.")
  _SAMPLERS[name] = RegisteredSampler(make, factory or make)


def registered() -> dict[str, RegisteredSampler]:
  """All registered samplers by name, in the order of their registration.

  >>> sampler = registered()["poisson"].make(60_000, 600)
  >>> sampler.event(sampler.init()).probability
  0.01
  """
  return dict(_SAMPLERS)
