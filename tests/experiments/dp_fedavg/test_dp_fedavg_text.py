"""Text as a task of DP-FedAvg: who is public, the words, the warm start, the report's parts, the
published table.
"""

import dataclasses
from functools import partial

import jax
import numpy as np
import pytest

from experiments.dp_fedavg import __main__ as dp_fedavg
from experiments.dp_fedavg.comparisons import (
  epsilons_of_plans,
  loss_of_plans,
  predicted_by_spent,
  with_noise,
)
from experiments.private_federated import __main__ as private_federated
from experiments.runner import launch
from experiments.runner.problems import public_start, text
from experiments.runner.published_language_models import published_table
from experiments.runner.reports.statistics import Interval
from experiments.runner.runs import sweep
from experiments.runner.runs.workdir import Workdir
from jdp import accounting, data, ledger
from jdp.data.clients import Examples
from jdp.data.text import UserText
from jdp.data.vocabulary import Vocabulary
from jdp.events import GaussianSum, PoissonSampling, Round
from jdp.guarantees import Unit
from tests.experiments import report_tables, runs
from tests.experiments.texts import WORDS, write_users
from tests.helpers import statistical

OTHER = {field.name for field in dataclasses.fields(private_federated.PrivateFederatedOptions)}


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


def test_settings_are_chosen_by_users_who_are_neither_tested_nor_clients(folder):
  users = [UserText(str(i), ("a",)) for i in range(200)]
  split = text.divide(users, options(folder))
  chosen = text.divide(users, options(folder, validation_share=0.3))
  assert chosen.public == split.public
  assert sorted(chosen.test + chosen.private) == sorted(split.private)
  assert not set(chosen.test) & set(chosen.private)
  # Of 160 coins of 0.3, 20 to 80 fall so but for once in 100,000 keys.
  assert 20 <= len(chosen.test) <= 80


def test_the_test_is_of_every_user_alike(folder):
  users = [UserText(word, (" ".join([word] * 50),)) for word in WORDS]
  cut = partial(data.sequences, Vocabulary(WORDS), unroll=5)
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
  monkeypatch.setattr(public_start, "local_sgd", None)  # A resumed run does not train again.
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


go = partial(runs.run, dp_fedavg.EXPERIMENT)


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
    patch.setattr(sweep, "run_sweep", killed)
    with pytest.raises(Killed):
      go(path, **private_run(folder, noise_cohort_size=12, noise_population=400))
  first = words.read_bytes()
  words.unlink()  # As if it had been killed before they were kept: they are drawn again.
  return go(path, resume=True), first


def test_a_resumed_run_counts_the_same_words(finished):
  path, first = finished[0].path, finished[1]
  assert (path / "vocabulary" / "words.json").read_bytes() == first
  go(path, resume=True)  # Its key is gone by now, and not needed.
  assert (path / "vocabulary" / "words.json").read_bytes() == first


def test_counted_words_and_a_public_start_are_both_kept(folder, tmp_path, monkeypatch):
  trained = {"embedding": np.ones(3)}
  monkeypatch.setattr(
    text,
    "with_public_start",
    lambda problem, *_, **__: problem._replace(
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
  run, _ = finished
  words = ledger.load(run.path / "vocabulary" / "ledger.jsonl")
  assert list(words) == [Round(PoissonSampling(1.0), GaussianSum(3.0, 24.0))]
  book = ledger.load(run.path / "private/0/ledger.jsonl")
  assert list(book)[:1] == list(words)
  assert len(book) == 2
  (private,) = run.results["summary"]
  delta = text.text_problem(options(folder)).num_users ** -1.1
  assert (
    private["central"]["epsilon"]
    == accounting.epsilon(book, delta)
    > accounting.epsilon(words, delta)
  )
  plan = words + ledger.subsampled_gaussian(0.03, 1.0, 1)
  assert private["planned"]["rdp"] == accounting.epsilon(plan, 400**-1.1, accountant="rdp")


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
      {"max_epsilon": 0.1, "delta": 1e-5},
      "Expected --max_epsilon of at least the .* spent before the first round",
    ),
    ({"warm_start": "params.npz"}, "Expected --vocabulary=public with --warm_start"),
    ({"vocabulary": "public"}, "Expected --vocabulary_.* only with --vocabulary=private"),
  ],
)
def test_words_that_cannot_be_counted_are_refused_before_they_are(folder, tmp_path, given, message):
  with pytest.raises(ValueError, match=message):
    go(tmp_path / "run", **private_run(folder) | given)
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


