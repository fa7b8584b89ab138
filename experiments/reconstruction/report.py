"""The parts of the reconstruction experiment's report: tables, plots and pictures."""

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import scipy
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from experiments.reconstruction import images
from experiments.reconstruction.cnn import Pictures
from experiments.reconstruction.options import ReconstructionOptions
from experiments.reconstruction.spheres import CONFIDENCE
from experiments.runner.files import Row
from experiments.runner.reports import plots, style
from experiments.runner.reports.parts import Part
from experiments.runner.reports.tables import by_column, percent, table
from jdp.accounting.local import reconstruction
from jdp.guarantees import rounded_down, rounded_up

_SHOWN = 8  # Users in a picture.
_BASIS = "dct"  # of the table and the plot of all views


def bound_parts(
  dims: Sequence[int], alphas: Sequence[float], epsilons: Sequence[float], probability: float
) -> Iterator[Part]:
  """For uniform priors: the epsilons that a protection allows, and the protection by epsilon."""
  rows = []
  for dim in dims:
    for alpha in alphas:
      guess = reconstruction.log_guess(dim, alpha)
      allowed = "none"
      if guess <= math.log(probability):
        allowed = rounded_down(reconstruction.largest_epsilon(guess, probability))
      rows.append([str(dim), f"{alpha:g}", _scientific(guess), allowed])
  header = ["k", "alpha", "chance of a guess", f"largest epsilon for {probability}"]
  yield Part("Uniform priors: the epsilon that a protection allows", table(header, rows))

  grid = np.geomspace(0.1, 10 * max(epsilons), 60)
  made, axes = plots.figure(
    "ε of one release", "alpha", f"Closest reconstruction with a chance of {probability}"
  )
  axes.set(xscale="log")
  looks = style.series([f"k = {dim}" for dim in dims])
  for dim, (label, look) in zip(dims, looks.items(), strict=True):
    alphas_found = [reconstruction.closest_alpha(dim, float(e), probability) for e in grid]
    axes.plot(grid, alphas_found, label=label, markevery=6, **look)
  closest = [
    [
      rounded_up(e),
      *(rounded_down(reconstruction.closest_alpha(dim, e, probability), 4) for dim in dims),
    ]
    for e in epsilons
  ]
  text = (
    f"No attack comes closer with a chance above {probability}; unrelated directions are 1.414 "
    "apart.\n\n"
  )
  header = ["epsilon", *(f"k = {dim}" for dim in dims)]
  yield Part(
    "Uniform priors: the protection that an epsilon gives",
    text + table(header, closest),
    {"protection": made},
  )


def sphere_parts(results: Sequence[Sequence[Row]], trials: int) -> Iterator[Part]:
  """Measured successes beside the bounds, for priors that the bounds hold for."""
  rows = [row for case in results for row in case]
  above = [row for row in rows if row["lower"] > row["bound"]]
  above_sharp = [row for row in rows if row["lower"] > row["sharp"]]
  text = (
    f"{len(rows)} points of {trials:,} trials; lower limits of {100 * CONFIDENCE:g} % "
    f"(Clopper-Pearson) above min(1, rho_0 e^epsilon P + delta): {len(above)}; above the sharper "
    f"bound (posterior odds; for the Gaussian, its trade-off curve): {len(above_sharp)}. Guesses "
    "are closed forms: the estimate; under a prior on a cap, the better of two in it. d above k: "
    "the target is a projection of what is released.\n\n"
  )
  header = ["mechanism", "epsilon", "k", "d", "rho_0", "alpha", "measured"]
  header += ["lower limit", "bound", "sharper"]
  cells = [
    [
      *(row["mechanism"], rounded_up(row["epsilon"]), str(row["dim"]), str(row["ambient"])),
      *(f"{row['density_ratio']:g}", f"{row['alpha']:g}"),
      f"{row['successes'] / row['trials']:.5f}",
      *_limit_cells(row).values(),
    ]
    for row in rows
  ]
  made, axes = plots.figure(
    "the sharper bound", "measured chance of success", "Directions under priors of the bound"
  )
  axes.set(xscale="log", yscale="log")
  for name, look in style.distinct([row["mechanism"] for row in rows]).items():
    own = [row for row in rows if row["mechanism"] == name and row["successes"]]
    chances = [row["successes"] / row["trials"] for row in own]
    look |= {"linestyle": "none", "markersize": 3}
    axes.plot([row["sharp"] for row in own], chances, label=name, **look)
  axes.plot([1e-6, 1], [1e-6, 1], label="bound", **style.REFERENCE)
  yield Part("Directions: attacks beside the bound", text + table(header, cells), {"spheres": made})


