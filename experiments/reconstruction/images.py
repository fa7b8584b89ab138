"""Reconstruction of images from gradients of multinomial regression at its start.

Each client releases the direction of its image's gradient to the server. The attacker assumes the
mean length of public gradients. Its prior is public images, or none. It wants the image's low
frequencies or coarse wavelets, less the public mean's, which all images have in common.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.reconstruction.spheres import beside_bounds, direction_seen
from experiments.runner.estimators import ESTIMATORS
from experiments.runner.files import Row
from experiments.runner.keys import case_key
from jdp import data, models
from jdp.accounting.local.priv_unit import Cap
from jdp.attacks import reconstruction as attacks
from jdp.data import Examples
from jdp.data.datasets import Dataset
from jdp.guarantees import rounded_up
from jdp.mechanisms import LocalMechanism
from jdp.mechanisms.registry import Setting
from jdp.mechanisms.separated_product import SeparatedParameters

PRIORS = ("none", "public")
ONE_RELEASE = "one release"
BASES = {"dct": attacks.lowest_frequencies, "haar": attacks.coarsest_wavelets}
_PUBLIC = 5000  # The attacker has so many training images; all of them for the digits.


Offered = dict[tuple[str, float], LocalMechanism]  # by name and epsilon


class Scene(NamedTuple):
  """The images, and what the attacker knows of such images.

  Attributes:
    shape: (height, width).
    inputs: float32 [users, d] in [0, 1].
    gradients: float32 [users, classes, d + 1].
    length: mean length of public gradients.
    others: (mean [classes * (d + 1)], variance in a coordinate) of the direction of a public
      gradient.
    attacks: by prior, (estimates of gradients [users, classes, d + 1], noise variance) -> images
      [users, d]. The priors are "public", of public images, and "none", which only knows that
      pixels lie in [0, 1].
    targets: by basis, images [n, d] -> their lowest frequencies or coarsest wavelets less those of
      the public mean, each divided by its norm, [n, k].
    public: by basis, float32 [n, k], the targets of public images.
  """

  shape: tuple[int, int]
  inputs: np.ndarray
  gradients: np.ndarray
  length: float
  others: tuple[np.ndarray, float]
  attacks: dict[str, Callable[..., jax.Array]]
  targets: Mapping[str, Callable[[np.ndarray], np.ndarray]]
  public: dict[str, np.ndarray]

  @property
  def directions(self) -> np.ndarray:
    """What clients release: the directions of their gradients, [users, classes * (d + 1)]."""
    return _normalised(self.gradients.reshape(len(self.gradients), -1))


class View(NamedTuple):
  """The server's estimates of each user's gradient direction.

  Attributes:
    name: of the view. The report shows it.
    estimate: [users, size].
    variance: of the estimate's noise, in a coordinate.
  """

  name: str
  estimate: np.ndarray
  variance: float


def scene(dataset: Dataset, users: int, components: int, frequencies: int, seed: int) -> Scene:
  """The users and the attacker's knowledge.

  Users are test images drawn at random. The first 5,000 training images are public.

  Raises:
    ValueError: if there are fewer test images than users, or a number is larger than the pixels
      allow.
  """
  if not users <= len(dataset.test.labels):
    raise ValueError(
      f"Expected --users of at most {len(dataset.test.labels)}, the test images, got {users}."
    )
  own = np.random.default_rng(seed).permutation(len(dataset.test.labels))[:users]
  gradient = _gradient(dataset)
  train = jax.tree.map(lambda x: x[:_PUBLIC], dataset.train)
  public_inputs = train.inputs.reshape(len(train.inputs), -1)
  public = gradient(train).reshape(len(public_inputs), -1)
  lengths = np.linalg.norm(public, axis=1)
  public /= lengths[:, None]
  prior = attacks.principal_prior(public_inputs, components)
  height, width = dataset.input_shape

  def target(projection, images):
    return _normalised((images - np.asarray(prior.mean)) @ projection.T)

  targets = {
    name: partial(target, first((height, width), frequencies)) for name, first in BASES.items()
  }

  residuals = attacks.residuals_at_zero(dataset.num_classes)
  made = {
    name: jax.jit(jax.vmap(attacks.gaussian_attack(residuals, p), (0, None)))
    for name, p in zip(PRIORS, (attacks.pixel_prior(height * width), prior), strict=True)
  }
  test = jax.tree.map(lambda x: x[own], dataset.test)
  return Scene(
    shape=(height, width),
    inputs=test.inputs.reshape(users, -1),
    gradients=gradient(test),
    length=float(lengths.mean()),
    others=(public.mean(axis=0), float(public.var(axis=0).mean())),
    attacks={name: lambda g, v, attack=attack: attack(g, v).input for name, attack in made.items()},
    targets=targets,
    public={name: own(public_inputs) for name, own in targets.items()},
  )


def mechanisms_of(
  names: Sequence[str], epsilons: Sequence[float], own: Scene
) -> tuple[Offered, list[str]]:
  """The mechanisms for gradients' directions; and why there is none for the other epsilons.

  Raises:
    ValueError: if there is none at all.
  """
  offered, refused = {}, []
  for name, epsilon in itertools.product(names, epsilons):
    try:
      offered[name, epsilon] = ESTIMATORS[name].make(Setting(own.directions.shape[1], epsilon))
    except ValueError as error:  # less noise than float32 can carry, say
      refused.append(f"{name} at epsilon {rounded_up(epsilon)}: {error}")
  if not offered:
    raise ValueError(refused[0])
  return offered, refused


def exact_error(own: Scene) -> float:
  """The largest relative error of the closed form on the gradients themselves."""
  found = np.asarray(jax.vmap(attacks.input_of_gradient)(own.gradients))
  return float(
    np.max(np.linalg.norm(found - own.inputs, axis=1) / np.linalg.norm(own.inputs, axis=1))
  )


def releases(own: Scene, mechanism: LocalMechanism, count: int, seed: int) -> np.ndarray:
  """`count` independent releases of each user, as estimates of its direction.

  They are float32 [count, users, size].
  """
  key = case_key(seed, mechanism.guarantee)
  keys, scale = jax.random.split(key, (count, len(own.inputs))), _scale(mechanism)
  release = jax.jit(
    jax.vmap(lambda k, v: scale * direction_seen(mechanism, mechanism.encode(k, v)))
  )
  return np.stack([release(keys[i], own.directions) for i in range(count)])


def views(own: Scene, released: np.ndarray, variance: float, cohort: int) -> Iterator[View]:
  """The server's views of `released` [count, users, size].

  `variance` is that of the noise in a coordinate. There are four views:

    * one release
    * the mean of all of a user's releases
    * the sum over a cohort, where nothing is known of the others
    * the sum over a cohort, where all the others' gradients are known

    Users form cohorts in turn. For separated releases the sum is that of their directions.
  """
  count, users, size = released.shape
  yield View(ONE_RELEASE, released[0], variance)
  if count > 1:
    yield View(f"{count} releases", released.mean(axis=0), variance / count)
  if cohort > 1:
    whole = users // cohort * cohort
    mean, spread = own.others
    cohorts = own.directions[:whole].reshape(-1, cohort, size)
    noisy = np.repeat(released[0, :whole].reshape(cohorts.shape).sum(axis=1), cohort, axis=0)
    exact = np.repeat(cohorts.sum(axis=1), cohort, axis=0) - own.directions[:whole]
    # Unknown others are replaced by the public mean; their spread adds to the noise.
    yield View(
      f"sum of {cohort}", noisy - (cohort - 1) * mean, cohort * variance + (cohort - 1) * spread
    )
    yield View(f"sum of {cohort}, others known", noisy - exact, cohort * variance)


def noise_variance(mechanism: LocalMechanism) -> float:
  """The noise variance, in a coordinate, of what `releases` makes of a unit vector."""
  (size,) = mechanism.shape
  if isinstance(mechanism.parameters, SeparatedParameters):
    cap = mechanism.parameters.direction
    assert isinstance(cap, Cap)
    return math.expm1(-2 * cap.log_m) / size
  return mechanism.mean_squared_error(1.0) / size


def reconstruct(own: Scene, view: View, prior: str) -> np.ndarray:
  """The attack's reconstructions from a view, images [users, d]."""
  gradients = own.length * view.estimate.reshape(-1, *own.gradients.shape[1:])
  return np.asarray(own.attacks[prior](gradients, own.length**2 * view.variance))