def test_pieces_of_text_are_users_and_said_to_be(folder):
  chosen = options(folder, tokens_per_user=20, pseudo_users=30)
  task = text.text_problem(chosen)
  assert task.sizes.tolist() == [2] * 30
  assert task.num_records(Unit.EXAMPLE) == 60
  meant = "a piece of 20 consecutive tokens of one who speaks, not the one who speaks"
  assert task.protects[Unit.USER] == task.described["one user"] == meant
  assert not text.text_problem(options(folder)).protects
  # 16 users say 11 to 200 utterances of 9 to 10 tokens: of each three, one piece.
  with pytest.raises(ValueError, match=r"Expected --pseudo_users of at most the \d+ pieces of 20"):
    text.text_problem(options(folder, tokens_per_user=20, pseudo_users=500))


def test_pieces_hold_all_utterances_in_order_but_the_last_few():
  said = [f"{word} {word}" for word in WORDS]
  users = [UserText("a", tuple(said)), UserText("b", ("...", "one two", "three"))]
  found = list(text.pieces(users, 5))  # an utterance is 3 tokens with its end
  assert [piece.text for piece in found] == [
    *(tuple(said[first : first + 2]) for first in range(0, 8, 2)),
    ("...", "one two", "three"),
  ]
  assert len({piece.user for piece in found}) == len(found)


def test_examples_of_pieces_are_protected_by_dp_sgd_alike(folder):
  chosen = options(
    folder,
    tokens_per_user=20,
    pseudo_users=30,
    runs=("private", "dp_sgd"),
    vary=("noise_multiplier=1,2", "clip_norm=1,3"),
    cohort_size=3,
    sgd_batch_size=6,
  )
  rows = dp_fedavg.make_rows(chosen, text.text_problem(chosen))
  assert [row.setting.name for row in rows[-2:]] == ["dp_sgd_1", "dp_sgd_2"]
  assert [row.federation.actual.noise_multiplier for row in rows[-2:]] == [1.0, 2.0]
  assert len(rows) == 6


def test_the_lstm_carries_its_state_over_all_of_a_users_tokens(folder):
  tested = {"test_tokens": 40, "hidden_size": 8, "embedding_size": 8}
  short, long = (text.text_problem(options(folder, unroll=n, **tested)) for n in (5, 20))
  params = short.init(jax.random.key(0))
  found, whole = short.evaluate(params), long.evaluate(params)
  assert found["carried_perplexity"] == pytest.approx(float(whole["perplexity"]), rel=1e-6)
  assert found["perplexity"] != pytest.approx(float(whole["perplexity"]), rel=1e-6)


def test_a_transformer_learns_words_too(folder, tmp_path):
  chosen = {"language_model": "transformer", "embedding_size": 8, "num_heads": 2, "num_layers": 1}
  task = text.text_problem(options(folder, **chosen))
  assert task.facts["model"].startswith("transformer")
  params = task.init(jax.random.key(0))
  assert set(task.evaluate(params)) == {
    *(f"accuracy_top{top}" for top in (1, 3, 5)),
    "perplexity",
  }
  assert len(list(task.parts({"run": params}))) == 2
  # From public text too, without a learning rate: SGD's of the LSTM would end in nan.
  warm = text.text_problem(options(folder, public_passes=8, **chosen)).completed(Workdir(tmp_path))
  assert float(warm.evaluate(warm.init(jax.random.key(0)))["perplexity"]) < 7
  with pytest.raises(ValueError, match="Expected --hidden_size only with --dataset"):
    options(folder, hidden_size=8, **chosen)


def test_predicted_noise_is_on_every_weight(folder):
  """The sum of all weights takes the place of a metric: its noise is that of 10 weights."""
  task = text.text_problem(options(folder))
  task = task._replace(evaluate=lambda params: {task.headline: sum(map(np.sum, params.values()))})
  params = {"a": np.ones(4, np.float32), "b": np.ones((2, 3), np.float32)}
  assert with_noise(task, params, 0.0, jax.random.key(0)) == 10.0
  totals = [float(with_noise(task, params, 2.0, jax.random.key(n))) - 10 for n in range(1000)]
  statistical.assert_normal_stddev(np.array(totals), 2.0 * np.sqrt(10), catches=0.3)


