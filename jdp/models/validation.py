"""What is wrong with a model for private training, found by running it once."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from jdp._arguments import checked
from jdp._equations import applied
from jdp.guarantees import Unit
from jdp.models.base import Model

PyTree = Any
_Pair = tuple[Any, Any]

_EXAMPLES, _CHANGED = 5, 2  # how many examples the trial batch has, and which one is replaced
_NOISE = 0.1  # moves parameters off zero, where gradients may vanish by chance
_MIXES = {
  Unit.USER: "a client computes a batch of its own examples, so no other user is touched and the "
  "guarantee holds; but what it predicts for an example depends on the others and on padding",
  Unit.EXAMPLE: "a client is one example, which such a layer turns into the same values whatever "
  "it is; the guarantee holds, and nothing is learnt",
}
_INSTEAD = "use GroupNorm or LayerNorm"
_INNER = {"pjit": "jaxpr", "jit": "jaxpr", "custom_jvp_call": "call_jaxpr"}


class Finding(NamedTuple):
  """Something that is wrong with a model.

  Attributes:
    where: a layer, or a parameter's path.
    problem: what is wrong, and what follows.
    advice: what to do.
  """

  where: str
  problem: str
  advice: str

  def __str__(self) -> str:
    """A sentence."""
    return f"{self.where}: {self.problem}; {self.advice}."


@checked
def validate(
  model: Model,
  input_shape: tuple[int, ...],
  *,
  dtype: jax.typing.DTypeLike = "float32",
  unit: Unit | str = Unit.USER,
) -> list[Finding]:
  """The problems of a model for private training. Empty if there are none.

  It runs the model on random inputs, and finds

  * layers that mix the examples of a batch, such as batch normalisation, in training or outside it;
  * parameters that are not float32, which nothing clips and noises;
  * parameters that the output does not depend on: they still get noise;
  * outputs that are not finite, or not one for each example.

  A client is computed alone, whatever its layers do. So a layer that mixes examples lets no user
  (with `Unit.USER`) and no example (with `Unit.EXAMPLE`) into the contribution of another. It is
  reported because it works differently than without privacy. Statistics that a layer keeps from
  batch to batch are a different problem: no query makes them private. `from_flax` and
  `from_equinox` refuse them, and your own functions must not keep any.

  Args:
    model: the model as functions, such as `Model(init, apply)`.
    input_shape: the shape of one example.
    dtype: the type of the inputs. Whole numbers are drawn from 0 and 1.
    unit: what one client is in training.

  Raises:
    ValueError: if the model does not take such inputs.

  >>> def apply(params, inputs):
  ...   with jax.named_scope("standardise"):
  ...     inputs = inputs - jnp.mean(inputs, axis=0)[None]
  ...   return inputs @ params["w"]
  >>> model = Model(lambda key: {"w": jnp.ones((3, 2)), "unused": jnp.zeros(2)}, apply)
  >>> for finding in validate(model, (3,), unit="example"):
  ...   print(finding.where, "|", finding.advice)
  unused | freeze it, or leave it out
  standardise | use GroupNorm or LayerNorm
  """
  keys = iter(jax.random.split(jax.random.key(0), 6))
  params = jax.jit(model.init)(next(keys))
  others = [
    Finding(_path(path), f"is {leaf.dtype}, which nothing clips and noises", "freeze it")
    for path, leaf in jax.tree.leaves_with_path(params)
    if leaf.dtype != jnp.float32
  ]
  if others:
    return others
  inputs = _draw(next(keys), (_EXAMPLES, *input_shape), dtype)
  changed = inputs.at[_CHANGED].set(_draw(next(keys), input_shape, dtype, scale=3.0))
  moved = _moved(next(keys), params)
  try:
    output = jax.jit(model.apply)(params, inputs)
  except (TypeError, ValueError) as error:
    raise ValueError(
      f"Expected a model that takes inputs of input_shape {input_shape}, got the error: {error}"
    ) from error
  if output.shape[:1] != (_EXAMPLES,) or not np.all(np.isfinite(output)):
    return [
      Finding(
        "the output",
        f"has shape {output.shape} for {_EXAMPLES} examples, or is not finite",
        "return finite numbers [n, ...] for inputs [n, ...]",
      )
    ]
  applies, key = [model.apply], next(keys)
  if model.apply_training is not None:
    training = model.apply_training
    applies.append(lambda params, inputs: training(params, inputs, jax.random.clone(key)))
  mixing = [name for run in applies for name in _mixing_layers(run, moved, inputs, changed)]
  return _unused(applies[-1], moved, inputs) + [
    Finding(name, f"mixes the examples of a batch: {_MIXES[Unit(unit)]}", _INSTEAD)
    for name in dict.fromkeys(mixing)
  ]


def _draw(key: jax.Array, shape: Sequence[int], dtype: Any, scale: float = 1.0) -> jax.Array:
  """Random inputs: normal numbers, or zeros and ones."""
  if jnp.issubdtype(dtype, jnp.floating):
    return (scale * jax.random.normal(key, shape)).astype(dtype)
  return jax.random.bernoulli(key, 0.5, shape).astype(dtype)


def _moved(key: jax.Array, params: PyTree) -> PyTree:
  """The parameters with noise."""
  leaves, structure = jax.tree.flatten(params)
  keys = jax.random.split(key, max(1, len(leaves)))
  moved = [x + _NOISE * jax.random.normal(k, x.shape) for k, x in zip(keys, leaves, strict=False)]
  return jax.tree.unflatten(structure, moved)


def _path(path: Any) -> str:
  return jax.tree_util.keystr(path, simple=True, separator="/")


def _unused(apply: Callable[..., jax.Array], params: PyTree, inputs: jax.Array) -> list[Finding]:
  """The parameters that the output does not depend on: its derivative by them is zero."""
  weights = jax.random.normal(jax.random.key(1), jax.eval_shape(apply, params, inputs).shape)
  gradient = jax.jit(jax.grad(lambda params: jnp.sum(weights * apply(params, inputs))))(params)
  problem = "the output does not depend on it, and it would get noise"
  return [
    Finding(_path(path), problem, "freeze it, or leave it out")
    for path, leaf in jax.tree.leaves_with_path(gradient)
    if not np.any(leaf)
  ]


def _mixing_layers(
  apply: Callable[..., jax.Array], params: PyTree, inputs: jax.Array, changed: jax.Array
) -> list[str]:
  """The layers where one changed example changes more than its own share of an array."""
  others = np.arange(_EXAMPLES) != _CHANGED
  compiled = jax.jit(apply)
  if np.array_equal(*(np.asarray(compiled(params, x))[others] for x in (inputs, changed))):
    return []
  program = jax.make_jaxpr(apply)(params, inputs)
  pairs = zip(jax.tree.leaves((params, inputs)), jax.tree.leaves((params, changed)), strict=True)
  # One operation at a time: if operations were fused, the two runs could round differently.
  _, operations = _operations(program, list(pairs), "")
  found = [place for place, mixes in operations if mixes]
  return list(dict.fromkeys(found)) or ["the model"]


def _operations(
  program: ClosedJaxpr, arguments: Sequence[_Pair], scope: str
) -> tuple[list[_Pair], list[tuple[str, jax.Array]]]:
  """Runs a program on two batches that differ in one example.

  An array that keeps examples apart differs at most in that example's share. An operation whose
  result differs in more has mixed them. Then both runs continue with its result on the first batch,
  so that the next operation that mixes is found too.

  Returns:
    The pairs of outputs, and for each operation its place, and whether it mixes.
  """
  code = program.jaxpr
  values = dict(zip(code.constvars, ((c, c) for c in program.consts), strict=True))
  values.update(zip(code.invars, arguments, strict=True))
  operations: list[tuple[str, jax.Array]] = []

  def read(atom: Any) -> _Pair:
    return (atom.val, atom.val) if isinstance(atom, Literal) else values[atom]

  for eqn in code.eqns:
    place = "/".join(filter(None, (scope, str(eqn.source_info.name_stack)))) or _line(eqn)
    inner = eqn.params.get(_INNER.get(eqn.primitive.name, ""))
    if isinstance(inner, ClosedJaxpr):
      pairs, further = _operations(inner, list(map(read, eqn.invars)), place)
      operations += further
    else:
      pairs = list(zip(*(_results(code, eqn, values, run) for run in (0, 1)), strict=True))
      mixes = jnp.any(jnp.stack([_differs_too_much(*pair) for pair in pairs]))
      pairs = [(one, _chosen(mixes, one, other)) for one, other in pairs]
      operations.append((place, mixes))
    values.update(zip(eqn.outvars, pairs, strict=True))
  return list(map(read, code.outvars)), operations


def _results(code: Jaxpr, eqn: Any, values: Mapping[Any, _Pair], run: int) -> Sequence[Any]:
  """The results of one operation in one of the two runs."""
  return applied(code, eqn, lambda atom: values[atom][run])


def _is_key(x: Any) -> bool:
  return jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)


def _differs_too_much(one: Any, other: Any) -> jax.Array:
  """Whether two arrays differ in more than one example's share."""
  if _is_key(one):
    return jnp.bool_(False)
  return jnp.mean(one != other, dtype=jnp.float32) > 1.0 / _EXAMPLES + 1e-6


def _chosen(mixes: jax.Array, one: Any, other: Any) -> Any:
  return other if _is_key(one) else jnp.where(mixes, one, other)


def _line(eqn: Any) -> str:
  """The line of the user's code that an operation comes from."""
  return next(_lines(eqn), "the model")


def _lines(eqn: Any) -> Iterator[str]:
  traceback = eqn.source_info.traceback
  for frame in traceback.frames if traceback else ():
    if "site-packages" not in frame.file_name and os.path.dirname(__file__) not in frame.file_name:
      yield f"{frame.function_name} ({os.path.basename(frame.file_name)}, line {frame.line_num})"
