"""The privacy statements of a Draw and Discard report: one for each adversary."""

from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.draw_and_discard.options import DrawAndDiscardOptions
from experiments.draw_and_discard.stream import StreamTask
from experiments.runner.reports import statements, style
from experiments.runner.reports.parts import Part
from experiments.runner.reports.summary import Row
from experiments.runner.reports.tables import table
from experiments.runner.runs.finished_ledgers import finished_ledger
from experiments.runner.runs.sweep import Finished
from experiments.runner.runs.workdir import Workdir
from jdp.accounting.draw_and_discard import (
  channel_listener,
  internal_threat,
  opportunistic_threat,
  published_average,
  published_lemma,
)
from jdp.accounting.draw_and_discard.adversaries import Statement
from jdp.accounting.draw_and_discard.later_updates import LaterUpdates, known_of_steps, line_epsilon
from jdp.accounting.draw_and_discard.lineage import probability_gone
from jdp.events import LocalRelease
from jdp.guarantees import Unit, rounded_up
from jdp.ledger.json_form import from_json

FinishedStream = Finished[DrawAndDiscardOptions, StreamTask]
_COORDINATE = "a coordinate, of gradients that differ in it alone"
# The index, in `adversary_statements`, of the statement about all of a user's reports.
_ALL_REPORTS = 1


def adversary_statements(
  options: DrawAndDiscardOptions, task: StreamTask, event: LocalRelease
) -> dict[str, list[Statement]]:
  """The statements for each adversary (arXiv 1807.04369, Section 4), by what is hidden.

  What is hidden is a coordinate or the user. All statements are about one report, except the second
  of each list. That one is about adversary I and all of a user's reports.
  """
  release, k, dimension = event.guarantee, options.noisy_instances, task.num_weights
  of_a_coordinate = release.unit == Unit.COORDINATE
  # Over all coordinates, a client's gradient is bounded by the data or by the clip.
  if of_a_coordinate:
    bound = {"l1_norm": task.l1_norm}
  else:
    bound = {"l1_norm" if options.noise == "laplace" else "l2_norm": options.clip}
  groups: dict[str, dict[str, float]] = {_COORDINATE: {"coordinates": 1}} if of_a_coordinate else {}
  groups[f"the user, all {dimension} coordinates together"] = {"coordinates": dimension, **bound}
  made = {}
  for name, group in groups.items():
    report = {**group, "clip": options.clip, "noise": options.noise}
    made[name] = [
      channel_listener(release.epsilon, **report, delta=release.delta),
      channel_listener(release.epsilon, **report, reports=event.max_releases, delta=options.delta),
      internal_threat(release.epsilon, k, **report, delta=release.delta),
    ]
  if of_a_coordinate and _is_as_published(options):
    made[_COORDINATE].append(
      opportunistic_threat(
        release.epsilon,
        options.delta,
        k,
        _updates_per_pass(task),
        later=_later_updates(options, task),
        dimension=dimension,
      )
    )
  return made


def _later_updates(options: DrawAndDiscardOptions, task: StreamTask) -> LaterUpdates:
  """What is known of the clients' updates that follow a user's own."""
  return known_of_steps(
    options.learning_rate,
    options.clip,
    smoothness=task.model.smoothness,
    gradient_bound=task.model.gradient_bound,
  )


def _is_as_published(options: DrawAndDiscardOptions) -> bool:
  """Whether adversary III's analysis applies.

  It needs sequential updates with Laplace noise of constant scale, by clients that all follow the
  protocol.
  """
  sequential = options.task != "stream" and not options.in_flight
  return options.noise == "laplace" and options.half_after is None and sequential


def _updates_per_pass(task: StreamTask) -> int:
  return task.schedule.round_size * task.schedule.rounds_per_pass


def privacy_parts(sweep: FinishedStream, private: Sequence[Row]) -> Iterator[Part]:
  """What was guaranteed; `private` holds the summary rows of runs with noise."""
  workdir, options, task, results = sweep
  if not private:
    yield Part("What was guaranteed", "Nothing: these runs are without noise.")
    return
  yield Part("What was guaranteed", _guaranteed(task, private, results), printed=False)
  for row in private:
    text = _adversaries(workdir, options, task, row)
    yield Part(f"Adversaries, {row['label']}", text, printed=False)
  if _is_as_published(options):
    epsilon = from_json(private[0]["release"]).epsilon
    figures = {"privacy": _figure(options, epsilon)}
    yield Part("Later updates", _LATER + _certificate(options, task), figures, printed=False)


def _guaranteed(task: StreamTask, private: Sequence[Row], results: Sequence[Row]) -> str:
  return f"""Against the server, which knows the model that it sent and sees the one that comes
back, from each run's `ledger.jsonl`. One release:

{statements.guarantees(private, "release")}

All releases of a user in a run; a user makes at most {task.schedule.max_releases}:

{statements.guarantees(private, "local")}

{statements.together(results, "local")}

A coordinate's guarantee is about that coordinate of the releases *seen alone*. It does not hide a
feature of a client: one feature moves the residual, and with it every coordinate. Who sees models
that others made from a release sees its coordinates mixed; against them the guarantee is about
gradients that differ in that coordinate alone. Nothing is claimed of runs without noise.

{statements.not_covered()}"""


