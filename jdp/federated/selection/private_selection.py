"""Private selection of a setting: many runs are made, and only the best one is released.

The number of runs is random and secret, and so is what every other run found (arXiv 2110.03620).
The whole costs little more than one run, however many settings there are.
"""

import contextlib
import dataclasses
import math
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jdp import _validate, random
from jdp._arguments import checked
from jdp.accounting import best_of_runs, privacy_statements
from jdp.events import Round
from jdp.federated.early_stopping import events_of_next_rounds
from jdp.federated.engine.rounds import FederatedAlgorithm
from jdp.federated.evaluation import Metric, NoisedAverages, noised_averages
from jdp.federated.runs.cohort_reading import shapes_of
from jdp.federated.runs.digest import whole
from jdp.federated.runs.opened_records import Workdir, open_records
from jdp.federated.runs.run_folder import RunFolder, run_folder
from jdp.federated.runs.run_records import Beginning, entries_of, on_host
from jdp.federated.runs.training import train
from jdp.federated.selection.numbers_of_runs import number_of_runs, survival
from jdp.ledger import Ledger

PyTree = Any


class SelectedRun(NamedTuple):
  """What a sweep releases.

  Attributes:
    setting: the name of the best run's setting. None: there was no run, which is possible only for
      a Poisson number.
    params: the best run's last parameters; without any run, the first parameters.
    ledger: what they cost, with what was released before: one event of `jdp.events.BestOfRuns`.
  """

  setting: str | None
  params: PyTree
  ledger: Ledger

  def statement(self, delta: float, *, accountant: str = "tightest") -> str:
    """What the ledger guarantees, a sentence for each observer."""
    return "\n".join(map(str, privacy_statements(self.ledger, delta, accountant=accountant)))


