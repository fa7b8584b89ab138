"""The covariance of noise over rounds, leaves and devices; noise that comes twice."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import scipy
from numpy.typing import ArrayLike

from jdp import _validate
from jdp._arguments import checked
from jdp.conformance.checks.consequences import of_sensitivity
from jdp.conformance.protocol import Finding, Noise, Witness, finding, not_applicable, refusal


@checked
def check_noise(part: Noise, seed: int = 0, *, error: float = 1e-6) -> list[Finding]:
  """Noise has the stated covariance, and none comes twice; after a resumption too.

  The test is exact for normal noise. The stated covariance over rounds turns the noise into
  independent standard normal numbers. Each row of them (a round, a block, a half of the block) is
  a direction, as are the sums and differences of any two rows. The sum of squares along a direction
  is chi-squared. Each has an equal share of `error`, and all numbers together have one too.

  Args:
    part: what is checked.
    seed: of the noise. The next seed must give other noise.
    error: the most probable that each check fails a correct implementation.

  Returns:
    Findings of "covariance", "reuse", "covariance, resumed" and "reuse, resumed".

  Raises:
    ValueError: if the noise is not of the stated shape, or error is not in (0, 1/2].

  >>> def draw(seed):  # every round draws with the same seed
  ...   return np.stack([np.random.default_rng(seed).normal(size=(1, 100))] * 3)
  >>> [found.verdict.value for found in check_noise(Noise("draw", draw, ("w",), np.eye(3)))]
  ['failed', 'failed', 'not applicable', 'not applicable']
  """
  _validate.in_range(1e-300, 0.5, error=error)
  return [
    *_checked_runs(part, part.draw, seed, error, ""),
    *_checked_runs(part, part.resumed, seed, error, ", resumed"),
  ]


def _checked_runs(
  part: Noise, draw: Callable[[int], ArrayLike] | None, seed: int, error: float, after: str
) -> list[Finding]:
  """The findings about runs of two seeds."""
  checks = f"covariance{after}", f"reuse{after}"
  if draw is None:
    return [not_applicable(part, check, "no resumption is wrapped") for check in checks]
  try:
    runs = [draw(seed + i) for i in range(2)]
  except Exception as raised:  # in another library's own words
    return [refusal(part, check, raised) for check in checks]
  own, other = (_drawn(part, run) for run in runs)
  return [_covariance(part, own, error, after), _reuse(part, own, other, after)]


def _drawn(part: Noise, noise: ArrayLike) -> np.ndarray:
  """The noise in float64, of the stated shape."""
  noise = np.asarray(noise, np.float64)
  stated = len(part.covariance), len(part.blocks)
  if noise.ndim != 3 or noise.shape[:2] != stated or noise.shape[2] < 2:
    raise ValueError(
      f"Expected noise of {part.call} of shape [{stated[0]}, {stated[1]}, size >= 2], got "
      f"{noise.shape}; name all blocks, and state a covariance of all rounds."
    )
  return noise


def _covariance(part: Noise, noise: np.ndarray, error: float, after: str) -> Finding:
  rounds, blocks, size = noise.shape
  half = size // 2
  # Rows [rounds, blocks, 2, half]: within a block, its halves must be independent too.
  rows = noise[:, :, : 2 * half].reshape(rounds, blocks, 2, half)
  factor = np.linalg.cholesky(part.covariance)
  white = np.linalg.solve(factor, rows.reshape(rounds, -1)).reshape(-1, half)
  names = [
    f"round {t}, {block}{', second half' * second}"
    for t, block, second in itertools.product(range(rounds), part.blocks, range(2))
  ]
  number = len(names) ** 2 + 1  # rows, sums and differences of two, and all together
  witness = _wrong_size(part, white, error / number) or _wrong_direction(
    white, names, error / number
  )
  seen = 1 - math.sqrt(scipy.stats.chi2.ppf(error / number / 2, white.size) / white.size)
  note = f"{noise.size} numbers; a deviation {100 * seen:.2g} % low would be seen"
  return finding(part, f"covariance{after}", witness, false_failure=error, note=note)


def _wrong_size(part: Noise, white: np.ndarray, error: float) -> Witness | None:
  """The witness of a variance that is wrong over all numbers together."""
  total = float(np.sum(white * white))
  if _chi_squared(total, white.size, error):
    return None
  ratio = math.sqrt(total / white.size)
  expected = math.sqrt(part.covariance[0, 0])
  return Witness(
    "noise on a sum of zero",
    f"standard deviation {expected:.4g} in the first round",
    f"{ratio:.4g} times the stated covariance's root",
    of_sensitivity(1.0, ratio)
    if ratio < 1
    else "The noise is more than accounted for: accuracy is lost.",
  )


def _wrong_direction(white: np.ndarray, names: list[str], error: float) -> Witness | None:
  """The witness of the row, or pair of rows, that is farthest from independent."""
  gram, size = white @ white.T, white.shape[1]
  own = np.diagonal(gram)
  both = (own[:, None] + own[None]) / 2
  found = []
  for sign in (1, -1):
    squares = both + sign * gram
    np.fill_diagonal(squares, own)
    low, high = (scipy.stats.chi2.ppf(p, size) for p in (error / 2, 1 - error / 2))
    wrong = (squares < low) | (squares > high)
    found += [(abs(squares[i, j] / size - 1), i, j) for i, j in np.argwhere(wrong)]
  if not found:
    return None
  _, i, j = max(found)
  if i == j:
    ratio = math.sqrt(own[i] / size)
    consequence = (
      of_sensitivity(1.0, ratio) if ratio < 1 else "The noise is not what is accounted for."
    )
    return Witness(names[i], "deviation 1, once whitened", f"{ratio:.4g}", consequence)
  correlation = gram[i, j] / math.sqrt(own[i] * own[j])
  return Witness(
    f"{names[i]} and {names[j]}",
    "correlation 0, once whitened",
    f"{correlation:.4g}",
    "Whoever subtracts one noised array from the other removes noise that is accounted for.",
  )


def _reuse(part: Noise, own: np.ndarray, other: np.ndarray, after: str) -> Finding:
  """No two arrays of a run, and of a run with another seed, are equal."""
  seen: dict[bytes, str] = {}
  for run, noise in (("", own), (" of the next seed", other)):
    for t, block in itertools.product(range(noise.shape[0]), range(noise.shape[1])):
      name, data = f"round {t}, {part.blocks[block]}{run}", noise[t, block].tobytes()
      if data in seen:
        witness = Witness(
          f"{seen[data]} and {name}",
          "different noise",
          "the same numbers",
          "Their difference is released without any noise: epsilon is infinite.",
        )
        return finding(part, f"reuse{after}", witness)
      seen[data] = name
  return finding(part, f"reuse{after}", None, note=f"{len(seen)} arrays of two seeds")


def _chi_squared(total: float, degrees: int, error: float) -> bool:
  """Whether a sum of squares is within the limits that it leaves with probability `error`."""
  tail = min(scipy.stats.chi2.cdf(total, degrees), scipy.stats.chi2.sf(total, degrees))
  return bool(tail >= error / 2)
