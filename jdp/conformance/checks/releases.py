"""Audits of stated epsilons, as a check of the kit."""

import jax

from jdp import _validate
from jdp._arguments import checked
from jdp.conformance.auditing import Audit, audit_all
from jdp.conformance.protocol import Finding, Release, Witness, finding
from jdp.guarantees import rounded_down, rounded_up


@checked
def check_release(part: Release, seed: int = 0, *, error: float = 1e-6) -> list[Finding]:
  """No audit proves more than a stated epsilon; see `jdp.conformance.audit`.

  Args:
    part: what is audited.
    seed: the seed of the reports.
    error: the largest probability that a true statement is refuted, over all subjects of the part.
  """
  _validate.in_range(1e-12, 0.5, error=error)
  key, confidence = jax.random.key(seed), 1 - error  # of all audits of the part together
  audits = audit_all(part.make(), key, num_samples=part.num_samples, confidence=confidence)
  return [_audited(part, name, found, error) for name, found in audits.items()]


def _audited(part: Release, name: str, found: Audit, error: float) -> Finding:
  check = f"audit of epsilon, {name}"
  note = f"at least {rounded_down(found.bound, 4)} proved of {rounded_up(found.epsilon, 4)}"
  witness = None
  if found.refuted:
    witness = Witness(
      f"{found.pair[0]} against {found.pair[1]}, {found.statistic}",
      f"epsilon <= {rounded_up(found.epsilon, 4)} at delta {rounded_up(found.delta)}",
      f"epsilon >= {rounded_down(found.bound, 4)}: {found.hits} against {found.false_hits} of "
      f"{found.trials} reports",
      "The release reveals more than it states.",
    )
  return finding(part, check, witness, false_failure=error, note=note)
