"""Every factory refuses numbers that float32 would flush, by one range."""

import pytest

from jdp import mechanisms

FACTORIES = {
  "scalar_dp": lambda x: mechanisms.scalar_dp(1.0, x),
  "scalar_rel_dp, max_value": lambda x: mechanisms.scalar_rel_dp(
    1.0, x, num_levels=3, min_value=x / 10
  ),
  "scalar_rel_dp, min_value": lambda x: mechanisms.scalar_rel_dp(
    1.0, max(1.0, 10 * x), num_levels=3, min_value=x
  ),
  "laplace": lambda x: mechanisms.laplace(1.0, x),
  "l2_laplace": lambda x: mechanisms.l2_laplace(1.0, x),
  "gaussian": lambda x: mechanisms.gaussian(x, x, 1e-5),
  "hemisphere": lambda x: mechanisms.hemisphere(3, 1.0, x),
  "on_grid": lambda x: mechanisms.on_grid(mechanisms.laplace(1.0, 1e-20), x),
}


@pytest.mark.parametrize("number", [1e39, 1e-40, 2e30, 5e-31, float("nan"), float("inf")])
def test_numbers_that_float32_would_flush_are_refused(number):
  for factory in FACTORIES.values():
    with pytest.raises(ValueError, match="Expected"):
      factory(number)


def test_estimates_that_float32_would_flush_are_refused():
  with pytest.raises(ValueError, match="largest estimate"):
    mechanisms.scalar_dp(1e-12, 1e29)
