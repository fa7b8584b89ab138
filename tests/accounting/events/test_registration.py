"""What a stranger's analysis leaves out is charged, or refused: never free."""

import pytest

from jdp import accounting, events
from jdp.accounting.dominating_pairs import gaussian_pair
from jdp.accounting.families.base import DominatingPair, Family, unbounded
from jdp.accounting.families.gaussian import GAUSSIAN
from jdp.accounting.pld.losses import pairs
from jdp.guarantees import Relation
from jdp.ledger import Ledger

pytestmark = pytest.mark.usefixtures("undone")
GAUSSIAN_SUM = events.GaussianSum(1.0, 1.0)


def query_of(name="Query", fields=(), **analysis):
  """A new type of a query's event, of fields that are numbers, with an analysis."""
  body = {"__annotations__": dict.fromkeys(fields, float), "__doc__": "A query."}
  kind = events.register(type(name, (events.EventBase,), body))
  accounting.register_query(kind, accounting.QueryAnalysis(**analysis))
  return kind


def sampling_of(name="Sampling", fields=(), **analysis):
  """As `query_of`, of a sampling."""
  body = {"__annotations__": dict.fromkeys(fields, float), "__doc__": "A sampling."}
  if "turns" in analysis:
    body["__annotations__"]["position"], body["position"] = float, 0.0
  kind = events.register_sampling(type(name, (events.EventBase,), body))
  accounting.register_sampling(kind, accounting.SamplingAnalysis(**analysis))
  return kind


def run(*entries, relation="add_remove", observer="model"):
  """A ledger of (sampling, query, count)."""
  return Ledger().extend(
    (events.Round(sampling, query, relation, observer=observer), count)
    for sampling, query, count in entries
  )


def epsilon(*entries, accountant="rdp", **scope):
  return accounting.epsilon(run(*entries, **scope), 1e-5, accountant=accountant)


def grouped(*parts):
  return events.GroupedSums(parts, tuple(map(str, range(len(parts)))))


@pytest.mark.parametrize("position", [0, 1])
@pytest.mark.parametrize("other", ["same", "run", GAUSSIAN_SUM, events.NonPrivate()], ids=str)
def test_a_group_is_charged_by_no_run_of_one_part(other, position):
  one = query_of(composed=lambda rounds, *_: [(gaussian_pair(9.0, 1.0), 1)])()
  if isinstance(other, str):
    cheap = query_of("Other", composed=lambda rounds, *_: [(gaussian_pair(99.0, 1.0), 1)])()
    other = one if other == "same" else cheap
  parts = [other, one] if position else [one, other]
  with pytest.raises(ValueError, match="to be its round's only release, got GroupedSums"):
    epsilon((events.PoissonSampling(1.0), grouped(*parts), 1))
  assert epsilon((events.PoissonSampling(1.0), one, 3)) == epsilon(
    (events.PoissonSampling(1.0), events.GaussianSum(1.0, 9.0), 1)
  )


@pytest.mark.parametrize(
  "analysis",
  [
    {"composed": lambda *_: []},
    {"composed": lambda *_: [(gaussian_pair(1.0, 1.0), 0)]},
    {"parts": lambda event: ()},
  ],
  ids=["no pair", "a pair no time", "no part"],
)
def test_a_query_that_charges_nothing_is_refused(analysis):
  one = query_of(**analysis)()
  with pytest.raises(ValueError, match=r"of Query to charge a record .* what register_query was"):
    epsilon((events.PoissonSampling(0.5), one, 1))
  with pytest.raises(ValueError, match="Query"):  # nor is it free in a group
    epsilon((events.PoissonSampling(0.5), grouped(GAUSSIAN_SUM, one), 1))


def whole_gaussian_loss(row, removed, attained):
  return pairs.sampled_gaussian(1.0, row[0], removed=removed) if row[0] > 1e-3 else None


def mirrored_loss(row, removed, attained):
  return pairs.sampled_gaussian(*row, removed=not removed)


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_no_family_is_free_unless_it_says_so(accountant):
  family = Family(
    "of a multiplier alone",
    lambda rows, orders: orders / (2 * rows[:, :1] ** 2),
    unbounded,
    None,
    loss=whole_gaussian_loss,
  )
  kind = query_of(fields=["z"], pair=lambda event, *_: DominatingPair(family, (event.z,)))
  for z in (0.0, 1.0):
    found, known = (
      epsilon((events.PoissonSampling(1.0), query, 1), accountant=accountant)
      for query in (kind(z), events.GaussianSum(1.0, z))
    )
    assert found == pytest.approx(known, rel=1e-3)


