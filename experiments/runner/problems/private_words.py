"""A vocabulary counted among the users of a run: one noised release, also if the run is killed."""

import pathlib
import zlib
from collections.abc import Iterable, Sequence

import jax

from experiments.runner import files, processes
from experiments.runner.options import needed
from experiments.runner.problems.problem_options import LearningOptions
from experiments.runner.runs.workdir import LEDGER, Workdir, noise_key
from jdp import data
from jdp.data.text import UserText
from jdp.data.vocabulary import Vocabulary
from jdp.ledger import Ledger

_WORDS = "words.json"
_PURPOSE = zlib.crc32(b"vocabulary")  # Far from the numbers of runs, which count from 0.


def private_words(
  workdir: Workdir,
  options: LearningOptions,
  users: Sequence[UserText],
  candidates: Iterable[str],
  size: int,
) -> Vocabulary:
  """The words in `vocabulary/words.json`; counts them first if they are not there.

  A resumed run counts with the same noise, so it makes one release and not two. The folder also
  gets the ledger of the words' cost, which is written before them.

  Args:
    workdir: held.
    options: how many words of a user count, with what noise.
    users: whose words are counted.
    candidates: words from public text.
    size: number of words.

  Raises:
    ValueError: if the noise key of a run that was begun is lost, or its words are damaged.
  """
  folder = workdir.path / "vocabulary"
  words = folder / _WORDS
  if not processes.told(words.exists):
    key = jax.random.fold_in(noise_key(workdir, options.noise_seed), _PURPOSE)

    def count() -> None:
      vocabulary, event = data.private_vocabulary(
        key,
        [user.text for user in users],
        candidates,
        size,
        words_per_user=needed(options.vocabulary_words_per_user),
        noise_multiplier=needed(options.vocabulary_noise_multiplier),
      )
      folder.mkdir(exist_ok=True)
      # The cost is on disk before the words that it pays for.
      Ledger().append(event).save(folder / LEDGER)
      files.write_json(words, vocabulary.words)

    processes.by_first(count)
  return Vocabulary(tuple(processes.told(lambda: _read_words(words))))


def _read_words(path: pathlib.Path) -> tuple[str, ...]:
  """The words that were counted before."""
  try:
    words = files.read_json(path)
  except (ValueError, RecursionError):
    words = None
  if not words or not isinstance(words, list) or not all(isinstance(word, str) for word in words):
    raise ValueError(
      f"Expected a list of words in {path}, got another or a damaged file; remove it to count them "
      "again, with the same noise."
    )
  return tuple(words)
