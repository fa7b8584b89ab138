"""The form of a model, and what losses are made from."""

import contextlib
import inspect
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jdp import _validate
from jdp._arguments import checked, shown
from jdp.data.clients import Examples
from jdp.random.keys import client_key

PyTree = Any


class Model(NamedTuple):
  """A model as pure functions. Any such pair makes one: `Model(init, apply)`.

  `validate` says what is wrong with it.

  Attributes:
    init: key -> parameters, a plain pytree of float32 arrays.
    apply: (parameters, inputs [n, ...]) -> predictions [n, ...]; a classifier's are logits [n,
      num_classes].
    apply_training: (parameters, inputs, key) -> predictions in training, where the key decides what
      is dropped. None: the same as `apply`.
  """

  init: Callable[[jax.Array], PyTree]
  apply: Callable[[PyTree, jax.Array], jax.Array]
  apply_training: Callable[[PyTree, jax.Array, jax.Array], jax.Array] | None = None


Loss = Callable[..., jax.Array]
"""(parameters, examples) -> mean loss. A loss with a third argument `key` gets a key in training,
for dropout.
"""


def keyed(loss: Loss) -> Callable[[PyTree, Examples, jax.Array], jax.Array]:
  """The loss as a function that also takes a key, whether or not the loss itself does.

  The loss gets a `client_key`, so that dropout in an example does not depend on the client's
  padding.
  """
  if "key" in inspect.signature(loss).parameters:
    return lambda params, examples, key: loss(params, examples, key=client_key(key))
  return lambda params, examples, key: loss(params, examples)


# XLA aborts the process if a size in bytes exceeds 64 bits.
MOST_PARAMETERS, LARGEST_SIZE, MOST_LAYERS = 2**38, 2**24, 2**12


def check_sizes(least: int, **sizes: int) -> None:
  """Refuses a size of a layer that is not in [least, 2^24]."""
  _validate.integer(least, **sizes)
  _validate.in_range(least, LARGEST_SIZE, **sizes)


def check_input_shape(input_shape: tuple[int, ...], most: int = LARGEST_SIZE) -> None:
  """Refuses examples with more than `most` numbers."""
  if not math.prod(input_shape) <= most:
    raise ValueError(
      f"Expected input_shape of at most {most} numbers, got {shown(input_shape)}; make examples "
      "smaller."
    )


def check_parameters(params: PyTree) -> None:
  """Refuses parameters that are not float32 arrays: nothing would clip and noise them.

  Args:
    params: the arrays, or their shapes.

  Raises:
    ValueError: if there are none, some have another type, or there are more than any machine holds.
  """
  count = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))
  if not count <= MOST_PARAMETERS:
    raise ValueError(
      f"Expected at most {MOST_PARAMETERS} parameters, got {count}; make the model smaller."
    )
  leaves = jax.tree.leaves_with_path(params)
  others = [
    f"{jax.tree_util.keystr(path)} ({leaf.dtype})"
    for path, leaf in leaves
    if leaf.dtype != jnp.float32
  ]
  if others or not leaves:
    raise ValueError(
      f"Expected parameters of float32, got {', '.join(others) or 'none'}; keep other numbers out "
      "of the parameters."
    )


def refuse_statistics(layers: Iterable[str]) -> None:
  """Refuses a module if there are layers that keep statistics of batches."""
  named = sorted(set(layers))
  if named:
    raise ValueError(
      f"Expected a module without statistics of batches, got some in {', '.join(named)}: they mix "
      "examples, padding too, and no query makes them private; use GroupNorm or LayerNorm."
    )


@contextlib.contextmanager
def tried_on(example: jax.ShapeDtypeStruct) -> Iterator[None]:
  """Turns what a module raises on its first input into an error that names the input's shape."""
  check_input_shape(example.shape[1:], MOST_PARAMETERS)
  try:
    yield
  except (TypeError, ValueError) as error:
    reason = str(error).split("\n")[0].rstrip(".")
    raise (TypeError if isinstance(error, TypeError) else ValueError)(
      f"Expected a module that takes input_shape {example.shape[1:]} of {example.dtype}, got one "
      f"that does not: {reason}; give the shape of one example."
    ) from error


def predictions(
  model: Model, params: PyTree, inputs: jax.Array, key: jax.Array | None
) -> jax.Array:
  """The model's outputs: its training outputs if there is a key."""
  if key is None or model.apply_training is None:
    return model.apply(params, inputs)
  return model.apply_training(params, inputs, key)


def without_padding(examples: Examples) -> tuple[PyTree, PyTree, jax.Array]:
  """(inputs, labels, mask) with zeros in place of the contents of padding.

  Padding is cleared before the model sees it. Otherwise, in the gradient, the mask's zero times a
  NaN input would be NaN.
  """
  counts = examples.mask > 0

  def cleared(x):
    return jnp.where(counts.reshape(-1, *[1] * (x.ndim - 1)), x, jnp.zeros((), x.dtype))

  inputs, labels = jax.tree.map(cleared, (examples.inputs, examples.labels))
  return inputs, labels, jnp.asarray(examples.mask)


def mean_of_counting(values: jax.Array, mask: jax.Array) -> jax.Array:
  """The mean of values [n] over the examples that count, 0 if none does."""
  return jnp.sum(values * mask) / jnp.maximum(jnp.sum(mask), 1.0)


def batch_within(batch_size: int, examples: Examples) -> int:
  """The batch size, at most the number of examples."""
  _validate.integer(1, batch_size=batch_size)
  return min(batch_size, max(1, len(examples.labels)))


@checked
def accuracy(
  model: Model, params: PyTree, examples: Examples, *, batch_size: int = 1000
) -> jax.Array:
  """The share of examples classified correctly, computed in batches of bounded memory.

  >>> from jdp import data
  >>> model = Model(lambda key: {"w": jnp.eye(2)}, lambda params, x: x @ params["w"])
  >>> made = data.examples(jnp.array([[2.0, 1.0], [1.0, 2.0], [0.0, 1.0]]), [0, 1, 0])
  >>> round(accuracy(model, model.init(jax.random.key(0)), made).item(), 3)
  0.667
  """

  def correct(example):
    inputs, labels, mask = example
    return jnp.where(jnp.argmax(model.apply(params, inputs[None])[0]) == labels, mask, 0.0)

  right = jax.lax.map(correct, tuple(examples), batch_size=batch_within(batch_size, examples))
  return jnp.sum(right) / jnp.sum(examples.mask)
