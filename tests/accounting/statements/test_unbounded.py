"""An epsilon that is not stated carries its reason."""

import math
import re

import pytest

from jdp import accounting
from jdp.events import GaussianSum, LocalRelease, NonPrivate, PoissonSampling, Round
from jdp.guarantees import ApproxDP, PureDP
from jdp.ledger import Ledger, subsampled_gaussian

BARE = Round(PoissonSampling(1.0), NonPrivate())
RUN = subsampled_gaussian(0.01, 1.0, 100)


def local(guarantee):
  return LocalRelease(guarantee.restate(unit="user", observer="model"))


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
@pytest.mark.parametrize(
  ("ledger", "delta", "words"),
  [
    (RUN.append(BARE, count=7), 1e-5, "Nothing protects 7 of the releases"),
    (subsampled_gaussian(0.1, 0.0, 3), 1e-5, "Nothing protects 3 of the releases"),
    (Ledger().append(local(PureDP(math.inf))), 1e-5, "Nothing protects 1 of the releases"),
    (Ledger().append(local(ApproxDP(1.0, 1e-6)), count=20), 1e-5, "own deltas are 2"),
    (RUN, 0.0, "no epsilon at delta = 0"),
    (
      subsampled_gaussian(0.1, 0.03, 100),
      1e-9,
      "a neighbour cannot send 1 of what is released, above delta = 1e-09. Add more noise",
    ),
    (
      Ledger().append(Round(PoissonSampling(0.01, 1e-9), GaussianSum(1.0, 0.8)), count=5000),
      1e-6,
      "outgrow their slots with a probability of .* Give the sampler a larger capacity",
    ),
  ],
)
def test_says_why_there_is_no_epsilon(ledger, delta, words, accountant):
  assert accounting.epsilon(ledger, delta, accountant=accountant) == math.inf
  reason = accounting.why_unbounded(ledger, delta, accountant=accountant)
  assert re.search(words, reason)
  (said,) = accounting.privacy_statements(ledger, delta, accountant=accountant)
  assert said.guarantee is None
  assert said.reason == reason


def test_says_nothing_of_what_is_bounded_or_seen_by_others():
  assert accounting.why_unbounded(RUN, 1e-5) == ""
  assert accounting.why_unbounded(Ledger(), 0.0) == ""
  other = Round(PoissonSampling(1.0), NonPrivate(), "zero_out", observer="server")
  assert accounting.why_unbounded(RUN.append(other), 1e-5, observer="model") == ""
  assert "Nothing protects 1 " in accounting.why_unbounded(
    RUN.append(other), 1e-5, observer="server"
  )
