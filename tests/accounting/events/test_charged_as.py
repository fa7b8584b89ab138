"""Events under other names, by `charge_as` or with a known analysis: all statements are equal."""

import dataclasses
import itertools

import pytest

from jdp import accounting, events
from jdp.accounting import dominating_pairs, registration
from jdp.conformance import unaudited
from jdp.events import EventBase, GaussianSum, GroupedSums, LaplaceSum, PoissonSampling, Round
from jdp.events.queries import query_event_types, sampling_event_types
from jdp.guarantees import Relation
from jdp.ledger import Ledger, load
from tests.accounting.events.test_pairings import QUERIES, SAMPLINGS, UNPROTECTED

pytestmark = pytest.mark.usefixtures("undone")
INHERITED = {field.name for field in dataclasses.fields(EventBase)}
RESPONSE = events.RandomizedResponse(0.4, 3, uniform_null=True)
PARTS = GroupedSums((GaussianSum(2.0, 6.0), LaplaceSum(1.0, 1.5)), ("a", "b"))


def by_rule(kind):
  """A type with the fields of another one alone, charged as that one is."""
  own = [field for field in dataclasses.fields(kind) if field.name not in INHERITED]
  body = {"__annotations__": {field.name: object for field in own}, "__doc__": "A copy."}
  body |= {f.name: f.default for f in own if f.default is not dataclasses.MISSING}
  register = events.register_sampling if kind in sampling_event_types() else events.register
  copy = register(type(f"Other{kind.__name__}", (EventBase,), body))
  accounting.charge_as(copy, lambda event: kind(**{f.name: getattr(event, f.name) for f in own}))
  return copy


def by_analysis(kind):
  """A type that is like another one, and has the analysis that the public registry has of it."""
  is_sampling = kind in sampling_event_types()
  register = events.register_sampling if is_sampling else events.register
  copy = register(type(f"Like{kind.__name__}", (kind,), {"__doc__": "A copy."}))
  known = registration.sampling_analysis if is_sampling else registration.query_analysis
  add = accounting.register_sampling if is_sampling else accounting.register_query
  add(copy, known(object.__new__(kind)))
  return copy


def renamed(event, copies, copied):
  """The event under its other name, its parts too."""
  kind = type(event)
  if (kind, copied) not in copies:
    copies[kind, copied] = copied(kind)
  values = {f.name: getattr(event, f.name) for f in dataclasses.fields(kind)}
  if kind is GroupedSums:
    values["parts"] = tuple(renamed(part, copies, copied) for part in event.parts)
  return copies[kind, copied](**values)


def said(function, *args, **kwargs):
  """What a function returns, or why it refuses, by whatever name the event has."""
  try:
    return function(*args, **kwargs)
  except ValueError as error:
    return str(error).replace("Like", "").replace("Other", "")


def exported(ledger, **scope):
  pytest.importorskip("dp_accounting")
  return accounting.to_dp_event(ledger, **scope)


HOW = (by_rule, by_analysis)
QUICK = {
  "rdp": lambda run, **scope: accounting.epsilon(run, 1e-5, **scope),
  "moments": lambda run, **scope: accounting.epsilon(run, 1e-5, accountant="moments", **scope),
  "delta": lambda run, **scope: accounting.delta(run, 0.7, **scope),
  "renyi filter": lambda run, **scope: accounting.renyi_filter(3.0, 1e-5, **scope).spent(run),
  "Gaussian filter": lambda run, **scope: accounting.gaussian_filter(3.0, 1e-5, **scope).spent(run),
  "odometer": lambda run, **scope: accounting.odometer(run, 1e-5, **scope),
  "export": exported,
  "reason": lambda run, **scope: accounting.why_unbounded(run, 1e-5, **scope),
  "slices": lambda run, **scope: accounting.epsilon(
    run.rounds(1, 3) + run.rounds(1, 3), 1e-5, **scope
  ),
}
THOROUGH = {
  "pld": lambda run, **scope: accounting.epsilon(run, 1e-5, accountant="pld", **scope),
  "interval": lambda run, **scope: accounting.epsilon_interval(run, 1e-5, **scope),
  "group": lambda run, **scope: accounting.group_epsilon(run, 1e-5, group_size=2, **scope),
  "selection": lambda run, **scope: accounting.selection_epsilon(run, 1e-5, mean_runs=3.0, **scope),
  "trade-off": lambda run, **scope: accounting.trade_off(run, [0.01], **scope).tolist(),
}


