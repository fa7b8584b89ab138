"""How far one record moves sums over eight simulated devices: run by test_sum_sensitivity.py."""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np

from jdp.federated import client_mesh
from jdp.federated.engine.cohort import unrounded_cohort_sum
from jdp.federated.engine.rounds import replicate
from jdp.sampling import Sample
from tests.federated.engine.test_sum_sensitivity import COHORTS, QUERY, exact

# one shape for all cohorts: compiled once for each chunk size
SLOTS = 1 + max(map(len, COHORTS.values()))


def compiled(chunk_size):
  mesh = client_mesh()

  def contribution(key, _, record, weight):
    return QUERY.preprocess(key, QUERY.init(jnp.zeros(1)), record, weight)

  def total(records, size):
    indices = jnp.arange(SLOTS, dtype=jnp.int32)
    sample = Sample(indices, (indices < size).astype(jnp.float32), size, SLOTS)
    return unrounded_cohort_sum(
      contribution, jax.random.key(0), (), sample, records, chunk_size=chunk_size, mesh=mesh
    )

  return jax.jit(total), mesh


def movement(run, mesh, others):
  rows = np.zeros((2, SLOTS, 1), np.float32)
  rows[:, 1 : 1 + len(others), 0], rows[0, 0] = others, 1.0
  size = np.int32(1 + len(others))
  with_it, without = (exact(run(*replicate((x, size), mesh))) for x in rows)
  return float(np.linalg.norm(with_it[0] - without[0]))


if __name__ == "__main__":
  assert jax.device_count() == 8
  runs = {chunk_size: compiled(int(chunk_size)) for chunk_size in sys.argv[1:]}
  print(
    json.dumps(
      {c: [movement(*run, others) for others in COHORTS.values()] for c, run in runs.items()}
    )
  )
