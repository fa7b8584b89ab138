"""A vocabulary counted among the users of a run: one noised release, whatever was killed in
between.
"""

import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import jax

from experiments.runner import files
from experiments.runner.runs.workdir import LEDGER, Workdir, noise_key
from jdp import data
from jdp.data import UserText, Vocabulary
from jdp.ledger import Ledger

_PURPOSE = zlib.crc32(b"vocabulary")  # The keys of runs have the numbers from 0 on.


def private_words(
  workdir: Workdir, options: Any, users: Sequence[UserText], candidates: Iterable[str], size: int
) -> Vocabulary:
  """The words in `vocabulary/words.json`, counted first if they are not there.

  A resumed run counts with the same noise: that is one release, not two. Beside the words, and
  before them, the folder gets the ledger of what they cost.

  Args:
    workdir: held.
    options: `TextOptions` and `TrainingOptions` in one.
    users: whose words are counted.
    candidates: words from public text.
    size: number of words.

  Raises:
    ValueError: if the noise key of a run that was begun is lost.
  """
  folder = workdir.path / "vocabulary"
  words = folder / "words.json"
  if words.exists():
    return Vocabulary(tuple(files.read_json(words)))
  vocabulary, event = data.private_vocabulary(
    jax.random.fold_in(noise_key(workdir, options.noise_seed), _PURPOSE),
    [user.text for user in users],
    candidates,
    size,
    words_per_user=options.vocabulary_words_per_user,
    noise_multiplier=options.vocabulary_noise_multiplier,
  )
  folder.mkdir(exist_ok=True)
  Ledger().append(event).save(folder / LEDGER)
  files.write_json(words, vocabulary.words)
  return vocabulary
