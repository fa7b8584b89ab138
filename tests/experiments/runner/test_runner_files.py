"""Files, work directories, checkpoints and their secrets."""

import math
import os
import stat

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.runner import files
from experiments.runner.runs import workdir
from experiments.runner.runs.workdir import Workdir
from jdp import random
from jdp.federated.runs.checkpoints import Checkpoints
from jdp.federated.runs.digest import from_bytes, to_bytes
from jdp.federated.runs.run_folder import fingerprint


def mode(path):
  return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def open_umask():
  old = os.umask(0)
  yield
  os.umask(old)


@pytest.mark.parametrize("commit", ["fsync", "replace"])
def test_a_write_is_whole_or_absent(tmp_path, monkeypatch, commit):
  path = tmp_path / "file"
  files.write(path, b"old")

  def killed(*_):
    raise KeyboardInterrupt

  with monkeypatch.context() as patch:
    patch.setattr(os, commit, killed)
    with pytest.raises(KeyboardInterrupt):
      files.write(path, b"new")
  assert path.read_bytes() == b"old"
  files.write(path, b"newer")
  assert path.read_bytes() == b"newer"
  assert os.listdir(tmp_path) == ["file"]


def test_a_secret_is_its_owners(tmp_path, open_umask):
  (tmp_path / "file.tmp").touch(mode=0o666)  # Left by a killed process.
  files.write(tmp_path / "file", b"", mode=0o600)
  assert mode(tmp_path / "file") == 0o600


def test_rows_and_json(tmp_path):
  assert files.read_rows(tmp_path / "rows") == []
  rows = [{"a": 1 / 3}, {"b": None}]
  files.write_rows(tmp_path / "rows", rows)
  assert files.read_rows(tmp_path / "rows") == rows
  for bad in (math.nan, math.inf):
    with pytest.raises(ValueError, match="JSON"):
      files.write_json(tmp_path / "bad", {"a": bad})
    with pytest.raises(ValueError, match="JSON"):
      files.write_rows(tmp_path / "bad", [bad])
  assert not (tmp_path / "bad").exists()


def create(path, **flags):
  return workdir.create(str(path), "example", "smoke", flags)


def test_a_work_directory_must_be_new(tmp_path):
  create(tmp_path / "new")
  with pytest.raises(
    ValueError, match=r"Expected a missing or empty --workdir, got .*; add --resume"
  ):
    create(tmp_path / "new")
  (tmp_path / "other.secret").mkdir()
  (tmp_path / "other.secret/noise_key").touch()
  with pytest.raises(ValueError, match=r"Expected no .*other\.secret, got one left by another run"):
    create(tmp_path / "other")
  assert not (tmp_path / "other").exists()


def test_the_default_is_a_new_folder(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  first, second = (workdir.create(None, "example", "smoke", {}) for _ in range(2))
  assert first.path.parent == tmp_path / "runs"
  assert first.path != second.path


def test_what_can_be_resumed(tmp_path, monkeypatch):
  create(tmp_path / "run", rounds=3)
  assert workdir.reopen(str(tmp_path / "run"), "example") == (
    Workdir(tmp_path / "run"),
    "smoke",
    {"rounds": 3},
  )
  with pytest.raises(ValueError, match="Expected --workdir with --resume, got none"):
    workdir.reopen(None, "example")
  with pytest.raises(ValueError, match="got none: no run was started there"):
    workdir.reopen(str(tmp_path / "missing"), "example")
  with pytest.raises(ValueError, match=r"Expected to resume with experiment example.* got other"):
    workdir.reopen(str(tmp_path / "run"), "other")
  changed = {**workdir.environment(), "jax": "0.0"}
  monkeypatch.setattr(workdir, "environment", lambda flags: changed)
  with pytest.raises(ValueError, match=r"Expected to resume with jax .*, got 0\.0"):
    workdir.reopen(str(tmp_path / "run"), "example")


def test_one_process_at_a_time(tmp_path, open_umask):
  run = create(tmp_path / "run")
  with workdir.lock(run):
    assert mode(run.secret) == 0o700
    with pytest.raises(ValueError, match="Expected no other process"):
      workdir.lock(run)
  workdir.lock(run).close()


def test_the_noise_key_is_made_once_and_kept_secret(tmp_path, open_umask):
  run = create(tmp_path / "run")
  workdir.lock(run).close()
  key = workdir.noise_key(run, None)
  assert mode(run.secret / "noise_key") == 0o600
  assert jax.random.key_data(key).size * 32 == 256
  again = workdir.noise_key(run, None)
  np.testing.assert_array_equal(jax.random.key_data(again), jax.random.key_data(key))
  assert jax.random.key_impl(again) == jax.random.key_impl(random.secure_key())
  other = create(tmp_path / "other")
  workdir.lock(other).close()
  assert fingerprint(workdir.noise_key(other, None)) != fingerprint(key)


def test_rounds_are_not_redone_with_another_key(tmp_path):
  run = create(tmp_path / "run")
  workdir.lock(run).close()
  workdir.noise_key(run, None)
  (run.path / "setting").mkdir()
  (run.path / "setting" / workdir.LEDGER).touch()
  workdir.remove_secrets(run)
  workdir.lock(run).close()
  with pytest.raises(ValueError, match=r"Expected the noise key .* got none; it cannot be resumed"):
    workdir.noise_key(run, None)


def test_a_seeded_key_leaves_no_secret(tmp_path):
  run = create(tmp_path / "run")
  workdir.lock(run).close()
  first, second = (fingerprint(workdir.noise_key(run, 3)) for _ in range(2))
  assert first == second == fingerprint(random.seeded_key(3))
  assert os.listdir(run.secret) == ["lock"]


@pytest.mark.parametrize("content", [bytes(64), b"\xff" * 64, to_bytes((1.0, 2.0)).tobytes()])
def test_a_state_of_another_form_is_refused(content):
  with pytest.raises(ValueError, match="Expected a saved state with the arrays of this run's"):
    from_bytes(np.frombuffer(content, np.uint8), jnp.zeros(16))


def test_checkpoints_restore_every_bit(tmp_path):
  state = {
    "key": random.secure_key(),
    "legacy": jax.random.key(1),
    "empty": (),
    "counts": jnp.arange(3, dtype=jnp.int32),
    "nan": jnp.array([jnp.nan, -0.0, 1e-45], jnp.float32),
  }
  checkpoints = Checkpoints(tmp_path / "checkpoints", "run")
  blank = {**state, "key": random.secure_key(), "counts": jnp.zeros(3, jnp.int32)}
  assert checkpoints.restore(blank) == (0, blank)
  checkpoints.save(2, blank)
  checkpoints.save(4, state)
  checkpoints.close()
  step, restored = Checkpoints(tmp_path / "checkpoints", "run").restore(blank)
  assert step == 4
  assert jax.tree.structure(restored) == jax.tree.structure(state)
  for name in ("key", "legacy"):
    assert restored[name].dtype == state[name].dtype
    np.testing.assert_array_equal(
      jax.random.key_data(restored[name]), jax.random.key_data(state[name])
    )
  for name in ("counts", "nan"):
    assert restored[name].dtype == state[name].dtype
    assert np.asarray(restored[name]).tobytes() == np.asarray(state[name]).tobytes()
