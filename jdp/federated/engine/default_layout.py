"""The layout of a cohort where the user names none: a rule by platform, model and client.

It looks at shapes alone, so it is the same whenever a run is resumed, and it says nothing of
anybody's data. `jdp.federated.fastest` measures instead.

On a CPU, a client's gradient passes through memory several times: it is made, measured, clipped and
added in float64. Ghost norms spare that, but their products take float64 for every row. So they win
where a client has few rows, and few parameters whose gradient is made all the same, and the more so
where a gradient leaves the cache. Measured on 2 cores,
ghost norms had 1.1 times the rate with 4 rows of 7,850 weights, and 0.9 times with 10. With 79,510
weights they had 2.3 times the rate with 20 rows, 1.2 times with 50, and 0.7 times with 150.
"""

from typing import Any

from jax.sharding import Mesh

from jdp.federated.engine.cohort import default_chunk_size, mesh_in_force, platform_of
from jdp.federated.engine.cohort_layout import CohortLayout
from jdp.federated.engine.ghost_norms import gradient_forms
from jdp.federated.engine.local_training import GradientStep, LocalUpdate
from jdp.federated.engine.sharded import AXIS
from jdp.queries import SumQuery
from jdp.queries.base import is_scaling

PyTree = Any

_CACHED = 2**15  # Weights whose gradient, with what is made of it, stays in a core's cache.
_MOST_ROWS_CACHED, _MOST_ROWS = 4, 50
_MOST_MADE = 2**12  # Numbers of a client's gradient that ghost norms make all the same.
_CHUNK_ROWS = 256  # Rows of a chunk, which fill the products of ghost norms.
_CHUNKS_PER_DEVICE = 2  # So that no device is without a chunk.


def default_layout(
  update: LocalUpdate,
  query: SumQuery,
  params: PyTree,
  client: PyTree,
  expected_size: float,
  mesh: Mesh | None,
) -> CohortLayout:
  """Chooses the layout of `federated_averaging`.

  Accelerators get no ghost norms, as none was measured.

  Args:
    update: what a client computes.
    query: bounds it.
    params: the parameters, or their shapes.
    client: one client's examples, or their shapes.
    expected_size: the expected number of clients in a round.
    mesh: see `cohort_sum`.
  """
  if platform_of(mesh) == "cpu" and isinstance(update, GradientStep) and is_scaling(query):
    forms = gradient_forms(update.loss, params, client)
    rows = max((form.rows for form in forms if form.rows), default=0)
    made, size = sum(form.size for form in forms if not form.rows), sum(form.size for form in forms)
    limit = _MOST_ROWS_CACHED if size <= _CACHED else _MOST_ROWS
    if 0 < rows <= limit and made <= _MOST_MADE:
      over = mesh or mesh_in_force()
      turns = _CHUNKS_PER_DEVICE * (over.shape[AXIS] if over else 1)
      return CohortLayout(max(1, min(_CHUNK_ROWS // rows, int(expected_size / turns))), True)
  return CohortLayout(default_chunk_size(mesh))
