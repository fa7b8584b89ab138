"""What DP-FedAvg learns, and from whom: images of digits by user, or text by user."""

import dataclasses
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.dp_fedavg_text_options import TEXT, TextOptions
from experiments.runner import classification
from experiments.runner.classification import ClassificationOptions
from experiments.runner.options import option
from experiments.runner.parts import Part
from jdp import _validate, data, models

PyTree = Any
_IMAGES = {"dataset": ("digits", "mnist")}


@dataclasses.dataclass(frozen=True)
class TaskOptions(ClassificationOptions, TextOptions):
  """The options that say what is learnt, and from whom."""

  dataset: str = option(
    "digits",
    "The data: digits needs no file, modules takes installed packages' texts.",
    choices=("digits", "mnist", *TEXT),
  )
  data_dir: str | None = option(
    None, "The folder with the data's files.", when={"dataset": ("mnist", "movies", "movies_small", "shakespeare")}
  )
  partition: str = option(
    "iid", "Users: random images, two labels each, or the writers.", choices=("iid", "label", "writer"), when=_IMAGES
  )
  examples_per_user: int | None = option(
    None,
    "Images of each user; of a writer: at most. Default: 1 for iid, 2 for label, all for writer.",
    check=partial(_validate.integer, 1),
    when=_IMAGES,
  )
  model: str = option("logistic", "What is learnt.", choices=("logistic", "cnn"), when=_IMAGES)


class Task(NamedTuple):
  """What there is to learn.

  Attributes:
    init: key -> parameters; pre-trained ones, where there is public data to begin with.
    loss: (parameters, a client's examples) -> mean loss, for local training.
    evaluate: parameters -> name -> scalar, jitted, on data of nobody in `clients`.
    clients: the users' data, as `federated_averaging` takes them: `Examples` with a leading axis of users, or
      `PackedUsers`. A client's `mask` has one axis, of examples; an example is what a local batch is made of (an
      image, a sequence of words).
    sizes: int [users], n_k: how many examples each user has.
    headline: name of the metric that tables and plots are about, a share in [0, 1].
    facts: what the report says about data and model, name -> value.
    parts: (label of a row -> the last parameters of its first repetition) -> further parts of the report; None: none.
  """

  init: Callable[[jax.Array], PyTree]
  loss: models.Loss
  evaluate: Callable[[PyTree], dict[str, jax.Array]]
  clients: PyTree
  sizes: np.ndarray
  headline: str
  facts: dict[str, Any]
  parts: Callable[[dict[str, PyTree]], Iterable[Part]] | None = None


def load_task(options: Any) -> Task:
  """The task that `--dataset` names.

  Raises:
    ValueError: if the model does not fit the data, or the data has no writers.
    FileNotFoundError: if a file is missing.
  """
  if options.dataset in TEXT:
    from experiments.dp_fedavg_text import load_text_task  # Not needed for images.

    return load_text_task(options)
  return _images(options)


def _images(options) -> Task:
  task = classification.load_task(options, options.data_seed, None, arrange=data.pack)
  return Task(
    init=task.init,
    loss=task.loss,
    evaluate=task.evaluate,
    clients=task.clients,
    sizes=np.asarray(task.clients.counts),
    headline="test_accuracy",
    facts={
      "data": f"{options.dataset}, partition {options.partition}",
      "model": f"{options.model}, {task.dim} parameters",
    },
  )
