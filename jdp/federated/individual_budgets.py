"""Individual privacy accounting: every user has a budget of its own, and sits out when it is spent.

In worst-case accounting, every round costs every user as much as the longest contribution would.
Here a user of round t is charged for the norm of its own contribution, ||g_t||^2 / stddev^2, and
takes part only if its charges stay within its budget, this round's included. Whether it does
follows from its own record and from earlier releases. So the whole run is as private as one
Gaussian release whose 1/z^2 is the budget: a Renyi filter for each user (arXiv 2008.11193), at
every order at once, and by Gaussian differential privacy (arXiv 2209.15596). Rounds, their number
and when to stop may be chosen from earlier releases.

What a user has spent follows from its data. So neither the spending, nor who takes part, nor how
many take part may be shown. The ledger holds the budget alone.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jdp import _validate, random
from jdp._arguments import checked
from jdp.events import GaussianSum, PoissonSampling, Round
from jdp.federated.engine.sharded import check_clients
from jdp.guarantees import Relation, Unit
from jdp.numerics import vectors
from jdp.numerics.compensated import MAX_CONTRIBUTIONS, sum_rows
from jdp.queries.finalizing import finalized
from jdp.queries.gaussian import gaussian_sum

PyTree = Any

_UNITS = 2**30  # of a budget; a charge is rounded up to whole units
_ROUNDING = 1e-5  # bounds the relative error of a charge in float32


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, repr=False)
class PrivateSpending:
  """What each user has spent, in shares of 2^-30 of its budget. It must not be published.

  Attributes:
    units: int32 [population].
    round: int32 scalar, the number of rounds done.
    key: key of the noise of all rounds.
  """

  units: jax.Array
  round: jax.Array
  key: jax.Array

  def __repr__(self) -> str:
    """Shows no numbers, so that none reaches a log."""
    return "PrivateSpending(not publishable)"


class IndividualBudget(NamedTuple):
  """Rounds of sums in which a user takes part while its own budget lasts, as pure functions.

  Attributes:
    init: key -> `PrivateSpending` of users who have spent nothing. The key serves the whole run.
      Each round's number is folded in.
    round: (spending, records) -> (sum, spending). `records` is a pytree of float arrays with a
      leading axis of all users. The sum, a float32 tree of one record's structure, is that of the
      contributions of users whose budget allows it, noised. It alone may be published.
    event: spending -> the `Round` that the ledger must hold, once, before the first round. It
      stands for all rounds together, however many there are, and does not tell what was spent.
  """

  init: Callable[[jax.Array], PrivateSpending]
  round: Callable[[PrivateSpending, PyTree], tuple[PyTree, PrivateSpending]]
  event: Callable[[PrivateSpending], Round]


@checked
def individual_budget(
  population: int,
  clip_norm: float,
  stddev: float,
  *,
  noise_multiplier: float,
  relation: Relation | str = Relation.ADD_REMOVE,
  unit: Unit | str = Unit.USER,
) -> IndividualBudget:
  """Sums of all users' clipped records, each user within a budget of its own.

  Formal guarantee: all rounds together are one Gaussian release of the noise multiplier Z, to
  whoever sees the sums, under add/remove and zero-out; of Z / 2 under replace-one. That holds for
  any records, which may be chosen from earlier sums. A record that is NaN or infinite contributes
  zero. What float noise adds is as for `jdp.queries.gaussian_sum`.

  With worst-case accounting the same budget lasts for (stddev / (clip_norm Z))^2 rounds. Here each
  user takes part in at least as many rounds, less one that rounding up may cost.

  Args:
    population: N <= 2^21, public: the number of users. Every round takes all their records.
    clip_norm: S > 0, the L2 bound on a contribution.
    stddev: sigma > 0, the standard deviation of the noise on each coordinate of a sum.
    noise_multiplier: Z > 0, the budget. A single contribution of norm S should fit: stddev >=
      clip_norm Z.
    relation: the neighbouring relation that the event declares.
    unit: what one record is.

  Raises:
    ValueError: if a number is out of range, or a contribution of norm S exceeds the budget. When
      traced: if there are not as many records as users.

  >>> budget = individual_budget(3, 1.0, 10.0, noise_multiplier=5.0)
  >>> spending = budget.init(random.secure_key())
  >>> records = jnp.array([[1.0], [0.5], [0.0]])
  >>> for _ in range(5):
  ...   total, spending = budget.round(spending, records)
  >>> spending, budget.event(spending).query
  (PrivateSpending(not publishable), GaussianSum(clip_norm=1.0, stddev=5.0))
  """
  _validate.integer(1, population=population)
  _validate.in_range(1, MAX_CONTRIBUTIONS, population=population)
  _validate.float32_safe(clip_norm=clip_norm, stddev=stddev)
  _validate.float32_safe(noise_multiplier=noise_multiplier)
  if not stddev >= clip_norm * noise_multiplier:
    raise ValueError(
      f"Expected stddev >= clip_norm * noise_multiplier, got {stddev} < "
      f"{clip_norm * noise_multiplier}; raise stddev, as nobody could contribute in full."
    )
  query = gaussian_sum(clip_norm, stddev)
  per_norm = noise_multiplier / stddev  # norm 1 / per_norm spends the whole budget

  def round_fn(spending, records):
    check_clients(population, records)
    key = jax.random.fold_in(spending.key, spending.round)
    clipped = jax.vmap(lambda record: vectors.clip(record, clip_norm))(records)
    admitted, units = _admitted(jax.vmap(vectors.l2_norm)(clipped), spending.units, per_norm)
    state = query.init(None)
    # The query's preprocess needs no key. A weight of 0 gives exactly zero.
    contributions = jax.vmap(lambda record, weight: query.preprocess(key, state, record, weight))(
      clipped, admitted.astype(np.float32)
    )
    total, _, _ = finalized(query, key, state, sum_rows(contributions))
    return total, PrivateSpending(units, spending.round + 1, spending.key)

  def event(spending):
    made = Round(
      PoissonSampling(1.0, population=population),
      GaussianSum(1.0, noise_multiplier),
      Relation(relation),
      Unit(unit),
    )
    return random.marked(made, spending.key)

  return IndividualBudget(
    lambda key: PrivateSpending(jnp.zeros(population, jnp.int32), jnp.int32(0), key),
    round_fn,
    event,
  )


def _admitted(norms: jax.Array, units: jax.Array, per_norm: float) -> tuple[jax.Array, jax.Array]:
  """Who takes part, bool [N], by the norms of contributions [N], and the new spending [N]."""
  share = jnp.square(norms * jnp.float32(per_norm)) * (1 + _ROUNDING)
  # The cap keeps the cast to int32 from overflowing, and still exceeds every budget.
  charge = jnp.minimum(jnp.ceil(share * _UNITS), 2.0 * _UNITS - 256).astype(np.int32)
  charge = jnp.where((charge == 0) & (norms > 0), 1, charge)  # where the square underflows
  admitted = charge <= _UNITS - units
  return admitted, jnp.where(admitted, units + charge, units)
