"""Opacus: its optimiser's clipping, sums and noise, its sampler and its accountants."""

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from opacus.accountants import create_accountant
from opacus.accountants.utils import get_noise_multiplier
from opacus.optimizers import DPOptimizer
from opacus.utils.uniform_sampler import UniformWithReplacementSampler

from experiments.conformance.adapters.wrapping import membership, version
from jdp import events
from jdp.conformance import (
  Accountant,
  Aggregate,
  Calibration,
  Clip,
  Implementation,
  Noise,
  Sampling,
)
from jdp.conformance.protocol import Part, Plan
from jdp.guarantees import Relation

_STDDEV, _SIZE, _ROUNDS = 2.0, 4096, 3
_POPULATION = 12


def implementation() -> Implementation:
  """Opacus with all its parts."""
  return Implementation(
    "opacus", version("opacus"), (*_sums(), *_noises(), *_samplings(), *_accountants())
  )


def _sums() -> Iterator[Part]:
  call = "opacus.optimizers.DPOptimizer.clip_and_accumulate"
  yield Clip(f"{call}, one record", lambda record: _summed(1, record[None]), 1.0)
  for relation, sensitivity in ((Relation.ADD_REMOVE, 1.0), (Relation.REPLACE_ONE, 2.0)):
    yield Aggregate(f"{call}, {relation.label}", partial(_summed, 1), sensitivity, relation)
  mean = "opacus.optimizers.DPOptimizer.scale_grad(expected_batch_size=4), add/remove"
  yield Aggregate(mean, partial(_summed, 4), 0.25, Relation.ADD_REMOVE)


def _summed(batch_size: int, records: np.ndarray) -> np.ndarray:
  """The clipped sum over a fixed batch size, of two parameters that share the record."""
  parameters = [torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(2))]
  optimizer = _optimizer(parameters, 0.0, batch_size)
  for i, parameter in enumerate(parameters):
    parameter.grad_sample = torch.tensor(records[:, 2 * i : 2 * i + 2])
  optimizer.pre_step()
  return torch.cat([parameter.grad for parameter in parameters]).detach().numpy()


def _optimizer(
  parameters: list[torch.nn.Parameter],
  noise_multiplier: float,
  batch_size: int,
  generator: torch.Generator | None = None,
  secure_mode: bool = False,
) -> DPOptimizer:
  return DPOptimizer(
    torch.optim.SGD(parameters, lr=1.0),
    noise_multiplier=noise_multiplier,
    max_grad_norm=1.0,
    expected_batch_size=batch_size,
    generator=generator,
    secure_mode=secure_mode,
  )


def _noises() -> Iterator[Part]:
  for mode in (False, True):
    yield Noise(
      f"opacus.optimizers.DPOptimizer.add_noise(secure_mode={mode})",
      partial(_drawn, mode),
      ("leaf a", "leaf b"),
      _STDDEV**2 * np.eye(_ROUNDS),
    )


def _drawn(secure_mode: bool, seed: int) -> np.ndarray:
  parameters = [torch.nn.Parameter(torch.zeros(_SIZE)) for _ in range(2)]
  generator = torch.Generator().manual_seed(seed)
  optimizer = _optimizer(parameters, _STDDEV, 1, generator, secure_mode)
  rows = []
  for _ in range(_ROUNDS):
    for parameter in parameters:
      parameter.grad_sample = torch.zeros(1, _SIZE)
    optimizer.pre_step()
    rows.append(np.stack([parameter.grad.detach().numpy().copy() for parameter in parameters]))
    optimizer.zero_grad()
  return np.stack(rows)


def _samplings() -> Iterator[Part]:
  yield Sampling(
    "opacus.utils.uniform_sampler.UniformWithReplacementSampler",
    _members,
    events.PoissonSampling(0.3),
  )


def _members(seed: int, num_rounds: int) -> np.ndarray:
  sampler = UniformWithReplacementSampler(
    num_samples=_POPULATION,
    sample_rate=0.3,
    generator=torch.Generator().manual_seed(seed),
    steps=num_rounds,
  )
  return membership(sampler, _POPULATION)


def _accountants() -> Iterator[Part]:
  """Those that state a bound: "gdp" warns that it may underestimate."""
  for name in ("rdp", "prv"):
    yield Accountant(f'opacus.accountants.create_accountant("{name}")', partial(_epsilon, name))
    call = f'opacus.accountants.utils.get_noise_multiplier(accountant="{name}")'
    yield Calibration(call, partial(_calibrated, name))


def _epsilon(name: str, plan: Plan, noise_multiplier: float) -> float:
  accountant = create_accountant(name)
  step = (noise_multiplier, plan.sampling_probability, plan.num_rounds)
  accountant.history = [step]
  return accountant.get_epsilon(delta=plan.delta)


def _calibrated(name: str, plan: Plan, epsilon: float) -> float:
  return get_noise_multiplier(
    target_epsilon=epsilon,
    target_delta=plan.delta,
    sample_rate=plan.sampling_probability,
    steps=plan.num_rounds,
    accountant=name,
  )
