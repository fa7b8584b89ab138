"""Draw and Discard: what each of its three adversaries learns (arXiv 1807.04369, Section 4).

There are three kinds of numbers, which must not be mixed:

* **Guarantees** are the epsilon and delta of every `Statement`. They are proved in
  `jdp.accounting.draw_and_discard.one_update` (adversaries I and II) and in
  `jdp.accounting.draw_and_discard.later_updates` (adversary III). Neighbours and units are defined
  there too.
* **Published** numbers are not guarantees. They are `published_average`, `published_lemma` and a
  statement's `published`.
* **Diagnostics** describe one run (`internal_ratios`). They are computed from private gradients, so
  never release them.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike

from jdp import _validate
from jdp._arguments import Rows, checked
from jdp.accounting.draw_and_discard.later_updates import snapshot_epsilon
from jdp.accounting.draw_and_discard.one_update import channel_guarantee
from jdp.guarantees import Unit, rounded_up


class Statement(NamedTuple):
  """What is guaranteed against one adversary, beside what was published.

  Attributes:
    adversary: Its number and name in the publication.
    sees: What it sees.
    unit: What is hidden from it.
    epsilon: The epsilon that is proved. It holds with `delta`.
    delta: The delta of the guarantee.
    published: the publication's epsilon for one report and one coordinate with Laplace noise, where
      it differs. It is not a guarantee.

  >>> print(internal_threat(1.0, 20))  # doctest: +NORMALIZE_WHITESPACE
  II (internal threat), sees all instances, at any time: (1, 0)-DP per coordinate;
  published, no guarantee: 0.95
  """

  adversary: str
  sees: str
  unit: Unit
  epsilon: float
  delta: float
  published: float | None

  def __str__(self) -> str:
    cost = f"({rounded_up(self.epsilon, 4)}, {rounded_up(self.delta, 3)})-DP per {self.unit}"
    proved = f"{self.adversary}, sees {self.sees}: {cost}"
    if self.published is None:
      return proved
    return f"{proved}; published, no guarantee: {rounded_up(self.published, 4)}"


@checked
def channel_listener(epsilon: float, **reports: Any) -> Statement:
  """Adversary I, who sees the model that a client draws and the one that it returns.

  The arguments are those of `channel_guarantee`.

  >>> print(channel_listener(1.0, coordinates=10))  # doctest: +NORMALIZE_WHITESPACE
  I (channel listener), sees every report and its pre-image: (10, 0)-DP per user;
  published, no guarantee: 1
  """
  proved = channel_guarantee(epsilon, **reports)
  # The publication speaks of one coordinate of one report with Laplace noise.
  differs = (proved.unit, proved.epsilon) != (Unit.COORDINATE, epsilon) and _is_laplace(reports)
  published = epsilon if differs else None
  name, sees = "I (channel listener)", "every report and its pre-image"
  return Statement(name, sees, proved.unit, proved.epsilon, proved.delta, published)


@checked
def internal_threat(epsilon: float, num_instances: int, **reports: Any) -> Statement:
  """Adversary II, who sees the k instances but not which one was drawn (Section 4.3).

  The instances are seen before and after an update too. The guarantee is adversary I's, because
  what is seen is computed from the report without the data. No smaller epsilon holds while
  instances may be equal: the loss is then that of a report whose pre-image is known. "At any time"
  includes instances that others made from the report. So for one coordinate, neighbours differ in
  that coordinate alone.

  Args:
    epsilon: The epsilon of each coordinate of one report, seen alone.
    num_instances: The number k of instances.
    **reports: As for `channel_guarantee`.

  >>> print(internal_threat(1.0, 20, coordinates=10))  # doctest: +NORMALIZE_WHITESPACE
  II (internal threat), sees all instances, at any time: (10, 0)-DP per user;
  published, no guarantee: 0.95
  """
  proved = channel_guarantee(epsilon, **reports)
  published = published_average(epsilon, num_instances) if _is_laplace(reports) else None
  name, sees = "II (internal threat)", "all instances, at any time"
  return Statement(name, sees, proved.unit, proved.epsilon, proved.delta, published)


def _is_laplace(reports: dict[str, Any]) -> bool:
  """Whether `channel_guarantee` would take the reports' noise for Laplace noise."""
  return reports.get("noise", "laplace") == "laplace"


@checked
def opportunistic_threat(
  epsilon: float, delta: float, num_instances: int, updates: int, *, seen: int = 1, **line: Any
) -> Statement:
  """Adversary III, who sees instances once, T server updates after a user's report (Section 4.4).

  The user sends a single report.

  Args:
    epsilon: The epsilon of each coordinate of one report, seen alone.
    delta: The allowed delta. It lies in [0, 1].
    num_instances: The number k of instances. At least 1.
    updates: The number T of server updates. At least 0.
    seen: How many of the instances are seen.
    **line: The arguments `later`, `coordinates` and `dimension` of
      `later_updates.snapshot_epsilon`.

  Returns:
    The statement. Its `published` is the smaller of epsilon and Lemma 4.3 at the mean number of
    updates on a line, T/k.

  Raises:
    ValueError: if an argument is out of range or NaN.

  >>> statement = opportunistic_threat(1.0, 1e-6, 20, 400, later="data_independent")
  >>> print(statement)  # doctest: +NORMALIZE_WHITESPACE
  III (opportunistic threat), sees 1 of 20 instances after 400 updates (data_independent):
  (0.4798, 1e-06)-DP ...
  """
  return Statement(
    "III (opportunistic threat)",
    f"{seen} of {num_instances} instances after {updates} updates ({line.get('later', 'any')})",
    Unit.USER if line.get("coordinates", 1) > 1 else Unit.COORDINATE,
    snapshot_epsilon(epsilon, delta, num_instances, updates, seen=seen, **line),
    delta,
    min(epsilon, published_lemma(epsilon, delta, updates / num_instances)),
  )


