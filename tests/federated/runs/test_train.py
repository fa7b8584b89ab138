"""Training runs by one call: the rounds of a loop by hand, in memory or in a folder, with keys of
their own.
"""

import stat
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jdp import accounting, queries, random, sampling
from jdp.events import GaussianSum, LocalRelease, PoissonSampling, Round
from jdp.federated import FederatedAlgorithm, add_updates, client_mesh, rounds, train
from jdp.federated.engine.rounds import replicate
from jdp.federated.runs.folder_records import FolderRecords
from jdp.federated.runs.run_folder import RunFolder
from jdp.guarantees import PureDP
from jdp.ledger import Ledger, load, load_file
from tests.helpers.small_runs import InterruptedRunError
from tests.helpers.toy_rounds import interrupt_at

CLIENTS = jnp.arange(12.0).reshape(6, 2)
START, ROUNDS, DELTA = jnp.zeros(2), 7, 1e-5
KEYS = {"noise_key": random.seeded_key(5), "data_key": jax.random.key(1)}


def averaging(mesh=None, diagnose=True):
  """Every client sends the way from the server's value to its own, and some noise of its data
  key.
  """
  sampler = sampling.poisson(6, 0.5)

  def client_fn(keys, value, own):
    update = own - value + jax.random.normal(keys.data, (2,))
    return update, {"first": update[0]}

  query = queries.average(queries.gaussian_sum(1.0, 2.0), 3.0)
  return rounds(
    client_fn,
    query,
    sampler,
    add_updates(optax.sgd(0.5)),
    relation="add_remove",
    mesh=mesh,
    diagnose=diagnose,
  )


ALGORITHM = averaging()


def by_hand(num_rounds):
  """The parameters and the ledger after every round."""
  step, state, ledger = jax.jit(ALGORITHM.round), ALGORITHM.init(START), Ledger()
  for _ in range(num_rounds):
    state, events, diagnostics = step(KEYS["noise_key"], KEYS["data_key"], state, CLIENTS)
    ledger = ledger.append(*events)
    yield np.asarray(state.params), ledger, diagnostics


BY_HAND = list(by_hand(ROUNDS))


def run(algorithm=ALGORITHM, **changes):
  arguments = {"num_rounds": ROUNDS, "evaluate_every": 3, **KEYS, **changes}
  return train(algorithm, START, CLIENTS, **arguments)


WIDENED = {
  "bfloat16": {"a": jnp.zeros(2, jnp.bfloat16)},
  "float64": {"a": np.zeros(2)},
  "as many bytes": {"a": np.zeros(2), "b": jnp.zeros(4, jnp.bfloat16)},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WIDENED)
def test_an_optimizer_may_widen_its_state_in_the_first_round(tmp_path, name):
  """Momentum begins as zeros of the parameters' type, and becomes that of the updates.

  The run, interrupted and resumed, shows the models of the loop by hand.
  """
  start, shown = WIDENED[name], []
  algorithm = rounds(
    lambda keys, value, own: (
      jax.tree.map(lambda x: jnp.resize(own, x.shape) - x.astype(jnp.float32), value),
      {},
    ),
    queries.average(queries.gaussian_sum(1.0, 2.0), 3.0),
    sampling.poisson(6, 0.5),
    add_updates(optax.sgd(0.5, momentum=0.9)),
    relation="add_remove",
  )

  def go(*callbacks):
    arguments = {"num_rounds": 6, "evaluate_every": 2, "workdir": tmp_path / "run", **KEYS}
    return train(algorithm, start, CLIENTS, **arguments, callbacks=[shown.append, *callbacks])

  with jax.numpy_dtype_promotion("standard"):  # for Optax
    step, state = jax.jit(algorithm.round), algorithm.init(start)
    models = [state.params]
    for _ in range(6):
      state, *_ = step(*KEYS.values(), state, CLIENTS)
      models.append(state.params)
    with pytest.raises(InterruptedRunError):
      go(interrupt_at(4))
    result = go()
  assert result.params["a"].dtype == jnp.asarray(start["a"]).dtype
  assert [progress.round for progress in shown] == [0, 2, 4, 2, 4, 6]
  for progress in shown:
    jax.tree.map(np.testing.assert_array_equal, progress.params, models[progress.round])


