"""Tables of DP-FedAvg's report: predictions by what was spent, and measured loss by theory's."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax

from experiments.runner.files import Row
from experiments.runner.problems.learning_problem import LearningProblem
from experiments.runner.published_language_models import ROUNDS, published_loss
from experiments.runner.reports import statements
from experiments.runner.reports.statistics import Interval, mean_interval
from experiments.runner.reports.tables import epsilon, metric, metric_titles, percent, points, table
from jdp import accounting, ledger
from jdp.guarantees import rounded_up
from jdp.queries.base import PyTree

_SPENT = "central_epsilon"
_COUNTED = """UNK is never right, and the end of an utterance does not count in the accuracies
(arXiv 1710.06963, Appendix B). Perplexity is over all tokens. "Carried" is with the state carried
over all of a test user's tokens, in place of windows that each begin with a state of zeros."""
_PREDICTION = """The prediction takes the run without privacy, and adds the noise to its last
model: once, as if training undid all earlier noise, and that of all rounds, as if it undid none.
One draw of noise. Clipping is no part of it. Points lost are paired with the repetitions of the
same training without privacy."""
_LOSS = f"""Losses are paired with the repetitions of the same training without privacy. "Shown
from" is half of their interval's width: a larger loss would be told from none. The published loss
is on other data, after {ROUNDS:,} rounds of 100 users (arXiv 1710.06963, Table 2, whose rounds are
inferred)."""


def predicted_right(summary: Sequence[Row], start: Interval) -> str:
  """A table of the words that the last models predict right, beside what was spent.

  Args:
    summary: the report's rows.
    start: the initial models' AccuracyTop1.
  """
  titles = metric_titles(summary[0])
  header = ["run", "protected", "a round", "z", "ε spent", *titles.values()]
  empty = [""] * (len(titles) - 1)
  lines = [["before the first round", "", "", "", "", percent(start), *empty]]
  for row in summary:
    central, z = row["central"], row["noise_multiplier"]
    lines.append(
      [
        row["label"],
        f"{row['records']:,} {central['unit']}s" if central else "nobody",
        f"{row['cohort']:g}",
        "none" if z is None else f"{z:.3g}",
        statements.short(central),
        *(metric(name, row[name]) for name in titles),
      ]
    )
  return f"{table(header, lines)}\n\n{_COUNTED}"


def predicted_by_spent(
  histories: Mapping[str, Sequence[Sequence[Row]]], epsilons: Sequence[float]
) -> str:
  """A table of the words predicted right when no more than each epsilon was spent.

  A run without guarantee has no epsilon, and its last evaluation stands for all.

  Args:
    histories: by label, the evaluations of each repetition. All are of the same rounds.
    epsilons: in any order.
  """
  titles = metric_titles(next(iter(histories.values()))[0][0])
  lines = []
  for label, runs in histories.items():
    for bound in [math.inf] if runs[0][-1].get(_SPENT) is None else epsilons:
      found = [last_within(rows, bound) for rows in runs]
      within = (
        ["none", "∞"]
        if bound == math.inf
        else [rounded_up(bound), epsilon(max(row[_SPENT] for row in found))]
      )
      values = (metric(name, mean_interval([row[name] for row in found])) for name in titles)
      lines.append([label, *within, str(found[0]["round"]), *values])
  header = ["run", "ε at most", "ε spent", "rounds", *titles.values()]
  return table(header, lines)


def last_within(rows: Sequence[Row], bound: float) -> Row:
  """The last evaluation at which no more epsilon than this was spent; the first if there is none.

  >>> spent = [{"central_epsilon": 0.0}, {"central_epsilon": 0.8}, {"central_epsilon": 1.1}]
  >>> last_within(spent, 1.0)
  {'central_epsilon': 0.8}
  """
  return [row for row in rows if row is rows[0] or bound == math.inf or row[_SPENT] <= bound][-1]


