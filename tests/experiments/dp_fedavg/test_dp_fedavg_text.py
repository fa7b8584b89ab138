"""Text as a task of DP-FedAvg: who is public, the words, the warm start, the report's parts, the
published table.
"""

import dataclasses
import json
from functools import partial

import jax
import numpy as np
import pytest

from experiments.dp_fedavg import __main__ as dp_fedavg
from experiments.private_federated import __main__ as private_federated
from experiments.runner import launch
from experiments.runner.problems import text
from experiments.runner.published_language_models import published_table
from experiments.runner.runs.workdir import Workdir
from jdp import accounting, data, ledger
from jdp.data import UserText
from jdp.data.clients import Examples
from jdp.events import GaussianSum, PoissonSampling, Round
from tests.experiments.texts import WORDS, write_users

OTHER = {field.name for field in dataclasses.fields(private_federated.PrivateFederatedOptions)}
EXPERIMENT = dp_fedavg.EXPERIMENT


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  return write_users(tmp_path_factory.mktemp("data"))


def options(folder, **given):
  movies = {"dataset": "movies_small", "data_dir": folder, "tokens_per_user": 60}
  return launch.options.resolve(
    dp_fedavg.DPFedAvgOptions, {**movies, "noise_multiplier": 1.0, **given}
  )


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


def test_the_test_is_of_every_user_alike(folder):
  users = [UserText(word, (" ".join([word] * 50),)) for word in WORDS]
  cut = partial(data.sequences, data.Vocabulary(WORDS), unroll=5)
  tested = text.of_each(users, cut, options(folder, test_tokens=12 * len(WORDS), unroll=5))
  _, counts = np.unique(tested.labels, return_counts=True)
  assert counts.tolist() == [10] * len(WORDS)


def test_a_task_keeps_private_words_out_and_starts_from_public_text(folder, tmp_path, monkeypatch):
  cold = text.text_problem(options(folder))
  warm = text.text_problem(options(folder, public_passes=8)).completed(Workdir(tmp_path))
  # Two public users; of the others those with 60 tokens, 4 utterances of 9 or 10, are clients.
  assert set(cold.sizes.tolist()) == {6}
  (words,) = {len(np.unique(task.clients.examples.inputs)) for task in (cold, warm)}
  assert words == 2 + len(WORDS)  # UNK for everybody's own word, BOS
  before, after = (warm.evaluate(task.init(jax.random.key(0))) for task in (cold, warm))
  assert warm.headline in after
  # 8 common words, 2 own ones, and 3 special ones
  assert float(before["perplexity"]) == pytest.approx(13, rel=0.2)
  assert float(after["perplexity"]) < 7
  monkeypatch.setattr(text, "local_sgd", None)  # A resumed run does not train again.
  resumed = text.text_problem(options(folder, public_passes=8)).completed(Workdir(tmp_path))
  for first, second in zip(
    *(jax.tree.leaves(task.init(jax.random.key(0))) for task in (warm, resumed)), strict=True
  ):
    np.testing.assert_array_equal(first, second)


def test_models_are_evaluated_on_the_words_of_the_tests_users(folder, monkeypatch):
  chosen = options(folder)
  says = dict(zip(text.Split._fields, ("mine yours", "yours", "mine"), strict=True))
  users = [UserText("", ())] * 20
  for part, numbers in text.divide(range(20), chosen)._asdict().items():
    for number in numbers:
      users[number] = UserText(str(number), (says[part],) * 30)
  monkeypatch.setattr(text, "read", lambda *_: users)
  task = text.text_problem(chosen)
  params = jax.tree.map(
    lambda x: np.zeros(x.shape, x.dtype), jax.eval_shape(task.init, jax.random.key(0))
  )
  words = data.public_vocabulary(says.values(), 2)
  for word, expected in (("yours", 1.0), ("mine", 0.0)):
    (number,) = words.encode(word)
    bias = np.where(np.arange(len(words)) == number, np.float32(99), np.float32(0))
    assert task.evaluate({**params, "output": {"bias": bias}})["accuracy_top1"] == expected


def test_users_with_little_text_are_clients_unless_all_must_be_equal(folder):
  sizes = {
    equal: text.text_problem(options(folder, equal_users=equal)).sizes for equal in (True, False)
  }
  assert set(sizes[True].tolist()) == {6}
  assert len(sizes[False]) == 16 > len(sizes[True])  # all but two public and two test users
  assert sizes[False].min() < 6


COUNTED = {
  "vocabulary": "private",
  "vocabulary_size": 8,
  "vocabulary_words_per_user": 9,
  "vocabulary_noise_multiplier": 8.0,
}


def private_run(folder, **given):
  own = {"runs": ("private",), "num_rounds": 1, "cohort_size": 3, **COUNTED, **given}
  return {name: value for name, value in vars(options(folder, **own)).items() if value is not None}


def go(path, given, *, resume=False):
  launch.execute(launch.prepare(EXPERIMENT, given, launch.Location(path=str(path), resume=resume)))


class Killed(BaseException):
  pass


@pytest.fixture(scope="module")
def finished(folder, tmp_path_factory):
  """(A run with a private vocabulary, killed after the count and resumed; the words of the first
  count).
  """
  path = tmp_path_factory.mktemp("counted") / "run"
  words = path / "vocabulary" / "words.json"

  def killed(*arguments):
    raise Killed

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(dp_fedavg, "run_sweep", killed)
    with pytest.raises(Killed):
      go(path, private_run(folder, noise_cohort_size=300, noise_population=10_000))
  first = words.read_bytes()
  words.unlink()  # As if it had been killed before they were kept: they are drawn again.
  go(path, {}, resume=True)
  return path, first


