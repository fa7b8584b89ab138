"""Epsilon and delta of a ledger, for one observer and under one neighbouring relation."""

import functools
import math
from collections.abc import Callable

import numpy as np

from jdp import _validate
from jdp._arguments import checked
from jdp.accounting import profiles
from jdp.accounting.composed_rounds import compose_rounds
from jdp.accounting.composition import Composition
from jdp.accounting.observed import Observed, observed
from jdp.accounting.pld.profile import lower_epsilon, pld_profile, tightest_profile
from jdp.accounting.pld.terms import attained_losses
from jdp.accounting.profiles import PrivacyProfile
from jdp.accounting.seen import events_seen, split
from jdp.ledger import Ledger

_REFINEMENTS = 6  # the most tolerances that are tried, each a quarter of the one before


_ACCOUNTANTS = {
  "tightest": tightest_profile,
  "rdp": profiles.rdp_profile,
  "moments": profiles.moments_profile,
  "pld": pld_profile,
}
ACCOUNTANTS = tuple(_ACCOUNTANTS)
"""The accountants' names. The first one is the default everywhere."""


@checked
def epsilon(
  ledger: Ledger,
  delta: float,
  *,
  accountant: str = "tightest",
  relation: str | None = None,
  observer: str | None = None,
) -> float:
  """The epsilon of (epsilon, delta)-differential privacy that a ledger's events guarantee together.

  The bound holds for one observer, who sees all results of that observer's events, and under one
  neighbouring relation. `jdp.accounting.amplification` and `jdp.accounting.dominating_pairs` say
  which combinations of sampling, query and relation are analysed, and how. Any other combination is
  refused by name.

  The server, and any observer of local releases, sees who takes part. Then a sample hides nobody: a
  record pays in full for each round that it is in, and the number of these rounds is binomial.
  Under add/remove there is no bound. Rounds and local releases of one observer are composed. Of a
  unit's local releases, the `max_releases` most expensive count.

  There are four accountants. None exceeds basic composition.

  * "tightest": the smaller of the bounds that "rdp" and "pld" prove. It takes every event.
  * "rdp": Renyi divergences, minimised over all orders. It takes every event, and is the fastest.
  * "moments": orders 2..33 and the classic conversion, as in published tables. It takes Gaussian
    sums of Poisson samples. Local releases are added by the basic theorem.
  * "pld": privacy loss distributions, by their upper bound. It takes every event. Where losses are
    too many for it, its bound is that of "rdp".

  Args:
    ledger: what was done.
    delta: in [0, 1]. It includes the cost of sample overflows, and the mass that a neighbour cannot
      send because float noise is bounded. A round's share of that mass is left out if below 1e-30.
    accountant: "tightest", "rdp", "moments" or "pld".
    relation: add_remove, zero_out or replace_one. None: the only one that the events declare.
    observer: server, clients or model. None: the ledger's only one.

  Returns:
    The bound. It is 0 for an empty ledger, and infinity if no bound holds
    (`jdp.accounting.why_unbounded`).

  Raises:
    ValueError: if an argument is invalid or names an observer who saw nothing. Also if None leaves
      a choice among relations or observers, units differ or an event has no analysis under the
      relation.

  >>> from jdp import ledger
  >>> run = ledger.subsampled_gaussian(
  ...   sampling_probability=0.01, noise_multiplier=1.1, num_rounds=1000
  ... )
  >>> for accountant in ("tightest", "rdp", "moments"):
  ...   print(accountant, round(epsilon(run, delta=1e-5, accountant=accountant), 2))
  tightest 1.52
  rdp 1.71
  moments 2.09
  """
  _validate.probability(delta=delta)
  with np.errstate(all="ignore"):  # Overflow gives infinity, an upper bound.
    return _number("epsilon", _profile(ledger, accountant, relation, observer).epsilon(delta))


@checked
def delta(
  ledger: Ledger,
  epsilon: float,
  *,
  accountant: str = "tightest",
  relation: str | None = None,
  observer: str | None = None,
) -> float:
  """The delta of (epsilon, delta)-differential privacy that a ledger's events guarantee together.

  This is the inverse of `epsilon`. Accountants, relations, observers and errors are the same.

  Args:
    ledger: what was done.
    epsilon: >= 0, finite.
    accountant: "tightest", "rdp", "moments" or "pld".
    relation: add_remove, zero_out or replace_one. None: the only one that the events declare.
    observer: server, clients or model. None: the ledger's only one.

  Returns:
    The bound, in [0, 1]. It is 0 for an empty ledger.

  >>> from jdp import ledger
  >>> run = ledger.subsampled_gaussian(
  ...   sampling_probability=0.01, noise_multiplier=1.1, num_rounds=1000
  ... )
  >>> for accountant in ("rdp", "tightest"):
  ...   print(accountant, f"{delta(run, epsilon=2.0, accountant=accountant):.1e}")
  rdp 8.1e-07
  tightest 7.9e-08
  """
  _validate.non_negative(epsilon=epsilon)
  with np.errstate(all="ignore"):
    return _number("delta", _profile(ledger, accountant, relation, observer).delta(epsilon))


