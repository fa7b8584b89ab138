"""A binary on one device and in two processes; begun on one device, resumed on eight."""

import contextlib
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from experiments.dp_fedavg.__main__ import EXPERIMENT
from experiments.runner import cohorts, options, processes
from experiments.runner.cohorts import CohortOptions
from experiments.runner.runs import layouts
from experiments.runner.runs.workdir import Workdir
from jdp import data, models, sampling
from jdp.federated import CohortLayout, federated_averaging, gradient_step
from jdp.federated.engine.cohort_layout import candidates
from jdp.federated.estimators import fixed_denominator, flat_clipping
from jdp.ledger import load_file

ROOT = pathlib.Path(__file__).parents[3]
FLAGS = ("--runs=private", "--vary=", "--seeds=1", "--num_rounds=4", "--eval_every=2")
SEEDED = (*FLAGS, "--noise_seed=0", "--shard")
TEXT = (
  *("--preset=text_smoke", "--vocabulary=private", "--public_share=0.2", "--public_passes=1"),
  *("--vocabulary_size=200", "--embedding_size=8", "--hidden_size=8", "--tokens_per_user=50"),
  *("--test_tokens=500", "--runs=private", "--num_rounds=2", "--eval_every=2", "--noise_seed=0"),
)
# Killed when round 4 is on record and released, but in no checkpoint: it will be repeated.
KILLED = """
import os, signal
from experiments.dp_fedavg.__main__ import EXPERIMENT
from experiments.runner.launch import launch
from experiments.runner.runs import training

def kill(self, progress):
  if progress.round == 4:
    os.kill(os.getpid(), signal.SIGKILL)

training._ProgressReporter.__call__ = kill
launch(EXPERIMENT)
"""
# Fails at one of its evaluations, by itself and not by what the others do.
FAILING = """
import os, signal
from experiments.dp_fedavg.__main__ import EXPERIMENT
from experiments.runner.launch import launch
from experiments.runner.runs import sweep

made = sweep.train_run

def failing(run, *rest):
  calls = []

  def evaluate(params):
    calls.append(params)
    if len(calls) == {call}:
      {failure}
    return run.evaluate(params)

  return made(run._replace(evaluate=evaluate), *rest)

sweep.train_run = failing
launch(EXPERIMENT)
"""
JOINING = """
import jax
from experiments.runner import processes
processes.join(None, None, None, distributed=True)
print(jax.process_index(), "of", jax.process_count())
"""
KILL, RAISE = "os.kill(os.getpid(), signal.SIGKILL)", "raise KeyError('of this process')"
BINARY = ("-m", "experiments.dp_fedavg")


def start(folder, *flags, devices=1, program=BINARY, cluster=None):
  environment = {
    **os.environ,
    **(cluster or {}),
    "PYTHONPATH": str(ROOT),
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={devices}",
  }
  environment.setdefault("JAX_COMPILATION_CACHE_DIR", str(folder.parent / "cache"))
  return subprocess.Popen(
    [sys.executable, *program, f"--workdir={folder}", *flags],
    env=environment,
    cwd=ROOT,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
  )


def finish(*started):
  try:
    for process in started:
      text, _ = process.communicate(timeout=300)
      assert process.returncode == 0, text
  finally:
    for process in started:
      process.kill()


FIRST_PORT = 2**16 - 2**12
"""Of those that JAX chooses from in a cluster, by the number of the job."""


def free_port():
  """A port of these that nobody listens at."""
  for port in random.sample(range(FIRST_PORT, 2**16), 100):
    with socket.socket() as listener, contextlib.suppress(OSError):
      listener.bind(("localhost", port))
      return port
  pytest.fail("All ports are taken.")


def by_slurm(port, number):
  """The variables that srun sets. JAX makes the port of the job's number."""
  return {
    "SLURM_JOB_ID": str(port - FIRST_PORT),
    "SLURM_STEP_NODELIST": "localhost",
    "SLURM_STEP_NUM_NODES": "1",
    "SLURM_NTASKS": "2",
    "SLURM_PROCID": str(number),
    "SLURM_LOCALID": str(number),
  }


def by_open_mpi(port, number):
  """The variables that mpirun sets, up to Open MPI 4."""
  return {
    "OMPI_MCA_orte_hnp_uri": f"{(port - FIRST_PORT) * 2**12}.0;tcp://127.0.0.1:34911",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_RANK": str(number),
    "OMPI_COMM_WORLD_LOCAL_RANK": str(number),
  }


