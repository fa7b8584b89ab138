"""A search for the client whose contribution to a sum is longest, by gradient ascent on its data.

A client's data climbs in small steps. Some clients seek a longer gradient, others one whose
examples' gradients cancel, as rounding counts for most there. Others move last digits too, and keep
what lengthens their contribution. Most begin with examples that cancel but for the last digit of a
label: x and -x, or the same x (the same words) twice. After each step the client is clipped, to a
norm that changes, and what would enter the sum is measured in float64.

`python -m tests.helpers.longest_contributions` climbs 10,000 steps for every layer and dtype, for
gradients and ghost norms, and prints by how much a contribution exceeds the clip norm, at most.
"""

import argparse
import functools
import itertools
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jdp.federated.engine.client import ClientKeys, contribution
from jdp.federated.engine.ghost_norms import ghost_client
from jdp.federated.engine.local_training import gradient_step
from jdp.numerics.compensated import as_float64, float64, multiplied
from jdp.queries import gaussian_sum

EXAMPLES, LENGTH, WIDTH, OUTPUTS, WORDS = 2, 4, 8, 8, 5
BEGINNINGS, GOALS = 5, 4  # of the clients that climb side by side
DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16, "float16": jnp.float16}


class Client(NamedTuple):
  """float32 [EXAMPLES, LENGTH, WIDTH], int32 [EXAMPLES, LENGTH], float32 [EXAMPLES, OUTPUTS]."""

  inputs: jax.Array
  words: jax.Array
  labels: jax.Array


class _Layer(nn.Module):
  """A layer among others, from the inputs or the words to [EXAMPLES, OUTPUTS]."""

  kind: str
  dtype: jnp.dtype

  @nn.compact
  def __call__(self, inputs, words):
    of = {"dtype": self.dtype, "param_dtype": self.dtype}
    x = inputs.astype(self.dtype)
    first = x[:, 0]
    dense = functools.partial(nn.Dense, OUTPUTS, **of)
    return {
      "dense": lambda: dense(use_bias=False)(first),
      "dense, bias": lambda: dense()(first),
      "dense, narrow": lambda: nn.Dense(5, use_bias=False, **of)(first[:, :4]),
      "dense, wide": lambda: nn.Dense(64, use_bias=False, **of)(x.reshape(len(x), -1)),
      "dense, at all places": lambda: dense()(x).sum(axis=1),
      "tanh network": lambda: dense(use_bias=False)(nn.tanh(nn.Dense(16, **of)(first))),
      "relu network": lambda: dense()(nn.relu(nn.Dense(16, **of)(first))),
      "shared dense": lambda: (lambda layer: layer(nn.tanh(layer(first))))(dense()),
      "low rank": lambda: dense(use_bias=False)(nn.Dense(2, use_bias=False, **of)(first)),
      "scale": lambda: first * self.param("scale", nn.initializers.ones, (WIDTH,), self.dtype),
      "convolution": lambda: nn.Conv(OUTPUTS, (3,), **of)(x).mean(axis=1),
      "convolution, few places": lambda: nn.Conv(16, (3,), padding="VALID", **of)(x).sum(axis=1),
      "transposed convolution": lambda: nn.ConvTranspose(OUTPUTS, (3,), **of)(x).mean(axis=1),
      "embedding": lambda: nn.Embed(WORDS, OUTPUTS, **of)(words[:, 0]),
      "tied embedding": lambda: (lambda table: table.attend(nn.tanh(table(words))).sum(axis=1))(
        nn.Embed(WORDS, OUTPUTS, **of)
      ),
      "LSTM": lambda: nn.RNN(nn.LSTMCell(OUTPUTS, **of))(x)[:, -1],
      "GRU": lambda: nn.RNN(nn.GRUCell(OUTPUTS, **of))(x)[:, -1],
      "attention": lambda: nn.MultiHeadDotProductAttention(2, **of)(x).mean(axis=1),
      "LayerNorm": lambda: nn.LayerNorm(**of)(first),
      "GroupNorm": lambda: dense()(nn.GroupNorm(2, **of)(x)[:, 0]),
    }[self.kind]()


KINDS = (
  "dense", "dense, bias", "dense, narrow", "dense, wide", "dense, at all places", "tanh network",
  "relu network", "shared dense", "low rank", "scale", "convolution", "convolution, few places",
  "transposed convolution", "embedding", "tied embedding", "LayerNorm", "GroupNorm", "attention",
  "GRU", "LSTM",
)  # fmt: skip


class Search(NamedTuple):
  """A layer, and what is done with it.

  Attributes:
    params: of the layer.
    apply: (parameters, client) -> float32 [EXAMPLES, ...].
    climb: (parameters, client, size of the step, whether to seek gradients that cancel) -> client.
    excess: (parameters, client, share) -> by how much a contribution is longer than the clip norm,
      relative. The clip norm is that share of the gradient's. float32 [2]: of gradients and of
      ghost norms.
  """

  params: dict
  apply: object
  climb: object
  excess: object


