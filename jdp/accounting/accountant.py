"""Epsilon and delta of a ledger, for one observer and under one neighbouring relation."""

import math

from jdp import _validate
from jdp.accounting import local
from jdp.accounting.losses import losses, of_type, select
from jdp.accounting.profiles import Profile, moments_profile, pld_profile, rdp_profile, with_overflow
from jdp.events import LocalRelease, Round
from jdp.guarantees import AnyGuarantee, Relation
from jdp.ledger import Ledger

_ACCOUNTANTS = {"rdp": rdp_profile, "moments": moments_profile, "pld": pld_profile}


def epsilon(
  ledger: Ledger, delta: float, *, accountant: str = "rdp", relation: str | None = None, observer: str | None = None
) -> float:
  """The epsilon of (epsilon, delta)-differential privacy that a ledger's events guarantee together.

  It holds for one observer, who sees all results of that observer's events,
  under one neighbouring relation.

  Args:
    ledger: what was done.
    delta: in [0, 1]; it includes what sample overflows cost.
    accountant: "rdp": Renyi divergences, minimised over all orders; "moments":
      orders 2..33 and the classic conversion, as published tables have it;
      "pld": privacy loss distributions by the package dp_accounting, on its
      grid of 1e-4 in the loss (tightest, unless epsilon is small against the
      grid; slow). Local releases compose by the basic theorem with each.
    relation: add_remove, zero_out or replace_one; None: the only one that the events declare.
    observer: server, clients or model; None: the ledger's only one.

  Returns:
    The bound; 0 for an empty ledger, infinity if there is none.

  Raises:
    ValueError: if an argument is invalid, leaves a choice among relations or
      observers, or names an observer who saw nothing; if units differ; or if an
      event has no analysis under the relation.

  >>> from jdp import ledger
  >>> run = ledger.subsampled_gaussian(sampling_probability=0.01, noise_multiplier=1.1, num_rounds=1000)
  >>> round(epsilon(run, delta=1e-5), 3), round(epsilon(run, delta=1e-5, accountant="moments"), 3)
  (1.712, 2.087)
  """
  _validate.probability(delta=delta)
  return _profile(ledger, accountant, relation, observer).epsilon(delta)


def delta(
  ledger: Ledger, epsilon: float, *, accountant: str = "rdp", relation: str | None = None, observer: str | None = None
) -> float:
  """The delta of (epsilon, delta)-differential privacy that a ledger's events guarantee together.

  The reverse of `epsilon`; arguments, relations, observers and errors are the same.

  Args:
    ledger: what was done.
    epsilon: >= 0, finite.
    accountant: "rdp", "moments" or "pld".
    relation: add_remove, zero_out or replace_one; None: the only one that the events declare.
    observer: server, clients or model; None: the ledger's only one.

  Returns:
    The bound, in [0, 1]; 0 for an empty ledger.
  """
  _validate.non_negative(epsilon=epsilon)
  return _profile(ledger, accountant, relation, observer).delta(epsilon)


def _profile(ledger: Ledger, accountant: str, relation: str | None, observer: str | None) -> Profile:
  _validate.one_of(list(_ACCOUNTANTS), accountant=accountant)
  if not ledger.entries:
    return Profile(lambda delta: 0.0, lambda epsilon: 0.0)
  events, chosen = select(ledger, relation, observer)
  rounds, releases = of_type(Round, events), of_type(LocalRelease, events)
  if rounds and releases:
    raise ValueError(
      "Expected one observer's events to be all Round or all LocalRelease, got both: no analysis composes them yet; "
      "keep a ledger for each and add their epsilons and deltas."
    )
  if releases:
    return _local_profile(local.total(releases), chosen)
  composed = losses(rounds, chosen)
  return with_overflow(_ACCOUNTANTS[accountant](composed), composed.overflow)


def _local_profile(guarantee: AnyGuarantee, relation: Relation) -> Profile:
  if guarantee.relation != relation:
    raise ValueError(f"Expected relation {guarantee.relation}, which the local releases state, got {relation}.")
  return Profile(
    lambda delta: guarantee.epsilon if guarantee.delta <= delta else math.inf,
    lambda epsilon: guarantee.delta if guarantee.epsilon <= epsilon else 1.0,
  )
