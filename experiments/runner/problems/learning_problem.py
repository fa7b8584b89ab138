"""What there is to learn, and from whom."""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import jax
import numpy as np

from experiments.runner.reports.parts import Part
from experiments.runner.runs.workdir import Workdir
from jdp.data.packed import PackedUsers
from jdp.data.sources.source_users import SourceUsers
from jdp.federated.engine.sharded import num_clients
from jdp.guarantees import Unit
from jdp.ledger import Ledger
from jdp.models import Loss
from jdp.queries.base import PyTree


class LearningProblem(NamedTuple):
  """What there is to learn.

  Attributes:
    init: key -> parameters.
    loss: (parameters, a client's examples) -> mean loss, for local training.
    evaluate: parameters -> name -> scalar, jitted, on data of nobody in `clients`.
    clients: the users' data: `PackedUsers`, `SourceUsers`, or `Examples` with leading axes [users,
      examples of the largest user]. A client's `mask` has one axis, of examples. An example is an
      element of a local batch: an image, or a sequence of words.
    sizes: n_k as int [users]. It is the number of examples of each user. None: they are in a
      source, and nobody counted them.
    headline: name of the metric that tables and plots are about, a share in [0, 1].
    facts: what the report says about data and model, name -> value.
    parts: (label of a row -> the last parameters of its first repetition) -> further parts of the
      report; None if there are none.
    prior: what is released about the users before the first round.
    complete: work directory -> the problem as it is run, of the same shapes. It makes what the work
      directory keeps: a private vocabulary, or parameters trained on public text. None if nothing
      is missing.
    equal: whether all users have the same number of examples by construction. The sizes then tell
      nothing about anybody.
    protects: for each unit whose name says too little, what the guarantee is about.
  """

  init: Callable[[jax.Array], PyTree]
  loss: Loss
  evaluate: Callable[[PyTree], dict[str, jax.Array]]
  clients: PyTree
  sizes: np.ndarray | None
  headline: str
  facts: Mapping[str, object]
  parts: Callable[[dict[str, PyTree]], Iterable[Part]] | None = None
  prior: Ledger = Ledger()
  complete: Callable[[Workdir], "LearningProblem"] | None = None
  equal: bool = True
  protects: Mapping[Unit, str] = MappingProxyType({})

  def completed(self, workdir: Workdir) -> "LearningProblem":
    """The problem as it is run: with what `complete` makes."""
    return self if self.complete is None else self.complete(workdir)

  def require_memory(self, what: str) -> None:
    """Refuses users of a source, for what needs the data of all at once."""
    if self.sizes is None:
      raise ValueError(
        f"Expected users in memory with {what}, which takes all of them at once, got "
        "--dataset=source; choose another data set."
      )

  @property
  def num_users(self) -> int:
    """N, public."""
    return num_clients(self.clients) if self.sizes is None else len(self.sizes)

  def num_records(self, unit: Unit) -> int:
    """The number of units of privacy, public: of all users' examples, or of the users.

    Raises:
      ValueError: if the units are examples of a source.
    """
    if unit != Unit.EXAMPLE:
      return self.num_users
    if self.sizes is None:
      raise ValueError(
        "Expected runs whose unit is a user with --dataset=source, got dp_sgd; leave it out."
      )
    return int(self.sizes.sum())

  def public(self, unit: Unit) -> str:
    """What every run takes as public although it is computed from the protected data.

    These are numbers and padded shapes.
    """
    return f"N = {self.num_records(unit)} {unit}s{'' if self.equal else self._width}"

  @property
  def _width(self) -> str:
    """How many examples every user is padded to, and whether that was declared."""
    declared = None
    if isinstance(self.clients, SourceUsers):
      declared = self.clients.max_examples
    elif isinstance(self.clients, PackedUsers) and self.clients.declared:
      declared = self.clients.width
    if declared is not None:
      return f", n = {declared}, the declared bound on a user's examples"
    assert self.sizes is not None
    return f", n = {self.sizes.max()}, the examples of the largest user"

  @property
  def described(self) -> dict[str, object]:
    """`facts` and the number of users. The users' sizes are private and left out."""
    return {**self.facts, "users": self.num_users}

  @property
  def dim(self) -> int:
    """Number of parameters."""
    return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(self.init, jax.random.key(0))))
