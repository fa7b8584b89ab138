"""What was released about the users before the first round: an earlier run's parameters, and what they cost."""

import dataclasses
import math
import pathlib
import types
from typing import Any

from experiments.runner import files
from experiments.runner.costs import central_epsilon
from experiments.runner.params import load_params
from experiments.runner.reports import not_private
from experiments.runner.workdir import FLAGS, LEDGER
from jdp.events import Event, NonPrivate, Round
from jdp.guarantees import Observer, Relation, Unit, rounded_up
from jdp.ledger import Ledger, load

PyTree = Any


def load_start(path: str, like: PyTree, *, public: bool) -> tuple[PyTree, Ledger]:
  """The parameters that an earlier run ended with, and what was released about its users until then.

  A run whose flags gave its noise away (`reports.not_private`) released all in the clear, whatever its ledger says.

  Args:
    path: the run's `params.npz`, with its ledger beside it.
    like: parameters of the same structure and shapes, or their shapes.
    public: whether it was trained on public data, or on other users: then nothing is counted.

  Raises:
    ValueError: if the file holds other parameters, or there is no ledger and they are not public.
    FileNotFoundError: if there is no file.
  """
  params, book = load_params(path, like), pathlib.Path(path).with_name(LEDGER)
  if public:
    return params, Ledger()
  if not book.exists():
    raise ValueError(
      f"Expected {LEDGER} beside --warm_start={path}, to count what these parameters cost, got none; name a file in "
      "its run's folder, or add --warm_start_public if they come from public data or from other users."
    )
  spent = load(book)
  return params, spent if _kept_secrets(pathlib.Path(path)) else spent.extend(_in_the_clear(spent))


def _kept_secrets(path: pathlib.Path) -> bool:
  """Whether nothing in the flags of the run that made a file says that its noise can be undone."""
  flags = path.resolve().parent.parent.parent / FLAGS
  return not flags.exists() or not not_private(types.SimpleNamespace(**files.read_json(flags)["flags"]))


def _in_the_clear(spent: Ledger) -> list[tuple[Event, int]]:
  """What was released if the noise of these events is known."""
  return [(dataclasses.replace(event, query=NonPrivate()), n) for event, n in spent.entries if isinstance(event, Round)]


def check_prior(prior: Ledger, unit: Unit, delta: float, max_epsilon: float | None) -> None:
  """Refuses earlier releases that a run to come could not count, or cannot afford.

  Args:
    prior: the earlier releases.
    unit: what the run protects, under add/remove, from whoever sees the models.
    delta: of the run.
    max_epsilon: the budget, or None.

  Raises:
    ValueError: if a release is about another unit, relation or observer, or if they cost more than the budget.
  """
  for event, _ in prior.entries:
    in_the_clear = isinstance(event, Round) and isinstance(event.query, NonPrivate)  # Infinite under every relation.
    relation = Relation.ADD_REMOVE if in_the_clear else event.relation
    if (event.unit, relation, event.observer) != (unit, Relation.ADD_REMOVE, Observer.MODEL):
      raise ValueError(
        f"Expected earlier releases per {unit} (add/remove) to whoever sees the models, as those of the runs to come, "
        f"got {type(event).__name__} per {event.unit} ({event.relation.label}) to the {event.observer}; begin with "
        "another model, or leave out the runs about another unit."
      )
  if max_epsilon is not None and (spent := central_epsilon(prior, delta)) > max_epsilon:
    raise ValueError(
      f"Expected --max_epsilon of at least the {spent:.4g} that was spent before the first round, got {max_epsilon}."
    )


def describe_start(path: str, spent: Ledger, delta: float, *, public: bool) -> str:
  """What a report says of the parameters that its runs begin with."""
  if public:
    return f"Not counted: what {path} was trained on, said to be public or of other users (`--warm_start_public`)."
  cost = central_epsilon(spent, delta)
  if math.isinf(cost):
    return f"**{path} was trained on these users without privacy: no run that begins with it has a guarantee.**"
  return f"Every run begins with {path}, and its ledger and ε with what that cost: alone ε = {rounded_up(cost)}."
