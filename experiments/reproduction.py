"""Every table and figure of the five papers, beside what came out here: `docs/reproduction.md`.

`experiments.results` writes the tables of that page from `CLAIMS` and from the stored results, and
refuses a page that differs from them.
"""

import pathlib
import re
from typing import NamedTuple

from experiments import stored_values
from experiments.runner import files
from experiments.runner.reports.tables import table

_FOLDER = pathlib.Path(__file__).parent
_VALUE = re.compile(r"\{([^}]+)\}")
_COLUMNS = ("of the paper", "published", "here, 95 % intervals", "scale", "command", "minutes")


class Claim(NamedTuple):
  """A table or figure, or what the text says without one.

  Attributes:
    subject: where it stands in the paper.
    published: what it says there.
    stored: `EXPERIMENT/NAME` of the results, or "" if nothing was run.
    here: what came out; `{PATH}` is a value of the results, at a path of `stored_values`.
    scale: what is smaller here than there, with places as in `here`; "whole" if nothing is.
  """

  subject: str
  published: str
  stored: str
  here: str
  scale: str


def table_of(publication: str) -> str:
  """The table of a publication's claims, in Markdown.

  Raises:
    ValueError: if there is no such publication, or a path leads nowhere.
  """
  if publication not in CLAIMS:
    raise ValueError(f"Expected one of {sorted(CLAIMS)}, got {publication!r}.")
  return table(_COLUMNS, [_row(claim) for claim in CLAIMS[publication]])


def _row(claim: Claim) -> list[str]:
  if not claim.stored:
    return [claim.subject, claim.published, claim.here, claim.scale, "", ""]
  experiment, name = claim.stored.split("/")
  path = _FOLDER / experiment / "results" / f"{name}.json"
  source = stored_values.document(path)
  here, scale = (
    _VALUE.sub(lambda match: str(stored_values.value(source, match[1])), text)
    for text in (claim.here, claim.scale)
  )
  content = files.read_json(path)
  minutes = content.get("processor_minutes")
  command = content["command"].removeprefix("python -m ").replace("=DATA_DIR", "=DIR")
  link = f"[`{command}`](../experiments/{experiment}/results/{name}.json)"
  return [
    claim.subject,
    claim.published,
    here,
    scale,
    link,
    "" if minutes is None else f"{minutes:g}",
  ]


_ACCURACY = "accuracy_top1"
_SMALL = "a small LSTM, {results.flags.num_rounds} rounds"
_SAMPLERS = "Two samplers of directions"
_BOUND = "Uniform priors: the epsilon that a protection allows"
_IMAGES = "Images: frequencies and wavelets"
_SGD = "Averaged SGD over dimensions"
_TWO = "Two vectors, of which every record has one"
_TUTORIAL = "Beside what was published"
_VARIANCE = "Variance of the instances"


def _less(first: str, second: str = "no privacy", metric: str = _ACCURACY) -> str:
  """The place of a paired difference of two runs."""
  return f"{{Results > {first} - {second} > {metric}}}"


def _noise(stored: str, scale: str) -> Claim:
  """The noise of Table 2, beside a run without privacy."""
  planned = ((15, 5000), (10, 1667), (15, 1250))
  rows = (f"private, clip norm {s}, noise cohort size {users}" for s, users in planned)
  return Claim(
    "Table 2, Figure 1: AccuracyTop1 with the noise of three plans, less that without privacy",
    "-0.13; -0.58; -1.29 points",
    stored,
    "; ".join(map(_less, rows)),
    scale,
  )


