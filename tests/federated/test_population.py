"""Whoever joins a sampler with data refuses, when traced, another number of clients than the
sampler's population.
"""

import ast
import functools
import inspect
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jdp import federated, mechanisms, models, queries, sampling, transforms
from jdp.data import Examples, pack
from jdp.events import PoissonSampling
from jdp.federated import client_mesh, dropout
from jdp.federated.draw_and_discard.batching_server import server_batching_process
from jdp.federated.draw_and_discard.client_updates import exact_update
from jdp.federated.draw_and_discard.update_stream import ClientUpdate
from jdp.federated.engine.cohort import unrounded_cohort_sum
from jdp.federated.engine.local_training import GradientStep, LocalUpdate
from jdp.federated.engine.sharded import ShardedClients, num_clients, shard
from jdp.federated.estimators import Clipping
from jdp.federated.iterative import initial_values
from jdp.models.batch_norm import batch_norm_cnn
from jdp.queries import SumQuery, average, distributed_sum, gaussian_sum, uncalibrated
from tests.helpers.samples import draw, run

CLIENTS = 12
OTHERS = {"one too many": CLIENTS + 1, "one too few": CLIENTS - 1, "far too many": 50 * CLIENTS}
POPULATIONS = {"right": CLIENTS, **OTHERS}
REFUSED = "Expected data of as many clients as the population of"
MODEL = models.logistic_regression((3,), 2)
LOSS = models.cross_entropy(MODEL)
STEP = federated.gradient_step(LOSS, 1.0)
AVERAGE = federated.fixed_denominator(federated.flat_clipping(1.0), 1.0, 4.0)
PARAMS = jnp.zeros(3)
every_sampler = pytest.mark.parametrize("name", sampling.registry.registered())
every_population = pytest.mark.parametrize("population", POPULATIONS)


def examples(count, shape=(3,)):
  """Users of two examples each."""
  return Examples(
    jnp.ones((count, 2, *shape)), jnp.zeros((count, 2), jnp.int32), jnp.ones((count, 2))
  )


def a_round(algorithm, params, clients):
  """Traces a round; nothing is computed."""
  state = jax.eval_shape(algorithm.init, params)
  return jax.eval_shape(algorithm.round, jax.random.key(0), jax.random.key(1), state, clients)


def rounds(sampler):
  algorithm = federated.rounds(
    lambda keys, sent, client: (client["x"] - sent, {}),
    gaussian_sum(1.0, 1.0),
    sampler,
    federated.add_updates(optax.sgd(1.0)),
    relation="add_remove",
  )
  return a_round(algorithm, PARAMS, {"x": jnp.ones((CLIENTS, 3))})


def federated_averaging(sampler):
  algorithm = federated.federated_averaging(STEP, AVERAGE, sampler, optax.sgd(1.0))
  return a_round(algorithm, MODEL.init(jax.random.key(0)), examples(CLIENTS))


def private_federated(sampler):
  query = average(gaussian_sum(1.0, 1.0), sampler.expected_size)
  algorithm = federated.private_federated(STEP, query, sampler, optax.sgd(1.0))
  return a_round(algorithm, MODEL.init(jax.random.key(0)), examples(CLIENTS))


def iterative_training(sampler):
  model = batch_norm_cnn((4, 4), 2)
  query = average(gaussian_sum(1.0, 1.0), sampler.expected_size)
  algorithm = federated.iterative_training(model, query, sampler, optax.sgd(1.0))
  values = jax.eval_shape(lambda key: initial_values(model, key), jax.random.key(0))
  return a_round(algorithm, values, examples(CLIENTS, (4, 4)))


def one_sample(sampler):
  return sampler.sample(jax.random.key(0), sampler.init())[0]


def cohort_sum(sampler, data=None, total_of=federated.cohort_sum):
  data = jnp.ones((CLIENTS, 3)) if data is None else data
  mesh = client_mesh() if isinstance(data, ShardedClients) else None

  def client_fn(key, shared, client, weight):
    return weight * sum(jnp.sum(x).astype(jnp.float32) for x in jax.tree.leaves(client))

  total = jax.jit(lambda data: total_of(client_fn, (), (), one_sample(sampler), data, mesh=mesh))
  return jax.eval_shape(total, data)