@checked
def epsilon_interval(
  ledger: Ledger,
  delta: float,
  *,
  relation: str | None = None,
  observer: str | None = None,
  tolerance: float = 1e-3,
) -> tuple[float, float]:
  """An interval that contains the least epsilon that a ledger's events guarantee at a delta.

  Both ends come from privacy loss distributions (`jdp.accounting.pld`), rounding errors included.
  The upper end is a guarantee, like that of `epsilon`. No epsilon below the lower end holds against
  an observer who sees the releases as their events state them: neighbouring data sets exist whose
  releases differ by more. Such data sets are known for some events (`jdp.accounting.pld.terms` says
  which). The lower end counts other events as free, so it is 0 for a ledger of such events alone.
  An observer who sees less (a rounded result, or the last model alone) may learn less.

  Args:
    ledger: what was done.
    delta: in [0, 1]; it includes what sample overflows cost.
    relation: add_remove, zero_out or replace_one; None: the only one that the events declare.
    observer: server, clients or model; None: the ledger's only one.
    tolerance: the allowed width relative to the upper end, or a tenth of it absolutely, in [1e-6,
      0.1]. If all events' pairs are attained and nothing overflows, it is met except in extreme
      runs: compare the ends. Among more than 256 different samples, similar ones count as one kind:
      the ends are about .5 % apart where their noise varies by a factor of 2. With more than 10^9
      sampled rounds, rounding errors show: the ends are up to .5 % apart at 10^10, and 3 % at
      10^11. From 10^12 on, the upper end may be that of Renyi divergences, and the lower end 0.

  Returns:
    (lower, upper), 0 <= lower <= upper; (0, 0) for an empty ledger.

  Raises:
    ValueError: as `epsilon`.

  >>> from jdp import ledger
  >>> run = ledger.subsampled_gaussian(
  ...   sampling_probability=0.01, noise_multiplier=1.1, num_rounds=1000
  ... )
  >>> lower, upper = epsilon_interval(run, delta=1e-5)
  >>> round(lower, 1), round(upper, 1), upper - lower < 1e-3 * upper
  (1.5, 1.5, True)
  """
  _validate.probability(delta=delta)
  _validate.in_range(1e-6, 0.1, tolerance=tolerance)
  if not ledger.entries:
    return 0.0, 0.0
  lowest, highest, width = 0.0, math.inf, math.inf
  with np.errstate(all="ignore"):
    rounds, _, _, chosen, known = events_seen(ledger.entries, relation, observer)
    attained, overflow = Composition({}), 0.0
    if not split(ledger.entries).releases:
      attained = attained_losses(rounds, chosen, sample_known=known)
      overflow = compose_rounds(rounds, chosen, sample_known=known).overflow
    for refinement in range(_REFINEMENTS):
      finer = tolerance / 4**refinement
      bound = _number(
        "epsilon", _profile(ledger, "tightest", relation, observer, finer).epsilon(delta)
      )
      highest = min(highest, bound)
      # Without overflows the same epsilon would hold at a delta larger by at most this.
      charged = float(overflow * (1 + np.exp(highest))) if overflow else 0.0
      lowest = max(lowest, lower_epsilon(attained, min(1.0, delta + charged), highest, finer))
      before, width = width, highest - lowest
      # If a quarter of the tolerance hardly narrows the interval, the grid is not the cause.
      if not attained.groups or width <= tolerance * max(highest, 0.1) or width > before / 2:
        break
  return min(lowest, highest), highest


def _number(name: str, value: float) -> float:
  """The value as a float. NaN and negative numbers are refused rather than printed."""
  if not value >= 0:
    raise ValueError(
      f"Expected {name} to be a number >= 0, got {value}; pass another accountant, or a shorter "
      "ledger."
    )
  return float(value)


def _profile(
  ledger: Ledger,
  accountant: str,
  relation: str | None,
  observer: str | None,
  tolerance: float | None = None,
) -> PrivacyProfile:
  """The profile of all that one observer saw, including sample overflows and bounded noise."""
  _validate.one_of(list(_ACCOUNTANTS), accountant=accountant)
  if not ledger.entries:
    return profiles.pure_profile(0.0)
  seen = observed(ledger, relation, observer)
  profile = profile_of(seen, accountant, tolerance)
  if seen.has_caps:
    other = observed(ledger, relation, observer, capped=True)
    profile = profiles.smaller(profile, profile_of(other, accountant, tolerance))
  return profile


def profile_of(seen: Observed, accountant: str, tolerance: float | None = None) -> PrivacyProfile:
  """The profile of what was seen, sample overflows included."""
  analysis: Callable[[Composition], PrivacyProfile] = _ACCOUNTANTS[accountant]
  if tolerance is not None:
    analysis = functools.partial(tightest_profile, tolerance=tolerance)
  profile = _composed_profile(seen.rounds, analysis)
  if seen.guarantee is not None:
    # Two bounds of the same run: the parts added by basic composition, and all composed jointly.
    basic = profiles.with_release(profile, seen.guarantee.epsilon, seen.guarantee.delta)
    if accountant == "moments":
      profile = basic
    else:
      joint = _composed_profile(seen.joint, analysis)
      profile = profiles.smaller(basic, profiles.with_release(joint, 0.0, seen.guarantee.delta))
  if cut := seen.rounds.cut:
    profile = profiles.with_release(profile, 0.0, cut)
  return profiles.with_overflow(profile, seen.rounds.overflow)


def _composed_profile(
  composed: Composition, analysis: Callable[[Composition], PrivacyProfile]
) -> PrivacyProfile:
  """The accountant's profile of a composition, or basic composition where that is better."""
  return profiles.smaller(analysis(composed), profiles.pure_profile(composed.max_loss))