CLAIMS: dict[str, tuple[Claim, ...]] = {
  "1812.00984": (
    Claim(
      "Figure 2: directions drawn from caps in place of hemispheres",
      "a picture",
      "mean_estimation/figure2",
      "squared error at d = 100, ε = 8: "
      f"{{{_SAMPLERS} > sampler=priv_unit, dimension=100, epsilon=8 > error}} against "
      f"{{{_SAMPLERS} > sampler=hemisphere, dimension=100, epsilon=8 > error}}",
      "no sizes to compare",
    ),
    Claim(
      "Corollary 3.2: the error of averaged SGD",
      "a bound",
      "mean_estimation/dimensions",
      "d = 1,000, ε = 8, PrivUnit: "
      f"{{{_SGD} > mechanism=priv_unit, dimension=1000 > measured}}; in theory "
      f"{{{_SGD} > mechanism=priv_unit, dimension=1000 > these steps}}; the minimax rate without "
      f"its constant: {{{_SGD} > mechanism=priv_unit, dimension=1000 > minimax rate}}",
      "sizes are ours",
    ),
    Claim(
      "Section 2: the largest ε for a protection from reconstruction",
      "a bound",
      "reconstruction/spheres",
      "d = 784, alpha = 1, chance .001: "
      f"{{{_BOUND} > k=784, alpha=1 > largest epsilon for 0.001}}. In up to 50 dimensions, attacks "
      "of all mechanisms stay below their bounds",
      "attacks at ε = 2 and 8",
    ),
    Claim(
      "Section 2: what an attacker who knows public images reconstructs of one release",
      "bounds",
      "reconstruction/mnist",
      "within relative distance .5, no release: "
      f"{{{_IMAGES} > mechanism=no release > dct, alpha = 0.5}}; PrivUnit at ε = 8: "
      f"{{{_IMAGES} > mechanism=priv_unit, epsilon=8 > dct, alpha = 0.5}}; at 512: "
      f"{{{_IMAGES} > mechanism=priv_unit, epsilon=512 > dct, alpha = 0.5}}",
      "sizes are ours",
    ),
    Claim(
      "Section 5, CIFAR-10, CNN from scratch, users of one image: a large ε₁ costs little beside "
      "central privacy alone",
      "curves, not in our text",
      "private_federated/cifar10_1",
      "central privacy less clipping only: "
      "{Results > central only - clipping only > test_accuracy}; ε₁ = 500 less central privacy: "
      "{Results > local ε₁ = 500 - central only > test_accuracy}",
      "10,000 of 50,000 images",
    ),
    *(
      Claim(
        f"Section 5, MNIST, CNN from scratch{users}: a large ε₁ costs little beside central "
        "privacy alone",
        "curves, not in our text",
        f"private_federated/{stored}",
        "clipping only less no privacy: {Results > clipping only - no privacy > test_accuracy}; "
        "central privacy less clipping only: "
        "{Results > central only - clipping only > test_accuracy}; ε₁ = 500 less central privacy: "
        "{Results > local ε₁ = 500 - central only > test_accuracy}",
        "sizes are ours",
      )
      for users, stored in (("", "mnist_cnn_10"), (", users of one image", "mnist_cnn_1"))
    ),
    *(
      Claim(
        f"Section 5, {data}: a large ε₁ costs little beside central privacy alone",
        "curves, not in our text",
        f"private_federated/{stored}",
        f"ε₁ = 500 less central privacy alone: "
        f"{{Results > local ε₁ = 500 - central only > {metric}}}",
        scale,
      )
      for data, stored, metric, scale in (
        ("MNIST, logistic regression", "mnist_logistic_10", "test_accuracy", "sizes are ours"),
        (
          "MNIST, logistic regression, users of one image",
          "mnist_logistic_1",
          "test_accuracy",
          "sizes are ours",
        ),
        (
          "MNIST, CNN from public images",
          "mnist_cnn_public",
          "test_accuracy",
          "10 of 200 rounds, 400 of 2,000 users a round",
        ),
        (
          "CIFAR-10, CNN from public images",
          "cifar10_public",
          "test_accuracy",
          "10 rounds of 300 of 900 users",
        ),
        ("next words", "language_model", _ACCURACY, "60 rounds, 23,835 weights"),
      )
    ),
  ),
  "1812.06210": (
    Claim(
      "Section 2's example: joint against separate clipping of two vectors",
      "an example without noise's size",
      "general_approach/two_vectors",
      "error of the first vector over its bound, jointly: "
      f"{{{_TWO} > joint clipping > error of v_1 / 1}}; separately: "
      f"{{{_TWO} > separate clipping > error of v_1 / 1}}; as one vector: "
      f"{{{_TWO} > as one vector > error of v_1 / 1}}",
      "no sizes to compare",
    ),
    Claim(
      "Section 4: more, and so smaller, microbatches often help accuracy",
      "no figures",
      "general_approach/microbatch",
      "microbatches of 5 less those of 25: "
      "{Results > proportional, microbatches of 5 - proportional, microbatches of 25 > "
      "test_accuracy}; of 1 less those of 5: "
      "{Results > proportional, microbatches of 1 - proportional, microbatches of 5 > "
      "test_accuracy}",
      "{results.flags.num_rounds} rounds of 250 images, each size at its own rate",
    ),
    Claim(
      "The tutorial's first row (TensorFlow Privacy)",
      "ε 1.19, 95.0 %",
      "general_approach/tutorial_1",
      f"ε {{{_TUTORIAL} > here > ε by moments}}, {{{_TUTORIAL} > here > test accuracy}}",
      "whole",
    ),
    Claim(
      "The tutorial's second row",
      "ε 3.01, 96.6 %",
      "general_approach/tutorial_2",
      f"ε {{{_TUTORIAL} > here > ε by moments}}, {{{_TUTORIAL} > here > test accuracy}}",
      "whole",
    ),
  ),
  "1710.06963": (
    Claim(
      "Table 1: 42 epsilons by the moments accountant",
      "0.47 to 187.01",
      "accounting/published",
      "{Equal to the printed digits > Table 1 > moments} equal to the last printed digit",
      "whole",
    ),
    Claim(
      "Table 2: 6 epsilons by the moments accountant",
      "0.987 to 4.634",
      "accounting/published",
      "{Equal to the printed digits > Table 2 > moments} equal to the last printed digit",
      "whole",
    ),
    _noise("dp_fedavg/grid_planned", "a small LSTM, 2,500 of 5,000 rounds"),
    _noise("dp_fedavg/movies", "the published LSTM, 300 of 5,000 rounds"),
    Claim(
      "Figure 2: clipping at S = 1, 5, 15, flat and per layer",
      "the choice has a small effect",
      "dp_fedavg/grid_clip",
      "less no privacy, flat: "
      + "; ".join(_less(f"private, clipping flat, clip norm {s}") for s in (1, 5, 15))
      + "; per layer: "
      + "; ".join(_less(f"private, clipping per_layer, clip norm {s}") for s in (1, 5, 15)),
      _SMALL,
    ),
    Claim(
      "Figure 3: noise on the average",
      "a small loss up to some noise, then accuracy is destroyed",
      "dp_fedavg/grid_noise",
      "less no privacy, noise of 5,000, 300, 100 users: "
      + "; ".join(_less(f"private, noise cohort size {n}") for n in (5000, 300, 100)),
      _SMALL,
    ),
    Claim(
      "Figures 4 and 8: S and noise lowered together help later",
      "better after 4,885 rounds",
      "dp_fedavg/grid_schedule",
      "a quarter less constant: "
      "{Results > private, clip decay 0.25 - private, clip decay 1 > accuracy_top1}",
      _SMALL,
    ),
    Claim(
      "Figure 5: the fixed denominator is as good as the clipped one, without noise",
      "no significant difference",
      "dp_fedavg/grid_estimator",
      "fixed less clipped, without noise: "
      + _less(
        "private, noise multiplier 0, estimator fixed",
        "private, noise multiplier 0, estimator clipped",
      )
      + "; at z = 1: "
      + _less(
        "private, noise multiplier 1, estimator fixed",
        "private, noise multiplier 1, estimator clipped",
      ),
      _SMALL,
    ),
    Claim(
      "Figures 6 and 7: small cohorts stand in for large ones with the same noise",
      "almost identical curves",
      "dp_fedavg/grid_population",
      "cohorts of 1,000 less those of 100, with noise: {Results > private, cohort size 1000 - "
      "private, cohort size 100 > accuracy_top1}",
      "a small LSTM, users of 50 tokens, {results.flags.num_rounds} rounds",
    ),
    Claim(
      "Figures 9 and 10: DP-FedSGD at S = 1 and 5",
      "reasonable values",
      "dp_fedavg/grid_fedsgd",
      "less no privacy, noise of 1,250 users: "
      + "; ".join(_less(f"private, clip norm {s}, noise cohort size 1250") for s in (1, 5)),
      "a small LSTM from a public start, {results.flags.num_rounds} rounds",
    ),
    Claim(
      "Figures 11 and 12: larger vocabularies",
      "curves, not in our text",
      "dp_fedavg/grid_vocabulary_10000",
      f"10,000 words, noise of 1,250 users, less no privacy: {_less('private')}",
      "an LSTM of 191,811 weights, {results.flags.num_rounds} rounds",
    ),
    Claim(
      "Section 3: training with an epsilon that says something",
      "a cohort that was not run",
      "dp_fedavg/real_epsilon",
      "less no privacy, ε = 1, 4: "
      + "; ".join(_less(f"private, target epsilon {e}") for e in (1, 4)),
      "DP-FedSGD from a public start, 10,000 users who are pieces of 20 tokens",
    ),
    Claim(
      "the same with the published LSTM",
      "",
      "dp_fedavg/published_lstm",
      f"less no privacy, ε = 4: {_less('private')}",
      "DP-FedSGD from a public start, {results.flags.num_rounds} rounds of 5,000 of 100,000 users "
      "who are pieces of 20 tokens",
    ),
  ),
  "1807.04369": (
    Claim(
      "Figure 1: the variance of 20 instances stays; that of single ones grows",
      "a picture; 10 s² and 2,000 s² by Theorem 3.1",
      "draw_and_discard/figure1",
      "after 2,000 updates: "
      f"{{{_VARIANCE} > 20 instances, spread at the start > after 2000 updates}} and "
      f"{{{_VARIANCE} > k = 1: one instance of each server, over the servers > "
      "after 2000 updates}",
      "no sizes to compare",
    ),
    Claim(
      "Figure 2, first column: one instance is best, 20 cost little",
      "curves, not in our text",
      "draw_and_discard/figure2_k",
      "20 instances less one: {Results > k = 20 - k = 1 > test_accuracy}",
      "whole",
    ),
    Claim(
      "Figure 2, second column: k instances behave like batches of B = k²",
      "curves of k and B overlap",
      "draw_and_discard/figure2_best",
      "at the end, each at the rate that is best on held-out images, k = 20 less B = 20: "
      "{Results > k = 20, η = 0.1 - B = 20, η = 0.3 > test_accuracy}; less B = 100: "
      "{Results > k = 20, η = 0.1 - B = 100, η = 1 > test_accuracy}; less B = 400: "
      "{Results > k = 20, η = 0.1 - B = 400, η = 1 > test_accuracy}",
      "whole",
    ),
    Claim(
      "Figure 2, third column: a large ε costs little",
      "no substantial harm above a value that is not in our text",
      "draw_and_discard/figure2_epsilon",
      "ε = 10 less none: {Results > k = 20, ε = 10 - k = 20 > test_accuracy}; ε = 1: "
      "{Results > k = 20, ε = 1 - k = 20 > test_accuracy}",
      "whole",
    ),
    Claim(
      "Section 6.1: gradients may be clipped to a tenth",
      "ten times less sensitivity",
      "draw_and_discard/clipping",
      "clipped to .1, ε = 1 less none: "
      + _less("k = 20, ε = 1", "k = 20", "test_accuracy")
      + " (clipped to 1: see ε = 1 above)",
      "whole",
    ),
    Claim(
      "Section 6.2: phishing URLs after 10⁹ updates",
      "an accuracy that is not in our text",
      "draw_and_discard/phishing",
      "{Results > k = 20, ε = 10 > test accuracy} at ε = 10, "
      "{Results > k = 20 > test accuracy} without noise",
      "10⁷ of 10⁹ updates, public URLs",
    ),
    Claim(
      "the same, by a law that holds from 10⁵ to 10⁷: a hundred times the updates, a hundredth of "
      "the step and a tenth of ε",
      "",
      "draw_and_discard/phishing_2400",
      "after 10⁷ updates at ε = 1: {Results > k = 20, ε = 1 > test accuracy}; after 10⁹, so "
      "extrapolated, as at ε = 10 above",
      "10⁷ of 10⁹ updates, public URLs",
    ),
  ),
  "client dropout": (
    Claim(
      "Table 2: ε at 10 % and 30 % dropout, without calibration",
      "not in our text; 1.060 and 1.217 by its formulas",
      "client_dropout/published",
      "{Results > no calibration (10 % lost) > by PLD}, "
      "{Results > no calibration (30 % lost) > by PLD}; calibrated: "
      "{Results > calibration inside (30 % lost) > by PLD}",
      "whole",
    ),
    Claim(
      "Section 4: protection gained at 10 % and 30 % dropout",
      "15 % and 50 %",
      "client_dropout/published",
      "ε larger by {The publication's comparison > dropout=10 % > ε without is larger by} and "
      "{The publication's comparison > dropout=30 % > ε without is larger by}; more rounds: "
      "{The publication's comparison > dropout=10 % > more rounds} and "
      "{The publication's comparison > dropout=30 % > more rounds}",
      "whole",
    ),
    Claim(
      "Figure 6: calibration costs no significant accuracy",
      "curves, not in our text",
      "client_dropout/published",
      "at 30 % lost, calibrated less not: "
      + _less("calibration inside (30 % lost)", "no calibration (30 % lost)", "test_accuracy"),
      "the published z and {results.flags.num_rounds} rounds, 1,000 users",
    ),
    Claim(
      "the same, at less noise",
      "",
      "client_dropout/mnist",
      "at 30 % lost, calibrated less not: "
      + _less("calibration inside (30 % lost)", "no calibration (30 % lost)", "test_accuracy"),
      "{results.flags.num_rounds} rounds, 6,000 users",
    ),
  ),
}