def test_a_resumed_run_shows_the_model_of_before_or_is_refused(tmp_path, monkeypatch):
  with pytest.raises(InterruptedRunError):
    run(workdir=tmp_path / "run", callbacks=[interrupt_at(6)])
  restore = FolderRecords.restore

  def another(records, state):
    done, state = restore(records, state)
    return done, state._replace(params=state.params + 1)

  monkeypatch.setattr(FolderRecords, "restore", another)
  shown = []
  with pytest.raises(ValueError, match="Expected the model that was released after round 3 before"):
    run(workdir=tmp_path / "run", callbacks=[shown.append])
  assert not shown


@pytest.mark.optimised
@pytest.mark.parametrize("kept", [False, True], ids=["in memory", "in a folder"])
def test_a_run_is_the_loop_by_hand(tmp_path, kept):
  seen = []
  result = run(
    evaluate=lambda params: {"first": params[0]},
    delta=DELTA,
    workdir=tmp_path / "run" if kept else None,
    callbacks=[seen.append],
  )
  np.testing.assert_array_equal(result.params, BY_HAND[-1][0])
  assert result.ledger == BY_HAND[-1][1]
  assert result.ledger.caveats
  assert not result.stopped
  assert [row["round"] for row in result.metrics] == [0, 3, 6, 7]
  assert [progress.metrics for progress in seen] == result.metrics
  for progress in seen[1:]:
    params, ledger, _ = BY_HAND[progress.round - 1]
    np.testing.assert_array_equal(progress.params, params)
    assert progress.ledger == ledger
    assert progress.metrics == {
      "round": progress.round,
      "first": float(params[0]),
      "central_epsilon": accounting.epsilon(ledger, DELTA),
      "central_epsilon_by": f"tightest at delta {DELTA!r}",
    }
    since = [by_hand[2] for by_hand in BY_HAND[: progress.round]][
      -3 if progress.round < 7 else -1 :
    ]
    expected = {name: np.mean([values[name] for values in since]) for name in since[0]}
    assert progress.diagnostics == pytest.approx(expected, rel=1e-6)
  assert (seen[0].round, seen[0].diagnostics, len(seen[0].ledger)) == (0, None, 0)


@pytest.mark.slow
def test_one_program_serves_blocks_of_all_lengths():
  """Blocks of 3, 3 and 1 rounds, the 2 that a budget leaves of one, and another run."""
  traces = []

  def counted(*arguments):
    traces.append(1)
    return ALGORITHM.round(*arguments)

  algorithm, budget = ALGORITHM._replace(round=counted), accounting.epsilon(BY_HAND[4][1], DELTA)
  assert len(run(algorithm).ledger) == ROUNDS
  assert len(run(algorithm, delta=DELTA, max_epsilon=budget).ledger) == 5
  assert len(traces) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
  ("looks", "between"),
  [({}, 100), ({"evaluate": lambda params: {}}, 10), ({"callbacks": [lambda progress: None]}, 10)],
  ids=["nobody", "an evaluation", "a callback"],
)
def test_rounds_that_nobody_looks_at_are_one_block(looks, between):
  result = run(evaluate_every=None, num_rounds=101, **looks)
  assert [row["round"] for row in result.metrics] == [*range(0, 101, between), 101]
  assert len(result.ledger) == 101


def test_it_runs_without_anything_to_evaluate_or_diagnose():
  seen = []
  result = run(averaging(diagnose=False), callbacks=[seen.append])
  np.testing.assert_array_equal(result.params, BY_HAND[-1][0])
  assert result.metrics == [{"round": n} for n in (0, 3, 6, 7)]
  assert {progress.diagnostics for progress in seen} == {None}


@pytest.mark.optimised
@pytest.mark.sweep
@pytest.mark.parametrize("at", [3, 6])
def test_an_interrupted_run_goes_on_to_the_same_bits_and_counts_nothing_twice(tmp_path, at):
  """With keys of its own, which the secret folder keeps for their owner alone."""
  own = {
    "noise_key": None,
    "data_key": None,
    "delta": DELTA,
    "evaluate": lambda params: {"first": params[0]},
  }
  released = []

  def note(progress):
    released.append((progress.round, progress.params.tolist()))

  with pytest.raises(InterruptedRunError):
    run(**own, workdir=tmp_path / "run", callbacks=[note, interrupt_at(at)])
  assert len(load(tmp_path / "run/ledger.jsonl")) == at
  result = run(**own, workdir=tmp_path / "run", callbacks=[note])
  assert len({str(values) for values in released}) == len({number for number, _ in released}) == 4
  assert len(result.ledger) == ROUNDS
  assert load(tmp_path / "run/ledger.jsonl") == result.ledger
  assert not result.ledger.caveats
  for name in ("noise_key", "data_key"):
    assert stat.S_IMODE((tmp_path / "run.secret" / name).stat().st_mode) == 0o600
  assert stat.S_IMODE((tmp_path / "run.secret").stat().st_mode) == 0o700
  again = run(**own, workdir=tmp_path / "run")  # Nothing is left to do.
  np.testing.assert_array_equal(again.params, result.params)
  assert (again.ledger, again.metrics) == (result.ledger, result.metrics)


