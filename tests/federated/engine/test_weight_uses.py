"""Whatever a loss does with its parameters, ghost norms hold its gradient, all of it."""

from typing import NamedTuple

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.flatten_util import ravel_pytree

from jdp import models
from jdp._equations import with_derivative
from jdp.data import Examples
from jdp.data.vocabulary import SPECIAL
from jdp.federated.engine.client import ClientKeys
from jdp.federated.engine.ghost_norms import ghost_client, gradient_forms
from jdp.models import cross_entropy, from_equinox, from_flax, next_word_loss
from jdp.numerics.compensated import multiplied, rounded

EXAMPLES, LENGTH, WORDS, WIDTH = 2, 3, 50, 20
RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.normal(size=(3, WIDTH)), jnp.float32)


class Case(NamedTuple):
  """A loss, its parameters, a client, and which parameters have factors, by their rows."""

  loss: object
  params: object
  client: object
  rows: dict[str, int]


def holds(case, *, tolerance=1e-5):
  """Checks a client's record and its norm against the gradient by JAX."""

  @jax.jit
  def compute(keys, params, client):
    record, _ = ghost_client(case.loss, 1.0)(keys, (params,), client)
    return rounded(multiplied(record.products)), record.norm, jax.grad(case.loss)(params, client)

  forms = gradient_forms(case.loss, case.params, case.client)
  assert {form.path: form.rows for form in forms if form.rows} == case.rows
  assert all((form.rows is None) != (form.reason is None) for form in forms)
  # Each case has keys of its own: none is used twice.
  keys = ClientKeys(jax.random.key(0), jax.random.key(1))
  made, norm, gradient = compute(keys, case.params, case.client)
  assert jax.tree.structure(made) == jax.tree.structure(gradient)
  made, gradient = (np.asarray(ravel_pytree(x)[0], np.float64) for x in (made, gradient))
  assert np.linalg.norm(made - gradient) < tolerance * np.linalg.norm(gradient)
  length = np.linalg.norm(made)  # of what enters the sum
  assert 0 < length * (1 - 1e-6) <= norm <= length * (1 + 1e-5)


def weights(*shape):
  return jnp.asarray(RNG.normal(size=shape) / np.sqrt(shape[0]), jnp.float32)


W = {"w": weights(WIDTH, WIDTH)}


def turned_then_straight(p, x):
  return jnp.sum(jnp.tanh(jnp.tanh(x @ p["w"]) @ p["w"].T))


def joined(p, x):
  both = jnp.concatenate([p["w"], p["v"]], axis=1)
  return jnp.sum(jnp.tanh(x @ both)[:, 5:])


def by_heads(p, x):
  heads = jnp.einsum("nd,dhk->nhk", x, p["w"].reshape(WIDTH, 4, 5))
  return jnp.sum(jnp.tanh(jnp.einsum("nhk,hkd->nd", heads, p["v"].reshape(4, 5, WIDTH))))


def weights_first(p, x):
  return jnp.sum(jnp.tanh(p["w"] @ x.T) ** 2)


def half(p, x):
  return jnp.sum(jnp.tanh(x.astype(jnp.bfloat16) @ p["w"].astype(jnp.bfloat16))).astype(jnp.float32)


def jitted(p, x):
  return jnp.sum(jax.jit(lambda w, x: jnp.tanh(x @ w))(p["w"], x))


def computed_again(p, x):
  return jnp.sum(jax.checkpoint(lambda w, x: jnp.tanh(x @ w))(p["w"], x))


def steps(p, x):
  def step(state, own):
    state = jnp.tanh(own + state @ p["w"])
    return state, state[:2]

  state, outputs = jax.lax.scan(step, jnp.zeros(WIDTH), x, reverse=True)
  return jnp.sum(state) + jnp.sum(outputs**2)


def steps_within_steps(p, x):
  def outer(state, _):
    return jax.lax.scan(lambda h, own: (jnp.tanh(own + h @ p["w"]), None), state, x)

  return jnp.sum(jax.lax.scan(outer, jnp.zeros(WIDTH), length=2)[0])


@jax.custom_vjp
def turned_around(w, x):
  """A product whose derivative is another's: the reverse."""
  return x @ w


turned_around.defvjp(
  lambda w, x: (x @ w, (w, x)), lambda kept, by: (-kept[1].T @ by, -by @ kept[0].T)
)

