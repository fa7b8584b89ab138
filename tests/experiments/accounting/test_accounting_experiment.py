"""The accounting command: plans, calibration, published tables, and a run's ledger."""

import dataclasses

import pytest

from experiments.accounting import __main__ as binary
from experiments.runner.published_language_models import PUBLISHED
from jdp import accounting
from jdp.events import GaussianSum, LocalRelease, NonPrivate, PoissonSampling, Round
from jdp.guarantees import SeparatedDP, rounded_up
from jdp.ledger import DurableLedger, Ledger, subsampled_gaussian
from tests.experiments import runs
from tests.experiments.report_tables import rows

RELEASE = LocalRelease(SeparatedDP(8.0, 2.0), max_releases=3)


def run(tmp_path, **given):
  return runs.run(binary.EXPERIMENT, tmp_path / "run", **given)


def test_a_plan_by_every_accountant(tmp_path):
  report = run(tmp_path, task="plan", q=(0.01, 0.02), z=(1.0,), rounds=(10, 100), delta=1e-6).report
  plan = subsampled_gaussian(0.02, 1.0, 100)
  expected = [
    rounded_up(accounting.epsilon(plan, 1e-6, accountant=name), 4)
    for name in ("rdp", "moments", "pld")
  ]
  assert ["0.02", "1.0", "100", *expected] in rows(report)
  assert len(rows(report)) == 2 + 4
  assert (tmp_path / "run" / "epsilon_over_rounds.png").stat().st_size > 10_000


@pytest.mark.parametrize(
  ("unknown", "known"),
  [
    ("z", {"q": (0.02,), "rounds": (500,)}),
    ("rounds", {"q": (0.02,), "z": (1.3,)}),
    ("q", {"z": (1.3,), "rounds": (500,)}),
  ],
)
def test_calibration_meets_its_target_and_hardly_more(tmp_path, unknown, known):
  report = run(
    tmp_path,
    task="calibrate",
    solve_for=unknown,
    target_epsilon=(1.5,),
    accountants=("rdp",),
    **known,
  ).report
  found = float(rows(report)[-1][-1])

  def epsilon(value):
    plan = {name: values[0] for name, values in known.items()} | {unknown: value}
    planned = subsampled_gaussian(plan["q"], plan["z"], plan["rounds"])
    return accounting.epsilon(planned, 1e-5, accountant="rdp")

  worse = {"z": 0.998 * found, "rounds": int(found) + 1, "q": 1.002 * found}[unknown]
  # as printed, not only as computed
  assert epsilon(int(found) if unknown == "rounds" else found) <= 1.5
  assert epsilon(worse) > 1.5


def test_the_published_tables(tmp_path):
  table = rows(run(tmp_path, task="published", accountants=("moments",)).report)
  runs = (subsampled_gaussian(0.01, 1.0, 10**i) for i in range(7))
  epsilons = [
    rounded_up(accounting.epsilon(run, 1e6**-1.1, accountant="moments"), 4) for run in runs
  ]
  assert ["1e+06", "10000", "1.0", "moments", *epsilons] in table
  second = {tuple(row[:2]): row[2:] for row in table if len(row) == 4}
  for row in PUBLISHED:
    ours = rounded_up(accounting.epsilon(row.plan, 1e-9, accountant="moments"), 4)
    assert second[f"{row.users:,}", str(row.cohort)] == [f"{row.epsilon:.3f}", ours]
  assert ["Table 1", "42 of 42"] in table
  assert ["Table 2", "6 of 6"] in table


def test_a_ledger_for_each_observer(tmp_path):
  event = Round(PoissonSampling(0.05), GaussianSum(2.0, 3.0))
  held = Ledger().extend([(event, 1), (RELEASE, 1)] * 7 + [(event, 13)])
  held.save(tmp_path / "ledger.jsonl")
  report = run(
    tmp_path,
    task="ledger",
    ledger=str(tmp_path / "ledger.jsonl"),
    delta=1e-5,
    accountants=("rdp", "pld"),
  ).report
  whole = Ledger().append(event, count=20)
  expected = [
    rounded_up(accounting.epsilon(whole, 1e-5, accountant=name), 4) for name in ("rdp", "pld")
  ]
  assert ["20", *expected] in rows(report)
  first = rounded_up(accounting.epsilon(Ledger().append(event), 1e-5, accountant="rdp"), 4)
  assert any(row[:2] == ["1", first] for row in rows(report))
  assert "(24, 6)-separated, 30-DP" in report
  for name in (
    "model_epsilon_over_rounds",
    "model_delta",
    "server_epsilon_over_rounds",
    "server_delta",
  ):
    assert (tmp_path / "run" / f"{name}.png").exists()
    assert f"({name}.png)" in report