def run_of(sampling, query, relation, observer):
  """Three rounds. Of a sampling by epochs, the first alone starts one."""
  later = sampling
  if hasattr(sampling, "starts_epoch"):
    later = dataclasses.replace(sampling, starts_epoch=False)
  return Ledger().extend(
    (Round(drawn, query, relation, observer=observer), count)
    for drawn, count in ((sampling, 1), (later, 2))
  )


def assert_equal_statements(copies, sampling, query, statements):
  for relation, observer in itertools.product(Relation, ("model", "server")):
    known, *others = (
      run_of(drawn, released, relation, observer)
      for drawn, released in (
        (sampling, query),
        *((renamed(sampling, copies, how), renamed(query, copies, how)) for how in HOW),
      )
    )
    scope = {"relation": relation, "observer": observer}
    for statement in statements.values():
      expected = said(statement, known, **scope)
      assert all(said(statement, other, **scope) == expected for other in others)


@pytest.mark.sweep
@pytest.mark.parametrize("query", [*QUERIES, RESPONSE, *UNPROTECTED], ids=str)
def test_every_query(query):
  copies = {}
  for sampling in (PoissonSampling(0.2), PoissonSampling(1.0)):
    assert_equal_statements(copies, sampling, query, QUICK)


@pytest.mark.sweep
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_every_sampling(sampling):
  copies = {}
  for query in (GaussianSum(1.0, 2.0), PARTS):
    assert_equal_statements(copies, sampling, query, QUICK)


@pytest.mark.sweep
@pytest.mark.parametrize(
  ("sampling", "query"),
  [
    (PoissonSampling(0.2), GaussianSum(1.0, 2.0)),
    (PoissonSampling(0.2), PARTS),
    (PoissonSampling(1.0), RESPONSE),
    (events.TruncatedPoissonSampling(0.05, 22, 100), GaussianSum(1.0, 2.0)),
    (events.BallsInBins(5, True), GaussianSum(1.0, 2.0)),
  ],
  ids=str,
)
def test_by_loss_distributions(sampling, query):
  assert_equal_statements({}, sampling, query, THOROUGH)


def test_all_known_types_are_here():
  types = {type(query) for query in [*QUERIES, *UNPROTECTED]}
  assert types == set(query_event_types())
  assert {type(sampling) for sampling in SAMPLINGS} == set(sampling_event_types())


def test_the_blocks_of_long_ledgers_are_read_by_the_rules_of_the_day():
  def run(make, sampling):
    return Ledger().extend((Round(sampling, make(1.0 + n * 1e-3)), 1) for n in range(600))

  @events.register
  class Doubled(EventBase):
    stddev: float

  @events.register_sampling
  class Coins(EventBase):
    rate: float

  long = run(Doubled, Coins(0.1))
  with pytest.raises(ValueError, match="a sampling that has an analysis, got Coins"):
    accounting.epsilon(long, 1e-5)
  accounting.charge_as(Doubled, lambda event: GaussianSum(1.0, 2 * event.stddev))
  accounting.charge_as(Coins, lambda event: PoissonSampling(event.rate))
  known = run(lambda stddev: GaussianSum(1.0, 2 * stddev), PoissonSampling(0.1))
  assert accounting.epsilon(long, 1e-5) == accounting.epsilon(known, 1e-5)
  assert accounting.noise_multiplier(Doubled(3.0), "zero_out") == 6.0
  assert dominating_pairs.is_central(Doubled(3.0))


@pytest.mark.parametrize("is_central", [True, False])
def test_only_a_central_query_is_amplified(is_central):
  @events.register
  class Analysed(EventBase):
    multiplier: float

  def pair(event, relation, declared):
    return dominating_pairs.gaussian_pair(event.multiplier, 1.0)

  accounting.register_query(Analysed, accounting.QueryAnalysis(pair, is_central))
  for query in (Analysed(2.0), GroupedSums((Analysed(2.0),), ("sum",))):
    run = Ledger().append(Round(PoissonSampling(0.1), query), count=9)
    q = 0.1 if is_central else 1.0
    known = Ledger().append(Round(PoissonSampling(q), GaussianSum(1.0, 2.0)), count=9)
    assert accounting.epsilon(run, 1e-5) == accounting.epsilon(known, 1e-5)