def test_no_family_is_symmetric_unless_it_says_so():
  family = Family("mirrored", GAUSSIAN.rdp, unbounded, None, loss=mirrored_loss)
  one = query_of(pair=lambda *_: DominatingPair(family, (0.1, 0.7)))()
  found, known = (
    epsilon((events.PoissonSampling(q), query, 1), accountant="pld")
    for q, query in ((1.0, one), (0.1, events.GaussianSum(1.0, 0.7)))
  )
  assert found == pytest.approx(known, rel=1e-6)


def poisson_amplified(event, released, relation, release):
  known = events.PoissonSampling(event.rate)
  return accounting.sampling_analysis(known).amplified(known, released, relation, release)


def turns_of(name, most, fields=("rate",), **turns):
  """A sampling by coins of the rate `rate`, of `most` rounds that a record can be in."""
  return sampling_of(
    name,
    fields,
    amplified=poisson_amplified,
    stays=lambda event: True,
    turns=lambda event: accounting.Turns("a run", lambda rounds: most(event), **turns),
  )


@pytest.mark.parametrize("query", [events.GaussianSum, events.LaplaceSum])
@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_turns_of_which_none_dominates_are_all_charged(query, accountant):
  once = turns_of("Once", lambda event: 1)
  found, known = (
    epsilon(
      (kind(1e-3), query(1.0, 1.0), 1), (kind(0.9), query(1.0, 1.1), 1), accountant=accountant
    )
    for kind in (once, events.PoissonSampling)
  )
  assert found == known
  epochs = turns_of("Epochs", lambda event: 1, ("rate", "starts_epoch"), of_epochs=True)
  with pytest.raises(ValueError, match="rounds of an epoch to have equal parameters"):
    epsilon((epochs(1e-3, 1.0), query(1.0, 1.0), 1), (epochs(0.9, 0.0), query(1.0, 1.1), 1))


@pytest.mark.parametrize("cheaper", [(0.1, 2.0), (0.01, 1.0), (0.01, 2.0)])
def test_turns_of_which_one_dominates_are_compared(cheaper):
  once = turns_of("Once", lambda event: 1)
  found = epsilon(
    (once(cheaper[0]), events.GaussianSum(1.0, cheaper[1]), 1), (once(0.1), GAUSSIAN_SUM, 1)
  )
  assert found == epsilon((events.PoissonSampling(0.1), GAUSSIAN_SUM, 1))


def test_a_severity_that_does_not_see_all_numbers_compares_no_others():
  family = Family("of q and z", GAUSSIAN.rdp, unbounded, lambda row: -row[1])
  kind = query_of(
    fields=["q", "z"], pair=lambda event, *_: DominatingPair(family, (event.q, event.z))
  )
  once = turns_of("Once", lambda event: 1)(1.0)
  for z in (1.0, 1.1):
    rounds = [(kind(0.001, 1.0), 1), (kind(1.0, z), 1)]
    found, known = (
      epsilon(*((sampling, query, count) for query, count in rounds))
      for sampling in (once, events.PoissonSampling(1.0))
    )
    assert found == known


@pytest.mark.parametrize("order", [1, -1])
def test_turns_of_two_samplers_are_told_apart(order):
  once, ten = turns_of("Once", lambda event: 1), turns_of("TenTimes", lambda event: 10)
  entries = [(once(1.0), GAUSSIAN_SUM, 10), (ten(1.0), GAUSSIAN_SUM, 100)]
  whole = epsilon((events.PoissonSampling(1.0), GAUSSIAN_SUM, 11))
  assert epsilon(*entries[::order]) == whole


@pytest.mark.parametrize("order", [1, -1])
def test_where_one_samplers_events_disagree_the_dearest_holds(order):
  kind = turns_of("Upto", lambda event: int(event.most), ("rate", "most"))
  entries = [(kind(1.0, 1.0), GAUSSIAN_SUM, 5), (kind(1.0, 3.0), GAUSSIAN_SUM, 5)]
  assert epsilon(*entries[::order]) == epsilon((events.PoissonSampling(1.0), GAUSSIAN_SUM, 3))


