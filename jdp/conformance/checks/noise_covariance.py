"""The noise of a run: its covariance over rounds, leaves and devices, its law, and reuse."""

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import scipy
from numpy.typing import ArrayLike

from jdp import _validate
from jdp._arguments import checked
from jdp.conformance.checks.consequences import of_sensitivity
from jdp.conformance.protocol import Finding, Noise, Witness, finding, not_applicable, raised

_CHECKS = ("covariance", "distribution", "reuse")
_TAILS = (0.0, 1.0, 2.0, 3.1)  # in standard deviations; the last reveals noise that is cut off at 3
_NEXT_SEED = " of the next seed"
_GRID = 1 / 32  # half the widest spacing that noise may lie on, in standard deviations


@checked
def check_noise(part: Noise, seed: int = 0, *, error: float = 1e-6) -> list[Finding]:
  """Noise has the stated covariance, is normal, and is never reused, also after a resumption.

  The tests are exact for normal noise. The stated covariance over rounds turns the noise into
  independent standard normal numbers. Each row of them (a round, a block, a half of the block) is
  a direction, as are the sums and differences of any two rows.

  * "covariance": the sum of squares along a direction is chi-squared. Each direction gets an equal
    share of `error`, and so do all numbers together.
  * "distribution": the count of numbers beyond 0, 1, 2 and 3.1 deviations, on either side, is
    binomial. The limits leave room for a grid of up to a sixteenth of the deviation.
  * "reuse": the squared cosine of a row and another row, shifted by any number of places, has a
    beta distribution. The other row is from the same run, or from the run of the next seed. Also,
    no two arrays are equal.

  Args:
    part: what is checked.
    seed: the noise's seed. The next seed must give other noise.
    error: the largest probability that each check fails a correct implementation.

  Returns:
    Findings of "covariance", "distribution" and "reuse", each also for a "resumed" run.

  Raises:
    ValueError: if the noise does not have the stated shape, or error is not in (0, 1/2].

  >>> def draw(seed):  # every round draws with the same seed
  ...   return np.stack([np.random.default_rng(seed).normal(size=(1, 100))] * 3)
  >>> [found.verdict.value for found in check_noise(Noise("draw", draw, ("w",), np.eye(3)))[:3]]
  ['failed', 'passed', 'failed']
  """
  _validate.in_range(1e-300, 0.5, error=error)
  found = _checked_runs(part, part.draw, seed, error)
  if part.resumed is None:
    again = [not_applicable(part, check, "no resumption is wrapped") for check in _CHECKS]
  else:
    again = _checked_runs(part, part.resumed, seed, error)
  return [*found, *(own._replace(check=f"{own.check}, resumed") for own in again)]


def _checked_runs(
  part: Noise, draw: Callable[[int], ArrayLike], seed: int, error: float
) -> list[Finding]:
  """The findings about runs of two seeds."""
  try:
    drawn = [draw(seed + i) for i in range(2)]
  except Exception as own_error:  # of any type, from another library
    return [raised(part, check, own_error) for check in _CHECKS]
  runs = [_drawn(part, run) for run in drawn]
  if not np.all(np.isfinite(runs)):
    why = "the noise is not finite"
    return [
      finding(part, _CHECKS[0], _not_finite(runs)),
      *(not_applicable(part, check, why) for check in _CHECKS[1:]),
    ]
  white = [_whitened(part, run) for run in runs]
  return [
    _covariance(part, white[0], runs[0].size, error),
    _distribution(part, white[0], error),
    _reuse(part, runs, white, error),
  ]


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


def _not_finite(runs: Sequence[np.ndarray]) -> Witness:
  noise = np.concatenate([np.ravel(run) for run in runs])
  number = np.count_nonzero(~np.isfinite(noise))
  return Witness(
    "noise on a sum of zero",
    "finite numbers",
    f"{number} of {noise.size} numbers are NaN or infinite",
    "What is released there is not what is accounted for, and tells nothing of the sum either.",
  )


def _whitened(part: Noise, noise: np.ndarray) -> np.ndarray:
  """Independent standard normal rows, [rounds * blocks * 2, half the size], if all is as stated."""
  rounds, blocks, size = noise.shape
  half = size // 2
  # Rows [rounds, blocks, 2, half]: within a block, its halves must be independent too.
  rows = noise[:, :, : 2 * half].reshape(rounds, blocks, 2, half)
  factor = np.linalg.cholesky(part.covariance)
  return np.linalg.solve(factor, rows.reshape(rounds, -1)).reshape(-1, half)


def _row_names(part: Noise) -> list[str]:
  """The names of the rows of `_whitened`."""
  return [
    f"round {t}, {block}{', second half' * second}"
    for t, block, second in itertools.product(range(len(part.covariance)), part.blocks, range(2))
  ]


