"""Files of a run that are damaged or lost: it ends with the same bits, or says what to do."""

import shutil
import warnings

import pytest

from jdp import accounting, ledger
from tests.helpers.small_runs import DELTA, ROUNDS, copied, ending, go


def flip(position):
  """Damage of one bit, at a share of the file."""

  def damage(path):
    content = bytearray(path.read_bytes())
    if content:
      content[min(int(position * len(content)), len(content) - 1)] ^= 4
    path.write_bytes(content)

  return damage


def cut(share):
  """Leaves so much of a file."""
  return lambda path: path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])


DAMAGES = {
  "removed": lambda path: path.unlink(),
  "emptied": cut(0.0),
  "cut in half": cut(0.5),
  "first bit": flip(0.0),
  "third of the way": flip(0.33),
  "half way": flip(0.5),
  "last bit": flip(1.0),
}

_EACH = "each file removed, emptied, halved, or one of four bits flipped,"
ROWS = (f"{_EACH} before the run's end", f"{_EACH} after its end")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
  """(A run before its last checkpoint, the same when finished, how it ends)."""
  path = tmp_path_factory.mktemp("runs")
  go(path / "run", stop_at=6)
  finished = copied(path / "run", path / "finished")
  return path / "run", finished, ending(finished, go(finished))


def files(folder):
  """All files of a run, relative to where its two folders lie."""
  both = (folder, folder.with_name(folder.name + ".secret"))
  found = (path for part in both for path in sorted(part.rglob("*")) if path.is_file())
  return [path.relative_to(folder.parent) for path in found]


def after(damage, file, folder, target):
  """How a damaged copy of a run ends: (as the others, None), or what it says."""
  run = copied(folder, target)
  damage(target / file)
  with warnings.catch_warnings(record=True):
    warnings.simplefilter("always")
    try:
      return ending(run, go(run)), None
    except ValueError as error:
      return None, str(error)


@pytest.mark.slow
@pytest.mark.parametrize("kind", DAMAGES)
@pytest.mark.parametrize("which", [0, 1], ids=["interrupted", "finished"])
def test_a_run_with_a_damaged_file_ends_the_same_or_says_what_to_do(
  runs, tmp_path, record, which, kind
):
  folder, expected = runs[which], runs[2]
  ended = []
  for number, file in enumerate(files(folder)):
    found, message = after(DAMAGES[kind], file, folder, tmp_path / str(number))
    assert message is None or message.startswith("Expected "), (file, message)
    assert found in (None, expected), file
    ended.append(message is None)
  record(ROWS[which], kind, sum(ended), len(ended) - sum(ended))
  assert any(ended)


@pytest.mark.parametrize(
  ("file", "message"),
  [
    ("run.secret/noise_key", "noise key of the run in .*, got a damaged file; restore it"),
    ("run.secret/run.json", "run.json as it was written, got a file that was changed or damaged"),
    ("run/metrics.jsonl", "Expected the metrics up to round 4 .*, got others; restore the file"),
    ("run/ledger.jsonl", "Expected"),
  ],
)
def test_what_a_damaged_file_says(runs, tmp_path, file, message):
  folder = copied(runs[0], tmp_path)
  flip(0.33)(tmp_path / file)
  with pytest.raises(ValueError, match=message):
    go(folder)


def test_a_lost_key_or_description_ends_a_run(runs, tmp_path):
  for name, message in (
    ("noise_key", "Expected the noise key of the run in .*, got none"),
    ("run.json", "Expected in .*run.json what the run run was begun with, got no such file"),
  ):
    folder = copied(runs[0], tmp_path / name)
    (tmp_path / name / "run.secret" / name).unlink()
    with pytest.raises(ValueError, match=message):
      go(folder)


@pytest.mark.sweep
@pytest.mark.parametrize("damaged", [1, 2, 3])
def test_the_newest_whole_checkpoint_is_used(runs, tmp_path, damaged):
  _, finished, expected = runs
  folder = copied(finished, tmp_path)
  checkpoints = tmp_path / "run.secret/checkpoints"
  steps = sorted(map(int, (path.name for path in checkpoints.iterdir())), reverse=True)
  assert steps == [7, 6, 4]
  for step in steps[:damaged]:
    for path in (checkpoints / str(step)).rglob("*"):
      if path.is_file():
        cut(0.5)(path)
  seen = []
  with pytest.warns(UserWarning, match="Expected a whole checkpoint after round") as warned:
    result = go(folder, callbacks=[seen.append])
  assert len(warned) == damaged
  assert seen[0].round == [6, 4, 0][damaged - 1]
  assert ending(folder, result) == expected
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    assert ending(folder, go(folder)) == expected  # The damaged ones were replaced.


@pytest.mark.sweep
@pytest.mark.parametrize("kept", [0, 1, 3])
def test_a_ledger_that_lacks_rounds_is_refused(runs, tmp_path, kept):
  _, finished, expected = runs
  folder = copied(finished, tmp_path)
  path = folder / "ledger.jsonl"
  lines = path.read_bytes().splitlines(keepends=True)
  path.write_bytes(b"".join(lines[: 1 + kept]))
  with pytest.raises(ValueError, match=r"Expected a ledger that holds round .*; restore it"):
    go(folder)
  # Whoever gives up what was kept of it does all rounds again, and records them.
  (tmp_path / "run.secret/ledger_mark.json").unlink()
  with pytest.raises(ValueError, match=r"Expected .*; restore .* or remove .*checkpoints"):
    go(folder)
  shutil.rmtree(tmp_path / "run.secret/checkpoints")
  found = ending(folder, go(folder))
  assert found == expected
  assert accounting.epsilon(found[1], DELTA) == accounting.epsilon(expected[1], DELTA)
  assert len(ledger.load(path)) == ROUNDS
