"""Training procedures with faults that libraries had: each costs more than its ledger states."""

import numpy as np
import optax

from experiments.audit.procedures import DELTA, ROUNDS, Procedure, canaries, fedavg, send
from jdp import conformance, sampling
from jdp.events import GaussianSum
from jdp.federated import add_updates, rounds
from jdp.federated.engine.rounds import FederatedAlgorithm
from jdp.guarantees import Relation
from jdp.matrix_factorization.banded_matrices import BandedStrategy
from jdp.queries import gaussian_sum
from jdp.queries.base import Contribution, Key, PyTree, State

_MULTIPLIER = 2.0
_DEVICES, _CLIENTS = 4, 3
_ABSENT, _OPPOSITE = 0.0, -1.0  # what a canary's neighbour sends


class CountedOnce(BandedStrategy):
  """A strategy whose sensitivity is that of a single participation, however many there are."""

  def squared_sensitivity(self, min_separation: int, most: int) -> float:
    """As for one participation."""
    del most
    return super().squared_sensitivity(min_separation, 1)


def _counted_once(number: int) -> FederatedAlgorithm:
  sampler = sampling.min_separation(number, 1, ROUNDS)
  bands = np.stack([np.ones(ROUNDS), np.append(np.full(ROUNDS - 1, 0.5), 0.0)])
  return fedavg(number, sampler=sampler, strategy=CountedOnce(bands), noise_multiplier=1.25)


def _training(
  number: int, noise_multiplier: float, sampler: sampling.Sampler | None = None
) -> FederatedAlgorithm:
  """Training with this noise, by a ledger that states `_MULTIPLIER`."""
  query = gaussian_sum(1.0, noise_multiplier)

  def finalize(key: Key, state: State, total: Contribution) -> tuple[PyTree, GaussianSum, State]:
    result, _, state = query.finalize(key, state, total)
    return result, GaussianSum(1.0, _MULTIPLIER), state

  algorithm = rounds(
    lambda keys, params, client: (send(keys.data, params, client), {}),
    query._replace(finalize=finalize),
    sampler or sampling.poisson(number, 1.0),
    add_updates(optax.sgd(1.0)),
    relation=Relation.ZERO_OUT,
  )
  return algorithm._replace(num_rounds=ROUNDS)


def _everybody(number: int) -> FederatedAlgorithm:
  said = sampling.poisson(number, 0.5)
  return _training(number, _MULTIPLIER, sampling.poisson(number, 1.0)._replace(event=said.event))


BROKEN: dict[str, tuple[Procedure, float]] = {
  "replace-one, by the sensitivity of zero-out": (Procedure(fedavg), _OPPOSITE),
  "four participations, counted once": (Procedure(_counted_once), _ABSENT),
  "everybody, said to be a Poisson sample": (Procedure(_everybody), _ABSENT),
  "noise of four devices, averaged with the sum": (
    Procedure(lambda number: _training(number, _MULTIPLIER / _DEVICES**0.5)),
    _ABSENT,
  ),
  "noise of a mean of three clients, on their sum": (
    Procedure(lambda number: _training(number, _MULTIPLIER / _CLIENTS)),
    _ABSENT,
  ),
}


def subject(procedure: Procedure, neighbour: float) -> conformance.Subject:
  """Runs of a canary against those of its neighbour, with the epsilon that the ledger states."""
  data = {"present": canaries(np.ones(1)), "neighbour": canaries(np.full(1, neighbour))}
  return conformance.run_subject(
    procedure.make(1), procedure.params(1), data, relation=Relation.ZERO_OUT, delta=DELTA
  )