def start_two(folder, *flags, of_second=(), programs=(BINARY, BINARY)):
  """Starts two processes that run an experiment together."""
  together, started = (f"--coordinator=localhost:{free_port()}", "--num_processes=2"), []
  for number, own in enumerate(((), of_second)):
    given = (*flags, *together, f"--process_id={number}", *own)
    started.append(start(folder, *given, program=programs[number]))
  return started


def two_processes(folder, *flags):
  finish(*start_two(folder, *flags))


def left(folder, part="private"):
  """What a run leaves, but for the files that tell of the devices."""
  files = (path for path in (folder / part).rglob("*") if path.is_file())
  return {path.relative_to(folder): path.read_bytes() for path in files}


def said_of_devices(folder):
  report = (folder / "report.md").read_text()
  return [line for line in report.splitlines() if "devices: " in line]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
  folder = tmp_path_factory.mktemp("whole") / "run"
  finish(start(folder, *SEEDED))
  return folder


@pytest.mark.slow
@pytest.mark.parametrize("variables", [by_slurm, by_open_mpi])
def test_a_cluster_says_which_processes_there_are(tmp_path, variables):
  port = free_port()
  started = [
    start(tmp_path, program=("-c", JOINING), cluster=variables(port, number)) for number in (0, 1)
  ]
  for number, process in enumerate(started):
    text, _ = process.communicate(timeout=300)
    assert text.splitlines()[-1] == f"{number} of 2", text


@pytest.mark.slow
def test_two_processes_count_words_and_begin_with_public_text_as_one_does(tmp_path):
  """The first process counts and trains; the other begins with what that one has found."""
  finish(start(tmp_path / "one", *TEXT))
  two_processes(tmp_path / "two", *TEXT)
  for part in ("vocabulary", "private"):
    assert left(tmp_path / "two", part) == left(tmp_path / "one", part) != {}


@pytest.mark.slow
def test_what_one_process_refuses_ends_all_before_anything_is_written(tmp_path):
  started = start_two(tmp_path / "run", *SEEDED, of_second=("--num_rounds=6",))
  first, second = (process.communicate(timeout=300)[0] for process in started)
  assert all(process.returncode not in (0, None) for process in started)
  assert "Expected process 1 to go on, got an error, which it shows." in first
  assert "Expected --num_rounds=4, with which the run was begun, got 6" in second
  assert not (tmp_path / "run").exists()


def test_a_process_that_no_cluster_began_is_told_so(tmp_path):
  alone = start(tmp_path / "run", *SEEDED, "--distributed", cluster={"SLURM_JOB_ID": "1"})
  text, _ = alone.communicate(timeout=300)
  assert alone.returncode == 1
  assert "Expected a process of SLURM (begun by srun), Open MPI 4, Kubernetes or a TPU pod" in text
  assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_the_failure_of_one_process_ends_both_and_the_run_goes_on(whole, tmp_path):
  """The first is killed, then the second fails, then the run comes to its end, written once."""
  flags, call = SEEDED, 3
  for victim, failure in ((0, KILL), (1, RAISE)):
    programs = [BINARY, BINARY]
    programs[victim] = ("-c", FAILING.format(failure=failure, call=call))
    started = start_two(tmp_path / "run", *flags, programs=programs)
    failed, other = started[victim], started[1 - victim]
    said, _ = failed.communicate(timeout=300)
    assert failed.returncode == (-signal.SIGKILL if failure is KILL else 1), said
    assert ("KeyError: 'of this process'" in said) == (failure is RAISE)
    text, _ = other.communicate(timeout=30)  # Without being told it would wait for 300 seconds.
    assert other.returncode != 0
    # The end of the first is seen by JAX too, which may be faster.
    assert re.search("got the end or the silence of one|another task died", text), text
    flags, call = ("--resume",), 1
  two_processes(tmp_path / "run", "--resume")
  assert left(tmp_path / "run") == left(whole)
  assert said_of_devices(whole) == ["- devices: 1"]
  assert said_of_devices(tmp_path / "run") == ["- devices: 2 of 2 processes"]
  names = {path.name for path in whole.iterdir()}
  assert {path.name for path in (tmp_path / "run").iterdir()} == names
  assert not (tmp_path / "run.secret").exists()