otherwise = with_derivative(
  lambda w, x: x @ w,
  lambda w, x: (x @ w, (w, x)),
  lambda kept, by: (kept[1].T @ by, by @ kept[0].T),
)


def mapped(p, x):
  return jnp.sum(jax.vmap(lambda row: jnp.tanh(row @ p["w"]))(x))


TWO = {"w": weights(WIDTH, WIDTH), "v": weights(WIDTH, WIDTH)}
PRODUCTS = {
  "turned then straight": (turned_then_straight, W, {"w": 6}),
  "joined": (joined, TWO, {"w": 3, "v": 3}),
  "by heads": (by_heads, TWO, {"w": 3, "v": 3}),
  "weights first": (weights_first, W, {"w": 3}),
  "jitted": (jitted, W, {"w": 3}),
  "computed again": (computed_again, W, {"w": 3}),
  "steps": (steps, W, {"w": 3}),
  "steps within steps": (steps_within_steps, W, {"w": 6}),
  "mapped": (mapped, W, {"w": 3}),
  "differentiated otherwise": (lambda p, x: jnp.sum(jnp.sin(otherwise(p["w"], x))), W, {"w": 3}),
}


@pytest.mark.sweep
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_data_and_weights_have_factors(name):
  loss, params, rows = PRODUCTS[name]
  holds(Case(loss, params, X, rows))


@pytest.mark.slow
def test_weights_of_half_precision_have_factors():
  holds(Case(half, W, X, {"w": 3}), tolerance=0.01)


OTHERS = {
  "with a derivative of its own": lambda p, x: jnp.sum(jnp.sin(turned_around(p["w"], x))),
  "squared beside a product": lambda p, x: jnp.sum(x @ p["w"]) + jnp.sum(p["w"] ** 2),
  "a product with itself": lambda p, x: jnp.sum(jnp.tanh(x @ (p["w"] @ p["w"]))),
  "tanh of the weights": lambda p, x: jnp.sum(x @ jnp.tanh(p["w"])),
  "as whole numbers": lambda p, x: (
    jnp.sum(p["w"] @ x.T)
    + jnp.sum(x.astype(jnp.int32) @ p["w"].astype(jnp.int32)).astype(jnp.float32)
  ),
  "in part": lambda p, x: jnp.sum(jnp.tanh(x @ p["w"][:, :7])),
  "twice in one matrix": lambda p, x: jnp.sum(
    jnp.tanh(x @ jnp.concatenate([p["w"]] * 2, 1))[:, 9:]
  ),
  "as two shapes": lambda p, x: (
    jnp.sum(jnp.tanh(x @ p["w"])) + jnp.sum(jnp.tanh(x[:, :2] @ p["w"].reshape(2, -1)))
  ),
  "a matrix for each row": lambda p, x: jnp.sum(
    jnp.tanh(jnp.einsum("nd,nde->ne", x, p["w"].reshape(1, WIDTH, WIDTH).repeat(3, 0)))
  ),
  "carried by a scan beside a product": lambda p, x: (
    jnp.sum(x @ p["w"]) + jnp.sum(jax.lax.scan(lambda w, own: (w * 0.9, own @ w), p["w"], x)[1])
  ),
  "taken apart by a scan beside a product": lambda p, x: (
    jnp.sum(x @ p["w"])
    + jnp.sum(jax.lax.scan(lambda h, w: (jnp.tanh(h * w), None), x[0], p["w"])[0])
  ),
  "returned by a part": lambda p, x: jnp.sum(x @ jax.jit(lambda w: w.T)(p["w"])),
  "in a branch": lambda p, x: jax.lax.cond(
    x[0, 0] > 0, lambda w: jnp.sum(x @ w), lambda w: jnp.sum(w), p["w"]
  ),
  "many rows": lambda p, x: jnp.sum(jnp.tanh(jnp.tile(x, (4, 1)) @ p["w"])),
}


def test_what_is_known_is_found_and_nothing_else():
  """By the programs alone, which takes no compilation."""
  for loss, params, rows in PRODUCTS.values():
    assert {f.path: f.rows for f in gradient_forms(loss, params, X) if f.rows} == rows
  for loss in OTHERS.values():
    assert [form.rows for form in gradient_forms(loss, W, X)] == [None]


@pytest.mark.sweep
@pytest.mark.parametrize("name", OTHERS)
def test_parameters_used_in_any_other_way_have_their_gradient(name):
  holds(Case(OTHERS[name], W, X, {}))


