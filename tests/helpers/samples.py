"""What the tests of samplers share."""

import jax
import numpy as np


def draw(sampler, keys):
  """One sample for each key, each from the initial state."""
  return jax.jit(jax.vmap(lambda key: sampler.sample(key, sampler.init())[0]))(keys)


def run(sampler, keys, state=None):
  """Samples, events and the states after them, of consecutive rounds: one for each key."""

  def one_round(state, key):
    event = sampler.event(state)
    sample, state = sampler.sample(key, state)
    return state, (sample, event, state)

  return jax.jit(lambda s, k: jax.lax.scan(one_round, s, k)[1])(
    sampler.init() if state is None else state, keys
  )


def membership(sample, population):
  """How often each record is in each of many samples, int [rounds, population]."""
  rows = np.zeros((len(sample.indices), population), int)
  np.add.at(
    rows, (np.arange(len(rows))[:, None], sample.indices), np.asarray(sample.weights).astype(int)
  )
  return rows
