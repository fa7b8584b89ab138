"""How much noise each group of a sample gets, given the noise multiplier of all groups together.

Groups with privacy tuples (S_g, sigma_g) on one sample cost as much as one Gaussian sum with the
noise multiplier z = (sum_g (S_g / sigma_g)^2)^(-1/2). Both rules meet a given z exactly. For the z
of a target (epsilon, delta), see `jdp.accounting.calibrate_noise_multiplier`.

Source: arXiv 1812.06210, Section 4.
"""

import math
from collections.abc import Mapping

from jdp import _validate
from jdp._arguments import checked


@checked
def proportional_noise(
  clip_norms: Mapping[str, float], noise_multiplier: float
) -> dict[str, float]:
  """Noise proportional to each group's bound: sigma_g = z S_g sqrt(G).

  Args:
    clip_norms: S_g > 0 of each of the G groups, by label.
    noise_multiplier: z >= 0, for all groups together.

  Returns:
    sigma_g by label.

  Raises:
    ValueError: if a number is out of range.

  >>> proportional_noise(
  ...   {"weights": 1.0, "biases": 0.5, "loss": 2.0, "accuracy": 1.0}, noise_multiplier=1.5
  ... )
  {'weights': 3.0, 'biases': 1.5, 'loss': 6.0, 'accuracy': 3.0}
  """
  _validate.non_negative(noise_multiplier=noise_multiplier)
  _validate.positive(**{f"clip_norms[{name!r}]": norm for name, norm in clip_norms.items()})
  return {
    name: noise_multiplier * math.sqrt(len(clip_norms)) * norm for name, norm in clip_norms.items()
  }


@checked
def dimension_adjusted_noise(
  clip_norms: Mapping[str, float], dimensions: Mapping[str, int], noise_multiplier: float
) -> dict[str, float]:
  """Noise proportional to a coordinate's greatest root mean square.

  The rule is sigma_g = z (S_g / sqrt(d_g)) sqrt(sum_h d_h).

  Args:
    clip_norms: S_g > 0 of each group, by label.
    dimensions: d_g >= 1, the number of a group's coordinates, by the same labels.
    noise_multiplier: z >= 0, for all groups together.

  Returns:
    sigma_g by label.

  Raises:
    ValueError: if a number is out of range, or the labels differ.

  >>> dimension_adjusted_noise(
  ...   {"model": 1.0, "metrics": 0.5}, {"model": 64, "metrics": 36}, noise_multiplier=1.0
  ... )
  {'model': 1.25, 'metrics': 0.8333333333333334}
  """
  _validate.non_negative(noise_multiplier=noise_multiplier)
  _validate.positive(**{f"clip_norms[{name!r}]": norm for name, norm in clip_norms.items()})
  _validate.integer(
    1, **{f"dimensions[{name!r}]": dimension for name, dimension in dimensions.items()}
  )
  if clip_norms.keys() != dimensions.keys():
    raise ValueError(
      f"Expected dimensions of the groups {list(clip_norms)}, got those of {list(dimensions)}."
    )
  total = sum(dimensions.values())
  return {
    name: noise_multiplier * norm * math.sqrt(total / dimensions[name])
    for name, norm in clip_norms.items()
  }