@checked
def private_sweep(
  settings: Mapping[str, FederatedAlgorithm],
  params: PyTree,
  clients: PyTree,
  score: Metric,
  *,
  score_noise: float,
  mean_runs: float,
  shape: float = 1.0,
  validation: PyTree | None = None,
  noise_key: jax.Array | None = None,
  data_key: jax.Array | None = None,
  prior: Ledger = Ledger(),
  workdir: Workdir | None = None,
) -> SelectedRun:
  """Trains a random number of times with settings drawn from a grid, and releases the best run.

  Each run draws one of the settings, uniformly. It trains from `params`, and is scored by the
  noised mean of `score` over the validation users. The run with the largest score is the best.

  Formal guarantee, from the ledger: that of the best of a random number of runs, each of which
  releases its models of all rounds and its score. It holds per unit (users, or examples), under the
  relation that the settings' rounds declare, to whoever sees the `SelectedRun` or the public files:
  its setting, its model, and nothing else of it. Neighbouring data sets differ in one user among
  the clients, who are the validation users too. With a `validation` of its own they differ in one
  user among either: no user is in both, and the dearer of both costs counts. Settings that differ
  in cost count as the dearest. The epsilon is the same whatever was drawn, and is known before:
  `jdp.accounting.best_of_runs` makes the same event from planned ledgers.

  The number of runs, their settings, their order, other scores and other models are secret, as a
  key is. This function does not print, log, count or write them, but for the secret folder. But
  whoever watches the process sees more than the guarantee covers: how long it takes, how much it
  computes and compiles, how large the secret folder grows, and whether a run fails. The times of
  public files tell how long it took. Keep these to yourself. Do not choose to repeat a sweep, or to
  end it, by what it took.

  A setting is compiled once, for all runs that drew it. The score is compiled once.

  Args:
    settings: name -> algorithm that plans its number of rounds. Their events must not depend on
      data: no adaptive clip norms. All have the same relation and unit.
    params: what every run begins with. They depend on the users only through `prior`.
    clients: the data of the users who train.
    score: (parameters, a user's examples) -> name -> one scalar in [0, 1], the larger the better.
    score_noise: noise multiplier of the score, >= 0. The mean over n users has the standard
      deviation score_noise / n, or twice that under replace-one.
    mean_runs: how many runs there are on average, in [1, 1000].
    shape: the shape of the distribution of that number, in [0, 1000], or infinity for Poisson. 0 is
      cheapest, and most often gives a single run.
    validation: other users, who do not train. None: the clients.
    noise_key: key of everything that must be secret, for this sweep alone. None: one from the
      operating system. With a seeded one the ledger has a caveat.
    data_key: key of local training. None: as for `noise_key`.
    prior: what was released about the same users before.
    workdir: a folder for `ledger.jsonl`, which has the event before the first run, and at the end
      `metrics.jsonl` with the setting, and `params.npz`. Its secret sibling holds all runs: a sweep
      that is killed and begun again with the same arguments goes on, with the same number of runs.
      A finished sweep returns what it released. Remove the secret folder when the sweep is over.
      None: nothing is kept.

  Raises:
    ValueError: if a number is out of range, there is no setting, one plans no rounds, or
      `validation` is the clients. Also if rounds have several relations or units, or events that
      depend on data, or there are local releases; if the score is not one number; or the workdir is
      of another sweep.
    ImportError: see `train`.

  >>> from jdp import accounting, data, models, random
  >>> from jdp.federated import dp_fedavg, gradient_step
  >>> users = data.clients_from_pairs([([[float(n % 2)]] * 4, [n % 2] * 4) for n in range(200)])
  >>> model = models.logistic_regression((1,), 2)
  >>> plan = {"cohort_size": 50, "clip_norm": 1.0, "num_rounds": 4, "noise_multiplier": 2.0}
  >>> settings = {
  ...   f"rate {rate}": dp_fedavg(
  ...     models.cross_entropy(model),
  ...     users,
  ...     local_update=lambda loss, rate=rate: gradient_step(loss, rate),
  ...     **plan,
  ...   )
  ...   for rate in (0.001, 3.0)
  ... }
  >>> def accuracy(params, user):
  ...   return {"accuracy": models.accuracy(model, params, user)}
  >>> found = private_sweep(
  ...   settings,
  ...   model.init(jax.random.key(0)),
  ...   users,
  ...   accuracy,
  ...   score_noise=10.0,
  ...   mean_runs=3.0,
  ... )
  >>> found.setting in settings, len(found.ledger)
  (True, 1)
  >>> round(accounting.epsilon(found.ledger, 1e-3), 1)
  1.2
  """
  sweep = plan_sweep(
    settings,
    params,
    clients,
    score,
    score_noise=score_noise,
    mean_runs=mean_runs,
    shape=shape,
    validation=validation,
  )
  words = (
    f"the best of {mean_runs!r} runs in the mean, shape {shape!r}, score noise {score_noise!r}, of "
    f"the settings {', '.join(settings)}"
  )
  folder = None if workdir is None else run_folder(workdir)
  beginning = Beginning(noise_key, data_key, prior, (clients, sweep.judges), whole(params), words)
  records, keys = open_records(folder, beginning)
  with contextlib.closing(records):
    done, params = records.restore(jax.tree.map(jnp.asarray, params))
    params = jax.tree.map(jnp.asarray, params)
    if done:  # The first choice stays; the ledger would not hold a second one.
      records.check_release(done, params)
      records.finish(params)
      return SelectedRun(records.rows[-1]["setting"], params, records.ledger)
    records.append_events(0, [(dataclasses.replace(sweep.event, number=0),)])
    setting, params = best_run(sweep, keys, folder)
    records.check_release(1, params)
    records.append_row({"round": 1, "setting": setting})
    records.save(1, params)
    records.finish(params)
    return SelectedRun(setting, params, records.ledger)


class Sweep(NamedTuple):
  """A sweep that is planned: what all its runs share.

  Attributes:
    settings: name -> algorithm.
    planned: name -> the ledger of a run, without its score.
    params: what every run begins with.
    clients: the users who train.
    judges: the users whose data give the scores.
    averages: how the scores are released.
    event: what the sweep costs.
  """

  settings: Mapping[str, FederatedAlgorithm]
  planned: Mapping[str, Ledger]
  params: PyTree
  clients: PyTree
  judges: PyTree
  averages: NoisedAverages
  event: Round


def plan_sweep(
  settings: Mapping[str, FederatedAlgorithm],
  params: PyTree,
  clients: PyTree,
  score: Metric,
  *,
  score_noise: float,
  mean_runs: float,
  shape: float,
  validation: PyTree | None,
) -> Sweep:
  """The part of `private_sweep` before it looks at data, with the same arguments and errors."""
  _validate.non_negative(score_noise=score_noise)
  survival(mean_runs, shape)  # only for its errors
  _check_settings(settings)
  if validation is clients:
    raise ValueError("Expected validation of other users than clients, got the same; leave it out.")
  judges = clients if validation is None else validation
  planned = {name: _planned(one, params, clients) for name, one in settings.items()}
  first = _first_round(planned)
  averages = noised_averages(
    score,
    params,
    judges,
    noise_multiplier=score_noise,
    sampler=None,
    relation=first.relation,
    unit=first.unit,
  )
  if len(averages.names) != 1:
    raise ValueError(
      f"Expected a score that returns one number, got {', '.join(averages.names)}; return the one "
      "that runs are compared by."
    )
  scored = _planned(averages.algorithm._replace(num_rounds=1), params, judges)
  if validation is None:
    kinds = [one + scored for one in planned.values()]
  else:
    kinds = [*planned.values(), scored]
  event = best_of_runs(*kinds, mean_runs=mean_runs, shape=shape)
  return Sweep(settings, planned, params, clients, judges, averages, event)


