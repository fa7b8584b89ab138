"""What it costs to run something a random number of times and release the best result only.

Hyper-parameters are chosen like this: each run draws one of the candidate settings and is scored by
what it released, and the best run's releases (or their score) alone are published. The number K of
runs is random, K >= 1, independent of the data, and never told:

  P(K = k) = C(k + shape - 1, k) (1 - gamma)^k / (gamma^-shape - 1)

a truncated negative binomial. Shape 1 is geometric, shape 0 (the limit) logarithmic. If one run has
Renyi divergences r(a), the whole has at every order a > 1 (arXiv 2110.03620, Theorem 2)

  r(a) + log(E K) / (a - 1) + (1 + shape) min_b [(1 - 1/b) r(b) + log(1/gamma) / b].

A fixed number of runs has no such bound: what the best of n releases costs may be n times as much.
"""

import functools
import math

import numpy as np
import scipy

from jdp import _validate
from jdp._arguments import checked
from jdp.accounting.composition import Composition
from jdp.accounting.observed import observed
from jdp.accounting.pair_families import PairFamily
from jdp.accounting.profiles import rdp_profile, with_overflow, with_release
from jdp.ledger import Ledger

_ORDERS = tuple((1 + np.geomspace(1e-3, 1e6, 200)).tolist())  # among which b is chosen
_LEAST_LOG_GAMMA = -600.0


@checked
def selection_epsilon(
  ledger: Ledger,
  delta: float,
  *,
  mean_runs: float,
  shape: float = 1.0,
  relation: str | None = None,
  observer: str | None = None,
) -> float:
  """The epsilon of releasing the best of a random number of runs, each of which cost a ledger.

  Formal guarantee: (epsilon, delta)-differential privacy, under the relation and to the observer of
  the events, of the released run and of which it was. Every run's events, and its choice of a
  setting, must be as the ledger says, whatever the setting. Scores come from what the runs released
  or from other data. The number of runs is drawn as in the module's docstring, and stays secret.

  Args:
    ledger: of one run.
    delta: in [0, 1].
    mean_runs: E K >= 1.
    shape: of the distribution, in [0, 1000]. Smaller ones cost less for the same mean, and vary
      more.
    relation: add_remove, zero_out or replace_one. None: the only one that the events declare.
    observer: server, clients or model. None: the ledger's only one.

  Returns:
    The bound; infinity if no bound holds.

  Raises:
    ValueError: as `jdp.accounting.epsilon`, or if an argument is out of range.

  >>> from jdp import accounting
  >>> from jdp.ledger import subsampled_gaussian
  >>> run = subsampled_gaussian(0.01, 1.1, 1000)
  >>> round(accounting.epsilon(run, 1e-5), 2)
  1.71
  >>> round(selection_epsilon(run, 1e-5, mean_runs=10.0), 2)
  3.43
  """
  _validate.probability(delta=delta)
  _validate.in_range(1.0, 1e100, mean_runs=mean_runs)
  _validate.in_range(0.0, 1000.0, shape=shape)
  if not ledger.entries:
    return 0.0
  with np.errstate(all="ignore"):  # Overflow gives infinity, an upper bound.
    seen = observed(ledger, relation, observer)
    profile = rdp_profile(_best_of(seen.joint, mean_runs, shape))
    profile = with_release(profile, 0.0, min(1.0, mean_runs * seen.delta))
    return with_overflow(profile, mean_runs * seen.rounds.overflow).epsilon(delta)


def _best_of(one: Composition, mean_runs: float, shape: float) -> Composition:
  """The composition whose divergences are those of the best of some runs."""
  gamma = math.exp(_log_gamma(mean_runs, shape))
  orders = np.array(_ORDERS)
  inner = (1 - 1 / orders) * one.rdp(_ORDERS) - math.log(gamma) / orders
  common = (1 + shape) * float(np.min(inner))

  def rdp(parameters: np.ndarray, orders: np.ndarray) -> np.ndarray:
    del parameters
    return (one.rdp(tuple(orders)) + math.log(mean_runs) / (orders - 1) + common)[None]

  family = PairFamily("the best of some runs", rdp, lambda rows: np.full(len(rows), math.inf), None)
  return Composition({family: (np.zeros((1, 0)), np.ones(1))})


@functools.cache
def _log_gamma(mean_runs: float, shape: float) -> float:
  """log gamma of the distribution with this mean, rounded down."""

  def log_mean(log_gamma: float) -> float:
    """log of E K = shape (1 - gamma) / (gamma (1 - gamma^shape))."""
    if log_gamma == 0:
      return 0.0
    share = -math.expm1(shape * log_gamma) / shape if shape else -log_gamma
    return math.log(-math.expm1(log_gamma)) - log_gamma - math.log(share)

  target = math.log(mean_runs)
  if target == 0:
    return 0.0
  root = scipy.optimize.brentq(lambda x: log_mean(x) - target, _LEAST_LOG_GAMMA, -1e-12, xtol=1e-12)
  return min(root - 1e-9, 0.0)
