"""Whole runs as subjects of audits."""

import jax.numpy as jnp
import pytest

from jdp import conformance
from jdp.federated.engine.rounds import FederatedAlgorithm

UNPLANNED = FederatedAlgorithm(lambda params: None, lambda *arguments: None)


@pytest.mark.parametrize(("num_rounds", "sets"), [(None, 2), (3, 1), (3, 3)])
def test_what_cannot_be_audited_is_refused(num_rounds, sets):
  clients = {str(number): jnp.zeros((1, 1)) for number in range(sets)}
  with pytest.raises(ValueError, match="two data sets and an algorithm that plans its rounds"):
    conformance.run_subject(
      UNPLANNED._replace(num_rounds=num_rounds), jnp.zeros(1), clients, relation="zero_out"
    )
