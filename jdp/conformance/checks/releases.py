"""Audits of stated epsilons, as a check of the kit."""

import jax

from jdp import _validate
from jdp._arguments import checked
from jdp.conformance.auditing import audit
from jdp.conformance.protocol import Finding, Release, Witness, finding
from jdp.guarantees import rounded_down, rounded_up


@checked
def check_release(part: Release, seed: int = 0, *, error: float = 1e-6) -> list[Finding]:
  """No audit proves more than the stated epsilon; see `jdp.conformance.audit`.

  Args:
    part: what is audited.
    seed: of the reports.
    error: the most probable that a true statement is refuted.
  """
  _validate.in_range(1e-12, 0.5, error=error)
  key, num_samples = jax.random.key(seed), part.num_samples
  found = audit(part.subject, key, num_samples=num_samples, confidence=1 - error)
  note = f"at least {rounded_down(found.bound, 4)} proved of {rounded_up(found.epsilon, 4)}"
  if not found.refuted:
    return [finding(part, "audit of epsilon", None, false_failure=error, note=note)]
  witness = Witness(
    f"{found.pair[0]} against {found.pair[1]}, {found.statistic}",
    f"epsilon <= {rounded_up(found.epsilon, 4)} at delta {found.delta:g}",
    f"epsilon >= {rounded_down(found.bound, 4)}: {found.hits} against {found.false_hits} of "
    f"{found.trials} reports",
    "The release reveals more than it states.",
  )
  return [finding(part, "audit of epsilon", witness, false_failure=error, note=note)]
