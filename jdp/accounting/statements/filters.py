"""Budgets, and running costs of runs whose next event is chosen from what earlier ones released.

Composition theorems add up events that were fixed beforehand. If the next noise multiplier, the
next sampling or the decision to stop follows from earlier releases, then what was spent is a random
number, and no guarantee at that number follows (arXiv 1605.08294). Two things do:

* A **filter**: a budget that is fixed beforehand. It admits an event only if the sum stays within.
  The run then has the budget's guarantee, whatever was chosen. It is the budget's even if less was
  spent.
* An **odometer**: a bound on the privacy loss that holds at all times together, with probability 1
  - delta. It costs more than a filter, and no budget is needed.

**Renyi filter** (arXiv 2008.11193). At one order, fixed beforehand, a run whose Renyi
divergences add up to at most B along each path has divergence B at most. It does not hold for the
least over orders, which is chosen from the path. At the default order a run of zero-concentrated
releases may spend as much as under the filter of arXiv 2203.05481.

**Gaussian filter** (arXiv 2210.17520). A run of Gaussian releases whose 1/z^2 add up to at most
1/Z^2 along each path is as private as one of multiplier Z.

**Odometer**. Let L_t be the privacy loss of the first t events, and R_t the sum of their Renyi
divergences at order a. Then exp((a - 1) (L_t - R_t)) is a supermartingale with mean 1 at most. So
(Ville's inequality, as in arXiv 2203.05481) L_t <= R_t + log(1/delta) / (a - 1) at all times, with
probability 1 - delta. Each of several orders has its share of delta.

**What else happens**. A sample may overflow, and local releases have deltas. These probabilities
add up over all events of each path. A fixed share of delta is kept for them.

**Epochs**. Given its permutation or bins, a record takes part in one round of each epoch. The cost
is at most what `jdp.accounting.composition` charges the epochs so far, along each path. The
odometer's loss is then that of an observer who sees the permutation or bins.
"""

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from jdp import _validate
from jdp._arguments import checked
from jdp.accounting.accountant import epsilon
from jdp.accounting.analytic_gaussian import checked_log, gaussian_noise_multiplier
from jdp.accounting.composition import Composition
from jdp.accounting.observed import Observed, observed
from jdp.accounting.renyi.conversions import IMPROVED
from jdp.events import EventBase
from jdp.events.rounds import Event
from jdp.ledger import Ledger
from jdp.ledger.unstacking import unstack

_RESERVED = 0.01  # the share of delta for overflows and the deltas of local releases
_ORDERS = 1 + np.geomspace(0.1, 500.0, 12)  # the odometer's orders
_CANDIDATES = 1 + np.geomspace(1e-3, 1e6, 2000)  # for a filter's order


class PrivacyFilter(NamedTuple):
  """A budget for a run whose events may be chosen from earlier releases.

  Attributes:
    epsilon: with delta, the guarantee of every run whose events were each admitted before they
      happened, whenever it stopped, for whatever reason. It is not an epsilon of what was spent.
    delta: see `epsilon`.
    spent: ledger -> the share of the budget that its events spend. Above 1 there is no guarantee.
    admits: (ledger, event, count) -> whether that event may happen next, as often as the count (1
      by default), after all of the ledger. Only the first question about a ledger counts: an event
      that was admitted and not recorded must not have happened.
    observer: who sees the events that it adds up. None: the ledger's only one.
    rule: how it adds up, in words. A run keeps to the budget and the rule that it began with.

  >>> from jdp.events import GaussianSum, PoissonSampling, Round
  >>> budget, spent = gaussian_filter(2.0, 1e-5), Ledger()
  >>> event = Round(PoissonSampling(1.0), GaussianSum(1.0, 20.0), adaptive=True)
  >>> if budget.admits(spent, event, count=50):
  ...   spent = spent.append(event, count=50)
  >>> round(budget.spent(spent), 3), budget.admits(spent, event, count=51)
  (0.497, False)
  """

  epsilon: float
  delta: float
  spent: Callable[[Ledger], float]
  admits: Callable[..., bool]
  observer: str | None
  rule: str