@functools.cache
def search(kind, dtype):
  """The `Search` of a layer and a dtype."""
  layer = _Layer(kind, DTYPES[dtype])
  # Biases of zero leave a tanh network odd, so that x and -x cancel in all of its layers.
  params = jax.jit(_Layer(kind, jnp.float32).init)(
    jax.random.key(0), jnp.zeros((1, LENGTH, WIDTH)), jnp.zeros((1, LENGTH), jnp.int32)
  )
  params = jax.tree.map(lambda x: x.astype(DTYPES[dtype]), params)

  def apply(params, client):
    return layer.apply(params, client.inputs, client.words).astype(jnp.float32)

  def loss(params, client):
    values = apply(params, client)
    labels = jnp.resize(client.labels, values.shape)
    return jnp.sum((values - labels) ** 2) / (2 * EXAMPLES)

  step, ghost = gradient_step(loss, 1.0), ghost_client(loss, 1.0)

  def plain(keys, sent, client):
    return step(keys.data, sent[0], client), {}

  def keys():
    return ClientKeys(jax.random.key(0), jax.random.key(1))

  def excess(params, client, share):
    norm = ghost(keys(), (params,), client)[1]["update_norm"]
    clip_norm = jnp.clip(share * jnp.where(jnp.isfinite(norm), norm, 1.0), 1e-30, 1e30)
    query, found = gaussian_sum(lambda step: clip_norm, 1.0), []
    for client_fn in (plain, ghost):
      add = contribution(client_fn, query, None, diagnose=False)
      added, _ = add(tuple(keys()), ((params,), query.init(params)), client, jnp.float32(1))
      found.append(_excess(multiplied(added), clip_norm))
    return jnp.stack(found)

  def objective(data, params, client, cancels):
    inputs, labels = data
    client = Client(inputs, client.words, labels)
    alone = jax.tree.map(lambda x: x[:, None], client)
    gradients = jax.vmap(jax.grad(loss), (None, 0))(params, alone)
    rows = sum(
      jnp.sum(jnp.square(x.astype(jnp.float32)).reshape(EXAMPLES, -1), axis=1)
      for x in jax.tree.leaves(gradients)
    )
    together = sum(
      jnp.sum(jnp.square(jnp.sum(x.astype(jnp.float32), axis=0)))
      for x in jax.tree.leaves(gradients)
    )
    length, norm = jnp.log(jnp.sum(rows) + 1e-30), jnp.log(together + 1e-30)
    return jnp.where(cancels, length - norm, norm)

  def climb(params, client, step_size, cancels):
    data = client.inputs, client.labels
    slopes = jax.grad(objective)(data, params, client, cancels)

    def moved(x, slope):
      slope = jnp.nan_to_num(slope, posinf=0.0, neginf=0.0)
      steepest = jnp.max(jnp.abs(slope))
      farthest = step_size * jnp.maximum(jnp.max(jnp.abs(x)), 1e-6)
      return x + farthest * slope / jnp.where(steepest > 0, steepest, 1.0)

    inputs, labels = jax.tree.map(moved, data, slopes)
    return Client(inputs, client.words, labels)

  return Search(params, apply, climb, excess)


def _excess(tree, clip_norm):
  """The length of pairs and arrays over the clip norm, less 1."""
  squares = []
  for x in jax.tree.leaves(tree, is_leaf=lambda x: hasattr(x, "remainder")):
    with float64(True):
      flat = as_float64(x)
      axes = tuple(range(flat.ndim))
      squares.append(lax.dot_general(flat, flat, ((axes, axes), ((), ()))))
  with float64(True):
    ratio = lax.div(lax.sqrt(functools.reduce(lax.add, squares)), as_float64(clip_norm))
    return lax.convert_element_type(lax.sub(ratio, as_float64(jnp.float32(1))), np.float32)


def start(key, params, apply, beginning):
  """A client to begin with.

  It is random (0), or its examples cancel but for the last digit of a label: as x and -x (1
  and 3), or as one x twice, with the same words (2 and 4). All labels are rounded alike (3 and 4).
  """
  keys = jax.random.split(key, 6)
  scale, target = (10.0 ** jax.random.uniform(k, minval=-2.0, maxval=2.0) for k in keys[:2])
  inputs = scale * jax.random.normal(keys[2], (EXAMPLES, LENGTH, WIDTH))
  words = jax.random.randint(keys[3], (EXAMPLES, LENGTH), 0, WORDS)
  labels = jax.random.normal(keys[4], (EXAMPLES, OUTPUTS))
  # The second example is the first, turned or not.
  sign = jnp.where(beginning % 2 == 1, -1.0, 1.0)
  paired = inputs.at[1::2].set(sign * inputs[::2])
  paired_words = words.at[1::2].set(words[::2])
  values = jnp.resize(apply(params, Client(paired, paired_words, labels)), labels.shape)
  errors = jax.random.uniform(keys[5], labels[::2].shape, minval=1.0, maxval=2.0)
  errors = jnp.where(beginning > 2, errors[0, 0], errors)
  errors *= jnp.maximum(target, 3 * jnp.max(jnp.abs(values)))
  paired_labels = values.at[::2].add(-errors).at[1::2].add(sign * errors)
  paired_labels = paired_labels.at[1::2].set(jnp.nextafter(paired_labels[1::2], jnp.inf))
  apart = beginning == 0
  return Client(
    jnp.where(apart, inputs, paired),
    jnp.where(apart, words, paired_words),
    jnp.where(apart, labels, paired_labels),
  )


