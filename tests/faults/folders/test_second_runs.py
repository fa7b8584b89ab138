"""Whatever a run is gone on with, no two of its sums have noise in common.

A run is killed at a random place. A copy of its folder goes on with something else, while the first
goes on too; to the second run that is the same as an older copy which was restored. Then it is
refused, or a round releases the same bits, or its noise is independent of that of all the first
run's rounds. The correlation of 4,096 pairs of draws lies within 5 / sqrt(4,096) = 0.08 but for a
probability of 6e-7 in each comparison. Noise in common, in a tenth of its variance, would have 0.1.
"""

import contextlib
import random as plain_random
import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jdp import queries, sampling
from jdp.federated import client_mesh, rounds, train
from jdp.federated.engine.rounds import Server, block_of_at_most
from jdp.federated.runs.folder_records import FolderRecords
from jdp.federated.runs.run_folder import kept_key
from jdp.matrix_factorization import banded_inverse_square_root, banded_toeplitz
from tests.helpers.small_runs import InterruptedRunError, copied

_SIZE, _POPULATION, _ROUNDS = 4096, 8, 9
_SMALL = 1e-5
_PLACES = ["append_events", "next_release", "check_release", "append_row", "save"]


class Settings(NamedTuple):
  """How a run goes on. The fields up to `chunk_size` make its algorithm."""

  rate: float = 1.0
  shift: float = 0.0
  clip_norm: float = 1.0
  stddev: float = 1.0
  probability: float = 0.5
  query: str = "gaussian"
  server_rate: float = 1.0
  chunk_size: int = 1
  devices: int = 1
  clients: Any = np.random.default_rng(0).normal(size=(_POPULATION, _SIZE)).astype(np.float32)
  evaluate_every: int = 3
  num_rounds: int = _ROUNDS
  params: float = 0.0
  noise_key: Any = None
  data_key: Any = None


_BEGUN = Settings()
_EDITED = _BEGUN.clients.copy()
_EDITED[3, 7] += 1
_CHANGES = {
  "other code": {"shift": 1.0},
  "nothing": {},
  "rate": {"rate": 0.5},
  "clip": {"clip_norm": 0.5},
  "noise": {"stddev": 2.0},
  "clip and noise": {"clip_norm": 2.0, "stddev": 2.0},
  "sampling": {"probability": 0.75},
  "another query": {"query": "correlated"},
  "rows drawn again": {"query": "drawn again"},
  "server": {"server_rate": 0.25},
  "chunks": {"chunk_size": 2},
  "devices": {"devices": 2},
  "data row": {"clients": _EDITED},
  "type of data": {"clients": _BEGUN.clients.astype(np.float16)},
  "order of data": {"clients": _BEGUN.clients[::-1]},
  "schedule": {"evaluate_every": 2},
  "more rounds": {"evaluate_every": 2, "num_rounds": _ROUNDS + 3},
  "first parameters": {"params": 1.0},
  "key of noise": {"noise_key": jax.random.key(5)},
  "key of training": {"data_key": jax.random.key(6)},
}
_SAME_ALGORITHM = ["nothing", "schedule", "more rounds"]


def algorithm_of(settings):
  # Bands of C are kept as noise, and rows that are drawn again as keys.
  query = {
    "gaussian": lambda: queries.gaussian_sum(settings.clip_norm, settings.stddev),
    "correlated": lambda: queries.correlated_gaussian_sum(
      settings.clip_norm, settings.stddev, banded_toeplitz(2 * _ROUNDS, 3)
    ),
    "drawn again": lambda: queries.correlated_gaussian_sum(
      settings.clip_norm, settings.stddev, banded_inverse_square_root(2 * _ROUNDS, 3)
    ),
  }[settings.query]()
  return rounds(
    lambda keys, params, client: (
      _SMALL * (settings.rate * (client - params) + settings.shift),
      {},
    ),
    query,
    sampling.poisson(_POPULATION, settings.probability, capacity=_POPULATION),
    # What was released is kept beside the parameters.
    Server(
      lambda params: params,
      lambda params: jnp.zeros_like(params),
      lambda result, _, params: (params + settings.server_rate * result, result),
    ),
    relation="add_remove",
    chunk_size=settings.chunk_size,
    mesh=client_mesh(jax.devices()[: settings.devices]) if settings.devices > 1 else None,
  )


