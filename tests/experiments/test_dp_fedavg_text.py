"""Text as a task of DP-FedAvg: who is public, the words, the warm start, the report's parts, the published table."""

import jax
import numpy as np
import pytest

from experiments import dp_fedavg
from experiments.dp_fedavg_published import published_table
from experiments.runner import launch, text
from jdp.data import UserText
from jdp.data.clients import Examples
from tests.experiments.texts import WORDS, write_users

EXPERIMENT = launch.Experiment("dp_fedavg", dp_fedavg.Options, dp_fedavg.prepare)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  return write_users(tmp_path_factory.mktemp("data"))


def options(folder, **given):
  movies = {"dataset": "movies_small", "data_dir": folder, "tokens_per_user": 60, "vocabulary_size": 30}
  return launch.options.resolve(dp_fedavg.Options, {**movies, "noise_multiplier": 1.0, **given})


def test_shares_of_users_are_disjoint_and_leave_nobody_out(folder):
  users = [UserText(str(i), ("a",)) for i in range(50)]
  split = text.divide(users, options(folder, public_share=0.2))
  assert [len(part) for part in split] == [10, 5, 35]
  assert {user for part in split for user in part} == set(users)
  other = text.divide(users, options(folder, public_share=0.2, data_seed=1))
  assert other.public != split.public
  assert not text.divide(users, options(folder, public_text="modules")).public
  with pytest.raises(ValueError, match="raise --test_share or --public_share"):
    text.divide(users, options(folder, public_share=0.0))


def test_a_task_keeps_private_words_out_and_starts_from_public_text(folder):
  cold = text.load_task(options(folder))
  warm = text.load_task(options(folder, public_passes=8))
  # Two public users; of the others those with 60 tokens, 4 utterances of 9 or 10, are clients.
  assert set(cold.sizes.tolist()) == {6}
  (words,) = {len(np.unique(task.clients.examples.inputs)) for task in (cold, warm)}
  assert words == 2 + len(WORDS)  # UNK for everybody's own word, BOS
  before, after = (warm.evaluate(task.init(jax.random.key(0))) for task in (cold, warm))
  assert warm.headline in after
  assert float(before["perplexity"]) == pytest.approx(13, rel=0.2)  # 8 common words, 2 own ones, and 3 special ones
  assert float(after["perplexity"]) < 7


def test_head_words_share_out_all_tokens():
  class Model:
    predict = init = None

    @staticmethod
    def apply(params, inputs):
      return jax.nn.one_hot(inputs, 200)

  sequences = Examples(np.full((3, 4), 150, np.int32), np.full((3, 4), 9, np.int32), np.ones(3, np.float32))
  rows = text.head_words(Model, sequences, {"run": None}).text.splitlines()[2:]
  # The word 150 is no head word; the other nine of the ten likeliest are the first words, as scores are tied.
  shares = [[cell.strip() for cell in row.split("|")][3:-1].index("100.0%") for row in rows]
  assert shares == [9, 9, 9]


def test_published_epsilons_are_reproduced():
  rows = published_table().splitlines()[2:8]
  published, moments, now = zip(*([cell.strip() for cell in row.split("|")][5:8] for row in rows), strict=True)
  assert published == moments
  assert all(float(new) < float(old) for new, old in zip(now, moments, strict=True))


def test_a_run_from_end_to_end_reports_both_epsilons(folder, tmp_path):
  given = {
    **vars(options(folder)), "runs": ("private",), "num_rounds": 1, "cohort_size": 3, "noise_cohort_size": 300,
    "noise_population": 10_000,
  }  # fmt: skip
  given = {name: value for name, value in given.items() if value is not None}
  launch.execute(launch.prepare(EXPERIMENT, given, launch.Location(path=str(tmp_path / "run"))))
  report = (tmp_path / "run" / "report.md").read_text()
  assert "movies_small" in report
  assert "planned ε" in report
  for part in ("Head words", "The three likeliest next words", "The published configurations"):
    assert f"## {part}" in report
  for plot in ("accuracy_over_rounds.png", "head_words.png"):
    assert (tmp_path / "run" / plot).stat().st_size > 10_000


@pytest.mark.parametrize("preset", ["movies", "movies_cohorts", "paper", "shakespeare", "text_smoke"])
def test_text_presets_are_valid(preset):
  given = launch.options.read_flagfile(dp_fedavg.Options, EXPERIMENT.presets[preset])
  assert launch.options.resolve(dp_fedavg.Options, given).local_batch_size == 8


def test_data_without_a_folder_are_refused():
  with pytest.raises(ValueError, match="Expected --data_dir for movies"):
    text.read("movies", None)