def nudged(key, client):
  """The client with some labels, and now and then some inputs, moved by their last digit."""

  def moved(key, x, chance):
    toward = jnp.where(jax.random.bernoulli(key, shape=x.shape), jnp.inf, -jnp.inf)
    chosen = jax.random.bernoulli(jax.random.fold_in(key, 1), chance, x.shape)
    return jnp.where(chosen, jnp.nextafter(x, toward), x)

  label_key, input_key, chance_key = jax.random.split(key, 3)
  of_inputs = jnp.where(jax.random.bernoulli(chance_key, 0.2), 0.1, 0.0)
  return client._replace(
    inputs=moved(input_key, client.inputs, of_inputs), labels=moved(label_key, client.labels, 0.1)
  )


@functools.partial(jax.jit, static_argnames=("kind", "dtype"))
def longest(kind, dtype, key, num_steps):
  """The largest excess of all clients after each of so many steps, float32 [2]."""
  params, apply, climb, excess = search(kind, dtype)
  start_key, step_key = jax.random.split(key)
  count = BEGINNINGS * GOALS
  beginnings, goals = (x.ravel() for x in jnp.indices((BEGINNINGS, GOALS)))
  # Without weights, values are zero. Then errors cancel to the last digit of the labels.
  params = jax.tree.map(
    lambda x: jnp.where((beginnings > 2).reshape(-1, *[1] * x.ndim), jnp.zeros_like(x), x), params
  )
  if kind in ("embedding", "tied embedding"):
    beginnings = 2 * ((beginnings + 1) // 2)  # Words cannot be turned.
  clients = jax.vmap(lambda key, params, beginning: start(key, params, apply, beginning))(
    jax.random.split(start_key, count), params, beginnings
  )

  # A goal is a long gradient (0), one that cancels (1), a long contribution by ghost norms (2) or
  # without (3).
  def one(key, params, client, share, reached, goal):
    climb_key, share_key, nudge_key, way_key = jax.random.split(key, 4)
    size = 10.0 ** jax.random.uniform(climb_key, minval=-7.5, maxval=-1.0)
    climbed = climb(params, client, size, goal > 0)
    other_share = 10.0 ** jax.random.uniform(share_key, minval=-4.0, maxval=0.1)
    # Those that seek a long contribution take steps of three kinds, where these lengthen it.
    way = jnp.where(goal < 2, 0, jax.random.randint(way_key, (), 0, 3))
    way = jnp.where(reached == -1, 2, way)  # The beginning is measured too.
    tried = jax.tree.map(
      lambda x, y, z: jnp.where(way == 0, x, jnp.where(way == 1, y, z)),
      climbed,
      nudged(nudge_key, client),
      client,
    )
    tried_share = jnp.where((goal < 2) | (way == 2), other_share, share)
    found = jnp.nan_to_num(excess(params, tried, tried_share), nan=jnp.inf)
    own = found[jnp.where(goal == 2, 1, 0)]
    better = (goal < 2) | (own >= reached)
    kept = jax.tree.map(
      lambda x, y: jnp.where(better, x, y), (tried, tried_share, own), (client, share, reached)
    )
    return *kept, found

  def step(number, carry):
    clients, shares, reached, most = carry
    keys = jax.random.split(jax.random.fold_in(step_key, number), count)
    *kept, found = jax.vmap(one)(keys, params, clients, shares, reached, goals)
    return *kept, jnp.maximum(most, jnp.max(found, axis=0))

  begun = clients, jnp.full(count, 1e-2), jnp.full(count, -1.0), jnp.full(2, -1.0)
  return lax.fori_loop(0, num_steps, step, begun)[-1]


def main():
  """Prints the excess for every layer and dtype."""
  parser = argparse.ArgumentParser()
  parser.add_argument("--steps", type=int, default=10_000)
  steps = parser.parse_args().steps
  for number, (kind, dtype) in enumerate(itertools.product(KINDS, DTYPES)):
    plain, ghost = longest(kind, dtype, jax.random.key(number), steps).tolist()
    print(f"{kind}, {dtype}: gradients {plain:+.2e}, ghost norms {ghost:+.2e}", flush=True)


if __name__ == "__main__":
  main()