@checked
def published_average(epsilon: float, num_instances: int) -> float:
  """epsilon (k-1)/k, Lemma 4.1: the loss of adversary II averaged over the server's coins.

  It is not a guarantee.

  >>> published_average(1.0, 20)
  0.95
  """
  _validate.positive(epsilon=epsilon)
  _validate.integer(1, num_instances=num_instances)
  return epsilon * ((num_instances - 1) / num_instances)


@checked
def published_lemma(epsilon: float, delta: float, updates: float) -> float:
  """Lemma 4.3: an epsilon at `delta` after `updates` updates along the line.

  The lemma takes the noise of the updates as Gaussian:

      epsilon^2 / (2T) * (1 + sqrt(1 + 4 T log(1/(2 delta)) / epsilon^2)).

  It is not a guarantee: the central limit theorem says nothing about tails of probability delta at
  a finite T. The result is infinite for T = 0 or delta = 0, and above epsilon for small T.

  >>> print([round(published_lemma(1.0, 1e-6, t), 4) for t in (10, 100, 1000)])
  [1.1966, 0.3673, 0.1151]
  """
  _validate.positive(epsilon=epsilon)
  _validate.probability(delta=delta)
  _validate.non_negative(updates=updates)
  if updates == 0 or delta == 0:
    return math.inf
  tail = max(0.0, -math.log(2 * delta))
  if not 0 < epsilon * epsilon / updates < math.inf:
    raise ValueError(
      f"Expected epsilon and updates of ordinary size, got {epsilon} and {updates}; choose others."
    )
  return epsilon**2 / (2 * updates) * (1 + math.sqrt(1 + 4 * updates * tail / epsilon**2))


class InternalRatios(NamedTuple):
  """Log-likelihood ratios of released models, seen by adversary II (`internal_ratios`).

  Attributes:
    joint: The whole gradient against the other whole gradient. Shape `[...]`, float64.
    coordinates: The gradient against itself with one coordinate replaced. Shape `[..., d]`,
      float64.
    alone: The same for an adversary who sees that coordinate alone. Shape `[..., d]`, float64. It
      understates the loss.
  """

  joint: np.ndarray
  coordinates: np.ndarray
  alone: np.ndarray


@checked
def internal_ratios(
  instances: Rows, released: Rows, move: Rows, other_move: Rows, scale: ArrayLike
) -> InternalRatios:
  """A diagnostic, no guarantee: what adversary II learns from one update.

  The adversary knows the instances before the update. The likelihood of the released model is

      (1/k) sum_i prod_c Lap(released_c - instance_ic + move_c).

  The weights of the candidate pre-images i come from all coordinates together, even where only one
  coordinate is changed. Many coordinates together reveal the pre-image. The loss is then nearly
  that of a report whose pre-image is known.

  The change bounds every |loss|, whatever the instances:

  * |joint| is at most sum_c |move_c - other_c| / scale;
  * |coordinates| and |alone| are at most |move_c - other_c| / scale, which is at most the epsilon
    of a coordinate.

  Equal instances reach a coordinate's bound in at least half of all updates.

  Args:
    instances: The k instances before the update. Shape `[..., k, d]`, where leading axes are
      different updates.
    released: The client's model. Shape `[..., d]`.
    move: The eta g that the client subtracted. Shape `[..., d]`.
    other_move: The eta g' of another gradient. Shape `[..., d]`.
    scale: The scale of the noise. Shape `[]` or `[..., 1]`.

  >>> equal = internal_ratios(np.zeros((20, 1)), [5.0], [-1.0], [1.0], 2.0)
  >>> print(equal.joint, equal.coordinates, equal.alone)
  1.0 [1.] [1.]
  """
  # From each instance to the released model, [..., k, d]. With the move added it is the noise.
  _check_updates(instances, released, move, other_move, scale)
  difference = np.asarray(released, float)[..., None, :] - np.asarray(instances, float)
  scale = np.asarray(scale, float)
  scale = scale[..., None] if scale.ndim else scale
  likely, other = (
    -np.abs(difference + np.asarray(m, float)[..., None, :]) / scale for m in (move, other_move)
  )
  pair, other_pair = likely.sum(axis=-1), other.sum(axis=-1)
  total = scipy.special.logsumexp(pair, axis=-1)
  # The posterior of each pre-image, given the whole released model. The mean of other / likely
  # under it is the likelihood with one coordinate replaced, over the likelihood itself.
  log_posterior = (pair - total[..., None])[..., None]
  return InternalRatios(
    total - scipy.special.logsumexp(other_pair, axis=-1),
    -scipy.special.logsumexp(log_posterior + (other - likely), axis=-2),
    scipy.special.logsumexp(likely, axis=-2) - scipy.special.logsumexp(other, axis=-2),
  )


def _check_updates(instances: Any, released: Any, move: Any, other_move: Any, scale: Any) -> None:
  """Refuses updates whose shapes do not fit together."""
  shapes = [np.shape(instances)[:-2] + np.shape(instances)[-1:]]
  shapes += [np.shape(array) for array in (released, move, other_move)]
  try:
    same = len({shape[-1] for shape in shapes}) == 1 and np.ndim(instances) > 1
    same = same and np.shape(scale)[-1:] in ((), (1,))
    np.broadcast_shapes(*shapes, np.shape(scale))
  except ValueError:
    same = False
  if not same:
    raise ValueError(
      "Expected instances [..., k, d], released, move and other_move [..., d] and a scale that fit "
      f"together, got {[np.shape(a) for a in (instances, released, move, other_move, scale)]}."
    )
