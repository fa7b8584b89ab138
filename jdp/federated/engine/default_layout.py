"""The layout of a cohort where the user names none: a rule by platform, model and client.

It looks at declared shapes alone, so it is the same when a run is resumed, and does not depend on
who takes part. `jdp.federated.fastest` measures instead.

On a CPU, a client's gradient passes through memory several times: it is made, measured, clipped and
added in float64. Ghost norms spare that, but their products take float64 for every row of the
factors. So they win where the factors hold fewer numbers than the gradient, and hardly any gradient
has to be made anyway. Measured on 2 cores, they had 2.3 times the rate where the factors held .24
of the gradient's numbers (an MLP of 79,510 weights and 20 rows), 1.2 times at .57 (its 50 rows),
and 1.1 times at .41 and .43 (7,850 weights and 4 rows, and a transformer of 529,896). Where
gradients are made anyway, as they are no larger than the factors, ghost norms had 0.7 to 0.9 times
the rate.
"""

from typing import Any

from jax.sharding import Mesh

from jdp.federated.engine.cohort import mesh_in_force, platform_of
from jdp.federated.engine.cohort_layout import CohortLayout
from jdp.federated.engine.ghost_norms import gradient_forms
from jdp.federated.engine.local_training import GradientStep, LocalUpdate
from jdp.federated.engine.sharded import AXIS
from jdp.queries import SumQuery
from jdp.queries.base import is_scaling

PyTree = Any

_MOST_HELD = 0.6  # of the gradient's numbers, held in factors
_MOST_MADE = 1 / 32  # of the gradient's numbers, made in spite of ghost norms
_CHUNK_ROWS = 256  # rows of a chunk; they fill every product of ghost norms
_GHOST_CHUNK = 64  # clients on a CPU, if ghost norms are asked for
_CHUNKS_PER_DEVICE = 2  # so that no device is without a chunk


def default_layout(
  update: LocalUpdate,
  query: SumQuery,
  params: PyTree,
  client: PyTree,
  expected_size: float,
  mesh: Mesh | None,
) -> CohortLayout:
  """Chooses the layout of `federated_averaging`.

  A GPU computes in float64 as a CPU does, and has the same rule. On an H100, rounds of the MLP had
  1.2 to 1.6 times the rate by ghost norms. The models that the rule leaves out had .93 to 1.15
  times the rate: logistic regression, a CNN, an LSTM and a transformer (`experiments.benchmarks
  accelerators`).

  TPUs get no ghost norms. Compiled for a v5e, a chunk of DP-SGD moves more memory with them: 1.7
  times as much an example for logistic regression, 1.9 for an MLP, 3.5 for a transformer, 7 for an
  LSTM and 11 for a CNN (`experiments.benchmarks compilers compiled_programs`). Their products of
  float64 are emulated there.

  Args:
    update: a client's computation.
    query: the query that bounds it.
    params: the parameters, or their shapes.
    client: one client's examples, or their shapes.
    expected_size: the expected number of clients in a round.
    mesh: see `cohort_sum`.
  """
  platform = platform_of(mesh)
  if platform != "tpu" and isinstance(update, GradientStep) and is_scaling(query):
    forms = gradient_forms(update.loss, params, client)
    rows = min((form.rows for form in forms if form.rows), default=0)
    made, size = sum(form.size for form in forms if not form.rows), sum(form.size for form in forms)
    held = sum(form.held for form in forms)
    if rows and held <= _MOST_HELD * size and made <= _MOST_MADE * size:
      if platform != "cpu":
        return CohortLayout(None, True)
      over = mesh or mesh_in_force()
      turns = _CHUNKS_PER_DEVICE * (over.shape[AXIS] if over else 1)
      return CohortLayout(max(1, min(_CHUNK_ROWS // rows, int(expected_size / turns))), True)
  return CohortLayout(None)


def asked_layout(
  chunk_size: int | None, mesh: Mesh | None = None, *, ghost_norms: bool
) -> CohortLayout:
  """The layout of a procedure for which the caller gave one of the two options."""
  if chunk_size is None and ghost_norms and platform_of(mesh) == "cpu":
    chunk_size = _GHOST_CHUNK
  return CohortLayout(chunk_size, ghost_norms)
