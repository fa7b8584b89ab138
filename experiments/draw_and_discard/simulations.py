"""Two simulations of Draw and Discard (arXiv 1807.04369, Sections 3.3 and 3.4.4).

The first measures the variance of the instances, the second spam. They are about the process and
not about users' data: all randomness is seeded, and no run here is private.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from experiments.draw_and_discard.options import DrawAndDiscardOptions
from experiments.draw_and_discard.stream import StreamTask
from experiments.runner import files
from experiments.runner.files import Row
from experiments.runner.reports import plots, statements, style
from experiments.runner.reports.parts import Part, write_report
from experiments.runner.reports.statistics import mean_interval
from experiments.runner.reports.tables import percent, table
from experiments.runner.runs.workdir import Workdir
from jdp.accounting.draw_and_discard.lineage import instance_variance
from jdp.attacks import spam
from jdp.data import Examples
from jdp.federated import train
from jdp.federated.draw_and_discard import (
  ClientUpdate,
  arrivals,
  draw_and_discard,
  draw_and_discard_process,
  spread_instances,
)
from jdp.federated.draw_and_discard.client_updates import step
from jdp.guarantees import rounded_up
from jdp.queries.base import PyTree

_FALSE_REJECTIONS = 1e-3
# In the simulation of the variance: independent servers, and weights of a model.
_SERVERS, _WEIGHTS = 400, 20
_HONEST, _ATTACKS, _SNAPSHOTS = 4000, 1000, 5  # Submissions at each of so many snapshots.


def report_simulation(
  workdir: Workdir, options: DrawAndDiscardOptions, name: str, part: Part, data: Row
) -> None:
  """Writes results.json with `data` under `name`, the plot and report.md, and prints the part."""
  reason = f"a simulation: all randomness comes from --data_seed={options.data_seed}"
  content = {"not_private": [reason], "flags": vars(options), name: data}
  files.write_json(workdir.path / "results.json", content)
  write_report(
    workdir,
    "draw_and_discard",
    "Draw and Discard (arXiv 1807.04369): a simulation",
    [part],
    notice=statements.warnings([reason]),
    remark="All results are in `results.json`.",
  )


def variance_part(options: DrawAndDiscardOptions, update: ClientUpdate) -> tuple[Part, Row]:
  """Figure 1 and its data.

  The variance of k instances stays; the variance of models that never meet grows.
  """
  k, times = options.noisy_instances, np.arange(options.num_rounds + 1) * options.eval_every
  s2 = update.noise_variance
  key = jax.random.key(options.data_seed)
  together, apart = _variances(update, k, options), _variances(update, 1, options)
  measured = {
    "spread": together(jax.random.fold_in(key, 0), s2),
    "equal": together(jax.random.fold_in(key, 1), 0.0),
    "alone": apart(jax.random.fold_in(key, 2), 0.0),
  }
  theory = {
    "spread": np.full(len(times), instance_variance(k, s2)),
    "equal": np.array([instance_variance(k, s2, updates=int(t), initial=0.0) for t in times]),
    "alone": times * s2,
  }
  labels = {
    "spread": f"{k} instances, spread at the start",
    "equal": f"{k} instances, equal at the start",
    "alone": "k = 1: one instance of each server, over the servers",
  }
  figure, axes = plots.figure("updates", "variance / s²", "Draw and Discard keeps the variance")
  looks = style.distinct(list(labels.values()))
  for name, label in labels.items():
    intervals = [mean_interval(column) for column in measured[name].T / s2]
    plots.points(axes, times.tolist(), intervals, label, {**looks[label], "linestyle": "none"})
    axes.plot(times, theory[name] / s2, ":", **style.REFERENCE)
  axes.set_ylim(0, 2.5 * k)
  shown = (0, len(times) // 2, len(times) - 1)
  rows = [
    [
      label,
      *(_measured_cell((measured[name][:, t] / s2).tolist(), theory[name][t] / s2) for t in shown),
    ]
    for name, label in labels.items()
  ]
  header = ["variance / s²", *(f"after {times[t]} updates" for t in shown)]
  text = (
    f"{table(header, rows)}\n\nNoise alone, no gradient; s² is the variance that one update adds "
    f"to a weight. Means over {_SERVERS} servers of {_WEIGHTS} weights, with 95 % intervals; in "
    "brackets and dotted: expectations (Theorem 3.1: k s²/2 at every time from the spread start, "
    "and a gap that shrinks by 1 - 2/k² with each update from any other)."
  )
  data = {
    n: {"measured": measured[n].mean(axis=0).tolist(), "expected": theory[n].tolist()}
    for n in labels
  }
  part = Part("Variance of the instances", text, {"variance": figure})
  return part, {"updates": times.tolist(), **data}


def _measured_cell(values: Sequence[float], expected: float) -> str:
  mean, half_width = mean_interval(values)
  return f"{mean:.2f} ± {half_width:.2f} ({expected:.2f})"


def _variances(
  update: ClientUpdate, k: int, options: DrawAndDiscardOptions
) -> Callable[[jax.Array, float], np.ndarray]:
  """The simulation: (key, spread) -> the measured variances, float64 [servers or weights, times].

  With k > 1 they are the variances within each server, with k = 1 over all servers.
  """
  # A dummy client: the gradient is zero, so only the noise moves the models.
  process = draw_and_discard_process(update, k, block_size=options.chunk_size)
  dummy = Examples(jnp.zeros((1, 1, 1)), jnp.zeros((1, 1)), jnp.ones((1, 1)))
  users = arrivals(jnp.zeros(options.eval_every, jnp.int32), 1)
  init = jax.vmap(
    lambda key, model, spread: process.init(spread_instances(key, model, k, spread)),
    (0, None, None),
  )
  run = jax.jit(jax.vmap(process.run, (0, 0, None, None, None)))

  def simulate(key, spread):
    init_keys, run_keys = (jax.random.split(part, _SERVERS) for part in jax.random.split(key))
    state, rows = init(init_keys, jnp.zeros(_WEIGHTS), jnp.float32(spread)), []
    for number in range(options.num_rounds + 1):
      if number:
        state = run(run_keys, state, users, dummy, update.settings)
      models = np.asarray(jax.vmap(process.models)(state), np.float64)
      rows.append(
        models.var(axis=1, ddof=1).mean(axis=1) if k > 1 else models[:, 0].var(axis=0, ddof=1)
      )
    return np.stack(rows, axis=1)

  return simulate


def spam_part(
  options: DrawAndDiscardOptions,
  task: StreamTask,
  update: ClientUpdate,
  evaluate: Callable[[PyTree], Mapping[str, jax.Array]],
) -> tuple[Part, Row]:
  """The threshold from honest updates, the rates at which it rejects, and the data of both.

  It is tested on other honest updates and on attacks.
  """
  models, deviations = _sample_deviations(options, task, update)
  # Half of the honest submissions choose the threshold; the others measure its false rejections.
  chosen, fresh = deviations["honest"][::2], {**deviations, "honest": deviations["honest"][1::2]}
  threshold = spam.threshold_for(chosen, _FALSE_REJECTIONS)
  rates = {name: float(spam.rejection_rates(values, threshold)) for name, values in fresh.items()}
  rows = [
    [name, f"{len(fresh[name])}", percent(rate, 2), _interval(rate, len(fresh[name]))]
    for name, rate in rates.items()
  ]
  figure, axes = plots.figure(
    "threshold, standard deviations", "submissions rejected", "The interval test for spam"
  )
  grid = np.linspace(0.5 * threshold, 2 * threshold, 200)
  style.percent(axes.yaxis)
  for name, look in style.series(list(fresh)).items():
    axes.plot(grid, spam.rejection_rates(fresh[name], grid), label=name, markevery=20, **look)
  axes.axvline(threshold, linestyle=":", label="chosen threshold", **style.REFERENCE)
  accuracy = float(evaluate(models)["test_accuracy"])
  text = f"""{table(["submission", "drawn", "rejected", "95 % interval"], rows)}