def test_a_run_whose_key_is_lost_or_another_is_not_continued(tmp_path):
  own = {"noise_key": None, "data_key": None}
  run(**own, workdir=tmp_path / "run")
  with pytest.raises(ValueError, match="Expected the key of noise that the run"):
    run(noise_key=random.seeded_key(6), workdir=tmp_path / "run")
  (tmp_path / "run.secret/noise_key").unlink()
  with pytest.raises(
    ValueError, match=r"Expected the noise key of the run in .*, got none; it cannot be resumed"
  ):
    run(**own, workdir=tmp_path / "run")


def test_a_ledger_that_was_shortened_or_replaced_is_not_gone_on_with(tmp_path):
  """Also if what was kept beside the key is all that is newer: an older folder was restored."""
  ledger = tmp_path / "run/ledger.jsonl"
  with pytest.raises(InterruptedRunError):
    run(workdir=tmp_path / "run", callbacks=[interrupt_at(6)])
  whole = ledger.read_bytes()
  lines = whole.splitlines(keepends=True)
  for kept in range(len(lines)):
    ledger.write_bytes(b"".join(lines[:kept]))
    with pytest.raises(
      ValueError, match=r"Expected a ledger that holds round 5 with link .* resto"
    ):
      run(workdir=tmp_path / "run")
    assert ledger.read_bytes() == b"".join(lines[:kept])
  ledger.write_bytes(whole)
  assert len(run(workdir=tmp_path / "run").ledger) == ROUNDS
  assert load_file(ledger).closed
  with pytest.raises(ValueError, match="Expected no further rounds in"):
    run(workdir=tmp_path / "run", num_rounds=ROUNDS + 1)


def test_a_mark_that_is_damaged_is_a_sentence(tmp_path):
  run(workdir=tmp_path / "run", num_rounds=1)
  for content in ("", "{}", "[1]", '{"last_round": 0, "link": "a", "more": 1}'):
    (tmp_path / "run.secret/ledger_mark.json").write_text(content)
    with pytest.raises(ValueError, match=r"Expected in .*ledger_mark.json how far"):
      run(workdir=tmp_path / "run", num_rounds=1)


def test_keys_are_of_the_operating_system_and_never_the_same_twice():
  one, two = (run(noise_key=None, data_key=None) for _ in range(2))
  assert not one.ledger.caveats
  assert not np.array_equal(one.params, two.params)


@pytest.mark.sweep
@pytest.mark.parametrize("affordable", [0, 1, 4, 6, 7])
@pytest.mark.parametrize("kept", [False, True], ids=["in memory", "in a folder"])
def test_a_budget_stops_before_the_round_that_exceeds_it(tmp_path, affordable, kept):
  prior = Ledger().append(Round(PoissonSampling(1.0), GaussianSum(1.0, 6.0)), count=2)
  spent = prior + (BY_HAND[affordable - 1][1] if affordable else Ledger())
  result = run(
    max_epsilon=accounting.epsilon(spent, DELTA),
    delta=DELTA,
    prior=prior,
    workdir=tmp_path / "run" if kept else None,
  )
  assert (result.ledger, result.stopped) == (spent, affordable < ROUNDS)
  np.testing.assert_array_equal(result.params, BY_HAND[affordable - 1][0] if affordable else START)
  assert result.metrics[-1]["central_epsilon"] == accounting.epsilon(spent, DELTA)


def test_local_releases_alone_have_no_central_epsilon():
  def round_fn(noise_key, data_key, state, clients):
    return state, (LocalRelease(PureDP(1.0)),), None

  result = run(FederatedAlgorithm(averaging().init, round_fn), num_rounds=1, delta=DELTA)
  assert [row["central_epsilon"] for row in result.metrics] == [0.0, None]