@pytest.mark.slow
def test_a_product_that_is_not_known_leaves_the_other_parameters_their_factors():
  def loss(p, x):
    return jnp.sum(jnp.tanh(x @ p["w"]) @ jnp.tanh(p["v"]))

  holds(Case(loss, TWO, X, {"w": 3}))


@pytest.mark.slow
def test_a_rule_of_a_functions_own_is_kept():
  """The derivative that a function defines for itself is part of the loss."""

  @jax.custom_vjp
  def doubled(w, x):
    return x @ w

  doubled.defvjp(lambda w, x: (x @ w, (w, x)), lambda wx, d: (2 * wx[1].T @ d, d @ wx[0].T))
  holds(Case(lambda p, x: jnp.sum(jnp.tanh(doubled(p["w"], x))), W, X, {}))


@pytest.mark.sweep
@pytest.mark.parametrize("mode", ["clip", "fill"])
def test_numbers_of_no_word_have_the_derivative_that_the_lookup_gives_them(mode):
  words = jnp.array([3, WORDS + 2, 3])

  def loss(p, x):
    rows = jnp.take(p["w"], x, axis=0, mode=mode, fill_value=0.0)
    return jnp.sum(jnp.sin(rows))

  holds(Case(loss, {"w": weights(WORDS, WIDTH)}, words, {"w": 3}))


@pytest.mark.slow
@pytest.mark.parametrize("layout", [("NCHW", "OIHW", "NCHW"), ("NHWC", "HWIO", "NWHC")])
def test_a_convolution_at_many_places_has_a_gradient_of_its_patches(layout):
  def loss(p, x):
    padding = [(1, 0), (0, 2)]
    result = jax.lax.conv_general_dilated(
      x, p["w"], (2, 1), padding, (1, 2), (2, 1), dimension_numbers=layout
    )
    return jnp.sum(jnp.tanh(result))

  kernel = weights(3, 2, 2, 3) if layout[1] == "OIHW" else weights(2, 3, 2, 3)
  image = jnp.asarray(RNG.normal(size=(2, 2, 9, 6) if layout[0] == "NCHW" else (2, 9, 6, 2)), "f4")
  holds(Case(loss, {"w": kernel}, image, {}))
  (form,) = gradient_forms(loss, {"w": kernel}, image)
  assert "rows of" in form.reason


class Attention(nnx.Module):
  """A tied embedding, layer normalisation, attention by flax, and a dense layer."""

  def __init__(self, rngs):
    self.words = nnx.Embed(WORDS, WIDTH, rngs=rngs)
    self.norm = nnx.RMSNorm(WIDTH, rngs=rngs)
    self.attention = nnx.MultiHeadAttention(2, WIDTH, rngs=rngs, decode=False)
    self.last = nnx.LayerNorm(WIDTH, rngs=rngs)

  def __call__(self, words):
    x = self.words(words)
    return self.words.attend(self.last(x + self.attention(self.norm(x)))).mean(axis=1)


class Recurrent(nn.Module):
  """A recurrent layer of flax over words."""

  @nn.compact
  def __call__(self, words):
    states = nn.RNN(nn.OptimizedLSTMCell(WIDTH))(nn.Embed(WORDS, WIDTH)(words))
    return nn.Dense(WORDS)(states[:, -1])


class _Layer(nn.Module):
  """A step of `Stacked`."""

  @nn.compact
  def __call__(self, x, _):
    return jnp.tanh(nn.Dense(WIDTH)(x)), None


class Stacked(nn.Module):
  """Layers in a scan over their stacked weights."""

  @nn.compact
  def __call__(self, words):
    layers = nn.scan(_Layer, variable_axes={"params": 0}, split_rngs={"params": True}, length=2)
    x, _ = layers()(nn.Embed(WORDS, WIDTH)(words)[:, 0], None)
    return nn.Dense(WORDS)(x)


class Convolution(nn.Module):
  """Convolutions with and without groups, of strides and dilations."""

  @nn.compact
  def __call__(self, x):
    x = nn.relu(nn.Conv(24, (3, 2), strides=(2, 1), padding="VALID")(x))
    x = nn.relu(nn.Conv(24, (2, 2), kernel_dilation=(1, 2))(x))
    x = nn.relu(nn.Conv(24, (2, 2), feature_group_count=4)(x))
    return nn.Dense(WORDS)(x.mean(axis=(1, 2)))