def contribution_sum(sampler):
  query = gaussian_sum(1.0, 1.0)
  total = transforms.contribution_sum(lambda params, record: record - params, query)
  sample, data = jax.eval_shape(lambda: one_sample(sampler)), jnp.ones((CLIENTS, 3))
  return jax.eval_shape(total, jax.random.key(0), query.init(PARAMS), PARAMS, sample, data)


def members(sampler):
  return jax.eval_shape(
    lambda data: transforms.members(one_sample(sampler), data), jnp.ones((CLIENTS, 3))
  )


# Every entry point that takes a sampler, a sample, or a number of clients: population -> a trace of
# what joins them.
def evaluate_privately(sampler):
  return federated.evaluate_privately(
    lambda params, client: {"share": client[0]},
    (),
    jnp.ones((CLIENTS, 1)),
    noise_multiplier=1.0,
    # Samplers whose first round is not like the others are refused, whatever the population.
    sampler=sampler._replace(event=lambda state: PoissonSampling(0.5)),
  )


SAMPLED = {
  "rounds": rounds,
  "federated_averaging": federated_averaging,
  "private_federated": private_federated,
  "iterative_training": iterative_training,
  "cohort_sum": cohort_sum,
  "unrounded_cohort_sum": functools.partial(cohort_sum, total_of=unrounded_cohort_sum),
  "contribution_sum": contribution_sum,
  "members": members,
  "evaluate_privately": evaluate_privately,
}


def client_dropout(population):
  query = distributed_sum(1.0, 1.0, uncalibrated())
  model = dropout.independent(population, 0.1)
  algorithm = federated.client_dropout(
    STEP, query, model, optax.sgd(1.0), num_clients=population, local_clip_norm=None
  )
  return a_round(algorithm, MODEL.init(jax.random.key(0)), examples(CLIENTS))


def a_stream(make, population):
  """Traces a process in which every user of the population comes once."""
  update = exact_update(lambda params, client: params - client, 1.0)
  process = make(update, 2)
  state = process.init(jnp.zeros((2, 3)))
  coming = federated.draw_and_discard.arrivals(np.arange(population, dtype=np.int32), population)
  return jax.eval_shape(
    process.run, jax.random.key(1), state, coming, jnp.ones((CLIENTS, 3)), update.settings
  )


def stream_round(make, population):
  """Traces a round in which every user of the population comes once."""
  update = exact_update(lambda params, client: params - client, 1.0)
  algorithm = make(update, 2, federated.draw_and_discard.passes(population, 1))
  return a_round(algorithm, jnp.zeros((2, 3)), jnp.ones((CLIENTS, 3)))


def a_training(population):
  update = exact_update(lambda params, client: params - client, 1.0)
  algorithm = federated.draw_and_discard.server_batching(
    update, 2, federated.draw_and_discard.passes(population, 1)
  )
  return federated.train(algorithm, jnp.zeros((1, 3)), jnp.ones((CLIENTS, 3)), num_rounds=1)


def masked_round(population):
  protocol = federated.secure_aggregation(population, degree=4, threshold=1, modulus_bits=16)
  query = queries.discrete_sum(PARAMS, 1.0, 0.01, num_clients=CLIENTS, noise="skellam")
  run = federated.masked_round(query, protocol)
  return run(
    jax.random.key(0), query.init(PARAMS), jnp.zeros((CLIENTS, 3)), np.ones((1, population), bool)
  )


def individual_budget(population):
  budget = federated.individual_budget(population, 1.0, 10.0, noise_multiplier=5.0)
  return jax.eval_shape(budget.round, budget.init(jax.random.key(0)), jnp.ones((CLIENTS, 3)))


