"""The privacy of one noisy model update after later ones (arXiv 1807.04369, Section 4.4).

Every update adds Laplace noise of the same scale to every coordinate. Steps that decrease are
covered only by "any", which does not use later noise. On one instance's line of descent the noises
of later updates pile up over a user's own. How much that hides depends on what those updates do to
a difference. On the server's clock the line may also have died out: `snapshot_epsilon` combines the
two.

All epsilons are guarantees for one report. Neighbours differ in `coordinates` coordinates of its
gradient. They differ neither in the model it started from nor in what later clients hold.

Gradients that differ anywhere, seen in one coordinate, are another matter. Later updates mix
coordinates, so epsilon does not bound what that one coordinate shows (see
`jdp.accounting.draw_and_discard.one_update`).
"""

import enum
import functools
import math
from collections.abc import Callable

import numpy as np

from jdp import _validate
from jdp._arguments import checked
from jdp.accounting.draw_and_discard import laplace_sums, lineage
from jdp.accounting.draw_and_discard.one_update import joint_epsilon


class LaterUpdates(enum.StrEnum):
  """What is known of the updates that follow a user's own along its line.

  Each of them adds fresh noise of the same scale.
  """

  #: their gradients do not depend on the model they start from
  DATA_INDEPENDENT = "data_independent"
  #: gradient steps on convex b-smooth losses, unclipped, of size at most 2/b
  NON_EXPANSIVE = "non_expansive"
  #: nothing
  ANY = "any"


@checked
def known_of_steps(
  learning_rate: float, clip: float, *, smoothness: float, gradient_bound: float
) -> LaterUpdates:
  """What is known of gradient steps on a convex loss, such as that of a `jdp.models.glm`.

  They are non-expansive if they are never clipped and are no longer than 2 / smoothness (arXiv
  1808.06651, Proposition 18). That is so in real numbers; float32 adds its rounding.

  Args:
    learning_rate: the size of a step, the largest of a schedule.
    clip: the bound c on the size of each coordinate of a gradient.
    smoothness: an upper bound on the eigenvalues of the loss's second derivative.
    gradient_bound: an upper bound on the size of each coordinate of a gradient.

  Raises:
    ValueError: if a number is not positive.

  >>> known_of_steps(0.03, 1.0, smoothness=32.0, gradient_bound=1.0).value
  'non_expansive'
  >>> known_of_steps(0.03, 0.5, smoothness=32.0, gradient_bound=1.0).value
  'any'
  """
  _validate.positive(learning_rate=learning_rate, clip=clip)
  _validate.in_range(0, math.inf, smoothness=smoothness, gradient_bound=gradient_bound)
  if gradient_bound <= clip and learning_rate * smoothness <= 2:
    return LaterUpdates.NON_EXPANSIVE
  return LaterUpdates.ANY


@checked
def line_epsilon(
  epsilon: float,
  delta: float,
  updates: int,
  *,
  later: str = "any",
  coordinates: int = 1,
  dimension: float = math.inf,
) -> float:
  """The epsilon at `delta` that one report keeps after `updates` further updates along its line.

  The number of updates is exact. The bound depends on what is known of them (Statements 3.4, 3.5
  and 3.6 of `docs/theory/later_updates.md`):

  * data-independent: the sum of the T + 1 noises, the report's own included, against its shift. It
    is exact for one coordinate (`hockey_stick`). For more coordinates it is the smallest of three
    bounds (the report's own loss, basic composition and the next bound).
  * non-expansive: amplification by iteration (`iterated_rdp`, arXiv 1808.06651).
  * any: the report's own loss, since what follows is computed from it.

  The last bounds the others too. An average gradient that clients clip is not the gradient of a
  convex loss in general. Then only "any" is known.

  Args:
    epsilon: The epsilon of each coordinate of one report, seen alone.
    delta: The allowed delta. It lies in [0, 1].
    updates: The number T of updates along the line. At least 0.
    later: A `LaterUpdates`.
    coordinates: In how many coordinates neighbours differ.
    dimension: The number of coordinates of the model, at least `coordinates`. Infinity means
      unknown. It matters to non-expansive updates alone, which may turn a difference in one
      coordinate into one in all.

  Raises:
    ValueError: if an argument is out of range or NaN.

  >>> for later in LaterUpdates:
  ...   print(later, round(line_epsilon(1.0, 1e-6, 100, later=later, dimension=1), 3))
  data_independent 0.259
  non_expansive 0.419
  any 1.0
  """
  _validate.probability(delta=delta)
  _validate.integer(0, updates=updates)
  _validate.in_range(0, lineage.MOST_UPDATES, updates=updates)
  delta_after = _delta_after(epsilon, later, coordinates, dimension)
  return laplace_sums.least_epsilon(lambda e: delta_after(updates, e), delta, coordinates * epsilon)


