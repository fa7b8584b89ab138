"""Rounds of no cost, and a run of rounds that is interrupted."""

import optax

from jdp import queries, sampling
from jdp.federated import add_updates, rounds
from tests.helpers.small_runs import InterruptedRunError


def towards_own_values(query, population, *, rate=0.5, **options):
  """Half of all clients, on average, send the way from the server's value to their own."""
  sampler = sampling.poisson(population, 0.5)
  return rounds(
    lambda keys, value, own: (own - value, {}),
    queries.average(query, sampler.expected_size),
    sampler,
    add_updates(optax.sgd(rate)),
    relation="add_remove",
    **options,
  )


def interrupt_at(number):
  """A callback that ends a run after that round, before the round's checkpoint."""

  def interrupt(progress):
    if progress.round == number:
      raise InterruptedRunError

  return interrupt
