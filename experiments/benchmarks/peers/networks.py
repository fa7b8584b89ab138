"""The benchmark's three models in flax: 7,850, 79,510 and 26,010 parameters."""

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


NETWORKS = {"logistic": Dense(), "mlp": Dense((100,)), "cnn": CNN()}


def init(network, key):
  """The network's parameters."""
  return network.init(key, jnp.zeros((1, 28, 28), np.float32))["params"]
