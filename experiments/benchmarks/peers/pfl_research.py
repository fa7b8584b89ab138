"""Rounds of DP-FedAvg in pfl-research.

Run it as `python pfl_research.py federated MODEL`. Of this repository it imports the files
beside it alone.
"""

import sys

import serve
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops.pytorch_ops import get_default_device
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from pfl.privacy import CentrallyAppliedPrivacyMechanism, GaussianMechanism
from torch_models import MODELS

_ROUNDS = 2  # Rounds of one timed run: the set-up before the first round counts less.


class _Classifier(torch.nn.Module):
  """A network with the loss and metrics that pfl-research asks for."""

  def __init__(self, network):
    super().__init__()
    self.network = network

  def forward(self, x):
    return self.network(x)

  def loss(self, x, y, eval=False):  # noqa: A002 (pfl-research's name)
    del eval
    return torch.nn.functional.cross_entropy(self(x), y)

  def metrics(self, x, y):
    return {"loss": Weighted(self.loss(x, y).item(), 1)}


def main() -> None:
  """Serves `_ROUNDS` rounds of a cohort."""
  device = get_default_device()  # where pfl-research puts the model
  cohort = serve.cohort_of(sys.argv[2])
  by_user = cohort.users, cohort.examples
  inputs, labels = (
    torch.tensor(x.reshape(*by_user, *x.shape[1:]), device=device)
    for x in serve.images(cohort.users * cohort.examples, cohort.shape)
  )
  users = zip(inputs, labels, strict=True)
  datasets = {number: Dataset(tuple(user)) for number, user in enumerate(users)}
  data = FederatedDataset(datasets.__getitem__, get_user_sampler("random", list(datasets)))
  mechanism = CentrallyAppliedPrivacyMechanism(
    GaussianMechanism(cohort.clip_norm, serve.NOISE_MULTIPLIER)
  )
  backend = SimulatedBackend(data, data, postprocessors=[mechanism])
  network = _Classifier(MODELS[sys.argv[2]]())
  model = PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), lr=1.0))
  algorithm_params = NNAlgorithmParams(_ROUNDS, 10**6, cohort.size, 1)
  train = NNTrainHyperParams(cohort.batch, 1, serve.LEARNING_RATE)

  def run():
    FederatedAveraging().run(
      algorithm_params, backend, model, train, NNEvalHyperParams(cohort.examples)
    )

  serve.serve(run, _ROUNDS * cohort.size)


if __name__ == "__main__":
  main()
