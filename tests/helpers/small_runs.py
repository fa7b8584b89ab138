"""A training run of no cost, whose rounds depend on data, keys and state, and its files."""

import pathlib
import shutil
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jdp import ledger, random
from jdp.events import GaussianSum, PoissonSampling, Round
from jdp.federated import FederatedAlgorithm, train

DELTA = 1e-5
ROUNDS = 7
CLIENTS = jnp.arange(12.0).reshape(6, 2)


class State(NamedTuple):
  round: jax.Array
  params: jax.Array


def step(noise_key, data_key, state, clients):
  """The sum of the data and noise, and an event whose numbers change from round to round."""
  noise = random.normal(jax.random.fold_in(noise_key, state.round), state.params.shape)
  order = jax.random.normal(jax.random.fold_in(data_key, state.round), state.params.shape)
  clip_norm = 1 / (1 + state.round.astype(jnp.float32))
  event = Round(PoissonSampling(0.1), GaussianSum(clip_norm, 2 * clip_norm))
  return State(state.round + 1, state.params + clients.sum(0) + noise + order), (event,), None


ALGORITHM = FederatedAlgorithm(lambda params: State(jnp.int32(0), params), step)


class InterruptedRunError(Exception):
  pass


def go(folder, *, stop_at=None, **changes):
  """Trains in the folder.

  Args:
    folder: of the run.
    stop_at: the round after whose evaluation the run is interrupted, before its checkpoint.
    **changes: arguments of `train`.
  """

  def interrupt(progress):
    if progress.round == stop_at:
      raise InterruptedRunError

  arguments = {
    "algorithm": ALGORITHM,
    "params": jnp.zeros(2),
    "clients": CLIENTS,
    "num_rounds": ROUNDS,
    "noise_key": None,
    "data_key": jax.random.key(1),
    "evaluate": lambda params: {"first": params[0]},
    "evaluate_every": 2,
    "delta": DELTA,
    "workdir": folder,
    "callbacks": [interrupt],
    **changes,
  }
  try:
    return train(**arguments)
  except InterruptedRunError:
    return None


def ending(folder, result):
  """What a run leaves: the bits of its parameters, its events, and its public files."""
  events = ledger.load(folder / "ledger.jsonl")
  assert events == result.ledger
  files = {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix == ".jsonl"}
  return np.asarray(result.params).tobytes(), events, files


def copied(folder: pathlib.Path, target: pathlib.Path) -> pathlib.Path:
  """A copy of a run's two folders, with the run's name, within `target`."""
  for source in (folder, folder.with_name(folder.name + ".secret")):
    shutil.copytree(source, target / source.name)
  return target / folder.name
