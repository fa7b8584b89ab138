"""Users whose texts a language model learns in seconds."""

import gzip
import json
import pathlib

WORDS = ("the", "cat", "sat", "on", "a", "mat", "and", "ran")


def write_users(folder: pathlib.Path) -> str:
  """Writes movies_small: 20 users who say the same sentence, and some a word of their own; returns
  --data_dir.
  """
  path = folder / "text" / "movies_small.jsonl.gz"
  path.parent.mkdir()
  rows = [
    {"user": f"u{i}", "text": [" ".join(WORDS), f"own{i} {' '.join(WORDS)}"] * (1 + i)}
    for i in range(20)
  ]
  path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
  return str(folder)