def image_parts(
  results: Sequence[Row], refused: Sequence[str], own: images.Scene, options: ReconstructionOptions
) -> Iterator[Part]:
  """Successes on real images, without a bound; and identification in a list, with its bound."""
  alphas, users = options.alphas, len(own.inputs)
  guessed = images.guesses(own, _BASIS, alphas)
  text = (
    "From an exact gradient the closed form has a relative error of at most "
    f"{rounded_up(images.exact_error(own), 2)}. Success: the {options.frequencies} lowest "
    "frequencies, less the public mean's and normalised, within alpha; 95 % Clopper-Pearson "
    "intervals. Images of a data set resemble each other: their prior is far from any that the "
    "bound on directions allows, so no bound stands here. The attack names a posterior mean: where "
    "there is little to be seen, a guess made for success alone may do better. Without a release, "
    "the best public image: "
    + ", ".join(
      f"{_share_with_interval(n, users)} at alpha = {a:g}"
      for n, a in zip(guessed, alphas, strict=True)
    )
    + ".\n\n"
    + "".join(f"Not offered: {reason}\n\n" for reason in refused)
  )
  found = (f"alpha = {a:g}" for a in alphas)
  header = ["mechanism", "epsilon", "seen", "prior", *found, "cosine of images"]
  cells = [
    [
      *(result["mechanism"], _epsilon(result), row["view"], row["prior"]),
      *(_share_with_interval(n, row["trials"]) for n in row["successes"][_BASIS]),
      f"{row['cosine']:.4f}",
    ]
    for result in results
    for row in result["views"]
  ]
  figures = {"images": _curves(results, alphas[0])}
  yield Part("Images: reconstruction of the low frequencies", text + table(header, cells), figures)
  yield _bases_part(results, own, options)
  yield _identified_part(results, users)


def _bases_part(results: Sequence[Row], own: images.Scene, options: ReconstructionOptions) -> Part:
  """The same reconstructions, judged by low frequencies and by coarse wavelets."""
  header = ["mechanism", "epsilon"]
  header += [f"{name}, alpha = {alpha:g}" for alpha in options.alphas for name in images.BASES]
  users = len(own.inputs)

  def line(name: str, epsilon: str, trials: int, successes: Mapping[str, Sequence[int]]):
    found = (
      _share_with_interval(successes[basis][number], trials)
      for number in range(len(options.alphas))
      for basis in images.BASES
    )
    return [name, epsilon, *found]

  guessed = {basis: images.guesses(own, basis, options.alphas) for basis in images.BASES}
  lines = [line("no release", "", users, guessed)]
  for result in results:
    (row,) = (
      row
      for row in result["views"]
      if (row["view"], row["prior"]) == (images.ONE_RELEASE, "public")
    )
    lines.append(line(result["mechanism"], _epsilon(result), row["trials"], row["successes"]))
  text = (
    f"One release, with public images for a prior. The target is the {options.frequencies} lowest "
    "frequencies of the cosine transform (dct), or as many of the coarsest Haar wavelets: the "
    "means of blocks, where the number of blocks is that. The reconstructions are the same.\n\n"
  )
  return Part("Images: frequencies and wavelets", text + table(header, lines))


def image_pictures(own: images.Scene, gallery: Mapping[str, np.ndarray]) -> Part:
  """The users' images, and the reconstructions from one release."""
  rows = {"image": own.inputs} | dict(gallery)
  shown = {label: values[:_SHOWN].reshape(-1, *own.shape) for label, values in rows.items()}
  text = (
    "What the server reads out of one release of each user's gradient, with public images for a "
    "prior."
  )
  return Part("Images: pictures", text, {"pictures": _grid(shown)})