_LATER = """Left: the probability that no instance descends from a user's update any more (exact).
Right: guarantees for one report and one coordinate that is followed along its line by so many
updates, **if** these do not depend on the model, or do not expand. Lemma 4.3 is published, no
guarantee.

"""


def _certificate(options: DrawAndDiscardOptions, task: StreamTask) -> str:
  """Why later updates of this run do not expand, or why that is not known."""
  smoothness, bound = task.model.smoothness, task.model.gradient_bound
  conditions = (
    f"c = {options.clip:g} against gradients of at most {rounded_up(bound, 3)} in a coordinate, "
    f"and a learning rate of {options.learning_rate:g} against 2 / smoothness = "
    f"{2 / smoothness:.3g}"
  )
  if _later_updates(options, task) is LaterUpdates.ANY:
    return f"This run's updates may expand ({conditions}): only ε is known of adversary III."
  return (
    "This run's updates do not expand: the loss is convex, no gradient is clipped, and no step is "
    f"longer than 2 / smoothness ({conditions}). The statement on adversary III rests on that, and "
    "on the other clients following the protocol."
  )


def _adversaries(
  workdir: Workdir, options: DrawAndDiscardOptions, task: StreamTask, row: Row
) -> str:
  book = finished_ledger(workdir.path / row["setting"] / "0")
  event = next(event for event in book if isinstance(event, LocalRelease))
  epsilon = event.guarantee.epsilon
  cells = []
  for unit, made in adversary_statements(options, task, event).items():
    for number, s in enumerate(made):
      reports_seen = f"all {event.max_releases}" if number == _ALL_REPORTS else "one"
      cost = f"({rounded_up(s.epsilon)}, {rounded_up(s.delta, 3)})-DP"
      cells.append([unit, s.adversary, reports_seen, s.sees, cost])
  text = table(["hidden", "adversary", "reports", "sees", "guarantee"], cells)
  if not _is_as_published(options):
    return f"""{text}

III (opportunistic threat): as II. What later updates hide is worked out for updates one after
another by clients that all follow the protocol, with Laplace noise of constant scale; this run's
are not."""
  per_pass, k = _updates_per_pass(task), options.noisy_instances
  lemma = published_lemma(epsilon, options.delta, per_pass / k)
  return (
    f"{text}\n\n"
    "Published, **no guarantees**, for one report and one coordinate: "
    f"II {rounded_up(published_average(epsilon, k), 4)} (an average over the server's coins); "
    f"III after {per_pass} updates {rounded_up(min(epsilon, lemma), 4)} "
    "(Lemma 4.3, by the central limit theorem)."
  )


def _figure(options: DrawAndDiscardOptions, epsilon: float) -> Figure:
  figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8))
  _draw_lines_gone(left, sorted({5, options.noisy_instances, 100}))
  _draw_guarantees(right, epsilon, options.delta)
  for axes in (left, right):
    handles, names = axes.get_legend_handles_labels()
    style.legend(axes, dict(zip(names, handles, strict=True)), below=True)
  return figure


def _draw_lines_gone(axes: Axes, instances: Sequence[int]) -> None:
  """The probability that no instance descends from an update, by the number of instances."""
  times = np.unique(np.geomspace(1, 1e4, 40).astype(int))
  looks = style.series([f"k = {k}" for k in instances])
  for k, (label, look) in zip(instances, looks.items(), strict=True):
    gone = [probability_gone(k, int(t)) for t in times]
    axes.semilogx(times, gone, label=label, markevery=6, **look)
  axes.set(
    xlabel="server updates after the user's", ylabel="probability that its line has died out"
  )


def _draw_guarantees(axes: Axes, epsilon: float, delta: float) -> None:
  """Epsilons of one coordinate of one report, by the updates that followed along its line."""
  times = np.unique(np.geomspace(1, 1000, 12).astype(int)).tolist()
  lines = {
    f"guarantee if {later.replace('_', '-')}": [
      line_epsilon(epsilon, delta, t, later=later, dimension=1) for t in times
    ]
    for later in ("data_independent", "non_expansive")
  }
  lines["Lemma 4.3, no guarantee"] = [
    min(epsilon, published_lemma(epsilon, delta, t)) for t in times
  ]
  for label, look in style.distinct(list(lines)).items():
    axes.loglog(times, lines[label], label=label, **look)
  axes.axhline(epsilon, label="guarantee, any updates", **style.REFERENCE)
  ylabel = f"ε of one coordinate of one report (δ = {delta})"
  axes.set(xlabel="updates along the line", ylabel=ylabel)
