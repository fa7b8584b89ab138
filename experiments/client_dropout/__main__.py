"""Distributed noise under client dropout: measures what calibration is worth.

It follows the IEEE Access 2021 paper. Clients add the noise themselves. Some of them vanish, and
their shares of the noise with them. The experiment trains by federated averaging with each scheme
of noise and each rate of dropout. It reports the realised epsilon beside the test accuracy, both
against the server and against an observer of the models.

It then computes the cost of each scheme at the publication's setting, for every rate of dropout,
beside the publication's claims.
"""

from functools import partial

from experiments.client_dropout import correlated
from experiments.client_dropout.options import ClientDropoutOptions
from experiments.client_dropout.report import report_dropout
from experiments.client_dropout.settings import make_noise_plan, make_settings
from experiments.runner.launch import Experiment, Work, launch
from experiments.runner.problems.images import classification, grouped
from experiments.runner.runs.sweep import train_on


def prepare(options: ClientDropoutOptions) -> Work:
  """Reads the data, makes the queries and returns the work."""
  problem = classification(options, options.data_seed, arrange=grouped, precision=options.precision)
  if options.correlated_groups is not None:
    correlated.check(options, problem)
  plan = make_noise_plan(options, problem)
  settings, report = make_settings(options, problem, plan), partial(report_dropout, plan)
  return train_on(problem, settings, plan.num_clients, options.delta, options, report)


EXPERIMENT = Experiment("client_dropout", ClientDropoutOptions, prepare)

if __name__ == "__main__":
  launch(EXPERIMENT)
