"""Truncated Poisson samples: sizes, shares and pairs as often as stated."""

import jax
import numpy as np
import pytest
from scipy import stats

from jdp.conformance.checks.inclusion import check_sampling
from jdp.conformance.protocol import Sampling
from jdp.sampling import truncated_poisson
from tests.helpers.samples import draw, membership


@pytest.mark.parametrize("capacity", [4, 9])  # slots by a subset, and by an order of all records
def test_shares_sizes_and_pairs(capacity):
  """Fixed keys. For correct code each check fails with probability 1e-6 over keys; a share that is
  off by .035 is seen.
  """
  sampler = truncated_poisson(12, 0.4, capacity)
  count = 6000

  def run(seed):
    return draw(sampler, jax.random.split(jax.random.key(3 + seed), count))

  samples = run(0)
  taken = membership(samples, 12)
  assert taken.max() == 1  # no record twice
  np.testing.assert_array_equal(taken.sum(axis=1), samples.size)
  part = Sampling(
    "truncated_poisson", lambda seed, number: membership(run(seed), 12) > 0, sampler.event(())
  )
  found = check_sampling(part, num_rounds=count)
  assert not [one for one in found if one.witness is not None]
  sizes = np.bincount(samples.size, minlength=capacity + 1)
  law = stats.binom.pmf(np.arange(capacity + 1), 12, 0.4)
  law[-1] = stats.binom.sf(capacity - 1, 12, 0.4)
  assert stats.chisquare(sizes, law * count).pvalue > 1e-6
  assert sampler.expected_size == pytest.approx(law @ np.arange(capacity + 1), rel=1e-6)


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    ((0, 0.5, 1), "population"),
    ((10, 0.0, 5), "probability"),
    ((10, 0.5, 0), "capacity"),
    ((10, 0.5, 11), "capacity"),
  ],
)
def test_refuses(arguments, message):
  with pytest.raises(ValueError, match=message):
    truncated_poisson(*arguments)
