"""Rounds of a model that one chip does not hold: its arrays are sharded over several.

The model is a decoder of today's shape: RMS norms before attention and before a gated dense layer,
tied embeddings, and layers that are stacked, so that one program serves all of them. Adapters
(LoRA, arXiv 2106.09685) are matrices of low rank beside the attention's projections.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jdp.random
from jdp import data, federated, models, sampling
from jdp.matrix_factorization import square_root_toeplitz
from jdp.models.language.recurrent import LanguageModel, Prediction
from jdp.queries.base import PyTree

USERS, SENTENCES, WORDS = 8, 2, 64


class Sizes(NamedTuple):
  """How large a decoder is."""

  vocabulary: int
  width: int
  layers: int
  heads: int
  rank: int


SMALL = Sizes(32, 16, 2, 2, 2)
FULL = Sizes(32_000, 1280, 24, 16, 8)
"""Of 670 million weights."""


def decoder(sizes: Sizes, *, adapters: bool) -> LanguageModel:
  """The model, which predicts the next word."""
  width, layers = sizes.width, sizes.layers
  shapes = {
    "projections": (width, 3 * width),
    "mixed": (width, width),
    "up": (width, 8 * width),
    "down": (4 * width, width),
  }
  if adapters:
    shapes |= {"adapters_in": (width, sizes.rank), "adapters_out": (sizes.rank, 3 * width)}

  def init(key):
    keys = iter(jax.random.split(key, len(shapes) + 1))
    stacked = {
      name: width**-0.5 * jax.random.normal(next(keys), (layers, *shape))
      for name, shape in shapes.items()
    }
    norms = {name: jnp.ones((layers, width)) for name in ("attention_norm", "dense_norm")}
    words = jax.random.normal(next(keys), (sizes.vocabulary, width))
    return {"words": words, "layers": stacked | norms, "norm": jnp.ones(width)}

  def layer(x, own):
    y = _norm(x, own["attention_norm"])
    projected = y @ own["projections"]
    if adapters:
      projected += y @ own["adapters_in"] @ own["adapters_out"]
    query, key, value = (
      part.reshape(*part.shape[:-1], sizes.heads, -1) for part in jnp.split(projected, 3, -1)
    )
    mixed = jax.nn.dot_product_attention(query, key, value, is_causal=True)
    x = x + mixed.reshape(x.shape) @ own["mixed"]
    gate, up = jnp.split(_norm(x, own["dense_norm"]) @ own["up"], 2, -1)
    return x + (jax.nn.gelu(gate) * up) @ own["down"], None

  def predict(params, words):
    # Activations of one layer at a time are kept: the backward pass computes them again.
    x, _ = jax.lax.scan(jax.checkpoint(layer), params["words"][words], params["layers"])
    return Prediction(_norm(x, params["norm"]), params["words"], jnp.zeros(sizes.vocabulary))

  return LanguageModel(init, lambda params, words: predict(params, words).logits(), predict)


def _norm(x: jax.Array, scale: jax.Array) -> jax.Array:
  return scale[None, None] * x * jax.lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-6)


def dp_sgd(
  sizes: Sizes, mesh: Mesh, bands: int = 1
) -> tuple[Callable[..., PyTree], tuple[PyTree, ...]]:
  """A round of DP-SGD of all weights by Adam, and its arguments.

  With more than one band the noise is correlated: the state has `bands` - 1 times the weights.
  """
  model, texts = decoder(sizes, adapters=False), _users(sizes)
  sentences = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), texts)
  population, correlated = len(sentences.mask), bands > 1
  algorithm = federated.dp_sgd(
    models.next_word_loss(model),
    sentences,
    batch_size=population // 2,
    sampler=sampling.cyclic_poisson(population, 2, 1.0) if correlated else None,
    strategy=square_root_toeplitz(2 * bands, bands=bands) if correlated else None,
    clip_norm=1.0,
    num_rounds=1,
    noise_multiplier=1.0,
    optimizer=optax.adam(1e-4),
    layout=federated.CohortLayout(1, False),
    mesh=mesh,
  )
  state = jax.eval_shape(lambda key: algorithm.init(model.init(key)), jax.random.key(0))
  return algorithm.round, (*_keys(), sharded(state, mesh), sentences)


def dp_fedavg_of_adapters(
  sizes: Sizes, mesh: Mesh
) -> tuple[Callable[..., PyTree], tuple[PyTree, ...]]:
  """A round of DP-FedAvg of the adapters beside frozen weights, and its arguments."""
  model, users = decoder(sizes, adapters=True), _users(sizes)
  params = jax.eval_shape(model.init, jax.random.key(0))

  def of(params):
    trained = models.freeze(model, params, lambda path: "adapters" in path)
    return trained, federated.dp_fedavg(
      models.next_word_loss(trained),
      users,
      cohort_size=USERS // 2,
      clip_norm=1.0,
      num_rounds=1,
      noise_multiplier=1.0,
      layout=federated.CohortLayout(1, False),
      mesh=mesh,
    )

  def init(params):
    trained, algorithm = of(params)
    return algorithm.init(trained.init(jax.random.key(0)))

  def round_of_all(params, *args):
    return of(params)[1].round(*args)

  state = jax.eval_shape(init, params)
  return round_of_all, (sharded(params, mesh), *_keys(), state, users)


ROUNDS: dict[str, Callable[[Sizes, Mesh], tuple[Callable[..., PyTree], tuple[PyTree, ...]]]] = {
  "dp_sgd, Adam": dp_sgd,
  "dp_sgd, Adam, noise of four bands": partial(dp_sgd, bands=4),
  "dp_fedavg of adapters": dp_fedavg_of_adapters,
}
"""Name -> (sizes, mesh) -> a round and its arguments."""


def sharded(tree: PyTree, mesh: Mesh) -> PyTree:
  """Shapes with their places: matrices and tables are divided along their longest axis."""
  chips = mesh.shape["model"]

  def place(leaf):
    spec = PartitionSpec()
    if leaf.ndim > 1 and max(leaf.shape) % chips == 0:
      spec = PartitionSpec(*[None] * leaf.shape.index(max(leaf.shape)), "model")
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec))

  return jax.tree.map(place, tree)


def _keys() -> tuple[jax.Array, jax.Array]:
  return jdp.random.seeded_key(0), jax.random.key(1)


def _users(sizes: Sizes) -> data.Examples:
  """Users' sentences, and the words that follow."""
  shape = (USERS, SENTENCES, WORDS + 1)
  words = np.random.default_rng(0).integers(3, sizes.vocabulary, shape, np.int32)
  return data.Examples(words[..., :-1], words[..., 1:], np.ones((USERS, SENTENCES), np.float32))
