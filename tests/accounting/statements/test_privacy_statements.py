"""The sentence of a guarantee: the accountant's numbers, rounded up, and a reason where none is."""

import json
import math
import re

import pytest

from jdp import accounting, events, guarantees, ledger

ROUND = events.Round(events.PoissonSampling(0.1, population=1000), events.GaussianSum(1.0, 2.0))
LOCAL = events.LocalRelease(guarantees.PureDP(3.0, unit="user"), max_releases=2)


def said(spent, **options):
  return accounting.privacy_statements(spent, 1e-5, **options)


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_a_statement_is_the_accountants_epsilon_with_its_scope(accountant):
  spent = ledger.Ledger().append(ROUND, count=20)
  (one,) = said(spent, accountant=accountant)
  assert one.guarantee.epsilon == accounting.epsilon(spent, 1e-5, accountant=accountant)
  assert one.interval == accounting.epsilon_interval(spent, 1e-5)
  printed = float(re.match(r"\(([\d.]+), 1e-05\)-DP per user \(add/remove\)", str(one))[1])
  assert one.guarantee.epsilon <= printed <= 1.001 * one.guarantee.epsilon
  for part in ("whoever sees the models", "20 events", "N = 1000", accountant, "Not covered"):
    assert part in str(one)
  assert json.loads(json.dumps(one.data()))["population"] == [1000]


def test_a_record_that_joins_truncated_samples_is_said_not_to_be_covered():
  """A full sample is likelier with it: the event of N records is about one of them that leaves."""

  def found(population, relation):
    sampling = events.TruncatedPoissonSampling(0.99, 100, population)
    event = events.Round(sampling, events.GaussianSum(1.0, 20.0), relation)
    (one,) = said(ledger.Ledger().append(event, count=100))
    return one

  one = found(100, "add_remove")
  assert "a record more than the N of truncated Poisson samples" in str(one)
  assert found(101, "add_remove").guarantee.epsilon > 1.4 * one.guarantee.epsilon
  assert "a record more" not in str(found(100, "zero_out"))


def test_observers_have_statements_of_their_own():
  spent = ledger.Ledger().append(ROUND, count=20).append(LOCAL, count=20)
  model, server = said(spent)
  assert (str(model.observer), str(server.observer)) == ("model", "server")
  assert model.guarantee == said(ledger.Ledger().append(ROUND, count=20))[0].guarantee
  assert server.guarantee.epsilon == pytest.approx(6.0, rel=1e-4)
  assert server.guarantee.relation == "replace_one"


@pytest.mark.parametrize(
  ("event", "reason"),
  [
    (
      events.Round(ROUND.sampling, events.NonPrivate(), "zero_out"),
      "Nothing protects 1 of the releases",
    ),
    (events.Round(ROUND.sampling, ROUND.query, "zero_out"), "Expected relation"),
  ],
)
def test_what_is_not_stated_carries_its_reason(event, reason):
  (one,) = said(ledger.Ledger().append(ROUND).append(event))
  assert not one.holds
  assert one.interval == (0.0, math.inf)
  assert reason in one.reason
  assert one.reason in str(one)
  data = json.loads(json.dumps(one.data(), allow_nan=False))  # JSON has no infinity
  assert data["epsilon"] is data["interval"][1] is None


def test_caveats_come_first():
  exposed = events.Round(ROUND.sampling, ROUND.query, key_exposed=True)
  (one,) = said(ledger.Ledger().append(exposed))
  assert str(one).startswith("NOT PRIVATE: the noise of 1 of 1 events")


@pytest.mark.parametrize(
  "wrong", [{"accountant": "none"}, {"relation": "other"}, {"delta": 2.0}, {"delta": math.nan}]
)
def test_bad_arguments_are_refused_and_become_no_reason(wrong):
  with pytest.raises(ValueError, match="Expected"):
    accounting.privacy_statements(ledger.Ledger().append(ROUND), **{"delta": 1e-5, **wrong})
