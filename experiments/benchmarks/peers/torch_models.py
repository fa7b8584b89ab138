"""The benchmarks' models in PyTorch; those of `networks`."""

from torch import nn


class _CNN(nn.Sequential):
  """The architecture of `jdp.models.small_cnn`."""

  def __init__(self):
    super().__init__(
      nn.Unflatten(1, (1, 28)),
      nn.Conv2d(1, 16, 8, 2, padding=3),
      nn.ReLU(),
      nn.MaxPool2d(2, 1),
      nn.Conv2d(16, 32, 4, 2),
      nn.ReLU(),
      nn.MaxPool2d(2, 1),
      nn.Flatten(),
      nn.Linear(512, 32),
      nn.ReLU(),
      nn.Linear(32, 10),
    )


class _ColourCNN(nn.Sequential):
  def __init__(self):
    super().__init__(
      nn.Conv2d(3, 32, 3),
      nn.ReLU(),
      nn.Conv2d(32, 64, 3),
      nn.ReLU(),
      nn.MaxPool2d(2),
      nn.Flatten(),
      nn.Linear(14 * 14 * 64, 128),
      nn.ReLU(),
      nn.Linear(128, 10),
    )

  def forward(self, x):
    return super().forward(x.permute(0, 3, 1, 2))


MODELS = {
  "logistic": lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 10)),
  "mlp": lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10)),
  "cnn": _CNN,
  "cifar10": _ColourCNN,
}