def test_ledgers_of_them_are_saved_and_marked(tmp_path):
  @events.register
  class Other(EventBase):
    stddev: float

  accounting.charge_as(Other, lambda event: GaussianSum(1.0, event.stddev))
  run = Ledger().append(Round(PoissonSampling(0.5), Other(2.0, adaptive=True, key_exposed=True)))
  run.save(tmp_path / "run.jsonl")
  assert load(tmp_path / "run.jsonl") == run
  assert run.caveats
  with pytest.raises(ValueError, match="chosen from earlier releases"):
    accounting.epsilon(run, 1e-5)
  assert "no analysis" not in "".join(unaudited())
  tuned = accounting.best_of_runs(
    Ledger().append(Round(PoissonSampling(0.5), Other(2.0)), count=5), mean_runs=2.0
  )
  known = accounting.best_of_runs(
    Ledger().append(Round(PoissonSampling(0.5), GaussianSum(1.0, 2.0)), count=5), mean_runs=2.0
  )
  costs = {accounting.epsilon(Ledger().append(event), 1e-5) for event in (tuned, known)}
  assert len(costs) == 1


def test_what_cannot_work_is_refused():
  @events.register
  class First(EventBase):
    pass

  @events.register
  class Second(EventBase):
    pass

  class Unregistered(EventBase):
    pass

  with pytest.raises(ValueError, match="registered from outside, got Unregistered"):
    accounting.charge_as(Unregistered, lambda event: GaussianSum(1.0, 1.0))
  accounting.charge_as(First, lambda event: Second())
  with pytest.raises(ValueError, match="without an analysis, got First"):
    accounting.charge_as(First, lambda event: GaussianSum(1.0, 1.0))
  ledger = Ledger().append(Round(PoissonSampling(0.5), First()))
  with pytest.raises(ValueError, match="a query that has an analysis, got Second"):
    accounting.epsilon(ledger, 1e-5)
  accounting.charge_as(Second, lambda event: First())  # in a circle
  with pytest.raises(ValueError, match="rule of Second to give an event of the same sort"):
    accounting.epsilon(ledger, 1e-5)

  @events.register
  class Third(EventBase):
    pass

  accounting.charge_as(Third, lambda event: PoissonSampling(0.1))
  with pytest.raises(ValueError, match=r"rule of Third to give an event .* got PoissonSampling"):
    accounting.epsilon(Ledger().append(Round(PoissonSampling(0.5), Third())), 1e-5)


@pytest.mark.parametrize(
  ("given", "missing", "known"),
  [
    ({"first": True}, "starts_epoch", lambda event: events.ShuffledBatches(4, event.first)),
    ({"first": True}, "position", lambda event: events.MinSeparationSampling(4, 2, 100)),
    ({"first": True}, "position", lambda event: events.CyclicPoissonSampling(4, 0.5, 100)),
    (
      {"position": 7},
      "max_participations",
      lambda event: events.MinSeparationSampling(4, 2, 100, event.position),
    ),
    # Rounds with a position count as those of one run only where positions tell runs apart.
    ({"position": 7, "max_participations": 1}, "position", lambda event: capped(0.5)),
  ],
)
def test_what_sums_and_slices_read_is_in_the_event_itself(given, missing, known):
  """Else the second half of a run, twice, would cost what one epoch does."""
  body = {"__annotations__": dict.fromkeys(given, object), "__doc__": "A copy."}
  renamed = events.register_sampling(type("Renamed", (EventBase,), body))
  accounting.charge_as(renamed, known)
  run = Ledger().append(Round(renamed(**given), GaussianSum(1.0, 2.0), "zero_out"))
  with pytest.raises(ValueError, match=f"Renamed to have the field {missing} of the "):
    accounting.epsilon(run, 1e-5)


def test_a_sum_of_a_run_has_the_index_of_its_round():
  """Else parts of two runs would count as one."""

  @events.register
  class Step(EventBase):
    step: int

  accounting.charge_as(
    Step,
    lambda event: events.CorrelatedGaussianSum(
      1.0, 2.0, "a strategy", 4, 1, 4, 4.0, 1, 1.0, event.step
    ),
  )
  run = Ledger().append(Round(PoissonSampling(1.0), Step(0), "zero_out"))
  with pytest.raises(ValueError, match="Step to have the field index of the"):
    accounting.epsilon(run, 1e-5)


def capped(probability):
  return PoissonSampling(probability, max_participations=1)


def test_runs_of_a_cap_are_told_apart_by_no_field_that_a_rule_drops():
  @events.register_sampling
  class Named(EventBase):
    name: str
    max_participations: int

  accounting.charge_as(Named, lambda event: capped(0.5))
  one, other, known = (
    Ledger().append(Round(sampling, GaussianSum(1.0, 2.0)), count=8)
    for sampling in (Named("a", 1), Named("b", 1), capped(0.5))
  )
  assert accounting.epsilon(one, 1e-5) == accounting.epsilon(known, 1e-5)
  for left, right in itertools.permutations((one, other, known), 2):
    with pytest.raises(ValueError, match="Expected rounds with max_participations"):
      left + right


