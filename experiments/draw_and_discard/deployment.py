"""A deployment of Draw and Discard (arXiv 1807.04369, Sections 3.4.4 and 6.2).

Clients hold models while others update and return them at random. A share of them attacks, and the
server tests what it gets for spam or takes everything.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.draw_and_discard.options import ATTACKS, DrawAndDiscardOptions
from experiments.draw_and_discard.privacy import FinishedStream, privacy_parts
from experiments.draw_and_discard.stream import StreamTask, started
from experiments.runner.options import needed
from experiments.runner.reports import plots, style
from experiments.runner.reports.parts import Part, write_sweep_report
from experiments.runner.reports.statistics import Interval
from experiments.runner.reports.summary import Row, curves, summarise, write_results
from experiments.runner.reports.tables import percent, table
from experiments.runner.runs.sweep import Setting
from jdp.attacks import spam
from jdp.data import Examples
from jdp.federated import FederatedAlgorithm
from jdp.federated.draw_and_discard import ClientUpdate, draw_and_discard
from jdp.federated.draw_and_discard.update_stream import descend
from jdp.queries.base import PyTree

_TARGETS = 10  # The first weights, which drifting attackers move.


class Member(NamedTuple):
  """A user.

  Attributes:
    examples: the user's.
    attacks: whether the user attacks, bool.
  """

  examples: Examples
  attacks: jax.Array


class Served(NamedTuple):
  """What the server holds.

  Attributes:
    instances: a pytree of [k, ...].
    rejected: int32 scalar. Returned models that failed the test for spam.
  """

  instances: PyTree
  rejected: jax.Array


def with_attackers(update: ClientUpdate, attack: spam.Attack | None) -> ClientUpdate:
  """The update of `Member`s: attackers send what the attack makes of their honest update.

  Its learning rate has to be constant.
  """

  def clipped(settings, params, member):
    return update.clipped(settings, params, member.examples)

  def release(settings, noise, params, member):
    honest = update.release(settings, noise, params, member.examples)
    if attack is None:
      return honest
    rate = update.rate(settings, jnp.int32(0))
    # The attack's key comes from bits of the update's own noise.
    bits = jax.lax.bitcast_convert_type(jax.tree.leaves(noise.shifts)[0].ravel()[0], jnp.uint32)
    view = spam.View(params, descend(params, honest, rate), params)
    sent = attack(jax.random.fold_in(jax.random.key(0), bits), view)
    return jax.tree.map(
      lambda p, x, g: jnp.where(member.attacks, (p - x) / rate, g), params, sent, honest
    )

  return update._replace(clipped=clipped, release=release)


def _make_attacks(shape: tuple[int, ...], update: ClientUpdate) -> dict[str, spam.Attack]:
  """Attacks by name. s is the standard deviation of one update's noise."""
  s = float(np.sqrt(update.noise_variance))
  shift = np.zeros(np.prod(shape), np.float32)
  shift[:_TARGETS] = s
  return {
    "random": spam.random_model(10 * s),
    "scaled": spam.scaled_update(30.0),
    "drift": spam.drift(jnp.asarray(shift.reshape(shape))),
    "sign_flip": spam.sign_flip(),
  }


def served(algorithm: FederatedAlgorithm) -> FederatedAlgorithm:
  """The algorithm whose parameters are `Served`."""

  def init(start):
    state = algorithm.init(start)
    return state._replace(params=Served(state.params, state.optimizer.rejected))

  def round_fn(noise_key, data_key, state, clients):
    new, events, diagnostics = algorithm.round(noise_key, data_key, state, clients)
    return new._replace(params=Served(new.params, new.optimizer.rejected)), events, diagnostics

  return algorithm._replace(init=init, round=round_fn)


