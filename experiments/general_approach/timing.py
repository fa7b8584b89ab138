"""The processor time of a round of each setting of a sweep."""

import time

import jax
import jax.numpy as jnp

from experiments.runner.runs.sweep import Sweep


def processor_seconds(sweep: Sweep, num_rounds: int) -> dict[str, float]:
  """The mean processor time of a round, in seconds of all cores together, by setting.

  The rounds are not part of any run: their keys are seeded, and their results are dropped. One
  round before them compiles. Unlike the clock's, processor time hardly depends on what else the
  machine does.

  Args:
    sweep: the settings and the data.
    num_rounds: how many rounds are timed.
  """
  found = {}
  for setting in sweep.settings:
    clients = jax.tree.map(jnp.asarray, sweep.clients)
    clients = clients if setting.part is None else clients[setting.part]
    state = setting.algorithm.init(sweep.init(jax.random.key(0)))
    step = jax.jit(setting.algorithm.round)
    begun = 0.0
    for number in range(num_rounds + 1):
      if number == 1:
        begun = time.process_time()
      keys = jax.random.key(1), jax.random.key(2)
      state = jax.block_until_ready(step(*keys, state, clients)[0])
    found[setting.name] = (time.process_time() - begun) / num_rounds
  return found