@pytest.mark.parametrize("kept", [False, True], ids=["in memory", "in a folder"])
def test_rounds_with_a_known_key_are_marked_whatever_the_algorithm_says(tmp_path, kept):
  event = Round(PoissonSampling(1.0), GaussianSum(1.0, 2.0))

  def round_fn(noise_key, data_key, state, clients):
    return state, (event,), None

  folder = tmp_path / "run" if kept else None
  result = run(FederatedAlgorithm(averaging().init, round_fn), num_rounds=2, workdir=folder)
  assert result.ledger.caveats[0].startswith("the noise of 2 of 2 events came from a key")
  if kept:
    assert '"key_exposed":true' in (folder / "ledger.jsonl").read_text().splitlines()[0]
    assert load(folder / "ledger.jsonl").caveats == result.ledger.caveats


def test_capped_releases_of_two_runs_are_not_added():
  capped = LocalRelease(PureDP(1.0), max_releases=1)

  def round_fn(noise_key, data_key, state, clients):
    return state, (capped,), None

  with pytest.raises(ValueError, match="max_releases in one of two ledgers"):
    run(FederatedAlgorithm(averaging().init, round_fn), num_rounds=1, prior=Ledger().append(capped))


@pytest.mark.slow
def test_on_a_mesh_the_state_lies_where_the_clients_do():
  mesh = client_mesh()
  seen = []
  result = train(
    averaging(mesh),
    START,
    replicate(CLIENTS, mesh),
    num_rounds=2,
    **KEYS,
    callbacks=[lambda p: seen.append(p.params)],
  )
  assert len(seen[0].sharding.device_set) == 4
  np.testing.assert_allclose(result.params, BY_HAND[1][0], rtol=1e-6)


def test_a_run_folder_names_the_places(tmp_path):
  folder = RunFolder(tmp_path / "public", tmp_path / "hidden" / "run", "mine/0")
  run(workdir=folder)
  published = {"ledger.jsonl", "metrics.jsonl", "params.npz"}
  assert {path.name for path in folder.path.iterdir()} == published
  assert {path.name for path in folder.secret.iterdir()} == {
    "checkpoints",
    "ledger_mark.json",
    "lock",
    "released",
    "run.json",
  }
  assert '"run":"mine/0 ' in (folder.path / "ledger.jsonl").read_text()


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    (
      {"num_rounds": None},
      "Expected num_rounds, got None: this algorithm plans no number of rounds",
    ),
    ({"num_rounds": 0}, "num_rounds to be a whole number >= 1"),
    ({"evaluate_every": 0}, "evaluate_every to be a whole number >= 1"),
    ({"max_epsilon": 1.0}, "Expected delta with max_epsilon, got none"),
    ({"max_epsilon": -1.0, "delta": DELTA}, "max_epsilon"),
    ({"delta": 1.0}, "delta"),
    (
      {"evaluate": lambda params: {"loss": jnp.nan}},
      "Expected finite metrics of the run, got loss = nan",
    ),
  ],
)
def test_what_cannot_be_done_is_refused(changes, message):
  with pytest.raises(ValueError, match=message):
    run(**changes)


WITHOUT = """
import sys
for name in ("orbax", "orbax.checkpoint", "tqdm", "matplotlib"):
  sys.modules[name] = None
import jax.numpy as jnp, optax
from jdp import queries, sampling
from jdp.federated import add_updates, rounds, train
made = rounds(lambda keys, value, own: (own - value, {}), queries.gaussian_sum(1.0, 1.0),
              sampling.poisson(3, 1.0), add_updates(optax.sgd(1.0)), relation="add_remove")
train(made, jnp.float32(0), jnp.ones(3), num_rounds=1)
try:
  train(made, jnp.float32(0), jnp.ones(3), num_rounds=1, workdir=sys.argv[1])
except ImportError as error:
  print(error)
"""


@pytest.mark.slow
def test_only_a_workdir_needs_orbax_and_nothing_needs_plots_or_bars(tmp_path):
  command = [sys.executable, "-c", WITHOUT, str(tmp_path / "run")]
  done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
  assert (
    "Expected orbax-checkpoint with a workdir, got none; pip install 'jdp-fl[checkpoints]'"
    in done.stdout
  )
