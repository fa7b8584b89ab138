"""pfl-research: clipping, sums, noise, accountants and the banded matrix factorisation."""

import contextlib
import math
import os
import tempfile
from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from pfl.aggregate.base import SumAggregator
from pfl.internal.ops import pytorch_ops
from pfl.internal.ops.selector import set_framework_module
from pfl.privacy.ftrl_mechanism import BandedMatrixFactorizationMechanism
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_accountant import (
  PLDPrivacyAccountant,
  PrivacyAccountant,
  PRVPrivacyAccountant,
  RDPPrivacyAccountant,
)
from pfl.stats import MappedVectorStatistics

from experiments.conformance.adapters.wrapping import noise_covariance, version
from jdp.conformance import (
  Accountant,
  Aggregate,
  Calibration,
  Clip,
  Implementation,
  MatrixStrategy,
  Noise,
)
from jdp.conformance.protocol import Part, Plan
from jdp.guarantees import Relation

_STDDEV, _SIZE, _ROUNDS = 2.0, 4096, 4
_ACCOUNTANTS = (PLDPrivacyAccountant, PRVPrivacyAccountant, RDPPrivacyAccountant)


def implementation() -> Implementation:
  """pfl-research, on PyTorch, with all its parts."""
  set_framework_module(pytorch_ops)
  parts = (*_sums(), *_noises(), *_accountants(), *_strategies())
  return Implementation("pfl", version("pfl"), parts)


def _sums() -> Iterator[Part]:
  call = "pfl.privacy.gaussian_mechanism.GaussianMechanism.constrain_sensitivity"
  yield Clip(call, lambda record: _leaves(_clipped(record)).ravel(), 1.0)
  for relation, sensitivity in ((Relation.ADD_REMOVE, 1.0), (Relation.REPLACE_ONE, 2.0)):
    yield Aggregate(
      f"pfl.aggregate.base.SumAggregator of clipped statistics, {relation.label}",
      _summed,
      sensitivity,
      relation,
      takes_thousands=relation is Relation.ADD_REMOVE,  # a minute each
    )


def _clipped(record: np.ndarray) -> MappedVectorStatistics:
  return GaussianMechanism(1.0, 0.0).constrain_sensitivity(_statistics(*np.split(record, 2)))[0]


def _summed(records: np.ndarray) -> np.ndarray:
  total, aggregator = None, SumAggregator()
  for record in records:
    total = aggregator.accumulate(accumulated=total, user_stats=_clipped(record))
  return np.zeros(records.shape[1]) if total is None else _leaves(total).ravel()


def _statistics(*leaves: np.ndarray) -> MappedVectorStatistics:
  return MappedVectorStatistics({str(i): torch.tensor(leaf) for i, leaf in enumerate(leaves)})


def _leaves(statistics: MappedVectorStatistics) -> np.ndarray:
  """The leaves' values, [leaves, size]."""
  return np.stack([value.cpu().numpy() for _, value in sorted(statistics.items())])


def _noises() -> Iterator[Part]:
  yield Noise(
    "pfl.privacy.gaussian_mechanism.GaussianMechanism.add_noise",
    lambda seed: _drawn(GaussianMechanism(1.0, _STDDEV), seed),
    ("leaf a", "leaf b"),
    _STDDEV**2 * np.eye(_ROUNDS),
  )
  yield Noise(
    "pfl.privacy.ftrl_mechanism.BandedMatrixFactorizationMechanism.add_noise",
    lambda seed: _drawn(_banded(_ROUNDS, 3), seed),
    ("leaf a", "leaf b"),
    noise_covariance(_banded(_ROUNDS, 3).query_matrix, _STDDEV),
  )


def _drawn(
  mechanism: GaussianMechanism | BandedMatrixFactorizationMechanism, seed: int
) -> np.ndarray:
  torch.manual_seed(seed)
  zeros = np.zeros(_SIZE, np.float32)
  return np.stack(
    [_leaves(mechanism.add_noise(_statistics(zeros, zeros), 1)[0]) for _ in range(_ROUNDS)]
  )


class _KnownNoise:
  """An accountant whose noise is given."""

  cohort_noise_parameter = _STDDEV


def _banded(num_rounds: int, min_separation: int) -> BandedMatrixFactorizationMechanism:
  """The mechanism, which writes a file into the working directory."""
  with tempfile.TemporaryDirectory() as folder, _working_in(folder):
    return BandedMatrixFactorizationMechanism(
      1.0, num_rounds, min_separation, lambda participations: _KnownNoise()
    )


@contextlib.contextmanager
def _working_in(folder: str) -> Iterator[None]:
  before = os.getcwd()
  os.chdir(folder)
  try:
    yield
  finally:
    os.chdir(before)


def _accountants() -> Iterator[Part]:
  for kind in _ACCOUNTANTS:
    call = f"pfl.privacy.privacy_accountant.{kind.__name__}"
    yield Accountant(f"{call}.epsilon", partial(_epsilon, kind))
    yield Calibration(f"{call}.noise_parameter", partial(_calibrated, kind))


def _epsilon(kind: type[PrivacyAccountant], plan: Plan, noise_multiplier: float) -> float:
  return _accountant(kind, plan, noise_parameter=noise_multiplier).epsilon


def _calibrated(kind: type[PrivacyAccountant], plan: Plan, epsilon: float) -> float:
  return _accountant(kind, plan, epsilon=epsilon).noise_parameter


def _accountant(kind: type[PrivacyAccountant], plan: Plan, **known: float) -> PrivacyAccountant:
  return kind(
    num_compositions=plan.num_rounds,
    sampling_probability=plan.sampling_probability,
    mechanism="gaussian",
    delta=plan.delta,
    **known,
  )


def _strategies() -> Iterator[Part]:
  """BandMF asks its accountant for k compositions of sensitivity 1: C G may move by sqrt(k)."""
  for num_rounds, min_separation in ((12, 4), (64, 64)):
    most = math.ceil(num_rounds / min_separation)
    yield MatrixStrategy(
      "pfl.privacy.ftrl_mechanism.BandedMatrixFactorizationMechanism"
      f"(num_iterations={num_rounds}, min_separation={min_separation}).query_matrix",
      _banded(num_rounds, min_separation).query_matrix,
      lambda b, k: math.sqrt(k),
      ((min_separation, most),),
    )