def evaluation(done, spent, top1):
  return {"round": done, "accuracy_top1": top1, "central_epsilon": spent}


def test_words_predicted_right_are_those_when_so_much_was_spent():
  histories = {
    "no privacy": [[evaluation(0, 0.0, 0.0), evaluation(2, None, 0.5)]],
    "private": [
      [evaluation(0, 0.0, 0.0), evaluation(1, 0.9, 0.1), evaluation(2, 1.2, first)]
      for first in (0.2, 0.4)
    ],
  }
  header, _, *rows = report_tables.rows(predicted_by_spent(histories, (0.5, 1.0, 2.0)))
  assert header == ["run", "ε at most", "ε spent", "rounds", "AccuracyTop1"]
  assert [row[:4] for row in rows] == [
    ["no privacy", "none", "∞", "2"],
    ["private", "0.5", "0.000", "0"],
    ["private", "1", "0.9000", "1"],
    ["private", "2", "1.200", "2"],
  ]
  assert [row[4].split(" ±")[0] for row in rows] == ["50.0 %", "0.0 %", "10.0 %", "30.0 %"]


def test_plans_have_the_epsilons_of_other_numbers_of_rounds():
  plan = {"users": 763_430, "cohort": 1250.0, "noise_multiplier": 1.0, "delta": 1e-9}
  _, _, *rows = report_tables.rows(
    epsilons_of_plans([{"planned": None}, *[{"planned": plan}] * 2], (5000,))
  )
  # Table 2 of arXiv 1710.06963 has 2.038 by the moments accountant.
  assert rows == [["763,430", "1250", "1", "1e-09", "1.713", "2.038"]]
  assert not epsilons_of_plans([{"planned": None}], (5000,))
  assert not epsilons_of_plans([{"planned": plan}], ())


def test_losses_of_published_plans_are_paired_and_stand_beside_theirs():
  def row(label, each, clip_norm=15, cohort=1250.0, stddev=0.012):
    plan = {"users": 763_430, "cohort": cohort, "rdp": 1.7, "moments": 2.0}
    return {
      "label": label,
      "planned": cohort and plan,
      "clip_norm": clip_norm,
      "stddev": stddev,
      "smoothed": Interval(each[0], None),
      "smoothed_each": each,
      "perplexity": Interval(80.0, None),
    }

  of_5 = row("none of 5", [0.1, 0.11], clip_norm=None, cohort=None)
  of_40 = row("none of 40", [0.2, 0.22], clip_norm=None, cohort=None)
  # Other weights than equal ones give the same plan more noise: its loss is not a counterpart then.
  others = [row("S = 5", [0.1, 0.1], clip_norm=5), row("weighted", [0.1, 0.1], stddev=0.026)]
  pairs = [
    (of_5, row("of 5", [0.09, 0.1], stddev=0.01200001)),
    (of_40, row("of 40", [0.2, 0.22])),  # not beside the other run without privacy
    *((of_5, other) for other in others),
  ]
  header, _, *rows = report_tables.rows(loss_of_plans(pairs))
  cells = [dict(zip(header, row, strict=True)) for row in rows]
  assert [row["run"] for row in cells] == ["none of 5", "of 5", "none of 40", "of 40"]
  assert [row["points lost"] for row in cells] == ["", "+1.00 ± 0.00", "", "+0.00 ± 0.00"]
  assert cells[1] == {
    "run": "of 5",
    "plan": "1,250 of 763,430",
    "noise": "0.012",
    "ε: RDP": "1.700",
    "moments": "2.000",
    "AccuracyTop1": "9.0 %",
    "points lost": "+1.00 ± 0.00",
    "shown from": "0.00",
    "perplexity": "80",
    "published loss": "1.29",  # 17.62 - 16.33, Table 2 of arXiv 1710.06963
  }
  assert not loss_of_plans([(of_5, other) for other in others])


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
  # The word 150 is not a head word; the other nine of the ten likeliest are the first words, as
  # scores are tied.
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
  run, _ = finished
  report = run.report
  for statement in ("alone ε =", "used by most clients, by a noised count"):
    assert statement in report
  assert "movies_small" in report
  assert "planned ε" in report
  for part in ("Head words", "The three likeliest next words", "The published configurations"):
    assert f"## {part}" in report
  for plot in ("accuracy_over_rounds.png", "head_words.png"):
    assert (run.path / plot).stat().st_size > 10_000
