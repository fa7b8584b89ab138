"""What there is to learn, and from whom."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.runner.reports.parts import Part
from experiments.runner.runs.workdir import Workdir
from jdp.guarantees import Unit
from jdp.ledger import Ledger
from jdp.models import Loss

PyTree = Any


class LearningProblem(NamedTuple):
  """What there is to learn.

  Attributes:
    init: key -> parameters.
    loss: (parameters, a client's examples) -> mean loss, for local training.
    evaluate: parameters -> name -> scalar, jitted, on data of nobody in `clients`.
    clients: the users' data: `PackedUsers`, or `Examples` with leading axes [users, examples of the
      largest user]. A client's `mask` has one axis, of examples; an example is what a local batch
      is made of (an image, a sequence of words).
    sizes: int [users], n_k: how many examples each user has.
    headline: name of the metric that tables and plots are about, a share in [0, 1].
    facts: what the report says about data and model, name -> value.
    parts: (label of a row -> the last parameters of its first repetition) -> further parts of the
      report; None: none.
    prior: what is released about the users before the first round.
    begin: what waits for the work directory, which keeps it: work directory -> the task as it is
      run, of the same shapes, with a private vocabulary or parameters trained on public text. None:
      nothing waits.
    equal: whether all users have as many examples by construction, so that sizes tell nothing about
      anybody.
  """

  init: Callable[[jax.Array], PyTree]
  loss: Loss
  evaluate: Callable[[PyTree], dict[str, jax.Array]]
  clients: PyTree
  sizes: np.ndarray
  headline: str
  facts: dict[str, Any]
  parts: Callable[[dict[str, PyTree]], Iterable[Part]] | None = None
  prior: Ledger = Ledger()
  complete: Callable[[Workdir], "LearningProblem"] | None = None
  equal: bool = True

  def completed(self, workdir: Workdir) -> "LearningProblem":
    """The task as it is run."""
    return self if self.complete is None else self.complete(workdir)

  @property
  def num_users(self) -> int:
    """N, public."""
    return len(self.sizes)

  def num_records(self, unit: Unit) -> int:
    """How many units of privacy there are, public: all users' examples, or the users."""
    return int(self.sizes.sum()) if unit == Unit.EXAMPLE else self.num_users

  def public(self, unit: Unit) -> str:
    """What every run takes as public though it is computed from the protected data: numbers, and
    padded shapes.
    """
    largest = "" if self.equal else f", n = {self.sizes.max()}, the examples of the largest user"
    return f"N = {self.num_records(unit)} {unit}s{largest}"

  @property
  def described(self) -> dict[str, Any]:
    """`facts`, and the number of users; how much each has is theirs to know."""
    return {**self.facts, "users": len(self.sizes)}

  @property
  def dim(self) -> int:
    """Number of parameters."""
    return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(self.init, jax.random.key(0))))
