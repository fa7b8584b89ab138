"""The blocks of a ledger's entries, which ledgers that go on from it share."""

import itertools

import pytest

from jdp.events import GaussianSum, PoissonSampling, Round
from jdp.ledger import Ledger
from jdp.ledger.value import _BLOCK


def event(number):
  return Round(PoissonSampling(0.1), GaussianSum(1.0, 1.0 + number))


def entries_of(ledger):
  return (*itertools.chain(*(block.entries for block in ledger.blocks)), *ledger.rest)


@pytest.mark.parametrize("size", [0, 1, _BLOCK - 1, _BLOCK, _BLOCK + 1, 3 * _BLOCK, 1000])
@pytest.mark.parametrize("again", [False, True], ids=["another event", "the last event again"])
def test_a_ledger_goes_on_from_the_blocks_of_another(size, again):
  begun = Ledger().extend((event(number), 1) for number in range(size))
  further = begun.append(event(max(size - 1, 0) if again else size))
  for ledger in (begun, further, Ledger(further.entries)):
    assert entries_of(ledger) == ledger.entries
    assert {len(block.entries) for block in ledger.blocks} <= {_BLOCK}
    assert len(ledger.rest) <= _BLOCK
    # `extend` may count the last entry up, so that it is in no block.
    assert bool(ledger.rest) == bool(ledger.entries)
  shared = len(begun.blocks)
  assert all(a is b for a, b in zip(begun.blocks, further.blocks[:shared], strict=True))
  assert len(further) == size + 1


def test_equal_ledgers_are_equal_whatever_their_blocks():
  entries = tuple((event(number), 1) for number in range(600))
  assert Ledger(entries) == Ledger().extend(entries[:300]).extend(entries[300:])
  assert hash(Ledger(entries)) == hash(Ledger().extend(entries))
