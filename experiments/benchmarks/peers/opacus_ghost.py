"""Steps of DP-SGD by Opacus's ghost clipping.

Run it as `python opacus_ghost.py example MODEL`. Of this repository it imports the files
beside it alone.
"""

import sys

import serve
import torch
from opacus.grad_sample import GradSampleModuleFastGradientClipping
from opacus.optimizers import DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from torch_models import MODELS

_STEPS = 10


def main() -> None:
  """Serves `_STEPS` steps on a batch."""
  inputs, labels = map(torch.tensor, serve.images(serve.BATCH))
  module = GradSampleModuleFastGradientClipping(
    MODELS[sys.argv[2]](), max_grad_norm=serve.CLIP_NORM, use_ghost_clipping=True
  )
  optimizer = DPOptimizerFastGradientClipping(
    torch.optim.SGD(module.parameters(), lr=serve.LEARNING_RATE),
    noise_multiplier=serve.NOISE_MULTIPLIER,
    max_grad_norm=serve.CLIP_NORM,
    expected_batch_size=serve.BATCH,
  )
  criterion = DPLossFastGradientClipping(module, optimizer, torch.nn.CrossEntropyLoss())

  def run():
    for _ in range(_STEPS):
      optimizer.zero_grad()
      criterion(module(inputs), labels).backward()
      optimizer.step()

  serve.serve(run, _STEPS * serve.BATCH)


if __name__ == "__main__":
  main()