def stream_settings(
  options: DrawAndDiscardOptions,
  task: StreamTask,
  update: ClientUpdate,
  evaluate: Callable[[PyTree], dict[str, jax.Array]],
) -> tuple[list[Setting], dict[str, Member], Callable[[Served], dict[str, jax.Array]]]:
  """The runs, the users without and with attackers, and the evaluation of `Served`."""
  shape = jax.eval_shape(task.model.init, jax.random.key(0)).shape
  made = _make_attacks(shape, update)
  num_users = task.schedule.num_users
  numbers = np.random.default_rng(options.data_seed).permutation(num_users)
  attacks = numbers < round(needed(options.attackers) * num_users)
  clients = {
    "honest": Member(task.clients, jnp.zeros(num_users, bool)),
    "attacked": Member(task.clients, jnp.asarray(attacks)),
  }

  def setting(attack, checked):
    algorithm = draw_and_discard(
      with_attackers(update, made.get(attack)),
      options.noisy_instances,
      task.schedule,
      in_flight=needed(options.in_flight),
      random_returns=needed(options.random_returns),
      accept=spam.interval_test(needed(options.spam_threshold)) if checked else None,
      block_size=options.chunk_size,
    )
    algorithm = served(started(algorithm, options.noisy_instances, update.noise_variance))
    label = f"{ATTACKS.get(attack, 'no attackers')}, {'test' if checked else 'no test'}"
    name = f"{attack or 'honest'}_{'test' if checked else 'all'}"
    part = "attacked" if attack else "honest"
    return Setting(name, label, algorithm, private=False, part=part)

  stddev = float(np.sqrt(update.noise_variance))

  def measure(state):
    targets = jnp.mean(state.instances, axis=0).ravel()[:_TARGETS]
    return {
      **evaluate(state.instances),
      "rejected": state.rejected.astype(jnp.float32),
      "target_weights": jnp.mean(targets) / stddev,
    }

  rows = [setting(a, c) for a in (None, *needed(options.attacks)) for c in (False, True)]
  return rows, clients, measure


def report_stream(sweep: FinishedStream) -> None:
  """Writes results.json, the plots and report.md, and prints the results."""
  rows = summarise(sweep.results)
  write_results(sweep, rows)
  title = "Draw and Discard (arXiv 1807.04369): a deployment"
  parts = _parts(sweep, rows)
  write_sweep_report(sweep.workdir, "draw_and_discard", title, sweep.options, parts)


def _parts(sweep: FinishedStream, rows: Sequence[Row]) -> Iterator[Part]:
  options, task = sweep.options, sweep.problem
  returned = task.schedule.num_updates - needed(options.in_flight)
  lines = (
    [
      row["label"],
      percent(row["test_accuracy"]),
      percent(_share(row["rejected"], returned), 2),
      _signed(row["target_weights"]),
    ]
    for row in rows
  )
  header = ["attackers send, server", "test accuracy", "rejected", "ten target weights, in s"]
  share = percent(needed(options.attackers))
  text = f"""{table(header, lines)}

{task.schedule.num_updates} updates; {options.in_flight} clients hold a model at a time, and return
it {"at random" if options.random_returns else "in the order of their draws"}. Of
{task.schedule.num_users} users a share of {share} attacks. The test rejects
models with a weight farther than {options.spam_threshold:g} standard deviations of the instances
from their mean. s is the standard deviation of one update's noise; the target weights are the first
ten of the average model. Means over repetitions, with 95 % intervals."""
  by_label = curves(sweep)
  figures = {}
  for metric, ylabel in (
    ("test_accuracy", "accuracy on the test examples"),
    ("target_weights", "ten target weights, in s"),
  ):
    figure, axes = plots.figure("rounds", ylabel, f"A stream with attackers, {options.dataset}")
    plots.curves(axes, by_label, metric)
    if metric == "test_accuracy":
      style.percent(axes.yaxis)
    figures[f"stream_{metric}"] = figure
  yield Part("Attackers", text, figures)
  private = [row for row in rows if row["release"]]
  yield from privacy_parts(sweep, private)


def _share(count: Interval, of: int) -> Interval:
  half_width = None if count.half_width is None else count.half_width / of
  return Interval(count.mean / of, half_width)


def _signed(interval: Interval) -> str:
  error = "" if interval.half_width is None else f" ± {interval.half_width:.1f}"
  return f"{interval.mean:+.1f}{error}"