def epsilons_of_plans(summary: Sequence[Row], rounds: Sequence[int]) -> str:
  """A table of the epsilons of the rows' plans after other numbers of rounds; empty without plans.

  Args:
    summary: the report's rows.
    rounds: numbers of rounds, without what was released before them.
  """
  plans = [row["planned"] for row in summary if row["planned"]] if rounds else []
  lines: dict[tuple[str, ...], list[str]] = {}
  for plan in plans:
    users, cohort, z, delta = (
      plan[name] for name in ("users", "cohort", "noise_multiplier", "delta")
    )
    spent = (
      accounting.epsilon(
        ledger.subsampled_gaussian(cohort / users, z, number), delta, accountant=by
      )
      for number in rounds
      for by in ("rdp", "moments")
    )
    named = (f"{users:,}", f"{cohort:g}", f"{z:.3g}", rounded_up(delta, 3))
    lines.setdefault(named, [*named, *map(epsilon, spent)])
  names = (f"{number:,} rounds: {by}" for number in rounds for by in ("RDP", "moments"))
  return table(["users", "cohort", "z", "δ", *names], lines.values()) if lines else ""


def lost_to_noise(clean: Row, noised: Row) -> Interval:
  """How much less of the headline metric a row has than the same training without privacy.

  Repetitions are paired.
  """
  pairs = zip(clean["smoothed_each"], noised["smoothed_each"], strict=True)
  return mean_interval([without - value for without, value in pairs])


def loss_of_plans(pairs: Sequence[tuple[Row, Row]]) -> str:
  """A table of the loss by the noise of published plans, beside theirs; empty without such plans.

  Args:
    pairs: rows of the report, each after its counterpart: the same training without privacy.
  """
  lines: dict[str, list[list[str]]] = {}
  for clean, row in pairs:
    plan = row["planned"]
    published = plan and published_loss(row["clip_norm"], row["stddev"])
    if published is None:
      continue
    lost = lost_to_noise(clean, row)
    line = [
      row["label"],
      f"{plan['cohort']:,g} of {plan['users']:,}",
      f"{row['stddev']:.3g}",
      *(epsilon(plan[name]) for name in ("rdp", "moments")),
      percent(row["smoothed"]),
      points(lost),
      "" if lost.half_width is None else f"{100 * lost.half_width:.2f}",
      metric("perplexity", row["perplexity"]),
      f"{published:.2f}",
    ]
    perplexity = metric("perplexity", clean["perplexity"])
    before = [clean["label"], *[""] * 4, percent(clean["smoothed"]), "", "", perplexity, ""]
    lines.setdefault(clean["label"], [before]).append(line)
  if not lines:
    return ""
  header = [
    *("run", "plan", "noise", "ε: RDP", "moments", "AccuracyTop1", "points lost", "shown from"),
    *("perplexity", "published loss"),
  ]
  return f"{table(header, itertools.chain(*lines.values()))}\n\n{_LOSS}"


class Noised(NamedTuple):
  """A private row and its counterpart.

  Attributes:
    row: of the summary.
    stddev: of the noise that a round adds to a parameter.
    rounds: how many.
    clean: the counterpart's row: the same training without privacy.
    params: the counterpart's last parameters, of its first repetition.
  """

  row: Row
  stddev: float
  rounds: float
  clean: Row
  params: PyTree


def predicted_loss(problem: LearningProblem, rows: Sequence[Noised]) -> str:
  """A table of the headline metric lost to noise: as measured, and as its size predicts."""
  name = problem.headline
  lines = []
  for number, (row, stddev, rounds, clean, params) in enumerate(rows):
    before = problem.evaluate(params)[name]
    lost = [
      100 * float(before - with_noise(problem, params, size, jax.random.key(number)))
      for size in (stddev, stddev * math.sqrt(rounds))
    ]
    norm = row["stddev"] * math.sqrt(problem.dim)
    lines.append(
      [
        row["label"],
        f"{row['stddev']:.3g}",
        f"{norm / row['clip_norm']:.2g}",
        *(f"{value:+.2f}" for value in lost),
        points(lost_to_noise(clean, row)),
      ]
    )
  header = ["run", "noise", "its norm over S", "predicted: last noise", "all noise", "points lost"]
  return f"{table(header, lines)}\n\n{_PREDICTION}"


def with_noise(
  problem: LearningProblem, params: PyTree, stddev: float, key: jax.Array
) -> jax.Array:
  """The headline metric of a model with normal noise of this standard deviation on its weights."""
  leaves, tree = jax.tree.flatten(params)
  keys = jax.random.split(key, len(leaves))
  noised = [
    leaf + stddev * jax.random.normal(k, leaf.shape) for k, leaf in zip(keys, leaves, strict=True)
  ]
  return problem.evaluate(jax.tree.unflatten(tree, noised))[problem.headline]
