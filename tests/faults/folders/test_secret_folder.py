"""A run keeps its secrets to its owner, and takes over no folder or file that others prepared."""

import dataclasses
import os
import shutil
import stat

import jax.numpy as jnp
import pytest

from jdp.ledger import DurableLedger
from tests.helpers.small_runs import ALGORITHM, copied, ending, go

_PRECIOUS = b"precious"


@pytest.fixture
def folder(tmp_path):
  return tmp_path / "run"


def secret_of(folder):
  return folder.with_name(folder.name + ".secret")


@pytest.mark.parametrize("mode", [0o777, 0o750, 0o701])
def test_a_folder_that_others_may_enter_is_refused(folder, mode):
  secret_of(folder).mkdir()
  secret_of(folder).chmod(mode)
  with pytest.raises(ValueError, match=f"its owner alone has access .* one of mode {mode:04o}"):
    go(folder)
  assert not list(secret_of(folder).iterdir())


def test_a_folder_that_is_a_link_or_another_users_is_refused(folder, tmp_path, monkeypatch):
  (tmp_path / "elsewhere").mkdir(mode=0o700)
  secret_of(folder).symlink_to(tmp_path / "elsewhere")
  with pytest.raises(ValueError, match=r"its owner alone has access .* a link or a file"):
    go(folder)
  secret_of(folder).unlink()
  secret_of(folder).mkdir(mode=0o700)
  monkeypatch.setattr(os, "geteuid", lambda: 12345)
  with pytest.raises(ValueError, match=r"its owner alone has access .* one of user"):
    go(folder)


@pytest.mark.parametrize("link", [os.symlink, os.link])
@pytest.mark.parametrize("name", ["lock", "released"])
def test_links_are_refused_and_what_they_lead_to_is_left_alone(folder, tmp_path, name, link):
  (tmp_path / "file").write_bytes(_PRECIOUS)
  secret_of(folder).mkdir(mode=0o700)
  link(tmp_path / "file", secret_of(folder) / name)
  with pytest.raises(ValueError, match="link"):
    go(folder)
  assert (tmp_path / "file").read_bytes() == _PRECIOUS


def test_a_linked_file_of_the_run_is_refused_and_its_target_is_left_alone(folder, tmp_path):
  (tmp_path / "file").write_bytes(_PRECIOUS)
  folder.mkdir()
  (folder / "metrics.jsonl").symlink_to(tmp_path / "file")
  with pytest.raises(ValueError, match="got a symbolic link"):
    go(folder)
  with pytest.raises(ValueError, match="got a symbolic link"):
    DurableLedger(folder / "metrics.jsonl", "run")
  assert (tmp_path / "file").read_bytes() == _PRECIOUS


def test_all_that_is_secret_is_readable_by_its_owner_alone(folder):
  """Also after a kill between a file and its permissions."""
  go(folder, stop_at=4)

  def modes():
    paths = [secret_of(folder), *secret_of(folder).rglob("*")]
    return {stat.S_IMODE(path.lstat().st_mode) for path in paths}

  assert modes() == {0o600, 0o700}
  (secret_of(folder) / "released").chmod(0o644)
  go(folder)
  assert modes() == {0o600, 0o700}


def test_checkpoints_and_metrics_of_another_run_are_not_taken_over(folder, tmp_path):
  """Of a run of the same shape, with a key of its own: the rounds are repeated."""
  go(folder, stop_at=6)
  whole = copied(folder, tmp_path / "whole")
  expected = ending(whole, go(whole))
  other = tmp_path / "other" / "run"
  go(other, stop_at=6, params=jnp.ones(2))
  shutil.rmtree(secret_of(folder) / "checkpoints")
  shutil.copytree(secret_of(other) / "checkpoints", secret_of(folder) / "checkpoints")
  shutil.copy(other / "metrics.jsonl", folder / "metrics.jsonl")
  with pytest.warns(UserWarning, match="or one of another run"):
    assert ending(folder, go(folder)) == expected


def test_checkpoints_of_a_fork_are_refused_with_the_ledger_of_another(folder, tmp_path):
  """Both have the same name and key. Their ledgers part after the rounds of both."""
  go(folder, stop_at=4)
  fork = copied(folder, tmp_path / "fork")

  def other_step(noise_key, data_key, state, clients):
    after, (event,), _ = ALGORITHM.round(noise_key, data_key, state, clients)
    stddev = jnp.where(state.round < 4, event.query.stddev, 2 * event.query.stddev)
    query = dataclasses.replace(event.query, stddev=stddev)
    return after, (dataclasses.replace(event, query=query),), None

  go(folder)
  go(fork, algorithm=ALGORITHM._replace(round=other_step))
  shutil.rmtree(secret_of(folder) / "checkpoints")
  shutil.copytree(secret_of(fork) / "checkpoints", secret_of(folder) / "checkpoints")
  shutil.copy(fork / "metrics.jsonl", folder / "metrics.jsonl")
  with pytest.raises(ValueError, match=r"Expected the events of 7 rounds .* or others; restore"):
    go(folder)
