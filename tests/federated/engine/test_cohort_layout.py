"""The fastest layout by a clock that is given, and never a look at anybody's data."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jdp.federated import client_mesh
from jdp.federated.engine.cohort_layout import CohortLayout, candidates, fastest
from jdp.federated.engine.rounds import FederatedAlgorithm

PARAMS = jnp.zeros(3)
CLIENT = {
  "x": jax.ShapeDtypeStruct((2, 3), np.float32),
  "label": jax.ShapeDtypeStruct((), np.int32),
}
TRIED = (CohortLayout(1), CohortLayout(4), CohortLayout(4, ghost_norms=True))


class Rounds:
  """Procedures whose rounds take, by `clock`, the seconds named for their layout, one after the
  other.
  """

  def __init__(self, seconds):
    self.seconds = {k: list(v) for k, v in seconds.items()}
    self.now = 0.0
    self.samplers = []
    self.clients = []

  def make(self, sampler, layout):
    self.samplers.append(sampler)
    if layout not in self.seconds:
      raise ValueError("no such norms")

    def spend(clients):
      self.clients.append(clients)
      self.now += self.seconds[layout].pop(0)

    def round_fn(noise_key, data_key, state, clients):
      jax.debug.callback(spend, clients)
      return (
        state + jax.random.normal(noise_key, (3,)) + jax.random.normal(data_key, (3,)),
        (),
        None,
      )

    return FederatedAlgorithm(lambda params: params, round_fn)

  def clock(self):
    jax.effects_barrier()
    return self.now


def choose(seconds, **kwargs):
  rounds = Rounds(seconds)
  return fastest(
    rounds.make, PARAMS, CLIENT, 5, tried=TRIED, repeats=3, clock=rounds.clock, **kwargs
  ), rounds


def test_it_is_the_one_of_the_least_median_after_a_round_to_compile():
  chosen, rounds = choose({TRIED[0]: [0, 2, 2, 2], TRIED[1]: [9, 1, 1, 50], TRIED[2]: [0, 0, 3, 3]})
  assert chosen == TRIED[1]
  assert not any(rounds.seconds.values())


@pytest.mark.slow
def test_of_equals_it_is_the_first_and_the_refused_are_left_out():
  assert choose({layout: [0, 1, 1, 1] for layout in TRIED})[0] == TRIED[0]
  assert choose({TRIED[2]: [0, 1, 1, 1]})[0] == TRIED[2]
  with pytest.raises(ValueError, match="Expected a layout that the procedure accepts, got none"):
    choose({})


def test_clients_are_made_up_of_their_shapes_and_all_take_part():
  """On a mesh, so that what the rounds are given has its place there."""
  _, rounds = choose({TRIED[0]: [0, 1, 1, 1]}, mesh=client_mesh())
  assert {sampler.event(()).probability for sampler in rounds.samplers} == {1.0}
  for clients in rounds.clients:
    np.testing.assert_array_equal(clients["x"], np.ones((5, 2, 3), np.float32))
    np.testing.assert_array_equal(clients["label"], np.zeros(5, np.int32))


def test_the_candidates_of_a_cpu_are_its_defaults_and_more():
  assert {CohortLayout(1), CohortLayout(64, ghost_norms=True)} < set(candidates(client_mesh()))


def test_no_clients_or_repeats_are_refused():
  with pytest.raises(ValueError, match="cohort_size to be a whole number >= 1"):
    fastest(Rounds({}).make, PARAMS, CLIENT, 0)