def cnn_part(made: Pictures) -> Part:
  """Pictures from a network's gradients."""
  rows = [
    [
      *(view.label.replace("\n", " "), f"{view.cosines.mean():.4f}", f"{view.cosines.min():.4f}"),
      f"{view.labels_found.sum()} of {view.labels_found.size}",
    ]
    for view in made.views
  ]
  text = (
    f"Directions of gradients of {made.size:,} numbers, released by PrivUnit: one release of each "
    "user unless it says more. Adam on the cosine between gradients; with public images' principal "
    "components for a prior, from those public images whose gradients are nearest; without a "
    "prior, from grey. The cosine is that of whole images, which all resemble their mean.\n\n"
  )
  shown = {"image": made.images} | {view.label: view.found for view in made.views}
  header = ["epsilon", "mean cosine", "least", "labels found"]
  return Part("A convolutional network", text + table(header, rows), {"cnn": _grid(shown)})


def _identified_part(results: Sequence[Row], users: int) -> Part:
  rows = [
    {
      "mechanism": result["mechanism"],
      "epsilon": _epsilon(result),
      "identified": f"{found['successes'] / found['trials']:.4f}",
      **_limit_cells(found),
    }
    for result in results
    if (found := result["identified"])
  ]
  text = (
    f"The attacker knows all {users} images and asks which one a release was made of: a uniform "
    f"prior, p = 1/{users}. The bound min(1, e^epsilon p + delta) holds here. Lower limits: "
    f"{100 * CONFIDENCE:g} %, Clopper-Pearson.\n\n"
  )
  return Part("Images: one of a known list", text + by_column(rows))


def _curves(results: Sequence[Row], alpha: float) -> Figure:
  """Successes at the first of the alphas, with intervals."""
  made, axes = plots.figure(
    "ε of one release",
    f"alpha-good reconstructions (alpha = {alpha:g})",
    "One release, with public images for a prior",
  )
  style.percent(axes.yaxis)
  private = [result for result in results if result["epsilon"] is not None]
  style.marked_values(axes, {r["epsilon"]: rounded_up(r["epsilon"]) for r in private})
  for name, look in style.distinct([result["mechanism"] for result in private]).items():
    own = [(r["epsilon"], r["views"][1]) for r in private if r["mechanism"] == name]
    shares = [(row["successes"][_BASIS][0], row["trials"]) for _, row in own]
    limits = [scipy.stats.binomtest(*share).proportion_ci(0.95, "exact") for share in shares]
    means = [successes / trials for successes, trials in shares]
    errors = np.abs([[m - i.low, i.high - m] for m, i in zip(means, limits, strict=True)]).T
    axes.errorbar([e for e, _ in own], means, yerr=errors, label=name, capsize=3, **look)
  return made


def _grid(rows: Mapping[str, np.ndarray]) -> Figure:
  """Pictures in rows: images [users, height, width] by label."""
  columns = len(next(iter(rows.values())))
  size = (0.7 * (columns + 1.5), 0.7 * len(rows))
  made, axes = plt.subplots(len(rows), columns, figsize=size, squeeze=False)
  for line, (label, values) in zip(axes, rows.items(), strict=True):
    for axis, image in zip(line, values, strict=True):
      axis.imshow(image, cmap="gray_r", vmin=0, vmax=1)
      axis.set(xticks=[], yticks=[])
      axis.spines[:].set_visible(True)
    line[0].set_ylabel(label, rotation=0, ha="right", va="center")
  return made


def _epsilon(result: Row) -> str:
  """The epsilon of a release as a cell: infinite if it is exact."""
  return "∞" if result["epsilon"] is None else rounded_up(result["epsilon"])


def _limit_cells(row: Row) -> dict[str, str]:
  """An attack's lower limit and both bounds, as cells by column."""
  return {
    "lower limit": rounded_down(row["lower"], 4),
    "bound": rounded_up(row["bound"], 4),
    "sharper": rounded_up(row["sharp"], 4),
  }


def _share_with_interval(successes: int, trials: int) -> str:
  interval = scipy.stats.binomtest(successes, trials).proportion_ci(0.95, "exact")
  low, high = (f"{100 * limit:.1f}" for limit in (interval.low, interval.high))
  return f"{percent(successes / trials)} [{low}, {high}]"


def _scientific(log_p: float) -> str:
  """e^log_p, in powers of ten, rounded up."""
  exponent = math.floor(log_p / math.log(10))
  if log_p > -10:
    return rounded_up(math.exp(log_p))
  return f"{rounded_up(math.exp(log_p - exponent * math.log(10)), 5)}e{exponent}"
