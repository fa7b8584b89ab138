"""An audit of whole sweeps: two data sets that differ in a canary, and what a release tells of it.

The canary is one of 20 users, the others send nothing. If it is there, runs of setting "for" score
more than those of "against", else less. So the setting that wins tells of the canary.
"""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from jdp import accounting, queries, random, sampling
from jdp.audits.bounds import epsilon_bound
from jdp.audits.scores import audit_scores
from jdp.federated import rounds
from jdp.federated.engine.rounds import Server
from jdp.federated.selection.private_selection import best_run, plan_sweep
from jdp.ledger import Ledger

DELTA, CONFIDENCE = 0.01, 0.999
SETTINGS = {"for": 1.0, "against": 0.0}
NOISE = 20.0  # multiplier of the round, and of the score


def marked(mark):
  """A round whose model says which setting it had, which costs nothing."""

  def step(result, carried, params):
    return {"sum": params["sum"] + result, "mark": jnp.float32(mark)}, carried

  server = Server(lambda params: params["sum"], lambda params: (), step)
  return rounds(
    lambda keys, params, own: (jnp.maximum(own, 0.0), {}),
    queries.gaussian_sum(1.0, NOISE),
    sampling.poisson(20, 1.0),
    server,
    relation="zero_out",
  )._replace(num_rounds=1)


def agrees(params, own):
  """The others lean to "against" by less than the canary adds to "for"."""
  is_for = params["mark"] > 0
  return {"agrees": jnp.where(own < 0, jnp.where(is_for, 0.47, 0.5), jnp.where(is_for, own, 0.0))}


def canary(present):
  """20 users: the canary, 1 or null, and others."""
  return jnp.full(20, -1.0).at[0].set(float(present))


START = {"sum": jnp.float32(0), "mark": jnp.float32(-1)}


def planned(score_noise):
  return plan_sweep(
    {name: marked(mark) for name, mark in SETTINGS.items()},
    START,
    canary(True),
    agrees,
    score_noise=score_noise,
    mean_runs=5.0,
    shape=math.inf,
    validation=None,
  )


def proved(sweep, sweeps):
  """The lower bound on epsilon from whole sweeps, planning apart, which looks at no data."""
  scores = []
  for seed, present in enumerate((True, False)):
    told = []
    for number in range(sweeps):
      keys = random.seeded_key(1000 * seed + number), random.seeded_key(1000 * seed + number + 500)
      data = canary(present)
      setting, _ = best_run(sweep._replace(clients=data, judges=data), keys)
      told.append(float(setting == "for"))
    scores.append(np.array(told))
  return audit_scores(*scores, epsilon_bound(CONFIDENCE, DELTA)).bound


@pytest.mark.slow
def test_whole_sweeps_tell_no_more_than_stated_and_a_score_without_its_noise_is_found():
  """80 sweeps and 160, of 5 runs on average, each at confidence .999: so it would fail falsely.

  A score that has a 400th of the noise it states shows the canary by the setting that wins, 92 of
  100 times rightly. A setting that wins three times as often with the canary would be found.
  """
  sweep = planned(NOISE)
  stated = accounting.epsilon(Ledger().append(sweep.event), DELTA)
  louder = planned(NOISE / 400)
  assert stated < 0.3 < 5 < accounting.epsilon(Ledger().append(louder.event), DELTA)
  assert proved(sweep, 40) <= stated
  assert proved(louder, 80) > stated
