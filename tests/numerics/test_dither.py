"""Public shifts of a grid."""

import jax
import numpy as np
import pytest
from scipy import stats

from jdp import random
from jdp.numerics.dither import public_shifts

KEYS = {"threefry": lambda: jax.random.key(0), "chacha20": lambda: random.seeded_key(0)}


@pytest.mark.parametrize("name", KEYS)
def test_public_shifts_are_uniform_in_the_unit_interval_and_of_each_key(name):
  """Kolmogorov and Smirnov's test on 3 times 20,000, at a fixed key: it fails with probability 1e-6
  and finds a distribution function that is off by 0.02. Another key has other shifts.
  """
  keys = jax.random.split(KEYS[name](), 3)
  shifts = np.asarray(jax.vmap(lambda key: public_shifts(key, (20_000,)))(keys))
  assert shifts.min() >= 0
  assert shifts.max() < 1
  assert stats.kstest(shifts.ravel(), "uniform").pvalue > 1e-6
  # Means of products have a standard error of 1 / (12 sqrt(20,000)); 6 of them: 1e-8.
  centred = shifts.astype(np.float64) - 0.5
  for one, other in ((0, 1), (0, 2), (1, 2)):
    assert abs(np.mean(centred[one] * centred[other])) < 6 / (12 * 20_000**0.5)
  alone = public_shifts(jax.random.split(KEYS[name](), 3)[1], (20_000,))
  np.testing.assert_array_equal(alone, shifts[1])
