"""Spam in Draw and Discard: models that no honest client would send, and a test for them.

Source: arXiv 1807.04369, Section 3.4.4.

The server compares each weight of a submitted model with the same weight of its k instances. It
knows neither which instance the client was given nor any of the client's data. The test reads only
what the server holds anyway, so it costs no privacy.

The test cannot see an attack that stays within the noise:

* one update whose gradient has its sign flipped;
* an old instance that the process has not left behind;
* a drift of less than the threshold, repeated.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jdp import _validate
from jdp._arguments import Vector, checked

PyTree = Any


def largest_deviation(instances: PyTree, submitted: PyTree) -> jax.Array:
  """The largest distance of a submitted weight from the instances' mean.

  The unit is the standard deviation of the instances (ddof=1).

  Args:
    instances: pytree of float32 [k, ...], k >= 2.
    submitted: a pytree like one instance.

  Returns:
    float32 scalar >= 0. If all instances agree on a weight, a submission is at distance 0 if it
    agrees too, else at infinity. NaN is at infinity, whether submitted or in an instance.

  >>> instances = jnp.array([[-1.0, 3.0], [1.0, 3.0]])
  >>> [round(largest_deviation(instances, jnp.array([2.0, w])).item(), 4) for w in (3.0, 4.0)]
  [1.4142, inf]
  """

  def deviation(weights, weight):
    distance = jnp.abs(weight - jnp.mean(weights, axis=0))
    ratio = jnp.where(distance == 0, 0.0, distance / jnp.std(weights, axis=0, ddof=1))
    # A maximum may drop NaN, and NaN would then pass the test.
    return jnp.max(jnp.where(jnp.isnan(ratio), jnp.inf, ratio), initial=0.0)

  return jnp.max(jnp.stack(jax.tree.leaves(jax.tree.map(deviation, instances, submitted))))


@checked
def interval_test(threshold: float) -> Callable[[PyTree, PyTree], jax.Array]:
  """The test whether every weight lies within mean +- threshold * standard deviation.

  It is a function (instances, submitted) -> bool scalar, for `draw_and_discard(accept=...)`. The
  largest deviation grows with the number of weights, so choose the threshold by `threshold_for`.

  Raises:
    ValueError: if the threshold is not positive.

  >>> accept = interval_test(2.0)
  >>> bool(accept(jnp.array([[-1.0], [1.0]]), jnp.array([jnp.nan])))
  False
  """
  _validate.positive(threshold=threshold)
  return lambda instances, submitted: largest_deviation(instances, submitted) <= threshold


@checked
def rejection_rates(deviations: Vector, thresholds: jax.typing.ArrayLike) -> np.ndarray:
  """The share of deviations above each threshold.

  For honest updates this is the rate of false positives. For an attack's updates it is the rate of
  detections.

  >>> rejection_rates([0.5, 1.5, np.inf], [1.0, 2.0]).round(3).tolist()
  [0.667, 0.333]
  """
  ordered = np.sort(np.asarray(deviations, np.float64))
  if not (ordered.ndim == 1 and ordered.size and not np.isnan(ordered[-1])):
    raise ValueError(
      f"Expected deviations, at least one, none of them NaN, got shape {ordered.shape}."
    )
  return (
    ordered.size - np.searchsorted(ordered, np.asarray(thresholds, np.float64), side="right")
  ) / ordered.size


@checked
def threshold_for(honest: Vector, false_positive_rate: float) -> float:
  """The least threshold that rejects at most a share `false_positive_rate` of honest updates.

  The share holds for the deviations given. For new updates it holds only up to the sample's error.
  Take many times 1 / rate deviations, from the process at the time that the test is for.

  Raises:
    ValueError: if the rate is not in (0, 1), or a deviation is NaN. Also if there are fewer than 1
      / rate deviations.

  >>> threshold_for(np.arange(1, 101), 0.05)
  95.0
  """
  values = np.sort(np.asarray(honest, np.float64))
  _validate.in_range(1e-12, 1 - 1e-12, false_positive_rate=false_positive_rate)
  allowed = math.floor(false_positive_rate * values.size)
  if not (allowed >= 1 and not np.isnan(values[-1])):
    raise ValueError(
      f"Expected honest to be at least {math.ceil(1 / false_positive_rate)} deviations, none of "
      f"them NaN, got {values.size}; take more."
    )
  return float(values[-allowed - 1])


class View(NamedTuple):
  """What a malicious client has to work with.

  Attributes:
    drawn: the instance that it was given.
    honest: what an honest client would send.
    old: an instance that it was given earlier.
  """

  drawn: PyTree
  honest: PyTree
  old: PyTree


Attack = Callable[[jax.Array, View], PyTree]  # (key, view) -> submitted model


@checked
def random_model(stddev: float) -> Attack:
  """An attack that sends a model of independent N(0, stddev^2) weights.

  >>> view = View(drawn=jnp.ones(1000), honest=jnp.ones(1000), old=jnp.ones(1000))
  >>> sent = random_model(3.0)(jax.random.key(0), view)
  >>> sent.shape, round(sent.std().item())
  ((1000,), 3)
  """
  _validate.positive(stddev=stddev)

  def attack(key, view):
    leaves, structure = jax.tree.flatten(view.drawn)
    keys = jax.random.split(key, len(leaves))
    return jax.tree.unflatten(
      structure, [stddev * jax.random.normal(keys[i], x.shape) for i, x in enumerate(leaves)]
    )

  return attack


@checked
def scaled_update(factor: float) -> Attack:
  """An attack that sends the honest update, with its noise, times `factor`.

  >>> view = View(drawn=jnp.array(1.0), honest=jnp.array(1.5), old=jnp.array(0.0))
  >>> scaled_update(10.0)(jax.random.key(0), view).item()
  6.0
  """
  _validate.in_range(-1e6, 1e6, factor=factor)
  return lambda key, view: jax.tree.map(lambda d, h: d + factor * (h - d), view.drawn, view.honest)


def sign_flip() -> Attack:
  """An attack that sends the honest update with its sign flipped.

  With noise that is as likely on either side, it deviates like an honest update.

  >>> view = View(drawn=jnp.array(1.0), honest=jnp.array(1.5), old=jnp.array(0.0))
  >>> sign_flip()(jax.random.key(0), view).item()
  0.5
  """
  return scaled_update(-1.0)


@checked
def drift(shift: PyTree) -> Attack:
  """An attack that moves the honest model by `shift`, a pytree like it.

  The shift is a small step towards a target, on a few weights or on all.

  >>> view = View(drawn=jnp.zeros(2), honest=jnp.zeros(2), old=jnp.zeros(2))
  >>> drift(jnp.array([0.5, 0.0]))(jax.random.key(0), view).tolist()
  [0.5, 0.0]
  """
  return lambda key, view: jax.tree.map(jnp.add, view.honest, shift)


def replay() -> Attack:
  """An attack that sends the old instance, which undoes what was learnt since.

  >>> view = View(drawn=jnp.array(1.0), honest=jnp.array(1.5), old=jnp.array(0.25))
  >>> replay()(jax.random.key(0), view).item()
  0.25
  """
  return lambda key, view: view.old
