"""Distributed noise under client dropout: what calibration is worth (after the IEEE Access 2021
paper).

Clients add the noise themselves, some of them vanish, and their shares with them. Trains by
federated averaging with each scheme of noise and each rate of dropout, and reports the epsilon that
was realised, against the server and against whoever sees the models, beside the test accuracy; then
what each scheme costs at the publication's setting, for every rate of dropout, beside the
publication's claims.
"""

import dataclasses

import jax

from experiments.client_dropout.report import report_dropout
from experiments.client_dropout.settings import DropoutOptions, make_noise_plan, make_settings
from experiments.runner.launch import Experiment, Work, launch
from experiments.runner.problems.images import ClassificationOptions, image_problem
from experiments.runner.runs.sweep import Sweep, run_sweep
from experiments.runner.runs.training import TrainingOptions
from experiments.runner.runs.workdir import Workdir
from jdp import data
from jdp.federated import client_mesh, replicate


@dataclasses.dataclass(frozen=True)
class ClientDropoutOptions(TrainingOptions, DropoutOptions, ClassificationOptions):
  """The options of this experiment."""


def prepare(options: ClientDropoutOptions) -> Work:
  """Reads the data and makes the queries; returns the work."""
  mesh = client_mesh() if jax.device_count() > 1 else None
  task = image_problem(options, arrange=data.group)
  plan = make_noise_plan(options, task)
  settings = make_settings(options, task, plan, mesh)
  clients = replicate(task.clients, mesh)
  sweep = Sweep(settings, task.init, task.evaluate, clients, plan.num_clients, options.delta, mesh)

  def work(workdir: Workdir):
    results = run_sweep(sweep, workdir, options)
    report_dropout(workdir, options, task, plan, results)

  return work


EXPERIMENT = Experiment("client_dropout", ClientDropoutOptions, prepare)

if __name__ == "__main__":
  launch(EXPERIMENT)
