"""A weight may depend on a record: what the ledger then holds of any query does not."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jdp import data, models, queries, sampling
from jdp.events import LocalRelease
from jdp.federated import (
  federated_averaging,
  gradient_step,
  rounds,
  train,
  weight_by_examples,
)
from jdp.federated.engine.rounds import Server
from jdp.guarantees import PureDP
from jdp.queries.registry import registered

USERS = 4
KEEPS = Server(lambda params: params, lambda params: (), lambda _, kept, params: (params, kept))


def weighted_rounds(query, params, **options):
  return rounds(
    lambda keys, sent, client: (client["record"], {}),
    query,
    sampling.poisson(USERS, 1.0),
    KEEPS,
    relation="zero_out",
    weight=lambda client: client["weight"],
    **options,
  )


def unless_refused(step, *args):
  """The events of a round, or None if it takes no weights."""
  try:
    return jax.device_get(step(*args)[1])
  except ValueError as error:
    if not str(error).startswith("Expected a query that draws nothing"):
      raise
    return None


@pytest.mark.parametrize("name", registered())
def test_the_ledger_is_the_same_whatever_a_record_weighs(name):
  """Also if the weight is 0, which is that of padding."""
  made = registered()[name]
  params = jax.tree.map(jnp.asarray, made.victim)
  algorithm = weighted_rounds(made.make(), params)
  records = jax.tree.map(lambda x: jnp.broadcast_to(x, (USERS, *x.shape)), params)
  keys, state, found = (jax.random.key(0), jax.random.key(1)), algorithm.init(params), []
  step = jax.jit(algorithm.round)
  for last in (1.0, 0.0):
    clients = {"record": records, "weight": jnp.array([1.0] * (USERS - 1) + [last])}
    found.append(unless_refused(step, *keys, state, clients))
  assert found[0] == found[1]
  assert found[0] or name != "gaussian_sum"


def test_a_user_without_examples_does_not_show_in_the_ledger():
  """By discrete noise, a share of which each client draws: its own weights are refused."""
  model = models.logistic_regression((2,), 2)
  params = model.init(jax.random.key(0))
  users = data.clients_from_pairs([(np.ones((3, 2)), [0, 1, 1])] * 3 + [(np.zeros((0, 2)), [])])
  algorithm = federated_averaging(
    gradient_step(models.cross_entropy(model), 0.5),
    queries.average(queries.discrete_sum(params, 1.0, 20.0, num_clients=4), 4.0),
    sampling.fixed_size(4, 4),
    optax.sgd(1.0),
    relation="replace_one",
    project=False,
    weight=weight_by_examples(3),
  )
  with pytest.raises(
    ValueError, match="Expected a query that draws nothing for each record, unless weight=None"
  ):
    train(algorithm, params, users, num_rounds=1)


def test_a_compiled_query_that_draws_nothing_takes_weights():
  query = queries.gaussian_sum(1.0, 1.0)
  algorithm = weighted_rounds(query._replace(preprocess=jax.jit(query.preprocess)), jnp.zeros(2))
  clients = {"record": jnp.ones((USERS, 2)), "weight": jnp.ones(USERS)}
  keys = jax.random.key(0), jax.random.key(1)
  assert unless_refused(algorithm.round, *keys, algorithm.init(jnp.zeros(2)), clients)


def test_no_weight_goes_with_local_releases():
  with pytest.raises(ValueError, match="Expected weight=None with local releases"):
    weighted_rounds(
      queries.gaussian_sum(1.0, 1.0), jnp.zeros(2), releases=(LocalRelease(PureDP(1.0)),)
    )