COUNTED = {
  "client_dropout": client_dropout,
  "draw_and_discard": lambda population: stream_round(
    federated.draw_and_discard.draw_and_discard, population
  ),
  "draw_and_discard_process": lambda population: a_stream(
    federated.draw_and_discard.draw_and_discard_process, population
  ),
  "server_batching": lambda population: stream_round(
    federated.draw_and_discard.server_batching, population
  ),
  "server_batching_process": lambda population: a_stream(server_batching_process, population),
  "train": a_training,
  "masked_round": masked_round,
  "individual_budget": individual_budget,
}

# No sampler meets data here: parts of the above, data without a sampler, or a sampler made from the
# data's own number.
ELSEWHERE = {
  "add_updates", "arrivals", "average_predictions", "client_mesh", "dp_fedavg", "dp_sgd",
  "evaluate_users", "fastest", "gradient_forms", "no_improvement", "p_norm_descent", "passes",
  "private_sweep", "privatize", "release", "secure_aggregation", "spread_instances",
  "use_all_cores", "weight_by_examples",
}  # fmt: skip
# What makes one of these is of a client's record alone: it meets no population.
OF_A_RECORD = (SumQuery, Clipping, LocalUpdate, GradientStep, ClientUpdate)


JOINERS = {
  "jdp/federated/engine/cohort.py",
  "jdp/federated/engine/read_cohort.py",
  "jdp/federated/engine/sharded.py",
  "jdp/federated/runs/cohort_reading.py",
  "jdp/transforms.py",
  "jdp/data/sources/parquet_files.py",  # of Arrow's dictionaries
  "experiments/conformance/adapters/jdp_parts.py",  # counts who is drawn, without data
  "experiments/benchmarks/training.py",  # keys by the clients' numbers
}


def test_no_other_module_looks_into_a_sample():
  """All procedures and experiments join samplers and data by the functions that are tested here."""
  root = pathlib.Path(__file__).parents[2]
  files = [
    path.relative_to(root)
    for folder in ("jdp", "experiments")
    for path in (root / folder).rglob("*.py")
  ]
  looking = {
    str(path)
    for path in files
    for node in ast.walk(ast.parse((root / path).read_text()))
    if isinstance(node, ast.Attribute)
    and node.attr == "indices"
    and path.parts[:2] != ("jdp", "sampling")
  }
  assert looking == JOINERS


def public_functions(module):
  names = getattr(module, "__all__", [name for name in vars(module) if not name.startswith("_")])
  own = {name: getattr(module, name) for name in names}
  return {
    name
    for name, value in own.items()
    if inspect.isfunction(value) and value.__module__.startswith(module.__name__)
    if inspect.signature(value).return_annotation not in OF_A_RECORD
  }


def test_every_procedure_is_tested_here():
  """A new public one must be entered in SAMPLED, COUNTED or ELSEWHERE."""
  modules = (federated, federated.draw_and_discard, transforms)
  found = set().union(*map(public_functions, modules))
  assert found - SAMPLED.keys() - COUNTED.keys() == ELSEWHERE


def check(trace, argument, population, clients=CLIENTS):
  if population == clients:
    trace(argument)
    return
  with pytest.raises(
    ValueError, match=f"{REFUSED} {population} that is sampled from, got {clients}"
  ):
    trace(argument)


@pytest.mark.sweep
@every_population
@every_sampler
@pytest.mark.parametrize("procedure", SAMPLED)
def test_samplers_of_other_populations_are_refused(procedure, name, population):
  count = POPULATIONS[population]
  check(SAMPLED[procedure], sampling.registry.registered()[name].make(count, 4), count)


@pytest.mark.sweep
@every_population
@pytest.mark.parametrize("procedure", COUNTED)
def test_other_numbers_of_clients_are_refused(procedure, population):
  count = POPULATIONS[population]
  check(COUNTED[procedure], count, count)


