"""The options of Draw and Discard."""

import dataclasses

from experiments.runner import checks
from experiments.runner.options import option, option_of
from experiments.runner.problems.image_options import DATASETS, FOLDERS, DatasetOptions
from experiments.runner.runs.training import TrainingOptions
from jdp import _validate

ATTACKS = {
  "random": "random models",
  "scaled": "updates x 30",
  "drift": "ten weights moved by s",
  "sign_flip": "sign flips",
}
_DATA = {"task": ("training", "spam", "stream")}
_TRAINING = {"task": ("training",)}
_STREAM = {"task": ("stream",)}
_DELAYS = {"task": ("training", "stream")}


@dataclasses.dataclass(frozen=True)
class DrawAndDiscardOptions(TrainingOptions, DatasetOptions):
  """The options of this experiment."""

  task: str = option(
    "training", "What is asked.", choices=("training", "variance", "spam", "stream")
  )
  dataset: str = option(
    "digits",
    "The data: digits needs no file, arrays are your own, in [0, 1].",
    choices=(*DATASETS, "phishing"),
    when=_DATA,
  )
  data_dir: str | None = option_of(
    DatasetOptions, "data_dir", when={"dataset": (*FOLDERS, "phishing"), **_DATA}
  )
  data_file: str | None = option(
    None,
    "An npz file with inputs, labels, test_inputs and test_labels.",
    when={"dataset": ("arrays",), **_DATA},
  )
  examples_per_user: int | None = option(
    10, "Examples of each user, chosen at random.", check=checks.count, when=_DATA
  )
  rounds_per_pass: int | None = option(
    1,
    "Rounds of one pass, in which every user reports once; some users less than these sit it out.",
    check=checks.count,
    when=_DATA,
  )
  instances: tuple[int, ...] | None = option(
    (1, 20),
    "k; a run without noise for each.",
    check=checks.count,
    when=_TRAINING,
    may_be_empty=True,
  )
  batch_sizes: tuple[int, ...] | None = option(
    (),
    "B, clients in a batch on the server; a run without noise for each.",
    check=checks.count,
    when=_TRAINING,
  )
  epsilons: tuple[float, ...] = option(
    (1.0,),
    "Epsilon of one update; runs with noise. The other tasks take the first.",
    check=checks.epsilon,
    may_be_empty=True,
  )
  hidden: int | None = option(
    0,
    "Hidden units of a neural network; 0: a generalised linear model.",
    check=checks.count_or_zero,
    when=_TRAINING,
  )
  noise: str = option(
    "laplace",
    "Distribution of an update's noise. Epsilon of Gaussian noise is at --delta.",
    choices=("laplace", "gaussian"),
  )
  noisy_instances: int = option(20, "k of the runs with noise.", check=checks.count)
  unit: str = option(
    "coordinate",
    "What epsilon is of: a coordinate seen alone, or the user's whole update.",
    choices=("coordinate", "user"),
  )
  clip: float = option(
    1.0,
    "c: bound of a gradient's coordinates, or for --unit=user of its L1 norm.",
    check=_validate.positive,
  )
  learning_rate: float = option(0.01, "eta, at the start.", check=_validate.positive)
  further_rates: tuple[float, ...] | None = option(
    (),
    "Other eta for the runs without noise, so that each k and B can be compared at its best.",
    check=_validate.positive,
    when=_TRAINING,
    may_be_empty=True,
  )
  half_after: int | None = option(
    None,
    "Updates after which eta has halved: the update of number t has eta / (1 + t / half_after). "
    "None: it is constant.",
    check=checks.count,
    when=_TRAINING,
  )
  in_flight: int | None = option(
    0,
    "Clients that hold a drawn instance while others update; 0: strictly one after another. "
    "Batching takes none.",
    check=checks.count_or_zero,
    when=_DELAYS,
  )
  random_returns: bool | None = option(
    False, "Clients in flight return in random order, not in that of their draws.", when=_DELAYS
  )
  attacks: tuple[str, ...] | None = option(
    tuple(ATTACKS),
    "What attackers send; a run with and one without the test for spam for each.",
    choices=tuple(ATTACKS),
    when=_STREAM,
  )
  attackers: float | None = option(
    0.05, "The share of the users that attack.", check=_validate.probability, when=_STREAM
  )
  spam_threshold: float | None = option(
    5.0,
    "The test for spam rejects a weight so many standard deviations from the instances' mean. "
    "--task=spam finds it.",
    check=_validate.positive,
    when=_STREAM,
  )
  spread_epsilon: float | None = option(
    1.0,
    "Without noise, instances are spread at the start as for this epsilon.",
    check=checks.epsilon,
    when=_TRAINING,
  )
  delta: float = option(1e-6, "Delta where a statement needs one.", check=checks.delta)
  chunk_size: int = option(128, "Updates whose noise is drawn at once.", check=checks.count)
