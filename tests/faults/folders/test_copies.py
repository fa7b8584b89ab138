"""Copies of a run: their ledgers are not added up, and a counter outside notices them."""

import shutil

import jax.numpy as jnp
import pytest

from jdp import random
from jdp.events import GaussianSum, PoissonSampling, Round
from jdp.federated.runs.run_folder import Counter, RunFolder
from jdp.ledger import DurableLedger, Ledger, load
from tests.helpers.small_runs import ROUNDS, copied, go

_EVENT = Round(PoissonSampling(0.1), GaussianSum(1.0, 1.0))


@pytest.fixture
def begun(tmp_path):
  go(tmp_path / "run", stop_at=4)
  return tmp_path / "run"


def test_ledgers_of_two_copies_are_not_added(begun, tmp_path):
  copy = copied(begun, tmp_path / "copy")
  results = [go(begun), go(copy, evaluate_every=3)]
  ledgers = [result.ledger for result in results]
  files = [load(folder / "ledger.jsonl") for folder in (begun, copy)]
  for one, two in (ledgers, files, (files[0], ledgers[1])):
    with pytest.raises(ValueError, match="Expected ledgers of different runs, got two of run"):
      _ = one + two
  files[0].save(tmp_path / "saved")
  with pytest.raises(ValueError, match="Expected ledgers of different runs"):
    _ = load(tmp_path / "saved") + files[1].append(_EVENT)


def test_a_run_goes_on_from_another_ones_ledger_but_not_from_its_own(begun, tmp_path):
  prior = go(begun).ledger
  after = go(tmp_path / "next", prior=prior)  # with a key of its own
  assert len(after.ledger) == 2 * ROUNDS
  assert len(after.ledger.runs) == 2
  assert load(tmp_path / "next" / "ledger.jsonl").runs == after.ledger.runs
  with pytest.raises(ValueError, match="Expected ledgers of different runs"):
    _ = after.ledger + prior
  key = random.seeded_key(3)
  for folder in (tmp_path / "seeded", None):
    one = go(folder, noise_key=key).ledger
    with pytest.raises(ValueError, match="Expected ledgers of different runs"):
      go(folder and tmp_path / "again", noise_key=key, prior=one)


def test_plans_and_ledgers_without_an_identity_are_added_as_before(tmp_path):
  plan = Ledger().append(_EVENT, count=3)
  assert len(plan + plan) == 6
  for name in ("one", "two"):
    written = DurableLedger(tmp_path / name, "run")
    written.append(0, [_EVENT])
    written.close()
  assert len(load(tmp_path / "one") + load(tmp_path / "two")) == 2
  recorded = plan.recorded_by(["run"])
  assert recorded == plan


def test_a_slice_is_of_the_run_that_it_was_cut_from(tmp_path):
  key = random.secure_key()
  one = go(None, noise_key=key).ledger
  for part in (one.rounds(0, 1), one.rounds(0, len(one))):
    assert part.runs == one.runs
    with pytest.raises(ValueError, match="Expected ledgers of different runs"):
      part + one
    with pytest.raises(ValueError, match="Expected ledgers of different runs"):
      go(None, noise_key=key, prior=part)
  assert one.rounds(0, 1).extend(one.rounds(1, 3).entries) == one.rounds(0, 3)


@pytest.fixture
def counted(tmp_path):
  """Makes the place of a run in a folder, whose counter lies elsewhere."""
  marks = []
  counter = Counter(lambda: marks[-1] if marks else None, marks.append)

  def place(folder):
    return RunFolder(folder, folder.with_name(folder.name + ".secret"), "run", counter)

  return place


def test_a_counter_outside_refuses_copies_and_roll_backs(tmp_path, counted):
  folder = tmp_path / "run"
  go(counted(folder), stop_at=4)
  copy = copied(folder, tmp_path / "copy")
  shown = []
  result = go(counted(folder))  # One killed process is none of a copy.
  assert len(result.ledger) == ROUNDS
  with pytest.raises(ValueError, match=r"the run's counter has, .* got a copy or an older one"):
    go(counted(copy), callbacks=[shown.append])
  for name in ("run", "run.secret"):
    shutil.rmtree(tmp_path / name)
    shutil.copytree(copy.with_name(name), tmp_path / name)
  with pytest.raises(ValueError, match="got a copy or an older one"):
    go(counted(folder), callbacks=[shown.append])
  assert not shown


def test_a_counter_notices_a_copy_that_was_opened_before_the_first_went_on(tmp_path, counted):
  folder = tmp_path / "run"
  go(counted(folder), stop_at=2)
  copy = copied(folder, tmp_path / "copy")
  rounds = []

  def go_on_elsewhere(progress):
    rounds.append(progress.round)
    if len(rounds) == 2:
      go(counted(folder), stop_at=6)

  with pytest.raises(ValueError, match="got a copy or an older one"):
    go(counted(copy), callbacks=[go_on_elsewhere], params=jnp.zeros(2), num_rounds=8)
  assert max(rounds) < 8