@checked
def would_exceed(
  ledger: Ledger,
  events: Event | Iterable[Event],
  max_epsilon: float,
  delta: float,
  *,
  accountant: str = "tightest",
  relation: str | None = None,
  observer: str | None = None,
) -> bool:
  """Whether further events would take a ledger's epsilon above a budget.

  Ask before the events happen, and stop if it is true. A loop that does so in every round ends
  within the budget. The cost of its rounds must not depend on the data, though. Where noise or
  sampling is chosen from earlier results, the bound holds for the events that happened, not for
  those that might have.

  Args:
    ledger: what was done.
    events: what would be done: one event, or several in order. They may be stacked by a scan.
    max_epsilon: the budget, >= 0.
    delta: in [0, 1], at which the epsilon is taken.
    accountant: see `jdp.accounting.epsilon`.
    relation: see `jdp.accounting.epsilon`.
    observer: see `jdp.accounting.epsilon`.

  Returns:
    Whether it would. Also True if no epsilon bounds the cost.

  Raises:
    ValueError: as `jdp.accounting.epsilon`, and if the budget is negative.

  >>> from jdp import ledger
  >>> done = ledger.subsampled_gaussian(0.01, 1.1, num_rounds=1000)
  >>> further = next(iter(done))
  >>> would_exceed(done, further, max_epsilon=2.0, delta=1e-5)
  False
  >>> would_exceed(done, [further] * 1000, max_epsilon=2.0, delta=1e-5)
  True
  """
  _validate.non_negative(max_epsilon=max_epsilon)
  several = [events] if isinstance(events, EventBase) else events
  new = ((event, 1) for released in several for event in unstack(released))
  cost = epsilon(
    ledger.extend(new), delta, accountant=accountant, relation=relation, observer=observer
  )
  return not cost <= max_epsilon


@checked
def renyi_filter(
  target_epsilon: float,
  delta: float,
  *,
  order: float | None = None,
  relation: str | None = None,
  observer: str | None = None,
) -> PrivacyFilter:
  """The filter by Renyi divergences of one order. It takes every event that "rdp" takes.

  Formal guarantee: (target_epsilon, delta)-differential privacy, under the relation and to the
  observer of the events, for the whole run, earlier events included. See the module's docstring.

  Args:
    target_epsilon: > 0.
    delta: in (0, 1).
    order: above 1, fixed before the run. None: the order at which a run of unsampled Gaussian
      releases may spend the most. Sampled releases may often spend more at a larger order, which
      `jdp.accounting.epsilon` of a likely run helps to find.
    relation: add_remove, zero_out or replace_one. None: the only one that the events declare.
    observer: server, clients or model. None: the ledger's only one.

  Raises:
    ValueError: if an argument is out of range, or no release meets the target at the order.

  >>> from jdp.events import GaussianSum, PoissonSampling, Round
  >>> budget, spent = renyi_filter(2.0, 1e-5), Ledger()
  >>> for noise in (4.0, 3.0, 5.0, 2.0, 2.0):  # each chosen after a look at the last release
  ...   event = Round(PoissonSampling(1.0), GaussianSum(1.0, noise), adaptive=True)
  ...   if budget.admits(spent, event):
  ...     spent = spent.append(event)
  >>> len(spent), round(budget.spent(spent), 2)
  (3, 0.99)
  """
  _check(target_epsilon, delta)
  shared = delta * (1 - _RESERVED)
  if order is None:
    shares = _allowed(target_epsilon, _CANDIDATES, shared) / _CANDIDATES
    order = float(_CANDIDATES[np.argmax(shares)])
  _validate.in_range(1 + 1e-6, 1e9, order=order)
  budget = float(_allowed(target_epsilon, np.array([order]), shared)[0])
  if not budget > 0:
    raise ValueError(
      f"Expected an order at which some release is ({target_epsilon}, {delta})-DP, got {order}; "
      "raise it, or leave it out."
    )

  def share(composed: Composition) -> float:
    return float(composed.rdp((order,))[0]) / budget

  rule = f"Renyi divergences of order {order!r}"
  return _filter(target_epsilon, delta, share, relation, observer, rule)