The test rejects a model with a weight farther than t = {threshold:.3f} standard deviations of the
instances from their mean; t is the least that rejects at most {percent(_FALSE_REJECTIONS)} of
{len(chosen)} honest updates, and the first row counts as many others. {options.dataset},
{task.num_weights} weights, k = {options.noisy_instances}, {options.noise} noise, ε =
{rounded_up(options.epsilons[0])} per {options.unit}, {_SNAPSHOTS} times within {options.num_rounds}
rounds; test accuracy at the end {percent(accuracy)}. A round is {task.schedule.round_size} updates,
and s the standard deviation of one update's noise. The intervals are about more submissions at
these same times.

What it cannot see: whatever stays within the noise. A client that turns its own gradient round, or
adds a small shift, sends what an honest client might have; and since every accepted model becomes
an instance, small shifts add up, and later ones are measured against instances that the earlier
ones moved. A replayed instance looks honest until the others have left it behind, which takes the
longer the less they move. The test bounds how far one update moves the server; it is no guarantee
for many."""
  data = {"threshold": threshold, "rates": rates, "test_accuracy": accuracy}
  return Part("Models that no honest client would send", text, {"spam": figure}), data


def _interval(rate: float, count: int) -> str:
  result = scipy.stats.binomtest(round(rate * count), count).proportion_ci()
  return f"{100 * result.low:.2f} to {100 * result.high:.2f} %"


def _sample_deviations(
  options: DrawAndDiscardOptions, task: StreamTask, update: ClientUpdate
) -> tuple[PyTree, dict[str, np.ndarray]]:
  """The last instances, and the deviations of honest and hostile submissions by name.

  They are sampled at several times of a run.
  """
  k, key = options.noisy_instances, jax.random.key(options.data_seed)
  algorithm = draw_and_discard(update, k, task.schedule, block_size=options.chunk_size)
  noise_key, order_key, init_key = (jax.random.fold_in(key, number) for number in range(3))
  start = spread_instances(init_key, task.model.init(key), k, update.noise_variance)
  measure = jax.jit(
    partial(_deviations, update, attacks(jax.eval_shape(task.model.init, key).shape, update))
  )
  found: dict[str, list[np.ndarray]] = {}
  every = max(1, options.num_rounds // _SNAPSHOTS)
  # The instances of the last snapshot and of the last round, for replays.
  old = {every: start, 1: start}

  def measure_snapshot(progress):
    number, models = progress.round, progress.params
    if number and number % every == 0:
      now = measure(jax.random.fold_in(key, 3 + number), models, old, task.clients)
      for name, values in jax.device_get(now).items():
        found.setdefault(name, []).append(values)
      old[every] = models
    old[1] = models

  last = train(
    algorithm,
    start,
    task.clients,
    num_rounds=options.num_rounds,
    noise_key=noise_key,
    data_key=order_key,
    evaluate_every=1,
    callbacks=[measure_snapshot],
  ).params
  return last, {name: np.concatenate(values) for name, values in found.items()}


def attacks(shape: tuple[int, ...], update: ClientUpdate) -> dict[str, spam.Attack]:
  """Attacks by name; shifts are in standard deviations s of one update's noise."""
  s = float(np.sqrt(update.noise_variance))
  first, few = np.zeros(np.prod(shape), np.float32), np.zeros(np.prod(shape), np.float32)
  first[0], few[:10] = 30 * s, s
  return {
    "random model, weights of 10 s": spam.random_model(10 * s),
    "honest update x 30": spam.scaled_update(30.0),
    "one weight moved by 30 s": spam.drift(jnp.asarray(first.reshape(shape))),
    "ten weights moved by s": spam.drift(jnp.asarray(few.reshape(shape))),
    "sign flip": spam.sign_flip(),
  }


