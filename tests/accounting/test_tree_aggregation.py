"""Tree aggregation with restarts: dp_accounting's values, and jdp's own trees."""

from functools import partial

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting import rdp

from jdp import accounting, ledger
from jdp.accounting.dp_events import from_dp_event, to_dp_event
from jdp.events import GaussianSum, PoissonSampling, Round, TreeAggregation
from jdp.ledger import Ledger
from jdp.matrix_factorization import tree

ORDERS = [1 + x / 10 for x in range(1, 100)] + list(range(12, 64))


def trees(*several, relation="zero_out"):
  rounds = (Round(PoissonSampling(1.0), query, relation) for query in several)
  return Ledger().extend((event, 1) for event in rounds)


def peer(event):
  accountant = rdp.RdpAccountant(ORDERS, dp.NeighboringRelation.REPLACE_SPECIAL)
  accountant.compose(event)
  return accountant.get_epsilon(1e-6)


# The peer's tests: 1,600 steps as for Stack Overflow, and restarts of which a record is in all.
@pytest.mark.parametrize(("noise", "published"), [(1.13, 19.74), (8.83, 2.04)])
def test_one_tree_costs_less_than_published(noise, published):
  found = accounting.epsilon(trees(TreeAggregation(1.0, noise, (1600,))), 1e-6, accountant="rdp")
  theirs = peer(dp.SingleEpochTreeAggregationDpEvent(noise, 1600))
  assert theirs / 1.02 <= found <= theirs
  assert found < published


@pytest.mark.parametrize("steps", [[400] * 4, [800] * 2, [10, 400, 400, 400, 390]])
@pytest.mark.parametrize("noise", [2.0, 10.0])
def test_restarts_cost_what_dp_accounting_says(steps, noise):
  by_rdp = partial(accounting.epsilon, delta=1e-6, accountant="rdp")
  once = by_rdp(trees(TreeAggregation(1.0, noise, tuple(steps))))
  theirs = peer(dp.SingleEpochTreeAggregationDpEvent(noise, steps))
  assert theirs / 1.02 <= once <= theirs
  every = trees(*(TreeAggregation(1.0, noise, (n,)) for n in steps))  # in each tree once
  summed = peer(dp.ComposedDpEvent([dp.SingleEpochTreeAggregationDpEvent(noise, n) for n in steps]))
  assert summed / 1.02 <= by_rdp(every) <= summed
  assert once < by_rdp(every)


def test_trees_of_one_step_are_plain_releases():
  steps = trees(*[TreeAggregation(1.0, 30.0, (1,))] * 100)
  plain = Ledger().append(
    Round(PoissonSampling(1.0), GaussianSum(1.0, 30.0), "zero_out"), count=100
  )
  assert accounting.epsilon(steps, 1e-6) == pytest.approx(accounting.epsilon(plain, 1e-6))


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 7, 8, 9, 64, 100])
def test_depth_is_the_squared_sensitivity_of_jdps_own_tree(steps):
  assert TreeAggregation(1.0, 1.0, (steps,)).depth == round(
    tree(steps).sensitivity(min_separation=steps, max_participations=1) ** 2
  )
  counts = [
    sum(start <= leaf < start + size for start, size in nodes(steps)) for leaf in range(steps)
  ]
  assert TreeAggregation(1.0, 1.0, (1, steps)).depth == max(counts)


def nodes(steps):
  """(first leaf, leaves) of all nodes that are completed in so many steps."""
  sizes = 2 ** np.arange(steps.bit_length())
  return [(start, size) for size in sizes for start in range(0, steps - size + 1, size)]


def test_replaced_records_move_twice_as_far_and_sampling_amplifies_nothing():
  query = TreeAggregation(0.5, 4.0, (10, 3))
  zeroed, replaced = (
    accounting.epsilon(trees(query, relation=name), 1e-5) for name in ("zero_out", "replace_one")
  )
  assert zeroed == pytest.approx(accounting.gaussian_epsilon(4.0, 1e-5), rel=0.1)
  assert replaced == pytest.approx(accounting.gaussian_epsilon(2.0, 1e-5), rel=0.1)
  sampled = Ledger().append(Round(PoissonSampling(0.01), query, "zero_out"))
  assert accounting.epsilon(sampled, 1e-5) == zeroed
  exact = accounting.epsilon(trees(query), 1e-5, accountant="pld")
  assert exact == pytest.approx(accounting.gaussian_epsilon(4.0, 1e-5), rel=1e-3)
  with pytest.raises(ValueError, match="zero_out or replace_one for TreeAggregation"):
    accounting.epsilon(trees(query), 1e-5, relation="add_remove")


def test_events_are_exchanged_and_kept_in_files(tmp_path):
  event = dp.ComposedDpEvent([dp.SingleEpochTreeAggregationDpEvent(2.0, [3, 8])])
  read = from_dp_event(event, relation="zero_out")
  assert read == trees(TreeAggregation(1.0, 2.0, (3, 8)))
  (exported,) = to_dp_event(read).event.events
  assert exported.noise_multiplier == pytest.approx(1.0)  # four nodes of multiplier 2
  read.save(tmp_path / "ledger.jsonl")
  assert ledger.load(tmp_path / "ledger.jsonl") == read


@pytest.mark.parametrize(
  ("arguments", "words"),
  [
    ((1.0, 1.0, ()), "step_counts"),
    ((1.0, 1.0, (3, 0)), "step_counts"),
    ((0.0, 1.0, (3,)), "clip"),
  ],
)
def test_arguments_are_refused(arguments, words):
  with pytest.raises(ValueError, match=words):
    TreeAggregation(*arguments)