def test_a_resumed_run_counts_the_same_words(finished):
  path, first = finished
  assert (path / "vocabulary" / "words.json").read_bytes() == first
  go(path, {}, resume=True)  # Its key is gone by now, and not needed.
  assert (path / "vocabulary" / "words.json").read_bytes() == first


def test_counted_words_and_a_public_start_are_both_kept(folder, tmp_path, monkeypatch):
  trained = {"embedding": np.ones(3)}
  monkeypatch.setattr(
    text,
    "with_public_start",
    lambda problem, *_: problem._replace(
      complete=lambda _: problem._replace(init=lambda _: trained)
    ),
  )
  task = text.text_problem(options(folder, public_passes=1, noise_seed=0, **COUNTED))
  begun = task.completed(Workdir(tmp_path))
  assert begun.init(jax.random.key(0)) is trained
  assert begun.prior == task.prior == ledger.load(tmp_path / "vocabulary" / "ledger.jsonl")


def test_other_noise_counts_other_words(folder, tmp_path):
  drawn = set()
  # Noise of 24 on counts of 16 at most: 10 words in an order of its own, of which 8 are taken.
  for seed in range(2):
    workdir = Workdir(tmp_path / str(seed))
    workdir.path.mkdir()
    text.text_problem(options(folder, noise_seed=seed, **COUNTED)).completed(workdir)
    drawn.add((workdir.path / "vocabulary/words.json").read_bytes())
  assert len(drawn) == 2


def test_the_words_are_part_of_a_runs_cost(finished, folder):
  path, _ = finished
  words = ledger.load(path / "vocabulary" / "ledger.jsonl")
  assert list(words) == [Round(PoissonSampling(1.0), GaussianSum(3.0, 24.0))]
  book = ledger.load(path / "private/0/ledger.jsonl")
  assert list(book)[:1] == list(words)
  assert len(book) == 2
  (private,) = json.loads((path / "results.json").read_text())["summary"]
  delta = text.text_problem(options(folder)).num_users ** -1.1
  assert (
    private["central"]["epsilon"]
    == accounting.epsilon(book, delta)
    > accounting.epsilon(words, delta)
  )
  plan = words + ledger.subsampled_gaussian(0.03, 1.0, 1)
  assert private["planned"]["rdp"] == accounting.epsilon(plan, 10_000**-1.1)


def test_a_warm_start_is_not_trained_on_public_text(folder):
  with pytest.raises(ValueError, match="Expected --public_passes=0 with --warm_start, got 1"):
    dp_fedavg.prepare(options(folder, warm_start="params.npz", public_passes=1))


@pytest.mark.parametrize(
  ("given", "message"),
  [
    (
      {"runs": ("dp_sgd",)},
      "Expected --runs of none and private with --dataset=movies_small, got dp_sgd",
    ),
    (
      {"max_epsilon": 0.01},
      "Expected --max_epsilon of at least the .* spent before the first round",
    ),
    ({"warm_start": "params.npz"}, "Expected --vocabulary=public with --warm_start"),
    ({"vocabulary": "public"}, "Expected --vocabulary_.* only with --vocabulary=private"),
  ],
)
def test_words_that_cannot_be_counted_are_refused_before_they_are(folder, tmp_path, given, message):
  with pytest.raises(ValueError, match=message):
    go(tmp_path / "run", private_run(folder) | given)
  assert list(tmp_path.iterdir()) == []


def test_a_server_that_is_not_trusted_counts_no_words(folder):
  chosen = {
    name: value
    for name, value in private_run(folder).items()
    if name in OTHER and name != "chunk_size"
  }
  with pytest.raises(ValueError, match="the server, not trusted here"):
    private_federated.prepare(
      launch.options.resolve(private_federated.PrivateFederatedOptions, chosen)
    )


def test_more_words_than_the_public_text_has_are_refused(folder):
  assert text.text_problem(options(folder)).facts["vocabulary"].startswith("10 words")
  with pytest.raises(
    ValueError,
    match="Expected --vocabulary_size of at most the 10 words of the public text, got 11",
  ):
    text.text_problem(options(folder, vocabulary_size=11))


def test_head_words_share_out_all_tokens():
  class Model:
    predict = init = None

    @staticmethod
    def apply(params, inputs):
      return jax.nn.one_hot(inputs, 200)

  sequences = Examples(
    np.full((3, 4), 150, np.int32), np.full((3, 4), 9, np.int32), np.ones(3, np.float32)
  )
  rows = text.head_words(Model, sequences, {"run": None}).text.splitlines()[2:]
  # The word 150 is no head word; the other nine of the ten likeliest are the first words, as scores
  # are tied.
  shares = [[cell.strip() for cell in row.split("|")][3:-1].index("100.0 %") for row in rows]
  assert shares == [9, 9, 9]


def test_published_epsilons_are_reproduced():
  rows = published_table().splitlines()[2:8]
  published, moments, now = zip(
    *([cell.strip() for cell in row.split("|")][5:8] for row in rows), strict=True
  )
  # ours have four digits, rounded up
  assert published == tuple(f"{float(epsilon):.3f}" for epsilon in moments)
  assert all(float(new) < float(old) for new, old in zip(now, moments, strict=True))


def test_a_run_from_end_to_end_reports_both_epsilons(finished):
  path, _ = finished
  report = (path / "report.md").read_text()
  for statement in ("alone ε =", "used by most clients, by a noised count"):
    assert statement in report
  assert "movies_small" in report
  assert "planned ε" in report
  for part in ("Head words", "The three likeliest next words", "The published configurations"):
    assert f"## {part}" in report
  for plot in ("accuracy_over_rounds.png", "head_words.png"):
    assert (path / plot).stat().st_size > 10_000
