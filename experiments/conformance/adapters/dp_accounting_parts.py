"""dp_accounting: accountants and calibration."""

from collections.abc import Callable, Iterator
from functools import partial

import dp_accounting

from experiments.conformance.adapters.wrapping import unsampled_replace_one, version
from jdp.conformance import Accountant, Calibration, Implementation
from jdp.conformance.protocol import Part, Plan

_Relation = dp_accounting.NeighboringRelation
_ACCOUNTANTS: dict[str, Callable[..., dp_accounting.PrivacyAccountant]] = {
  "rdp.RdpAccountant": dp_accounting.rdp.RdpAccountant,
  "pld.PLDAccountant": dp_accounting.pld.PLDAccountant,
}


def implementation() -> Implementation:
  """dp_accounting with all its parts."""
  return Implementation("dp_accounting", version("dp-accounting"), tuple(_parts()))


def _parts() -> Iterator[Part]:
  for name, make in _ACCOUNTANTS.items():
    call = f"dp_accounting.{name}"
    added = partial(make, neighboring_relation=_Relation.ADD_OR_REMOVE_ONE)
    yield Accountant(f"{call}(ADD_OR_REMOVE_ONE)", partial(_epsilon, added))
    # Its GaussianDpEvent names the norm C of one value, which a replaced value moves by 2 C.
    yield Accountant(
      f"{call}(REPLACE_ONE), GaussianDpEvent",
      partial(_epsilon, partial(make, neighboring_relation=_Relation.REPLACE_ONE)),
      unsampled_replace_one,
      unsampled=True,
    )
    yield Calibration(f"dp_accounting.calibrate_dp_mechanism({name})", partial(_calibrated, added))


def _event(plan: Plan, noise_multiplier: float) -> dp_accounting.DpEvent:
  release = dp_accounting.GaussianDpEvent(noise_multiplier)
  if plan.sampling_probability < 1:
    release = dp_accounting.PoissonSampledDpEvent(plan.sampling_probability, release)
  return dp_accounting.SelfComposedDpEvent(release, plan.num_rounds)


def _epsilon(
  make: Callable[[], dp_accounting.PrivacyAccountant], plan: Plan, noise_multiplier: float
) -> float:
  return make().compose(_event(plan, noise_multiplier)).get_epsilon(plan.delta)


def _calibrated(
  make: Callable[[], dp_accounting.PrivacyAccountant], plan: Plan, epsilon: float
) -> float:
  event = partial(_event, plan)
  return dp_accounting.calibrate_dp_mechanism(make, event, epsilon, plan.delta)
