"""A binary that is given files that are not data ends with their sentence, before any work."""

import subprocess
import sys

import pytest

SECRET = b"wilhelmina"  # in every file; nothing that is printed may say it


@pytest.mark.parametrize(
  ("name", "flags", "file", "expected"),
  [
    (
      "draw_and_discard",
      ["--dataset=phishing"],
      "urls_50k.csv.gz",
      "draw_and_discard: Expected a whole gzip file in",
    ),
    (
      "dp_fedavg",
      ["--dataset=mnist", "--noise_multiplier=1"],
      "train-images-idx3-ubyte",
      "dp_fedavg: Expected train-labels-idx1-ubyte or train-labels-idx1-ubyte.gz in",
    ),
    (
      "private_federated",
      ["--preset=text_smoke", "--dataset=movies"],
      "text/movies.jsonl.gz",
      "private_federated: Expected a whole gzip file in",
    ),
  ],
)
def test_a_binary_says_which_file_and_quotes_nothing(tmp_path, name, flags, file, expected):
  path = tmp_path / "data" / file
  path.parent.mkdir(parents=True)
  path.write_bytes(SECRET)
  program = [sys.executable, "-m", f"experiments.{name}", *flags]
  done = subprocess.run(
    [*program, f"--data_dir={tmp_path / 'data'}", f"--workdir={tmp_path / 'run'}"],
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 1
  (sentence,) = done.stderr.splitlines()
  assert sentence.startswith(expected)
  assert SECRET.decode() not in done.stdout + done.stderr
  assert not (tmp_path / "run").exists()
