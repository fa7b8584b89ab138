"""Several queries on one sample, each on its own group of the record's vectors.

Source: arXiv 1812.06210, Sections 2 and 3.
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jdp._arguments import checked
from jdp.events import GroupedSums
from jdp.queries.base import PyTree, SumQuery, taken, unbounded
from jdp.queries.prefix import broadcast_prefix


@checked
def grouped(
  queries: Mapping[str, SumQuery], labels: PyTree | Callable[[PyTree], PyTree]
) -> SumQuery:
  """Sends each labelled group of a record's vectors through a query of its own.

  Each group has its own bound and its own noise. Its query sees the record with
  `optax.MaskedNode()` in place of the other groups' vectors, as in `optax.partition`. The query may
  itself be grouped. All groups give a record the same weight.

  Formal guarantee: that of all the groups' releases together, on the same sample, with independent
  noise. For groups with privacy tuples (S_g, sigma_g) it is that of one Gaussian sum with the noise
  multiplier (sum_g (S_g / sigma_g)^2)^(-1/2) (Section 3). A record with NaN or infinity in one
  group counts as zero there, and as usual in the other groups.

  Args:
    queries: the groups' queries by label.
    labels: a pytree prefix of the record that holds the label of every vector. Or a function from
      the record's shapes to such a prefix. It sees only `jax.ShapeDtypeStruct`s, so the grouping
      cannot depend on private values.

  Returns:
    A `SumQuery`. States and contributions are dicts by label. The result has the record's
    structure. Its event is a `GroupedSums`, with labels in alphabetic order.

  Raises:
    ValueError: if there are no queries or a label is not a string. Also when the query meets a
      record, if `labels` is not a prefix of it, names a group without a query, or leaves a query
      without vectors.

  >>> import jax.numpy as jnp
  >>> from jdp.queries import gaussian_sum
  >>> queries = {"model": gaussian_sum(1.0, 0.0), "metrics": gaussian_sum(9.0, 0.0)}
  >>> query = grouped(queries, {"w": "model", "loss": "metrics"})
  >>> record = {"w": jnp.array([3.0, 4.0]), "loss": jnp.array([7.0])}
  >>> state = query.init(record)
  >>> contribution = query.preprocess(jax.random.key(0), state, record, jnp.float32(1))
  >>> result, event, state = query.finalize(jax.random.key(1), state, contribution)
  >>> (
  ...   {name: [round(x, 4) for x in vector.tolist()] for name, vector in result.items()},
  ...   event.labels,
  ... )
  ({'loss': [7.0], 'w': [0.6, 0.8]}, ('metrics', 'model'))
  """
  if not queries or not all(isinstance(name, str) for name in queries):
    raise ValueError(
      f"Expected at least one query, each with a string as its label, got labels {list(queries)}."
    )
  # A fixed order, so that keys and events do not depend on the mapping's order.
  names = tuple(sorted(queries))
  queries = dict(queries)

  def split(record):
    """Each group's part of the record, by label."""
    prefix = labels(jax.eval_shape(lambda x: x, record)) if callable(labels) else labels
    by_vector = broadcast_prefix("labels", prefix, record)
    _check_labels(names, jax.tree.leaves(by_vector))
    return {name: _select(name, by_vector, record) for name in names}

  def init(record):
    return {name: queries[name].init(part) for name, part in split(record).items()}

  def clip(state, record):
    return _merge([queries[name].clip(state[name], part) for name, part in split(record).items()])

  def preprocess(key, state, record, weight):
    keys = dict(zip(names, jax.random.split(key, len(names)), strict=True))
    parts = split(record)
    return {
      name: queries[name].preprocess(keys[name], state[name], parts[name], weight) for name in names
    }

  def finalize(key, state, total):
    keys = dict(zip(names, jax.random.split(key, len(names)), strict=True))
    parts = [(queries[name], keys[name], state[name], total[name]) for name in names]
    released = [query.finalize(key, own, taken(query, part)) for query, key, own, part in parts]
    results, events, states = zip(*released, strict=True)
    event = GroupedSums(events, names)
    return _merge(results), event, dict(zip(names, states, strict=True))

  bounded = any(query.clip is not unbounded for query in queries.values())
  noise = _largest_noise({name: queries[name].noise for name in names})
  return SumQuery(
    init,
    preprocess,
    finalize,
    noise,
    takes_pairs=True,
    clip=clip if bounded else unbounded,
    public=lambda state: {name: queries[name].public(state[name]) for name in names},
    num_rounds=min(
      (query.num_rounds for query in queries.values() if query.num_rounds is not None), default=None
    ),
  )


def _largest_noise(noises: Mapping[str, Any]) -> float | Callable[[Mapping], jax.Array] | None:
  """The `noise` of a grouped query whose groups have these noises, by label."""
  if None in noises.values():
    return None
  if not any(map(callable, noises.values())):
    return max(noises.values())

  # One `SumQuery.noise` for all coordinates: the largest, in the state of the round.
  def noise(state):
    now = [x(state[name]) if callable(x) else x for name, x in noises.items()]
    return functools.reduce(jnp.maximum, [jnp.asarray(x, jnp.float32) for x in now])

  return noise


def _check_labels(names: Iterable[str], used: Iterable[Any]) -> None:
  unknown, unused = ({*used} - {*names}, {*names} - {*used})
  if unknown:
    raise ValueError(
      f"Expected every label to be one of {list(names)}, got {sorted(map(str, unknown))}; add a "
      "query."
    )
  if unused:
    raise ValueError(
      f"Expected vectors for every group, got none for {sorted(unused)}; remove it or label some."
    )


def _select(name: str, by_vector: PyTree, record: PyTree) -> PyTree:
  """The record with only the vectors of group `name`."""
  masked = _masked_node()
  return jax.tree.map(lambda label, x: x if label == name else masked, by_vector, record)


def _masked_node() -> Any:
  """The placeholder for a vector that is left out."""
  import optax  # Here, as it takes a third of a second to import.

  return optax.MaskedNode()


def _merge(results: Sequence[PyTree]) -> PyTree:
  """One tree from the groups' results, which mask each other's vectors."""
  masked_node = type(_masked_node())

  def is_masked(node):
    return isinstance(node, masked_node)

  def held(*nodes):
    # With nested groups a vector may be masked in all results; then it stays masked.
    return next((node for node in nodes if not is_masked(node)), nodes[0])

  return jax.tree.map(held, *results, is_leaf=is_masked)
