"""Reconstruction from private releases, beside the bound on all attacks (arXiv 1812.00984, 2).

There are four tasks:

* `--task=bound` tabulates the protection that an epsilon gives, and the epsilon that a protection
  allows.
* `--task=spheres` measures attacks on directions under priors that the bound allows.
* `--task=images` attacks gradients of multinomial regression on real images. The bound does not
  allow their prior. It does allow the prior of an attacker who knows the image to be one of a list.
* `--task=cnn` attacks a convolutional network's gradients by optimisation.
"""

import math
from collections.abc import Iterator

import numpy as np

from experiments.reconstruction import images, report
from experiments.reconstruction.cnn import pictures
from experiments.reconstruction.options import ReconstructionOptions
from experiments.reconstruction.spheres import Case, measure
from experiments.runner import files
from experiments.runner.files import Row
from experiments.runner.launch import Experiment, Work, launch
from experiments.runner.reports.parts import Part, write_report
from experiments.runner.runs.kept_rows import kept_rows
from experiments.runner.runs.workdir import Workdir
from jdp import data
from jdp.guarantees import rounded_up

_SPHERES, _IMAGES = "spheres.jsonl", "images.jsonl"
_NOISELESS = 1e-9  # The noise variance that the attack assumes for an exact direction.


def prepare(options: ReconstructionOptions) -> Work:
  """Reads the data, checks the grid and returns the work."""
  for ratio in options.density_ratios:
    if not (ratio == 1 or ratio >= 2):
      raise ValueError(
        f"Expected --density_ratios of 1 or at least 2, got {ratio}: caps of half the sphere or "
        "less."
      )
  if not options.cohort <= options.users:
    raise ValueError(
      f"Expected --cohort of at most {options.users}, the users, got {options.cohort}."
    )
  dataset, own = None, None
  if {"images", "cnn"} & set(options.task):
    dataset = data.load(options.dataset, options.data_dir)
  if dataset and "images" in options.task:
    own = images.scene(
      dataset, options.users, options.components, options.frequencies, options.seed
    )
    found = images.mechanisms_of(options.mechanisms, options.epsilons, own)

  def parts(workdir: Workdir) -> Iterator[Part]:
    if "bound" in options.task:
      yield from report.bound_parts(
        options.dims, options.alphas, options.epsilons, options.probability
      )
    if "spheres" in options.task:
      yield from report.sphere_parts(list(_spheres(options, workdir)), options.trials)
    if own:
      offered, refused = found
      results = list(_attacked(options, own, offered, workdir))
      yield from report.image_parts(results, refused, own, options)
      yield report.image_pictures(own, _gallery(options, own, offered))
    if dataset and "cnn" in options.task:
      shown = (math.inf, *sorted(options.cnn_epsilons, reverse=True))
      made = pictures(
        dataset,
        shown,
        options.cnn_users,
        releases=options.releases,
        components=options.components,
        num_steps=options.cnn_steps,
        seed=options.seed,
      )
      yield report.cnn_part(made)

  def work(workdir: Workdir) -> None:
    title = "Reconstruction from private releases"
    write_report(workdir, "reconstruction", title, parts(workdir))
    measured = {name: files.read_rows(workdir.path / name) for name in (_SPHERES, _IMAGES)}
    files.write_json(workdir.path / "results.json", {"flags": vars(options), **measured})

  return work


def cases(options: ReconstructionOptions) -> list[Case]:
  """Every mechanism, epsilon and prior in each small dimension, and projections to it."""
  # Larger dimensions appear in the bound's tables alone.
  small = [dim for dim in options.dims if dim <= options.ambient]
  return [
    case
    for name in options.mechanisms
    for epsilon in options.epsilons
    for dim in small
    for case in (
      *(Case(name, epsilon, dim, dim, ratio) for ratio in options.density_ratios),
      *([Case(name, epsilon, dim, options.ambient)] if dim < options.ambient else []),
    )
  ]


def _spheres(options: ReconstructionOptions, workdir: Workdir) -> Iterator[list[Row]]:
  def rows(case: Case) -> list[Row]:
    return measure(case, options.alphas, options.trials, options.seed)

  return kept_rows(cases(options), rows, workdir.path / _SPHERES)


def _attacked(
  options: ReconstructionOptions, own: images.Scene, offered: images.Offered, workdir: Workdir
) -> Iterator[Row]:
  todo = [("no privacy", math.inf), *offered]

  def attacked(case: tuple[str, float]) -> Row:
    name, epsilon = case
    if math.isinf(epsilon):
      released, variance, found = own.directions[None], _NOISELESS, None
    else:
      mechanism = offered[case]
      released = images.releases(own, mechanism, options.releases, options.seed)
      variance = images.noise_variance(mechanism)
      found = images.identified(own, mechanism, released)
    return {
      "mechanism": name,
      "epsilon": None if math.isinf(epsilon) else epsilon,
      "identified": found,
      "views": [
        {"view": view.name, "prior": prior}
        | images.rates(own, images.reconstruct(own, view, prior), options.alphas)
        for view in images.views(own, released, variance, options.cohort)
        for prior in images.PRIORS
      ],
    }

  return kept_rows(todo, attacked, workdir.path / _IMAGES)


def _gallery(
  options: ReconstructionOptions, own: images.Scene, offered: images.Offered
) -> dict[str, np.ndarray]:
  """Reconstructions of a few users' images, by the row's label.

  They are for the first mechanism and an attacker whose prior is public images.
  """
  first, shown = next(iter(offered))[0], {}
  for name, epsilon in sorted(offered, key=lambda case: -case[1]):
    if name == first:
      mechanism = offered[name, epsilon]
      released = images.releases(own, mechanism, 1, options.seed)
      (view,) = images.views(own, released, images.noise_variance(mechanism), 1)
      shown[f"{name}, {rounded_up(epsilon)}"] = images.reconstruct(own, view, "public")
  return shown


EXPERIMENT = Experiment("reconstruction", ReconstructionOptions, prepare)

if __name__ == "__main__":
  launch(EXPERIMENT)