def _covariance(part: Noise, white: np.ndarray, size: int, error: float) -> Finding:
  names = _row_names(part)
  number = len(names) ** 2 + 1  # rows, sums and differences of two rows, and all numbers together
  witness = _wrong_size(part, white, error / number) or _wrong_direction(
    white, names, error / number
  )
  seen = 1 - math.sqrt(scipy.stats.chi2.ppf(error / number / 2, white.size) / white.size)
  note = f"{size} numbers; a deviation {100 * seen:.2g} % low would be seen"
  return finding(part, "covariance", witness, false_failure=error, note=note)


def _wrong_size(part: Noise, white: np.ndarray, error: float) -> Witness | None:
  """The witness of a variance that is wrong over all numbers together."""
  total = float(np.sum(white * white))
  law = scipy.stats.chi2(white.size)
  if min(law.cdf(total), law.sf(total)) >= error / 2:
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


def _distribution(part: Noise, white: np.ndarray, error: float) -> Finding:
  """No tail has too few or too many numbers."""
  share = error / (4 * len(_TAILS))  # two sides, too few or too many
  witness = None
  for sign, tail in itertools.product((1, -1), _TAILS):
    few, many = (int(np.count_nonzero(sign * white > tail + room)) for room in (-_GRID, _GRID))
    least, most = (scipy.stats.norm.sf(tail + room) for room in (_GRID, -_GRID))
    too_few = scipy.stats.binom.cdf(few, white.size, least) < share
    if too_few or scipy.stats.binom.sf(many - 1, white.size, most) < share:
      expected = white.size * float(scipy.stats.norm.sf(tail))
      witness = Witness(
        f"{white.size} numbers, divided by their deviation",
        f"about {expected:.4g} {'above' if sign > 0 else 'below'} {sign * tail + 0.0:g}",
        f"{few if too_few else many}",
        "The noise is not normal: the epsilon of normal noise is not that of this release.",
      )
  note = f"tails of up to {_TAILS[-1]:g} deviations"
  return finding(part, "distribution", witness, false_failure=error, note=note)


def _reuse(
  part: Noise, runs: Sequence[np.ndarray], white: Sequence[np.ndarray], error: float
) -> Finding:
  """No two arrays, of one run or of runs with two seeds, are equal, even after a shift."""
  witness = _equal_arrays(part, runs) or _moved_rows(part, np.concatenate(white), error)
  note = f"{2 * len(part.covariance) * len(part.blocks)} arrays of two seeds"
  return finding(part, "reuse", witness, false_failure=error, note=note)


def _equal_arrays(part: Noise, runs: Sequence[np.ndarray]) -> Witness | None:
  seen: dict[bytes, str] = {}
  for run, noise in zip(("", _NEXT_SEED), runs, strict=True):
    for t, block in itertools.product(range(noise.shape[0]), range(noise.shape[1])):
      name, data = f"round {t}, {part.blocks[block]}{run}", noise[t, block].tobytes()
      if data in seen:
        return Witness(
          f"{seen[data]} and {name}",
          "different noise",
          "the same numbers",
          "Their difference is released without any noise: epsilon is infinite.",
        )
      seen[data] = name
  return None


def _moved_rows(part: Noise, rows: np.ndarray, error: float) -> Witness | None:
  """The witness of the two rows that agree most once one of them is shifted cyclically."""
  size, names = rows.shape[1], _row_names(part)
  names = [*names, *(f"{name}{_NEXT_SEED}" for name in names)]
  rows = rows / (np.max(np.abs(rows)) or 1.0)  # squares of the smallest noise would underflow
  lengths = np.linalg.norm(rows, axis=1, keepdims=True)
  transformed = np.fft.rfft(rows / np.where(lengths > 0, lengths, 1.0))
  agreement, worst = 0.0, (0, 0, 0)
  for i in range(len(rows) - 1):
    cosines = np.abs(np.fft.irfft(transformed[i + 1 :] * np.conj(transformed[i]), size))
    j, places = np.unravel_index(np.argmax(cosines), cosines.shape)
    if cosines[j, places] > agreement:
      agreement, worst = float(cosines[j, places]), (i, i + 1 + int(j), int(places))
  number = size * math.comb(len(rows), 2)
  if agreement**2 <= scipy.stats.beta.isf(error / number, 0.5, (size - 1) / 2):
    return None
  one, another, moved = worst
  return Witness(
    f"{names[one]} and {names[another]}, moved by {moved} places",
    "independent noise",
    f"correlation {agreement:.3g}",
    "Noise comes twice: whoever subtracts one release from the other removes it.",
  )