def _deviations(
  update: ClientUpdate,
  attacks: Mapping[str, spam.Attack],
  key: jax.Array,
  models: jax.Array,
  old: Mapping[int, jax.Array],
  clients: Examples,
) -> dict[str, jax.Array]:
  """Largest deviations of honest and of hostile submissions to a server that holds `models`.

  `old` maps a number of rounds to the instances of so many rounds before.
  """
  count, num_users = models.shape[0], clients.labels.shape[0]

  def view(number):
    own = jax.random.fold_in(key, number)
    drawn, older, user = (
      jax.random.randint(jax.random.fold_in(own, i), (), 0, high)
      for i, high in enumerate((count, count, num_users))
    )
    noise = update.draw(jax.random.fold_in(own, 3), models[drawn])
    client = jax.tree.map(lambda x: x[user], clients)
    honest = step(update, update.settings, noise, models[drawn], client, jnp.int32(0))
    return own, older, spam.View(models[drawn], honest, models[drawn])

  def honest(number):
    return spam.largest_deviation(models, view(number)[-1].honest)

  def hostile(number):
    own, older, seen = view(number)
    submitted = {
      name: attack(jax.random.fold_in(own, 4 + i), seen)
      for i, (name, attack) in enumerate(attacks.items())
    }
    for rounds, then in old.items():
      submitted[f"replay of {rounds} rounds before"] = spam.replay()(
        own, seen._replace(old=then[older])
      )
    return {name: spam.largest_deviation(models, model) for name, model in submitted.items()}

  numbers = jnp.arange(_HONEST + _ATTACKS, dtype=jnp.int32)
  return {
    "honest": jax.lax.map(honest, numbers[:_HONEST]),
    **jax.lax.map(hostile, numbers[_HONEST:]),
  }