@checked
def gaussian_filter(
  target_epsilon: float, delta: float, *, relation: str | None = None, observer: str | None = None
) -> PrivacyFilter:
  """The filter for Gaussian releases that no sampling amplifies. It is tight.

  Formal guarantee, arguments and errors: as for `renyi_filter`.

  >>> from jdp.events import GaussianSum, PoissonSampling, Round
  >>> budget = gaussian_filter(2.0, 1e-5)
  >>> rounds = Round(PoissonSampling(1.0), GaussianSum(1.0, 20.0), adaptive=True)
  >>> [budget.admits(Ledger(), rounds, count=count) for count in (100, 101)]
  [True, False]
  """
  _check(target_epsilon, delta)
  multiplier = gaussian_noise_multiplier(target_epsilon, delta * (1 - _RESERVED))

  def share(composed: Composition) -> float:
    spent = 0.0
    for family, (parameters, counts) in composed.groups.items():
      noises = [family.multiplier(row) for row in map(tuple, parameters.tolist())]
      if None in noises:
        raise ValueError(
          f"Expected Gaussian releases that no sampling amplifies, got {family.name}; use "
          "renyi_filter."
        )
      with np.errstate(divide="ignore", over="ignore"):
        spent += float(counts @ np.square(multiplier / np.array(noises, float)))
    return spent

  return _filter(target_epsilon, delta, share, relation, observer, "Gaussian releases")


@checked
def odometer(
  ledger: Ledger, delta: float, *, relation: str | None = None, observer: str | None = None
) -> float:
  """A bound on the privacy loss so far, which holds at all times of a run together.

  Formal guarantee: for any neighbouring data sets, with probability 1 - delta over the run, the
  logarithm of the ratio of probabilities of all that the observer saw is at no time above what
  this function gives for the ledger of that time. So each event, and the moment to stop, may be
  chosen from earlier releases. Orders are fixed: 12 from 1.1 to 501.

  Args:
    ledger: what was done up to now.
    delta: in (0, 1), the same at all times.
    relation: add_remove, zero_out or replace_one. None: the only one that the events declare.
    observer: server, clients or model. None: the ledger's only one.

  Returns:
    The bound, >= 0. It is infinite if overflows or deltas exceed their share of delta.

  >>> from jdp import accounting
  >>> from jdp.ledger import subsampled_gaussian
  >>> spent = subsampled_gaussian(0.01, 1.1, 1000)
  >>> round(odometer(spent, 1e-5), 2), round(accounting.epsilon(spent, 1e-5), 2)
  (3.32, 1.52)
  """
  _check(1.0, delta)
  if not ledger.entries:
    return 0.0
  seen = observed(ledger, relation, observer, adaptive=True)
  each = delta * (1 - _RESERVED) / len(_ORDERS)
  losses = seen.joint.rdp(tuple(_ORDERS.tolist())) - math.log(each) / (_ORDERS - 1)
  least = float(np.min(np.append(losses, seen.joint.max_loss)))
  return least if _rare(seen, least) <= delta * _RESERVED else math.inf


def _check(target_epsilon: float, delta: float) -> None:
  _validate.positive(target_epsilon=target_epsilon, delta=delta)
  checked_log(delta)


def _allowed(epsilon: float, orders: np.ndarray, delta: float) -> np.ndarray:
  """The divergence at each order that `IMPROVED` turns into this epsilon."""
  return epsilon - IMPROVED.epsilon(orders, np.zeros(len(orders)), delta)


def _rare(seen: Observed, epsilon: float) -> float:
  """What overflows, bounded noise and the deltas of local releases add to delta."""
  overflow, added = seen.rounds.overflow, seen.delta + seen.rounds.cut
  return added + (overflow * (1 + math.exp(min(epsilon, 700.0))) if overflow else 0.0)


def _filter(
  epsilon: float,
  delta: float,
  share: Callable[[Composition], float],
  relation: str | None,
  observer: str | None,
  rule: str,
) -> PrivacyFilter:
  """The filter that adds up shares of its budget."""

  @checked
  def spent(ledger: Ledger) -> float:
    if not ledger.entries:
      return 0.0
    seen = observed(ledger, relation, observer, adaptive=True)
    return max(share(seen.joint), _rare(seen, epsilon) / (delta * _RESERVED))

  @checked
  def admits(ledger: Ledger, event: Event, count: int = 1) -> bool:
    return spent(ledger.extend([(event, count)])) <= 1

  rule += "" if relation is None else f", {relation}"
  return PrivacyFilter(epsilon, delta, spent, admits, observer, rule)
