"""The benchmark's three models in PyTorch: 7,850, 79,510 and 26,010 parameters."""

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


MODELS = {
  "logistic": lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 10)),
  "mlp": lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10)),
  "cnn": _CNN,
}
