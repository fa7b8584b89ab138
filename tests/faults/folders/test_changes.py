"""A run goes on with what it was begun with alone: another release would have the same noise."""

import json
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jdp import accounting, random
from jdp.accounting import renyi_filter
from jdp.federated.runs import environment, folder_records
from jdp.federated.runs.digest import digest
from tests.helpers.small_runs import ALGORITHM, CLIENTS, DELTA, ROUNDS, copied, ending, go


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
  """A run whose rounds 3 and 4 were released, and are done again, as no checkpoint holds them."""
  folder = tmp_path_factory.mktemp("begun") / "run"
  go(folder, stop_at=4)
  return folder


def shown_before(message, folder, **changes):
  """The rounds that are shown before a run is refused with a message."""
  shown = []
  with pytest.raises(ValueError, match=message):
    go(folder, callbacks=[shown.append], **changes)
  return [progress.round for progress in shown]


@pytest.mark.sweep
@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"clients": CLIENTS.at[3, 1].add(1e-6)}, "Expected the data that the run run was begun with"),
    ({"clients": CLIENTS[:, ::-1]}, "Expected the data"),
    ({"clients": CLIENTS.astype(jnp.float16)}, "Expected the data"),
    ({"clients": [CLIENTS]}, "Expected the data"),
    ({"params": jnp.ones(2)}, "Expected the first state"),
    ({"data_key": jax.random.key(2)}, "Expected the key of local training"),
    ({"noise_key": random.seeded_key(1)}, "Expected the key of noise"),
  ],
)
def test_what_changed_is_refused_before_any_round_is_done_again(begun, tmp_path, changes, message):
  folder = copied(begun, tmp_path)
  shown = []
  changes["callbacks"] = [shown.append]
  with pytest.raises(ValueError, match=message) as error:
    go(folder, **changes)
  assert digest(changes.get("clients", CLIENTS)) not in str(error.value)
  assert not shown
  assert len(go(folder).ledger) == ROUNDS  # As it was begun, it goes on.


@pytest.mark.sweep
@pytest.mark.parametrize("name", sorted(environment.environment().keys() - environment.MAY_CHANGE))
def test_another_environment_is_refused(begun, tmp_path, monkeypatch, name):
  changed = {**environment.environment(), name: "another"}
  monkeypatch.setattr(folder_records, "environment", lambda: changed)
  with pytest.raises(ValueError, match=f"Expected to resume with {name} .*, got another"):
    go(copied(begun, tmp_path))


def test_a_run_goes_on_with_another_number_of_devices(begun, tmp_path, monkeypatch):
  """Simulated ones are counted by XLA's flags, which are else to be the same."""
  count, *_ = environment.MAY_CHANGE
  changed = {**environment.environment(), count: "another"}
  monkeypatch.setattr(folder_records, "environment", lambda: changed)
  assert len(go(copied(begun, tmp_path)).ledger) == ROUNDS
  before = environment.environment()["settings"]
  flags = os.environ.get("XLA_FLAGS", "")
  monkeypatch.setenv("XLA_FLAGS", f"{flags} --xla_force_host_platform_device_count=3")
  assert environment.environment()["settings"] == before


def test_the_environment_holds_the_settings_that_change_bits(monkeypatch):
  before = environment.environment()
  assert "enable_x64=False" in before["settings"]
  assert "cores" in before["processor"]
  monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
  assert environment.environment()["settings"] != before["settings"]
  monkeypatch.undo()
  for name, value in (
    ("jax_enable_x64", True),
    ("jax_default_matmul_precision", "bfloat16"),
    ("jax_threefry_partitionable", not jax.config.jax_threefry_partitionable),
  ):
    old = getattr(jax.config, name)
    jax.config.update(name, value)
    try:
      assert environment.environment()["settings"] != before["settings"], name
    finally:
      jax.config.update(name, old)
  assert environment.environment() == before


def test_digests_see_every_bit_and_place():
  trees = [
    {"a": jnp.zeros(2), "b": jnp.zeros(2)},
    {"a": jnp.zeros(2), "c": jnp.zeros(2)},
    {"a": jnp.zeros(2), "b": -jnp.zeros(2)},
    {"a": jnp.zeros((2, 1)), "b": jnp.zeros(2)},
    {"a": jnp.zeros(2), "b": jnp.zeros(2, jnp.bfloat16)},
    {"a": jnp.zeros(2), "b": jnp.zeros(2, jnp.int32)},
    {"a": jnp.zeros(2), "b": (jnp.zeros(1), jnp.zeros(1))},
    {"a": jnp.zeros(2), "b": jnp.full(2, jnp.nan)},
    {"a": jnp.zeros(2), "b": jax.random.key(0)},
    {"a": jnp.zeros(2), "b": jax.random.key(1)},
    {"a": jnp.zeros(2), "b": random.seeded_key(1)},
  ]
  assert len({digest(tree) for tree in trees}) == len(trees)
  assert digest({"a": np.zeros(2, np.float32)}) == digest({"a": jnp.zeros(2)})