@every_population
@pytest.mark.parametrize("form", ["packed", "sharded", "packed and sharded"])
def test_the_number_of_clients_is_that_of_the_data_however_it_is_held(form, population):
  """Eleven users in three places of four devices each, one of which is padding: it is nobody."""
  one = Examples(np.ones((1, 3), np.float32), np.zeros(1, np.int32), np.ones(1, np.float32))
  packed = pack(one, [np.array([0])] * (CLIENTS - 1))
  plain = {"x": np.ones((CLIENTS - 1, 3), np.float32)}
  data = {"packed": lambda: packed, "sharded": lambda: shard(plain, client_mesh())}.get(
    form, lambda: shard(packed, client_mesh())
  )()
  assert num_clients(data) == CLIENTS - 1
  count = POPULATIONS[population]
  trace = functools.partial(cohort_sum, data=data)
  check(trace, sampling.poisson(count, 0.5), count, clients=CLIENTS - 1)


@pytest.mark.parametrize(
  "data", [{"x": jnp.ones((CLIENTS, 3)), "y": jnp.ones(CLIENTS + 1)}, {}, jnp.float32(1)]
)
def test_arrays_that_do_not_agree_about_the_clients_are_refused(data):
  with pytest.raises(
    ValueError, match="Expected data of arrays with one leading axis of all clients"
  ):
    cohort_sum(sampling.poisson(CLIENTS, 0.5), data)


@pytest.mark.sweep
@every_sampler
def test_samples_and_events_state_the_population_of_their_sampler(key, name):
  """Through jit, scan and vmap too."""
  made = sampling.registry.registered()[name].make(CLIENTS, 4)
  one_key, other_key = jax.random.split(key)
  scanned, event, _ = run(made, jax.random.split(one_key, 6))
  at_once = draw(made, jax.random.split(other_key, 6))
  assert {made.population, event.population, scanned.population, at_once.population} == {CLIENTS}
  for samples in (scanned, at_once):
    assert samples.indices.shape == (6, made.capacity)
    assert np.all((samples.indices >= 0) & (samples.indices < CLIENTS))


def test_clients_who_report_state_their_number():
  (of_model, of_server), _ = client_dropout(CLIENTS)[1:]
  assert of_model.sampling.population == of_server.sampling.population == CLIENTS


def test_who_arrives_is_among_the_users():
  for users in ([0, 3], [-1, 0]):
    with pytest.raises(ValueError, match="Expected numbers of users from 0 to 2, got others"):
      federated.draw_and_discard.arrivals(np.array(users, np.int32), 3)
  with pytest.raises(ValueError, match="population"):
    federated.draw_and_discard.arrivals(np.zeros(1, np.int32), 0)
  update = exact_update(lambda params, client: params, 1.0)
  process = server_batching_process(update, 2)
  state = process.init(PARAMS[None])
  with pytest.raises(
    ValueError, match=r"Expected Arrivals, got .*; use arrivals\(users, population\)"
  ):
    process.run(
      jax.random.key(1), state, jnp.zeros(2, jnp.int32), jnp.ones((3, 3)), update.settings
    )


def test_members_of_shares_are_refused():
  data = shard(np.ones((CLIENTS, 3), np.float32), client_mesh())
  with pytest.raises(ValueError, match="got ShardedClients; use contribution_sum"):
    transforms.members(one_sample(sampling.poisson(CLIENTS, 0.5)), data)


@pytest.mark.parametrize("shape", [(4,), (5, 1), (1,), ()])
def test_privatize_refuses_other_weights_than_one_for_each_row(key, shape):
  optimizer = transforms.privatize(gaussian_sum(1.0, 1.0), key)
  with pytest.raises(ValueError, match=r"Expected weights \[5\], one for each row, got shape"):
    optimizer.update(jnp.ones((5, 3)), optimizer.init(PARAMS), weights=jnp.ones(shape))


@pytest.mark.parametrize("wrong", ["values", "weights"])
def test_streamed_sums_refuse_other_numbers_of_values_and_weights_than_keys(key, wrong):
  arguments = {"values": jnp.ones((5, 3)), "weights": jnp.ones(5)}
  arguments[wrong] = arguments[wrong][:-1]
  with pytest.raises(ValueError, match=f"Expected {wrong} for 5 clients, one for each key"):
    mechanisms.stream_sum(mechanisms.laplace(1.0, 1.0), jax.random.split(key, 5), **arguments)