def rates(own: Scene, images: np.ndarray, alphas: Sequence[float]) -> Row:
  """The numbers of alpha-good reconstructions in each basis, and the images' mean cosine."""
  truth = own.inputs[: len(images)]
  distances = {
    name: np.linalg.norm(target(images) - target(truth), axis=1)
    for name, target in own.targets.items()
  }
  cosines = np.sum(_normalised(images) * _normalised(truth), axis=1)
  return {
    "trials": len(images),
    "successes": {
      name: [int(np.sum(own <= alpha)) for alpha in alphas] for name, own in distances.items()
    },
    "cosine": float(cosines.mean()),
  }


def guesses(own: Scene, basis: str, alphas: Sequence[float]) -> list[int]:
  """Successes without any release.

  The guess is the public image that is close to the most public images.
  """
  found, public, truth = [], own.public[basis], own.targets[basis](own.inputs)
  # Unit vectors are within alpha where their inner product is at least 1 - alpha^2 / 2.
  for least in (1 - alpha**2 / 2 for alpha in alphas):
    best = np.argmax(np.sum(public[:2000] @ public.T >= least, axis=1))
    found.append(int(np.sum(truth @ public[best] >= least)))
  return found


def identified(own: Scene, mechanism: LocalMechanism, released: np.ndarray) -> Row:
  """How often one release tells which of the users' images it was made of.

  The prior is uniform, so the bound holds.
  """
  count, users, _ = released.shape
  named = np.argmax(released @ own.directions.T, axis=2)
  successes = int(np.sum(named == np.arange(users)))
  return beside_bounds(mechanism, -math.log(users), successes, count * users)


def _scale(mechanism: LocalMechanism) -> float:
  """The factor that makes `direction_seen` unbiased."""
  separate = isinstance(mechanism.parameters, SeparatedParameters)
  return math.exp(-mechanism.parameters.direction.log_m) if separate else 1.0


def _normalised(rows: np.ndarray) -> np.ndarray:
  return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-20)


def _gradient(dataset: Dataset) -> Callable[[Examples], np.ndarray]:
  """The gradient of each example at parameters of zero: examples -> [n, classes, d + 1]."""
  size = math.prod(dataset.input_shape) + 1
  model = models.glm("multinomial", (size,), dataset.num_classes)
  params = jnp.zeros((dataset.num_classes, size))

  def of_one(image, label):
    example = data.Examples(models.with_intercept(image.reshape(1, -1)), label[None], jnp.ones(1))
    return model.gradient(params, example)

  return lambda examples: np.array(jax.jit(jax.vmap(of_one))(examples.inputs, examples.labels))
