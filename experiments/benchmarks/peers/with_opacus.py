"""Opacus's ghost clipping, in an environment of its own.

    python with_opacus.py example MODEL    # serves steps of DP-SGD on a batch
    python with_opacus.py layers CLIENTS   # serves sums of clipped gradients of single layers
    python with_opacus.py memory CLIENTS   # prints the bytes that each layer takes

Opacus has ghost norms of linear layers and embeddings. For others it makes each client's gradient.
Of this repository it imports the files beside it alone.
"""

import json
import sys
from collections.abc import Callable

import serve
import torch
from opacus.grad_sample import GradSampleModuleFastGradientClipping
from opacus.layers import DPLSTM, DPMultiheadAttention
from opacus.optimizers import DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import (
  DPLossFastGradientClipping,
  DPTensorFastGradientClipping,
)
from torch import nn
from torch_models import MODELS

_STEPS = 10


class _First(nn.Module):
  """The first result of a layer, which gets the same inputs several times."""

  def __init__(self, inner: nn.Module, times: int):
    super().__init__()
    self.inner, self.times = inner, times

  def forward(self, x: torch.Tensor) -> torch.Tensor:
    return self.inner(*[x] * self.times)[0]


# Of the names that `jdp_layers` gives them, with the shape of a client's input.
_LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
  "dense 784 x 100, 1 row": (lambda: nn.Linear(784, 100), (784,)),
  "dense 256 x 256, 32 rows": (lambda: nn.Linear(256, 256), (32, 256)),
  "dense 256 x 256, 256 rows": (lambda: nn.Linear(256, 256), (256, 256)),
  "dense 256 x 1024, 32 rows": (lambda: nn.Linear(256, 1024), (32, 256)),
  "LayerNorm 256, 32 rows": (lambda: nn.LayerNorm(256), (32, 256)),
  "RMSNorm 256, 32 rows": (lambda: nn.RMSNorm(256), (32, 256)),
  "embedding 4096 x 128, 32 words": (lambda: nn.Embedding(4096, 128), (32,)),
  "attention 256, 4 heads, 32 rows": (
    lambda: _First(DPMultiheadAttention(256, 4, batch_first=True), 3), (32, 256),
  ),
  "convolution 3 x 3, 16 to 32, 14 x 14": (
    lambda: nn.Conv2d(16, 32, 3, padding=1), (16, 14, 14),
  ),
  "convolution 3 x 3, 256 to 256, 4 x 4": (
    lambda: nn.Conv2d(256, 256, 3, padding=1), (256, 4, 4),
  ),
  "LSTM 128, 32 steps": (lambda: _First(DPLSTM(128, 128, batch_first=True), 1), (32, 128)),
}  # fmt: skip


def _ghost(
  network: nn.Module, learning_rate: float, noise_multiplier: float, clip_norm: float, batch: int
) -> tuple[nn.Module, torch.optim.Optimizer]:
  """The network with ghost clipping, and its optimizer."""
  module = GradSampleModuleFastGradientClipping(
    network, max_grad_norm=clip_norm, use_ghost_clipping=True
  )
  optimizer = DPOptimizerFastGradientClipping(
    torch.optim.SGD(module.parameters(), lr=learning_rate),
    noise_multiplier=noise_multiplier,
    max_grad_norm=clip_norm,
    expected_batch_size=batch,
  )
  return module, optimizer


def _steps(name: str) -> Callable[[], None]:
  """A function that takes `_STEPS` steps on a batch."""
  inputs, labels = map(torch.tensor, serve.images(serve.BATCH))
  module, optimizer = _ghost(
    MODELS[name](), serve.LEARNING_RATE, serve.NOISE_MULTIPLIER, serve.CLIP_NORM, serve.BATCH
  )
  criterion = DPLossFastGradientClipping(module, optimizer, nn.CrossEntropyLoss())

  def run():
    for _ in range(_STEPS):
      optimizer.zero_grad()
      criterion(module(inputs), labels).backward()
      optimizer.step()

  return run


def _clipped_sum(
  make: Callable[[], nn.Module], shape: tuple[int, ...], clients: int
) -> Callable[[], None]:
  """A function that makes the sum of clipped gradients of one batch."""
  layer = make()
  words = isinstance(layer, nn.Embedding)
  inputs = torch.randint(4096, (clients, *shape)) if words else torch.randn(clients, *shape)
  module, optimizer = _ghost(layer, 1.0, 0.0, 1e-3, clients)

  def run():
    optimizer.zero_grad()
    losses = torch.sin(module(inputs)).flatten(1).mean(1)
    DPTensorFastGradientClipping(module, optimizer, losses, "mean").backward()

  return run


def _peak(run: Callable[[], None]) -> int:
  """The most bytes that are held at once, beside what is held before."""
  run()
  with torch.profiler.profile(
    activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
  ) as profile:
    run()
  held = most = 0
  for event in profile.profiler.kineto_results.events():
    if event.name() == "[memory]":
      held += event.nbytes()
      most = max(most, held)
  return most


def main() -> None:
  """Serves steps or layers, or prints the layers' memory."""
  task, argument = sys.argv[1:]
  if task == "example":
    serve.serve(_steps(argument), _STEPS * serve.BATCH)
    return
  torch.set_num_threads(1)
  clients = int(argument)
  runs = {name: _clipped_sum(*layer, clients) for name, layer in _LAYERS.items()}
  if task == "memory":
    print(json.dumps({name: _peak(run) for name, run in runs.items()}))
  else:
    serve.serve_cases({name: serve.Case(run, clients) for name, run in runs.items()})


if __name__ == "__main__":
  main()
