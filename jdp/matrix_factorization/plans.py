"""The planned releases of a run with a strategy, as events."""

from jdp._arguments import checked
from jdp.events import CorrelatedGaussianSum
from jdp.matrix_factorization.participation import most_participations
from jdp.matrix_factorization.strategies import Strategy


@checked
def planned_sum(
  strategy: Strategy,
  noise_multiplier: float,
  *,
  clip_norm: float = 1.0,
  min_separation: int = 1,
  max_participations: int | None = None,
) -> CorrelatedGaussianSum:
  """The event of a run's first round. Later rounds' events differ only in their index.

  Args:
    strategy: C.
    noise_multiplier: z, the standard deviation of Z's entries over the clip norm. The run is one
      Gaussian release of multiplier z over the sensitivity.
    clip_norm: S of the first round.
    min_separation: the least distance between two rounds of one user.
    max_participations: the most rounds of one user. None: as many as fit.

  Raises:
    ValueError: if a number is out of range.

  >>> from jdp.matrix_factorization.toeplitz import square_root_toeplitz
  >>> event = planned_sum(square_root_toeplitz(64, bands=16), 2.0, min_separation=16)
  >>> event.max_participations, event.bands, round(event.squared_sensitivity, 6)
  (4, 16, 7.775515)
  """
  most = most_participations(strategy.num_rounds, min_separation, max_participations)
  return CorrelatedGaussianSum(
    clip_norm,
    noise_multiplier,
    strategy.fingerprint,
    strategy.num_rounds,
    min_separation,
    most,
    strategy.squared_sensitivity(min_separation, most),
    strategy.bands,
    strategy.sensitivity(max_participations=1),
    0,
  )
