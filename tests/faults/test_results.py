"""The page shows what the long forms found, and what they found is what was asked of them."""

import collections
import pathlib

import pytest

from tests.faults import results

EXPERIMENTS = (
  *("client_dropout", "correlated_noise", "dp_fedavg", "draw_and_discard", "general_approach"),
  "private_federated",
)
PAGE = pathlib.Path(__file__).parents[2] / "docs/survival.md"


@pytest.mark.parametrize("name", results.TABLES)
def test_the_page_shows_the_figures_that_were_written(name):
  assert results.table(name) in PAGE.read_text()


def test_kills_came_in_every_phase_and_the_page_says_how_many_there_were():
  counts = sum((results.total("kills", name) for name in EXPERIMENTS), collections.Counter())
  assert f"{counts['kills']} kills in {counts['trials']} trials" in PAGE.read_text()
  phases = results.TABLES["kills"][1][1:-2]
  assert sum(counts[phase] for phase in phases) == counts["kills"]
  assert all(counts[phase] > 0 for phase in phases)


def test_all_trials_ended_equal_and_no_call_was_a_fault():
  for name in EXPERIMENTS:
    counts = results.total("kills", name)
    assert counts["trials"] > 0
    assert counts["not equal"] == 0
  for row in ("arguments", "flag values"):
    counts = results.total("fuzz", row)
    assert counts["tried"] == counts["result"] + counts["refused"] > 0