def first_state(settings, algorithm):
  return algorithm.init(jnp.full(_SIZE, settings.params))


def releases(folder, settings, algorithm, state, count):
  """(what was released, state after) of rounds one by one, with the keys that the folder holds.

  What a round releases is noise: all clients together have a norm below 0.1, the noise one of 64.
  So what two releases share of clients and models correlates them by less than 0.002.
  """
  secret = folder.with_name(folder.name + ".secret")
  keys = [kept_key(secret / name, begun=True) for name in ("noise_key", "data_key")]
  advance = block_of_at_most(algorithm.round, settings.evaluate_every)  # the program of `train`
  done = []
  for _ in range(count):
    after, *_ = advance(*keys, state, settings.clients, np.int32(1))
    done.append((np.asarray(after.optimizer), after))
    state = after
  return done


def go(folder, settings, algorithm, kill=None):
  """Trains in the folder, up to a kill: a method of the records, and after how many calls of it.

  Returns:
    The round that it went on from.
  """
  begun, calls = [0], [0]
  restore = FolderRecords.restore
  with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of checkpoints of another structure

    def restored(self, state):
      begun[0], state = restore(self, state)
      return begun[0], state

    patch.setattr(FolderRecords, "restore", restored)
    if kill:
      method = getattr(FolderRecords, kill[0])

      def killed(self, *arguments):
        calls[0] += 1
        if calls[0] == kill[1] and kill[2]:
          raise InterruptedRunError
        method(self, *arguments)
        if calls[0] == kill[1]:
          raise InterruptedRunError

      patch.setattr(FolderRecords, kill[0], killed)
    with contextlib.suppress(InterruptedRunError):
      train(
        algorithm,
        jnp.full(_SIZE, settings.params),
        settings.clients,
        num_rounds=settings.num_rounds,
        evaluate_every=settings.evaluate_every,
        noise_key=settings.noise_key,
        data_key=settings.data_key,
        workdir=folder,
      )
  return begun[0]


def unless_refused(folder, settings, algorithm):
  """The round that it went on from; None if it was refused by a sentence."""
  try:
    return go(folder, settings, algorithm)
  except ValueError as error:
    if not str(error).startswith("Expected"):
      raise
    return None


class Begun(NamedTuple):
  """A run that was killed, and the rounds that it would have done."""

  algorithm: Any
  folders: list[Any]
  rounds: list[Any]


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
  """A run killed at each of some places: as it was then, and all its rounds."""
  algorithm, folders, found = algorithm_of(_BEGUN), [], []
  generator = plain_random.Random(0)
  for place in _PLACES:
    folders.append(tmp_path_factory.mktemp("begun") / "run")
    go(folders[-1], _BEGUN, algorithm, (place, generator.randint(1, 2), generator.random() < 0.5))
    start = first_state(_BEGUN, algorithm)
    found.append(releases(folders[-1], _BEGUN, algorithm, start, _ROUNDS))
  return Begun(algorithm, folders, found)


@pytest.mark.slow
@pytest.mark.parametrize("name", _CHANGES)
def test_a_second_run_is_refused_or_equal_or_has_noise_of_its_own(tmp_path, begun, name):
  settings = _BEGUN._replace(**_CHANGES[name])
  second = begun.algorithm if name in _SAME_ALGORITHM else algorithm_of(settings)
  generator = plain_random.Random(name)
  for place in generator.sample(range(len(_PLACES)), 2):
    folder, ones = copied(begun.folders[place], tmp_path / str(place)), begun.rounds[place]
    done = unless_refused(folder, settings, second)
    if done is None:
      continue
    start = ones[done - 1][1] if done else first_state(settings, second)
    for number, (release, _) in enumerate(
      releases(folder, settings, second, start, settings.num_rounds - done), done
    ):
      if number < _ROUNDS and np.array_equal(ones[number][0], release):
        continue
      correlations = [np.corrcoef(release, one)[0, 1] for one, _ in ones]
      assert np.max(np.abs(correlations)) < 5 / np.sqrt(_SIZE), (_PLACES[place], number)