@pytest.mark.slow
def test_a_run_begun_on_one_device_goes_on_with_eight_and_in_two_processes(whole, tmp_path):
  begun = start(tmp_path / "run", *SEEDED, program=("-c", KILLED))
  begun.communicate(timeout=300)
  assert begun.returncode == -signal.SIGKILL
  book = load_file(tmp_path / "run/private/0/ledger.jsonl")
  assert (len(book.ledger), book.closed) == (4, False)
  for suffix in ("", ".secret"):
    shutil.copytree(tmp_path / f"run{suffix}", tmp_path / f"other{suffix}")
  finish(start(tmp_path / "run", "--resume", devices=8))
  two_processes(tmp_path / "other", "--resume")
  for name, now in (("run", "8"), ("other", "2 of 2 processes")):
    assert left(tmp_path / name) == left(whole)
    assert json.loads((tmp_path / name / "devices.json").read_text()) == ["1", now]
    changed, _ = said_of_devices(tmp_path / name)
    assert changed.startswith(f"It was computed on devices: 1, then {now}. Any number of them")


@pytest.mark.parametrize(
  ("given", "message"),
  [
    (("localhost:1", None, None), "together, got no --num_processes and no --process_id; give all"),
    (("localhost:1", 2, 2), "Expected --process_id from 0 to below --num_processes=2, got 2"),
    (("localhost:1", 2, 1, True), "Expected --distributed without --coordinator, --num_processes"),
  ],
)
def test_half_a_description_of_processes_is_refused(given, message):
  with pytest.raises(ValueError, match=message):
    processes.join(*given[:3], distributed=len(given) > 3)


def test_the_layout_is_what_the_flags_say():
  def layout(**given):
    return cohorts.layout_of(options.resolve(EXPERIMENT.options_type, given, {"clip_norm": 1.0}))

  z = {"noise_multiplier": 1.0}
  assert layout(**z) == {"chunk_size": None, "ghost_norms": None}
  assert layout(**z, chunk_size=8, ghost_norms="on") == {"chunk_size": 8, "ghost_norms": True}
  assert layout(**z, layout="fastest") == {"chunk_size": None, "ghost_norms": None}
  with pytest.raises(ValueError, match="Expected --chunk_size only with --layout=rule"):
    layout(**z, layout="fastest", chunk_size=8)
  with pytest.raises(ValueError, match="Expected --local_training=gradient with --ghost_norms=on"):
    layout(**z, ghost_norms="on", local_training="sgd")
  assert cohorts.layout_of(CohortOptions(layout="rule", chunk_size=2)) == {"chunk_size": 2}
  assert cohorts.planned_layout(None, ghost_norms=None) is None
  assert cohorts.planned_layout(4) == CohortLayout(4)
  assert cohorts.planned_layout(None, ghost_norms=True) == CohortLayout(64, True)


def test_the_fastest_layout_is_measured_on_made_up_clients_once(tmp_path, monkeypatch):
  """What is private moves nothing: the made-up clients of all data of these shapes are the same."""
  rng = np.random.default_rng(0)
  examples = data.examples(rng.normal(size=(6, 2)), np.arange(6) % 2)
  packed = data.pack(examples, np.split(np.arange(6), [1, 3]))
  seen, model = [], models.logistic_regression((2,), 2)

  def make(**layout):
    def round_fn(noise_key, data_key, state, clients):
      seen.append((layout, [np.asarray(clients.user(k).inputs) for k in range(3)]))
      return jax.tree.map(jnp.negative, state.params)

    query = fixed_denominator(flat_clipping(1.0), 1.0, 2.0)
    update = gradient_step(models.cross_entropy(model), 1.0)
    sampler, optimizer = sampling.poisson(3, 0.5), optax.sgd(1.0)
    made = federated_averaging(update, query, sampler, optimizer, **layout)
    return made._replace(round=round_fn)

  monkeypatch.setattr(layouts.jax, "jit", lambda function: function)
  params = model.init(jax.random.key(0))

  def measure():
    return layouts.fastest_layout(make, params, packed, ghost_norms=True, shard=False)

  found = layouts.kept_layout("private", Workdir(tmp_path), measure)
  assert set(found) == {"chunk_size", "ghost_norms"}
  assert {tuple(layout.items()) for layout, _ in seen} == {
    tuple(layout._asdict().items()) for layout in candidates()
  }
  for _, clients in seen:
    np.testing.assert_array_equal(clients, np.ones((3, 3, 2)))
  seen.clear()
  assert layouts.kept_layout("private", Workdir(tmp_path), measure) == found
  assert not seen
  assert layouts.kept_layouts(Workdir(tmp_path)) == {"private": found}
