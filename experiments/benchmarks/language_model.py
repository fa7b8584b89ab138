"""Tokens per second of the language model's gradient and its parts, beside the machine's limit.

    python -m experiments.benchmarks.language_model

A client's local batch has 8 sequences of 10 tokens, with 10,003 words. The baseline is one large
float32 matrix product. It is counted as the tokens whose forward and backward products have as many
operations, which no implementation exceeds.

Then it states the memory that the compiled local training of many clients side by side needs beside
its arguments, by its own analysis.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from absl import app, flags
from jax.flatten_util import ravel_pytree

from experiments.benchmarks import harness
from experiments.benchmarks.harness import Case
from jdp import models
from jdp.data import Examples
from jdp.federated import LocalUpdate, gradient_step, local_sgd
from jdp.mechanisms import priv_unit, scalar_dp, separated
from jdp.models.language.recurrent import embedded, recurrence
from jdp.models.language.word_losses import weighted_cross_entropy
from jdp.numerics import vectors

WORDS = flags.DEFINE_integer("words", 10_003, "Words, with UNK, BOS and EOS.", lower_bound=4)

CLIENTS = flags.DEFINE_integer(
  "clients", 256, "Clients of 1,600 tokens side by side, for their memory.", lower_bound=1
)

_SEQUENCES, _STEPS, _BATCHES = 8, 10, 20
_TOKENS = _SEQUENCES * _STEPS
_PRODUCT = 1024
_CLIP_NORM = 15.0
_EPSILON = 500.0
_LIMIT = "products at the machine's limit"


def main(argv: Sequence[str]) -> None:
  """Prints a table, where ratios refer to the machine's limit, and the memory."""
  del argv
  memory = {name: _gigabytes(*case) for name, case in _side_by_side(WORDS.value).items()}
  timings = harness.compare(_cases(WORDS.value), baseline=_LIMIT, rounds=harness.ROUNDS.value)
  title = f"language model, {WORDS.value} words"
  harness.report(title, timings, "tokens", json_path=harness.JSON.value)
  print(f"GB of {CLIENTS.value} clients side by side: {memory}")
  row = {"title": title, "clients": CLIENTS.value, "gigabytes": memory}
  harness.append(row | {"machine": harness.machine()}, harness.JSON.value)


def _gigabytes(update: LocalUpdate, params: Any) -> float:
  """What the sum of clients' clipped updates needs beside its arguments."""
  shape = jax.eval_shape(lambda: _client(jax.random.key(0), WORDS.value))
  clients = jax.tree.map(lambda x: jax.ShapeDtypeStruct((CLIENTS.value, *x.shape), x.dtype), shape)
  keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), CLIENTS.value))

  def total(keys, params, clients):
    updates = jax.vmap(lambda key, client: update(key, params, client, _clip))(keys, clients)
    return jax.tree.map(lambda x: jnp.sum(x, axis=0), updates)

  compiled: Any = jax.jit(total).lower(keys, params, clients).compile()
  return compiled.memory_analysis().temp_size_in_bytes / 1e9


def _clip(update: Any) -> Any:
  """A client's projection."""
  return vectors.clip(update, _CLIP_NORM)


def _side_by_side(words: int) -> dict[str, tuple[LocalUpdate, Any]]:
  """The local training whose memory is stated, each with the parameters' shapes."""
  model = models.language_model(words)
  params = jax.eval_shape(model.init, jax.random.key(0))
  return {name: (update, params) for name, update in _updates(models.next_word_loss(model)).items()}


def _updates(loss: models.Loss) -> dict[str, LocalUpdate]:
  """A client's local training, by name."""
  return {
    "FedAvg client": local_sgd(loss, 6.0, batch_size=_SEQUENCES),
    "FedSGD client": gradient_step(loss, 6.0),
  }


def _cases(words: int) -> dict[str, Case]:
  model = models.language_model(words)
  keys = jax.random.split(jax.random.key(0), 4)
  params = model.init(keys[0])
  table, bias = params["words"]["embedding"], params["output"]["bias"]
  client = _client(keys[1], words)
  batch = jax.tree.map(lambda x: x[:_SEQUENCES], client)
  loss = models.next_word_loss(model)
  outputs = jax.random.normal(keys[2], (_TOKENS, table.shape[1]))
  errors = jax.random.normal(keys[3], (_TOKENS, words))
  large = jnp.ones((_PRODUCT, _PRODUCT))
  labels = batch.labels.reshape(-1)

  def softmax(outputs, table, bias):
    weights = jnp.full(_TOKENS, 1 / _TOKENS)
    return weighted_cross_entropy(outputs, table, bias, labels, weights, at_once=_TOKENS)

  def client_case(update):
    def run(params, client):
      return update(jax.random.key(1), params, client, _clip)

    return _case(run, params, client, work=_TOKENS * _BATCHES)

  def read(params, inputs):
    return jnp.sum(recurrence(params["lstm"], inputs))

  def step(difference, gradient):
    return _clip(jax.tree.map(lambda d, g: d - 6.0 * g, difference, gradient))

  read_words = table[batch.inputs]
  return {
    # Three products of each matrix per token: one forward, two backward.
    _LIMIT: _case(jnp.matmul, large, large, work=_PRODUCT**3 / (3 * _products(params))),
    "gradient of a local batch": _case(jax.grad(loss), params, batch),
    "- its loss alone": _case(loss, params, batch),
    "- softmax and its gradient": _case(jax.grad(softmax, (0, 1, 2)), outputs, table, bias),
    "-- its three products": _case(
      lambda o, t, e: (o @ t.T, e @ t, e.T @ o), outputs, table, errors
    ),
    "- LSTM and its gradient": _case(jax.grad(read, (0, 1)), params, read_words),
    "- norm 1 of all words and its gradient": _case(
      lambda t, g, e: jax.vjp(lambda t: embedded(t, batch.inputs), t)[1]((g, e)),
      table,
      table,
      read_words,
    ),
    "local step and projection": _case(step, params, params),
    **{name: client_case(update) for name, update in _updates(loss).items()},
    "release of a client's update by PrivUnit": _release(params),
  }


def _case(function: Callable[..., Any], *args: Any, work: float = _TOKENS) -> Case:
  compiled = jax.jit(function)
  return Case(lambda: compiled(*args), work)


def _release(params: Any) -> Case:
  """A client's locally private report, direction and magnitude apart.

  Its work is that client's number of tokens.
  """
  update, _ = ravel_pytree(params)
  mechanism = separated(priv_unit(update.size, _EPSILON), scalar_dp(10.0, _CLIP_NORM))
  return _case(mechanism.privatize, jax.random.key(2), update, work=_TOKENS * _BATCHES)


def _client(key: jax.Array, words: int) -> Examples:
  tokens = jax.random.randint(key, (2, _BATCHES * _SEQUENCES, _STEPS), 3, words)
  return Examples(tokens[0], tokens[1], jnp.ones(_BATCHES * _SEQUENCES))


def _products(params: Any) -> int:
  """Multiplications of one token's forward pass: every weight of a matrix once."""
  return sum(leaf.size for leaf in jax.tree.leaves(params) if leaf.ndim == 2)


if __name__ == "__main__":
  app.run(main)