LABELS = jnp.asarray(RNG.integers(0, WORDS, EXAMPLES), jnp.int32)
SENTENCES = jnp.asarray(RNG.integers(0, WORDS, (EXAMPLES, LENGTH)), jnp.int32)
GATES = {f"OptimizedLSTMCell_0/{way}{gate}/kernel": 6 for way in "ih" for gate in "ifgo"}


@pytest.mark.slow
@pytest.mark.parametrize(
  ("network", "shape", "rows"),
  [
    (
      Attention,
      (LENGTH,),
      {
        **{f"attention/{part}/kernel": 6 for part in ("query", "key", "value", "out")},
        "words/embedding": 12,
      },
    ),
    (Recurrent(), (LENGTH,), {**GATES, "Embed_0/embedding": 6, "Dense_0/kernel": 2}),
    (Stacked(), (LENGTH,), {"Embed_0/embedding": 6, "Dense_0/kernel": 2}),
    (Convolution(), (5, 4, 6), {"Conv_0/kernel": 12, "Conv_1/kernel": 12, "Dense_0/kernel": 2}),
  ],
  ids=["attention", "recurrent", "stacked", "convolutions"],
)
def test_networks_of_flax(network, shape, rows):
  dtype = jnp.int32 if shape == (LENGTH,) else jnp.float32
  model = from_flax(network, shape, dtype=dtype)
  inputs = SENTENCES if shape == (LENGTH,) else jnp.asarray(RNG.normal(size=(2, *shape)), dtype)
  params = jax.jit(model.init)(jax.random.key(2))
  client = Examples(inputs, LABELS, jnp.ones(EXAMPLES))
  holds(Case(cross_entropy(model), params, client, rows))


@pytest.mark.slow
def test_a_network_of_equinox():
  """Its weights are multiplied from the left, one example at a time."""
  model = from_equinox(lambda key: eqx.nn.MLP(WIDTH, WORDS, 24, 1, key=key), (WIDTH,))
  params = jax.jit(model.init)(jax.random.key(2))
  client = Examples(X[:EXAMPLES], LABELS, jnp.ones(EXAMPLES))
  matrices = [path for path, leaf in jax.tree.leaves_with_path(params) if leaf.ndim == 2]
  paths = [jax.tree_util.keystr(path, simple=True, separator="/") for path in matrices]
  assert len(paths) == 2
  holds(Case(cross_entropy(model), params, client, dict.fromkeys(paths, EXAMPLES)))


def next_words(model):
  params = jax.jit(model.init)(jax.random.key(2))
  words = jnp.clip(SENTENCES, len(SPECIAL), None)
  return params, Examples(words, jnp.roll(words, -1, axis=1), jnp.ones(EXAMPLES))


@pytest.mark.slow
def test_the_recurrent_language_model():
  """Its words are scaled to norm 1, so their table has a gradient of its own."""
  model = models.language_model(WORDS, embedding=WIDTH, hidden=WIDTH)
  gates = {f"lstm/{way}{gate}/kernel": 6 for way in "ih" for gate in "ifgo"}
  holds(Case(next_word_loss(model), *next_words(model), {**gates, "projection/kernel": 6}))


SIZES = {"max_length": LENGTH, "width": WIDTH, "num_layers": 1}
LAYERS = ("query", "key", "value", "out", "up", "down")
OF_TRANSFORMER = {**{f"block_0/{name}/kernel": 6 for name in LAYERS}, "words/embedding": 12}


@pytest.mark.slow
def test_the_transformer_and_its_adapters():
  model = models.transformer(WORDS, **SIZES)
  loss = next_word_loss(model)
  params, client = next_words(model)
  holds(Case(loss, params, client, OF_TRANSFORMER))
  adapted = models.transformer(WORDS, **SIZES, adapter_rank=2)
  adapted = models.train_adapters(adapted, params, jax.random.key(3))
  start = adapted.init(jax.random.key(0))
  assert float(next_word_loss(adapted)(start, client)) == float(loss(params, client))
  # Adapters are smaller than their factors would be.
  holds(Case(next_word_loss(adapted), start, client, {}))


@pytest.mark.slow
def test_predictions_in_pieces_keep_the_factors(monkeypatch):
  """A loss that computes its scores piece by piece, in a scan whose steps are computed again."""
  monkeypatch.setattr("jdp.models.language.recurrent.TOKENS_AT_ONCE", 4)
  model = models.transformer(WORDS, **SIZES)
  # Two pieces of 3 tokens, and 6 lookups.
  holds(Case(next_word_loss(model), *next_words(model), OF_TRANSFORMER))