def test_epochs_are_those_of_a_sampler_whatever_its_rounds_are_numbered():
  @events.register_sampling
  class Numbered(EventBase):
    index: int
    starts_epoch: bool

  accounting.charge_as(Numbered, lambda event: events.BallsInBins(4, event.starts_epoch))
  run = Ledger().extend(
    (Round(Numbered(n, n % 4 == 0), GaussianSum(1.0, 2.0), "zero_out"), 1) for n in range(8)
  )
  half = run.rounds(2, 6)
  assert run.rounds(0, 8) == run
  assert [event.sampling.starts_epoch for event, _ in half.entries] == [True, False, True, False]


def test_the_start_of_an_epoch_is_a_field():
  @events.register_sampling
  class Stepped(EventBase):
    step: int

    @property
    def starts_epoch(self):
      return self.step % 4 == 0

  accounting.charge_as(Stepped, lambda event: events.BallsInBins(4, event.starts_epoch))
  run = Ledger().append(Round(Stepped(0), GaussianSum(1.0, 2.0), "zero_out"))
  with pytest.raises(ValueError, match="Stepped to have the field starts_epoch"):
    accounting.epsilon(run, 1e-5)


def test_a_cap_may_be_left_out_of_what_is_charged():
  @events.register_sampling
  class Capped(EventBase):
    max_participations: int

  accounting.charge_as(Capped, lambda event: PoissonSampling(0.5))
  found, known = (
    accounting.epsilon(Ledger().append(Round(sampling, GaussianSum(1.0, 2.0))), 1e-5)
    for sampling in (Capped(3), PoissonSampling(0.5))
  )
  assert found == known


@pytest.mark.parametrize(
  ("of_epochs", "named"), [(True, "starts_epoch"), (False, "max_participations or position")]
)
def test_turns_need_the_field_by_which_ledgers_are_added_and_sliced(of_epochs, named):
  """Else a run twice would cost what it does once."""

  @events.register_sampling
  class Epochs(EventBase):
    first: bool

  def turns(event):
    return accounting.Turns("of one run", lambda rounds: 1, of_epochs=of_epochs)

  accounting.register_sampling(Epochs, accounting.SamplingAnalysis(turns=turns))
  run = Ledger().append(Round(Epochs(True), GaussianSum(1.0, 2.0), "zero_out"))
  with pytest.raises(
    ValueError, match=f"Epochs, whose records take turns, to have a field {named},"
  ):
    accounting.epsilon(run, 1e-5)


def test_a_sampling_with_mathematics_of_its_own():
  @events.register_sampling
  class EveryOther(EventBase):
    """Records with an even name are in every second round, the others in the rest."""

    position: int

  def turns(event):
    def most(rounds):
      sides = [0, 0]
      for other, count in rounds:
        sides[other.position % 2] += count
      return max(sides)

    return accounting.Turns("of one run", most)

  run = Ledger().extend(
    (Round(EveryOther(n), GaussianSum(1.0, 2.0 + n), "zero_out"), 1) for n in range(5)
  )
  with pytest.raises(ValueError, match="a sampling that has an analysis, got EveryOther"):
    accounting.epsilon(run, 1e-5)
  accounting.register_sampling(EveryOther, accounting.SamplingAnalysis(turns=turns))
  whole = ((Round(PoissonSampling(1.0), GaussianSum(1.0, 2.0 + n)), 1) for n in range(3))
  assert accounting.epsilon(run, 1e-5) == accounting.epsilon(Ledger().extend(whole), 1e-5)
  with pytest.raises(ValueError, match="relation zero_out or replace_one for EveryOther"):
    accounting.epsilon(run, 1e-5, relation="add_remove")
  for again in (EveryOther, PoissonSampling):
    with pytest.raises(ValueError, match="sampling event without an analysis"):
      accounting.register_sampling(again, accounting.SamplingAnalysis())
  with pytest.raises(ValueError, match="without an analysis, got EveryOther"):
    accounting.charge_as(EveryOther, lambda event: PoissonSampling(1.0))
  with pytest.raises(ValueError, match="type of a sampling's event, got GaussianSum"):
    accounting.register_sampling(GaussianSum, accounting.SamplingAnalysis())


@pytest.mark.parametrize("name", ["amplified", "charged"])
def test_a_sampling_that_charges_nothing_is_refused(name):
  @events.register_sampling
  class Free(EventBase):
    pass

  accounting.register_sampling(Free, accounting.SamplingAnalysis(**{name: lambda *_: ()}))
  with pytest.raises(ValueError, match="analysis of Free to charge a record with something"):
    accounting.epsilon(Ledger().append(Round(Free(), GaussianSum(1.0, 1.0), "zero_out")), 1e-5)
