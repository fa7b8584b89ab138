"""Iterative training whose every look at the data is one private query (arXiv 1812.06210).

A record is an example, a microbatch of fixed members, or a user. It becomes a *collection* of
vectors, computed at the server's current values. These are its gradient, the moments of its
normalised activations, its accuracy and loss. They are groups of one sample and are summed by one
query, so the ledger gets one event.

The noised result steps the optimiser and moves the running statistics of batch normalisation. It is
the run's training metric too. So whatever is shown of the training data has been through the query.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from jdp import _validate
from jdp._arguments import checked
from jdp.data.clients import Examples
from jdp.federated.engine.rounds import FederatedAlgorithm, Server, rounds
from jdp.guarantees import Relation, Unit
from jdp.models.base import mean_of_counting, without_padding
from jdp.models.batch_norm import Moments, NormalisedModel, Statistics, move, record_moments
from jdp.numerics import vectors
from jdp.queries import SumQuery
from jdp.sampling import Sampler

PyTree = Any

MAX_LOSS = 4.0
"""The cap on an example's loss, in nats. It bounds what one record adds to the average."""


CLASS_SHARES = "class_shares"
"""The metric that holds the share of each label."""


class Trained(NamedTuple):
  """The server's values, all of them released.

  Attributes:
    weights: the model's weights.
    statistics: running statistics by normalised layer.
    metrics: moving averages of the released training metrics. They are "accuracy" in [0, 1] and
      "loss" in units of `MAX_LOSS` (up to noise), float32 scalars, and `CLASS_SHARES`, float32
      [classes]. Before the first round they are zeros. Empty if none are released.
  """

  weights: PyTree
  statistics: dict[str, Statistics]
  metrics: dict[str, jax.Array]


class Vectors(NamedTuple):
  """The vectors of one record, or a sample's noised average of them.

  Attributes:
    gradient: the gradient of the mean loss of the record's examples, like the weights.
    moments: the moments of the normalised activations, by layer.
    metrics: "accuracy" and "loss", means over the record's examples, each in [0, 1]. Both together
      have an L2 norm of at most sqrt(2). `CLASS_SHARES` are the shares of the record's examples
      with each label, of an L2 norm of at most 1.
  """

  gradient: PyTree
  moments: dict[str, Moments]
  metrics: dict[str, jax.Array]


@checked
def initial_values(
  model: NormalisedModel, key: jax.Array, *, metrics: bool = True, num_classes: int = 0
) -> Trained:
  """The server's values before the first round.

  Args:
    model: what is trained.
    key: key of its weights. Consumed.
    metrics: whether accuracy and loss are released.
    num_classes: the number of labels whose shares are released. 0: none are.

  Raises:
    ValueError: if num_classes is negative.
  """
  _validate.integer(0, num_classes=num_classes)
  released = {name: jnp.float32(0) for name in (("accuracy", "loss") if metrics else ())}
  if num_classes:
    released[CLASS_SHARES] = jnp.zeros(num_classes)
  return Trained(model.init(key), model.init_statistics(), released)


def record_like(values: Trained) -> Vectors:
  """A tree with the structure, shapes and types of a record's vectors, to label groups by.

  Args:
    values: the server's values, or their shapes.
  """
  return Vectors(
    values.weights, {name: Moments(*old) for name, old in values.statistics.items()}, values.metrics
  )


def record_vectors(model: NormalisedModel, values: Trained, record: Examples) -> Vectors:
  """The vectors of one record's `Examples` at the server's values.

  They depend on no other record, as activations are normalised with the server's statistics. The
  content of padding changes nothing. They are neither bounded nor private: the query bounds them.

  >>> from jdp.data import examples
  >>> from jdp.models.batch_norm import batch_norm_cnn
  >>> import numpy as np
  >>> model = batch_norm_cnn((4, 4), 2)
  >>> values = initial_values(model, jax.random.key(0))
  >>> record = record_vectors(model, values, examples(np.ones((3, 4, 4)), np.array([0, 1, 1])))
  >>> (
  ...   sorted(record.moments),
  ...   sorted(record.metrics),
  ...   round(3 * float(record.metrics["accuracy"])) in (1, 2),
  ... )
  (['Conv_0', 'Dense_0'], ['accuracy', 'loss'], True)
  """
  inputs, labels, mask = without_padding(record)

  def mean_loss(weights):
    # Normalised by the server's statistics: a batch's own would mix its records.
    logits, normalised = model.apply(weights, values.statistics, inputs)
    losses = optax.losses.softmax_cross_entropy_with_integer_labels(logits, labels)
    return mean_of_counting(losses, mask), (logits, losses, normalised)

  gradient, (logits, losses, normalised) = jax.grad(mean_loss, has_aux=True)(values.weights)
  shares = {
    "accuracy": (jnp.argmax(logits, axis=1) == labels).astype(jnp.float32),
    "loss": jnp.minimum(losses, MAX_LOSS) / MAX_LOSS,
  }
  metrics = {
    name: mean_of_counting(shares[name], mask) for name in shares if name in values.metrics
  }
  if CLASS_SHARES in values.metrics:
    of_class = jax.nn.one_hot(labels, len(values.metrics[CLASS_SHARES]))
    metrics[CLASS_SHARES] = jax.vmap(mean_of_counting, (1, None))(of_class, mask)
  return Vectors(gradient, record_moments(normalised, mask), metrics)


