"""The benchmarks' models in flax."""

import flax.linen as nn
import jax.numpy as jnp
import numpy as np


class Dense(nn.Module):
  """Dense layers with ReLU between them. Without a hidden layer it is logistic regression."""

  hidden: tuple[int, ...] = ()

  @nn.compact
  def __call__(self, x):
    """Logits [n, 10] of images [n, 28, 28]."""
    x = x.reshape(x.shape[0], -1)
    for width in self.hidden:
      x = nn.relu(nn.Dense(width)(x))
    return nn.Dense(10)(x)


class CNN(nn.Module):
  """The architecture of `jdp.models.small_cnn`, in flax's own layers."""

  @nn.compact
  def __call__(self, x):
    """Logits [n, 10] of images [n, 28, 28]."""
    x = x[..., None]
    x = nn.max_pool(nn.relu(nn.Conv(16, (8, 8), (2, 2))(x)), (2, 2))
    x = nn.max_pool(nn.relu(nn.Conv(32, (4, 4), (2, 2), "VALID")(x)), (2, 2))
    return nn.Dense(10)(nn.relu(nn.Dense(32)(x.reshape(x.shape[0], -1))))


class ColourCNN(nn.Module):
  """The network of pfl-research's benchmark on CIFAR-10, without its dropout: 1,626,442 weights."""

  @nn.compact
  def __call__(self, x):
    """Logits [n, 10] of images [n, 32, 32, 3]."""
    x = nn.relu(nn.Conv(32, (3, 3), padding="VALID")(x))
    x = nn.max_pool(nn.relu(nn.Conv(64, (3, 3), padding="VALID")(x)), (2, 2), (2, 2))
    return nn.Dense(10)(nn.relu(nn.Dense(128)(x.reshape(x.shape[0], -1))))


NETWORKS = {"logistic": Dense(), "mlp": Dense((100,)), "cnn": CNN(), "cifar10": ColourCNN()}


def init(network, key):
  """The network's parameters."""
  return network.init(key, jnp.zeros((1, 28, 28), np.float32))["params"]