def test_a_ledger_of_a_seeded_key_is_labelled_before_every_number(tmp_path):
  event = Round(PoissonSampling(0.05), GaussianSum(2.0, 3.0))
  given = {"task": "ledger", "ledger": str(tmp_path / "ledger.jsonl"), "accountants": ("rdp",)}
  for exposed, labels in ((False, 0), (True, 2 + 2)):  # in each part's title and text
    Ledger().append(dataclasses.replace(event, key_exposed=exposed), count=20).save(
      tmp_path / "ledger.jsonl"
    )
    found = run(tmp_path / str(exposed), **given)
    for text in (found.report, found.out):
      parts = text.partition("\n## How to repeat it")[0].split("\n## ")[1:]
      assert [part.count("NOT PRIVATE: the noise of 20 of 20 events") for part in parts] == [
        labels // 4
      ] * 2
      assert [part.split("\n")[0].count("(NOT PRIVATE)") for part in parts] == [labels // 4] * 2
      assert all(part.index("**NOT PRIVATE") < part.index("| ") for part in parts if exposed)


def test_a_file_that_may_have_lost_rounds_is_remarked_on_before_every_number(tmp_path):
  event = Round(PoissonSampling(0.05), GaussianSum(2.0, 3.0))
  path = tmp_path / "ledger.jsonl"
  given = {"task": "ledger", "ledger": str(path), "accountants": ("rdp",)}
  durable = DurableLedger(path, "run", key_exposed=True)
  durable.append(0, *[[event]] * 20)
  for finished in (False, True):
    if finished:
      durable.finish()
    found = run(tmp_path / str(finished), **given)
    for text in (found.report, found.out):
      parts = text.partition("\n## How to repeat it")[0].split("\n## ")[1:]
      assert [part.count("NOT PRIVATE: the noise of 20 of 20 events") for part in parts] == [1, 1]
      assert [part.count("Note: the ledger is not closed") for part in parts] == [not finished] * 2
      assert finished or all(part.index("**Note") < part.index("| ") for part in parts)
  durable.close()


def test_without_privacy_epsilon_is_infinite_and_said_to_be(tmp_path):
  Ledger().append(Round(PoissonSampling(0.05), NonPrivate()), count=3).save(
    tmp_path / "ledger.jsonl"
  )
  given = {"task": "ledger", "ledger": str(tmp_path / "ledger.jsonl"), "accountants": ("rdp",)}
  assert ["3", "inf"] in rows(run(tmp_path, **given).report)


@pytest.mark.parametrize(
  ("given", "message"),
  [
    ({"task": "ledger"}, "Expected --ledger=FILE with --task=ledger, got none"),
    (
      {"task": "ledger", "ledger": "nowhere.jsonl"},
      "Expected a ledger in nowhere.jsonl, got no such file",
    ),
    ({"task": "calibrate", "z": (1.0,)}, "Expected no --z with --solve_for=z"),
    ({"task": "plan", "ledger": "x"}, "Expected --ledger only with --task=ledger, got --task=plan"),
    ({"task": "plan", "q": (1.5,)}, r"Expected --q to be a probability in \[0, 1\], got 1.5"),
  ],
)
def test_refusals_come_before_anything_is_written(tmp_path, given, message):
  with pytest.raises((ValueError, FileNotFoundError), match=message):
    run(tmp_path, **given)
  assert not (tmp_path / "run").exists()


def test_an_empty_ledger_is_refused(tmp_path):
  Ledger().save(tmp_path / "ledger.jsonl")
  with pytest.raises(ValueError, match=r"Expected events in .*, got none"):
    run(tmp_path, task="ledger", ledger=str(tmp_path / "ledger.jsonl"))
