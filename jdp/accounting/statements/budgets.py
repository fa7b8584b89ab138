"""Whether a budget allows what comes next."""

from collections.abc import Iterable

from jdp import _validate
from jdp._arguments import checked
from jdp.accounting.accountant import epsilon
from jdp.events import Event, EventBase
from jdp.ledger import Ledger, unstack


@checked
def would_exceed(
  ledger: Ledger,
  events: Event | Iterable[Event],
  max_epsilon: float,
  delta: float,
  *,
  accountant: str = "rdp",
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
    relation: likewise.
    observer: likewise.

  Returns:
    True also if no epsilon bounds the cost.

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