@checked
def snapshot_epsilon(
  epsilon: float,
  delta: float,
  num_instances: int,
  updates: int,
  *,
  later: str = "any",
  seen: int = 1,
  coordinates: int = 1,
  dimension: float = math.inf,
) -> float:
  """The epsilon at `delta` of one report against an observer of instances, T server updates later.

  The observer sees the instances once. The server's coins do not depend on data. Given them, the
  user's data reaches what is seen only through the stem of its line, with n further updates
  (`lineage.updates_along_line`). Without descent the data does not reach it at all.

  The hockey-stick divergence is jointly convex. So the divergence of two mixtures with the same
  weights is at most the mixture of the components' divergences. Hence

      delta(e) <= sum_n P(an instance seen descends, stem of n updates) delta_n(e),

  with delta_n as for `line_epsilon`. The result is the least e for which the right side is at most
  `delta`.

  The observer may know everything up to the report, and the coins, but no instance between the
  report and the snapshot. An observer who picks what to look at by the coins is covered by seen =
  k. Two things are not covered: clients that hold a drawn instance while others update, and checks
  that reject updates.

  Args:
    epsilon: The epsilon of each coordinate of one report, seen alone.
    delta: The allowed delta. It lies in [0, 1].
    num_instances: The number k of instances. At least 1.
    updates: The number T of server updates after the user's own. At least 0.
    later: A `LaterUpdates`.
    seen: How many instances are seen, 1..k. They are chosen independently of their history.
    coordinates: As for `line_epsilon`.
    dimension: As for `line_epsilon`.

  Raises:
    ValueError: if an argument is out of range or NaN.

  >>> one, every = (
  ...   snapshot_epsilon(1.0, 1e-6, 20, 400, later="data_independent", seen=v) for v in (1, 20)
  ... )
  >>> print(round(one, 3), round(every, 3))
  0.48 0.999
  """
  _validate.probability(delta=delta)
  weights = lineage.updates_along_line(num_instances, updates, seen=seen)
  delta_after = _delta_after(epsilon, later, coordinates, dimension)
  # Longer stems count as MOST_DRAWS updates: more hide no less, and their sums are not computed.
  weights = np.append(weights[: laplace_sums.MOST_DRAWS], weights[laplace_sums.MOST_DRAWS :].sum())
  # Rare components count in full, as if delta_n were 1. Together they cost at most 1e-9 delta.
  is_likely = weights > 1e-9 * delta / weights.size
  likely, unlikely = np.flatnonzero(is_likely), math.fsum(weights[~is_likely])

  def mixture(e: float) -> float:
    return unlikely + math.fsum(weights[n] * delta_after(int(n), e) for n in likely)

  return laplace_sums.least_epsilon(mixture, delta, coordinates * epsilon)


def _delta_after(
  epsilon: float, later: str, coordinates: int, dimension: float
) -> Callable[[int, float], float]:
  """(n, e) -> a delta at e for one report followed by n updates. It is non-increasing in both."""
  joint = joint_epsilon(epsilon, coordinates)
  _validate.one_of(list(LaterUpdates), later=later)
  _validate.in_range(coordinates, math.inf, dimension=dimension)

  def own(e: float) -> float:
    if coordinates == 1:
      return laplace_sums.hockey_stick(1, epsilon, e)
    # The most that joint-DP allows: randomised response (arXiv 1311.0776).
    return float(np.maximum(0.0, -math.expm1(min(e - joint, 0.0)) / (1 + math.exp(-joint))))

  def iterated(n: int, e: float, dimension: float) -> float:
    shift = epsilon * math.sqrt(coordinates)
    rdp = functools.partial(laplace_sums.iterated_rdp, n + 1, shift, dimension)
    return laplace_sums.rdp_delta(rdp, e)

  def non_expansive(n: int, e: float) -> float:
    return float(np.minimum(own(e), iterated(n, e, dimension)))

  def data_independent(n: int, e: float) -> float:
    if coordinates == 1:
      return laplace_sums.hockey_stick(n + 1, epsilon, e)
    composed = coordinates * laplace_sums.hockey_stick(n + 1, epsilon, e / coordinates)
    # Nothing mixes the coordinates that differ with the others, so their number is the dimension.
    return float(np.min([own(e), composed, iterated(n, e, coordinates)]))

  bounds = {
    LaterUpdates.DATA_INDEPENDENT: data_independent,
    LaterUpdates.NON_EXPANSIVE: non_expansive,
    LaterUpdates.ANY: lambda n, e: own(e),
  }
  return bounds[LaterUpdates(later)]