def test_digests_lie_in_the_secret_folder_alone(begun):
  secret = begun.with_name("run.secret") / "run.json"
  found = json.loads(secret.read_text())["digests"]["data"]
  assert found == digest(CLIENTS)
  assert secret.stat().st_mode & 0o077 == 0
  assert not any(found in path.read_text() for path in begun.iterdir())


def test_a_run_ends_the_same_with_more_rounds_or_other_evaluations(begun, tmp_path):
  """Those change no round, so a run may be continued with them."""
  folder = copied(begun, tmp_path)
  expected = go(folder)
  longer = go(copied(begun, tmp_path / "longer"), num_rounds=ROUNDS + 1, evaluate_every=1)
  assert list(longer.ledger)[:ROUNDS] == list(expected.ledger)
  assert ending(folder, expected)


def test_a_run_keeps_to_the_max_epsilon_that_it_began_with(tmp_path):
  """Whoever may raise it after a look at the models has no budget, nor does a lower one end it."""
  folder, budget = tmp_path / "run", {"max_epsilon": 50.0}
  go(folder, stop_at=4, **budget)
  others = [
    {"max_epsilon": 60.0},
    {"max_epsilon": 40.0},
    {"max_epsilon": 50.0, "delta": 1e-4},
    {"max_epsilon": 50.0, "accountant": "rdp"},
    {"max_epsilon": None},
    {"max_epsilon": None, "delta": None, "privacy_filter": renyi_filter(50.0, 1e-5)},
  ]
  message = (
    r"the budget that the run run was begun with, max_epsilon 50\.0 at delta 1e-05 by the "
    r"accountant 'tightest', got"
  )
  for changes in others:
    assert shown_before(message, folder, **changes) == []
  assert len(go(folder, max_epsilon=np.float64(50), num_rounds=6).ledger) == 6


def test_a_run_without_a_budget_gets_none_later(begun, tmp_path):
  """Its delta is of what it states, and may be another one."""
  folder = copied(begun, tmp_path)
  with pytest.raises(ValueError, match=r"begun with, none, got max_epsilon 50\.0 at"):
    go(folder, max_epsilon=50.0)
  assert len(go(folder, delta=1e-6).ledger) == ROUNDS


def test_a_release_that_was_noted_in_parts_was_never_made(begun, tmp_path):
  folder = copied(begun, tmp_path)
  noted = tmp_path / "run.secret/released"
  noted.write_bytes(noted.read_bytes()[:-1])
  assert len(go(folder).ledger) == ROUNDS
  lines = noted.read_bytes().split()
  assert lines[:2] + lines[4:6] == [b"2", lines[1], b"4", lines[5]]
  assert lines[5].startswith(lines[3])
  assert lines[5] != lines[3]


def other_step(noise_key, data_key, state, clients):
  """The same events and noise, and another model: as with another learning rate."""
  after, events, diagnostics = ALGORITHM.round(noise_key, data_key, state, clients)
  return after._replace(params=after.params + clients.sum(0)), events, diagnostics


@pytest.mark.parametrize("evaluate_every", [1, 2, 3, 5])
def test_rounds_that_are_repeated_are_shown_first_where_they_were_shown_before(
  begun, tmp_path, evaluate_every
):
  """No algorithm can be compared with another, but the models that they release can."""
  folder, shown = copied(begun, tmp_path), []
  changes = {"algorithm": ALGORITHM._replace(round=other_step), "evaluate_every": evaluate_every}
  message = "Expected the model that was released after round 4 before"
  assert shown_before(message, folder, **changes) == [2]
  assert len(go(folder, callbacks=[shown.append], evaluate_every=evaluate_every).ledger) == ROUNDS
  assert [progress.round for progress in shown][:2] == [2, 4]


def test_a_run_that_its_budget_ends_within_a_block_ends_the_same_again(tmp_path):
  """It is not asked whether to stop early, either time."""
  whole = go(None).ledger
  budget = accounting.epsilon(whole.rounds(0, 5), DELTA)
  changes = {"max_epsilon": 1.001 * budget, "early_stop": lambda rows: rows[-1]["round"] == 5}
  folder, shown = tmp_path / "run", []
  go(folder, stop_at=5, evaluate_every=3, **changes)
  again = go(folder, callbacks=[shown.append], evaluate_every=3, **changes)
  assert [progress.round for progress in shown] == [3, 5]
  assert (again.stopped, again.stopped_early, len(again.ledger)) == (True, False, 5)


def test_a_run_does_not_end_before_a_round_that_was_shown(begun, tmp_path):
  folder = copied(begun, tmp_path)
  assert shown_before("Expected num_rounds >= 4 in ", folder, num_rounds=3) == [2]
  assert len(go(folder, num_rounds=4).ledger) == 4
