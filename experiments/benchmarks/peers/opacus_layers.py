"""Sums of clipped gradients of single layers by Opacus's fast gradient clipping.

Run it as `python opacus_layers.py CLIENTS` to serve all layers, or with `memory` behind that to
print what each takes. Opacus has ghost norms of linear layers and embeddings. For others it makes
each client's gradient. Of this repository it imports the file beside it alone.
"""

import sys
from collections.abc import Callable

import serve
import torch
from opacus.grad_sample import GradSampleModuleFastGradientClipping
from opacus.layers import DPLSTM, DPMultiheadAttention
from opacus.optimizers import DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping
from torch import nn

_CLIP_NORM = 1e-3


class _Attention(nn.Module):
  """A sequence that attends to itself."""

  def __init__(self):
    super().__init__()
    self.inner = DPMultiheadAttention(256, 4, batch_first=True)

  def forward(self, x: torch.Tensor) -> torch.Tensor:
    return self.inner(x, x, x)[0]


class _LSTM(nn.Module):
  """The outputs of an LSTM at all steps."""

  def __init__(self):
    super().__init__()
    self.inner = DPLSTM(128, 128, batch_first=True)

  def forward(self, x: torch.Tensor) -> torch.Tensor:
    return self.inner(x)[0]


# Of the names that `jdp_layers` gives them, with the shape of a client's input.
_LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
  "dense 784 x 100, 1 row": (lambda: nn.Linear(784, 100), (784,)),
  "dense 256 x 256, 32 rows": (lambda: nn.Linear(256, 256), (32, 256)),
  "dense 256 x 256, 256 rows": (lambda: nn.Linear(256, 256), (256, 256)),
  "dense 256 x 1024, 32 rows": (lambda: nn.Linear(256, 1024), (32, 256)),
  "LayerNorm 256, 32 rows": (lambda: nn.LayerNorm(256), (32, 256)),
  "RMSNorm 256, 32 rows": (lambda: nn.RMSNorm(256), (32, 256)),
  "embedding 4096 x 128, 32 words": (lambda: nn.Embedding(4096, 128), (32,)),
  "attention 256, 4 heads, 32 rows": (_Attention, (32, 256)),
  "convolution 3 x 3, 16 to 32, 14 x 14": (
    lambda: nn.Conv2d(16, 32, 3, padding=1),
    (16, 14, 14),
  ),
  "convolution 3 x 3, 256 to 256, 4 x 4": (
    lambda: nn.Conv2d(256, 256, 3, padding=1),
    (256, 4, 4),
  ),
  "LSTM 128, 32 steps": (_LSTM, (32, 128)),
}


def _clipped_sum(
  make: Callable[[], nn.Module], shape: tuple[int, ...], clients: int
) -> Callable[[], None]:
  """A function that makes the sum of clipped gradients of one batch."""
  layer = make()
  inputs = (
    torch.randint(4096, (clients, *shape))
    if len(shape) == 1 and isinstance(layer, nn.Embedding)
    else torch.randn(clients, *shape)
  )
  module = GradSampleModuleFastGradientClipping(
    layer, max_grad_norm=_CLIP_NORM, use_ghost_clipping=True
  )
  optimizer = DPOptimizerFastGradientClipping(
    torch.optim.SGD(module.parameters(), lr=1.0),
    noise_multiplier=0.0,
    max_grad_norm=_CLIP_NORM,
    expected_batch_size=clients,
  )

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
  """Serves all layers, or prints their memory."""
  torch.set_num_threads(1)
  clients = int(sys.argv[1])
  runs = {name: _clipped_sum(*layer, clients) for name, layer in _LAYERS.items()}
  if "memory" in sys.argv:
    for name, run in runs.items():
      print(f"\nmemory {_peak(run)} {name}", flush=True)
  else:
    serve.serve_cases({name: serve.Case(run, clients) for name, run in runs.items()})


if __name__ == "__main__":
  main()