@pytest.mark.parametrize("relation", ["add_remove", "zero_out"])
def test_a_truncated_sample_reads_multipliers_not_columns(relation):
  def family(multiplier):
    return Family(
      "Gaussian of many dimensions",  # (z, dimensions)
      lambda rows, orders: orders / (2 * rows[:, :1] ** 2),
      unbounded,
      None,
      multiplier=multiplier,
    )

  def pair(event, asked, declared):
    known = whole if asked != "replace_one" else replaced
    return DominatingPair(known, (0.5 if asked == "replace_one" else 1.0, 1e6))

  whole = replaced = family(lambda row: row[0])
  one = query_of(pair=pair, is_central=True)()
  sampling = events.TruncatedPoissonSampling(0.1, 100, 1000)
  found, known = (
    epsilon((sampling, query, 100), relation=relation) for query in (one, GAUSSIAN_SUM)
  )
  assert found == known
  replaced = family(lambda row: None)
  with pytest.raises(ValueError, match="Gaussian Query under replace_one too"):
    epsilon((sampling, one, 100), relation=relation)


def test_a_group_of_turns_pays_for_the_sums_that_no_sample_amplifies():
  rounds = (
    (events.CyclicPoissonSampling(2, 0.01, 100, position), query, 1)
    for position, query in enumerate((GAUSSIAN_SUM, events.DistributedGaussianSum(1.0, 1.1)))
  )
  alone = epsilon((events.PoissonSampling(1.0), events.GaussianSum(1.0, 1.1), 1))
  assert alone <= epsilon(*rounds, relation="zero_out") <= 1.01 * alone


@pytest.mark.parametrize("number", [1, 5])
@pytest.mark.parametrize(
  ("analysis", "known"),
  [
    ({"charged": lambda *_: (Relation.REPLACE_ONE,)}, [events.GaussianSum(2.0, 1.0)]),
    (
      {"charged": lambda *_: (Relation.REPLACE_ONE, Relation.ADD_REMOVE)},
      [events.GaussianSum(2.0, 1.0), GAUSSIAN_SUM],
    ),
    (
      {
        "stays": lambda event: True,
        "amplified": lambda event, released, *_: (*released, gaussian_pair(0.5, 1.0)),
      },
      [GAUSSIAN_SUM, events.GaussianSum(2.0, 1.0)],
    ),
  ],
  ids=["replaced", "replaced and removed", "more"],
)
def test_a_cap_leaves_out_nothing_that_a_round_is_charged(analysis, known, number):
  kind = sampling_of(
    turns=lambda event: accounting.Turns(0, lambda _: 2, by_coins=True), **analysis
  )
  whole = [(events.PoissonSampling(1.0), query, min(number, 2)) for query in known]
  assert epsilon((kind(), GAUSSIAN_SUM, number)) >= epsilon(*whole) * (1 - 1e-12)


NOT_CENTRAL = events.DistributedGaussianSum(1.0, 1.0)


@pytest.mark.parametrize(
  ("analysis", "query", "observer", "multipliers"),
  [
    ({"charged": lambda *_: (Relation.REPLACE_ONE,)}, GAUSSIAN_SUM, "model", [0.5]),
    ({"charged": lambda *_: (Relation.REPLACE_ONE,)}, GAUSSIAN_SUM, "server", [0.5]),
    ({"charged": lambda *_: (Relation.REPLACE_ONE,)}, NOT_CENTRAL, "model", [0.5]),
    ({"amplified": lambda event, it, *_: (*it, *it)}, GAUSSIAN_SUM, "model", [1.0, 1.0]),
    ({}, GAUSSIAN_SUM, "model", [1.0]),
  ],
)
def test_what_is_charged_is_exported(analysis, query, observer, multipliers):
  dp = pytest.importorskip("dp_accounting")
  kind = sampling_of(inclusion=lambda event: 1.0, **analysis)
  ledger = run((kind(), query, 1), relation="zero_out", observer=observer)
  (found,) = accounting.to_dp_event(ledger).event.events
  known = [dp.GaussianDpEvent(multiplier) for multiplier in multipliers]
  assert found == (dp.ComposedDpEvent(known) if known[1:] else known[0])


@pytest.mark.parametrize("analysis", [{}, {"anew": True}, {"fresh_coins": True}], ids=str)
def test_inclusion_is_a_coin_of_each_round_only_where_rounds_are_independent(analysis):
  kind = sampling_of(inclusion=lambda event: 0.01, **analysis)  # or a cohort, drawn once
  found, known = (
    epsilon((sampling, GAUSSIAN_SUM, 100), relation="zero_out", observer="server")
    for sampling in (kind(), events.PoissonSampling(0.01 if analysis else 1.0))
  )
  assert found == known