@checked
def iterative_training(
  model: NormalisedModel,
  query: SumQuery,
  sampler: Sampler,
  optimizer: optax.GradientTransformation,
  *,
  rate: float = 0.1,
  relation: Relation | str = Relation.ADD_REMOVE,
  unit: Unit | str = Unit.EXAMPLE,
  chunk_size: int | None = None,
  mesh: Mesh | None = None,
  diagnose: bool = False,
) -> FederatedAlgorithm:
  """Training by one query a round on the `Vectors` of the sampled records.

  Formal guarantee: that of the rounds' events under `relation`, for one record, which is a `unit`.
  It is stated to whoever sees the server's values: weights, running statistics and training metrics
  of every round. A microbatch is a record only if its members were fixed before sampling
  (`jdp.queries.base`).

  Args:
    model: what is trained. Its init goes through `initial_values`, which makes what this
      algorithm's `init` takes.
    query: makes the sum of `Vectors` private, such as `jdp.queries.grouped` with labels for its
      fields. Divide it by `sampler.expected_size`.
    sampler: which records take part.
    optimizer: steps by the noised average gradient.
    rate: how fast statistics and metrics follow the released averages, in (0, 1).
    relation: the neighbouring relation of the guarantee.
    unit: what one record is.
    chunk_size: see `cohort_sum`.
    mesh: see `cohort_sum`.
    diagnose: whether rounds also return the mean norm of the gradients, and the sample's size. Both
      break the guarantee if shown.

  Returns:
    A `FederatedAlgorithm` whose parameters are `Trained` and whose clients are `Examples` with a
    leading axis of records.

  Raises:
    ValueError: if the rate, relation or unit is out of range.

  >>> from jdp import queries, sampling
  >>> from jdp.models.batch_norm import batch_norm_cnn
  >>> model, sampler = batch_norm_cnn((4, 4), 2), sampling.poisson(1000, 0.01)
  >>> query = queries.average(queries.gaussian_sum(1.0, 2.0), sampler.expected_size)
  >>> algorithm = iterative_training(model, query, sampler, optax.sgd(0.1), rate=0.2, chunk_size=5)
  >>> state = jax.eval_shape(
  ...   lambda key: algorithm.init(initial_values(model, key)), jax.random.key(0)
  ... )
  >>> sorted(state.params.statistics), sorted(state.params.metrics)
  (['Conv_0', 'Dense_0'], ['accuracy', 'loss'])
  """
  _validate.in_range(1e-6, 1 - 1e-6, rate=rate)

  def client_fn(keys, values, record):
    del keys
    made = record_vectors(model, values, record)
    return made, {"gradient_norm": vectors.l2_norm(made.gradient)}

  return rounds(
    client_fn,
    query,
    sampler,
    _server(optimizer, rate),
    relation=relation,
    unit=unit,
    chunk_size=chunk_size,
    mesh=mesh,
    diagnose=diagnose,
  )


def _server(optimizer: optax.GradientTransformation, rate: float) -> Server:
  """The server that steps the optimiser, moves the statistics and averages the metrics.

  It carries the optimiser's state and a count.
  """

  def step(result, carried, values):
    optimizer_state, count = carried
    updates, optimizer_state = optimizer.update(result.gradient, optimizer_state, values.weights)
    # The plain mean in the first rounds: none of them weighs more than another.
    share = jnp.maximum(rate, 1.0 / (count + 1.0))
    return Trained(
      optax.apply_updates(values.weights, updates),
      {name: move(old, result.moments[name], rate) for name, old in values.statistics.items()},
      jax.tree.map(lambda old, new: old + share * (new - old), values.metrics, result.metrics),
    ), (optimizer_state, count + 1.0)

  return Server(record_like, lambda values: (optimizer.init(values.weights), jnp.float32(0)), step)