def _check_settings(settings: Mapping[str, FederatedAlgorithm]) -> None:
  if not settings:
    raise ValueError("Expected settings of at least one name, got none; give an algorithm each.")
  for name, algorithm in settings.items():
    if algorithm.num_rounds is None:
      raise ValueError(
        f"Expected settings that plan their number of rounds, got None of {name}; make them by "
        "dp_fedavg or dp_sgd, or _replace their num_rounds."
      )


def _planned(algorithm: FederatedAlgorithm, params: PyTree, clients: PyTree) -> Ledger:
  """The ledger of a run, for data of these shapes. It does not look at data."""
  shapes = shapes_of(algorithm, params, clients)

  def step(noise_key, data_key, state, nobody):
    del nobody
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    return algorithm.round(noise_key, data_key, state, zeros)

  # Placeholder keys: the sweep's own keys mark its event.
  keys = random.secure_key(), random.secure_key()
  events = events_of_next_rounds(
    step, keys, algorithm.init(params), [()] * (algorithm.num_rounds or 0)
  )
  return Ledger().extend(entries_of(map(on_host, events)))


def _first_round(planned: Mapping[str, Ledger]) -> Round:
  """The round whose relation and unit are the sweep's."""
  for one in planned.values():
    for event, _ in one.entries:
      if isinstance(event, Round):
        return event
  raise ValueError(
    "Expected settings with rounds of central mechanisms, got none; nothing bounds the best of "
    "several local releases here (jdp.accounting.selection_epsilon does)."
  )


def best_run(
  sweep: Sweep, keys: tuple[jax.Array, jax.Array], folder: RunFolder | None = None
) -> tuple[str | None, PyTree]:
  """Draws the runs, makes them, and returns the setting and the parameters of the best.

  Args:
    sweep: as planned. What is returned may be released if its event is in the ledger.
    keys: the keys of all that is secret, and of local training.
    folder: the sweep's folder. None: nothing is kept.
  """
  count_key, setting_key, runs_key = jax.random.split(keys[0], 3)
  number: Any = sweep.event.query
  count = number_of_runs(count_key, number.mean_runs, number.shape)
  drawn = _uniform(setting_key, count, len(sweep.settings))
  names = list(sweep.settings)
  best: tuple[float, str | None, PyTree] = (-math.inf, None, sweep.params)
  # Runs of one setting one after another share its program.
  for run in np.argsort(drawn, kind="stable").tolist():
    name = names[drawn[run]]
    noise_key, score_key = jax.random.split(jax.random.fold_in(runs_key, run))
    data_key, judge_key = jax.random.split(jax.random.fold_in(keys[1], run))
    with warnings.catch_warnings():
      warnings.simplefilter("ignore")  # warnings would tell of runs that are not released
      done = train(
        sweep.settings[name],
        sweep.params,
        sweep.clients,
        noise_key=noise_key,
        data_key=data_key,
        workdir=_folder_of(run, folder),
      )
      (found,), _ = sweep.averages.release((score_key, judge_key), done.params, sweep.judges)
    if done.ledger.entries != sweep.planned[name].entries:
      raise ValueError(
        "Expected rounds whose events do not depend on data, got others of a setting; leave out "
        "what adapts to data, such as clip norms."
      )
    if found > best[0]:
      best = found, name, done.params
  return best[1:]


def _uniform(key: jax.Array, count: int, most: int) -> np.ndarray:
  """Numbers below `most`, int [count]. Each number depends on its place alone, not on the count."""
  keys = (jax.random.fold_in(key, place) for place in range(count))
  return np.array([int(jax.random.randint(one, (), 0, most)) for one in keys], int)


def _folder_of(run: int, folder: RunFolder | None) -> RunFolder | None:
  """Where a run keeps its files: all of them are secret."""
  if folder is None:
    return None
  path = folder.secret / "runs" / str(run)
  return run_folder(RunFolder(path, path.with_name(f"{run}.secret"), f"{folder.name}/{run}"))
