"""The command line of benchmarks, their smallest runs, and the tables that stored rows make."""

import json
import pathlib
import subprocess
import sys

import jax.numpy as jnp
import pytest

from experiments.benchmarks import accelerators, harness, sources

EXPERIMENTS = pathlib.Path(harness.__file__).parents[1]
RESULTS = EXPERIMENTS / "benchmarks" / "results"
OWN = "benchmarks/README.md"


def ran(*arguments):
  """What a command prints, in a process of its own."""
  command = [sys.executable, "-m", "experiments.benchmarks", *map(str, arguments)]
  return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def cells(text):
  """The rows of all tables."""
  lines = (line for line in text.splitlines() if line.startswith("|") and "---" not in line)
  return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@harness.benchmark({"size": (5,)})
def sums(size: tuple[int, ...] = (10, 20), rounds: int = 7):
  """Sums of ones."""
  for count in size:
    ones = jnp.ones(count)
    cases = {name: harness.compiled(jnp.sum, ones, work=count) for name in ("one", "again")}
    yield harness.compared(f"{count} ones", "numbers", cases, rounds)


def test_a_benchmark_writes_rows_that_make_its_table_again(tmp_path, capsys, monkeypatch):
  monkeypatch.setattr(sources, "sources", sums)
  path = tmp_path / "found.jsonl"
  harness.main(["sources", "sources", "--size=10,20", "--rounds=2", f"--json={path}"])
  printed = capsys.readouterr().out
  first, second = harness.read(path)
  assert (first["title"], second["title"]) == ("10 ones", "20 ones")
  assert first["timings"][0]["ratio"] == 1.0
  assert all(t["rate"] > 0 and t["cpu_seconds"] > 0 for t in second["timings"])
  assert first["machine"]["devices"]
  harness.main(["sources", "sources", f"--table={path}"])
  assert capsys.readouterr().out == printed
  harness.main(["sources", "sources", "--smallest"])
  assert "5 ones" in capsys.readouterr().out


def test_smallest_runs_take_other_options_and_name_peers_that_are_left_out(capsys):
  harness.main(["strategies", "searches", "--smallest", "--settings=4"])
  printed = capsys.readouterr().out
  assert "jax_privacy is left out: name its Python by --jax_privacy_python." in printed
  assert [row[:2] for row in cells(printed)[1:]] == [["banded", "64"]]


@pytest.mark.parametrize(
  ("arguments", "said"),
  [
    (["accountancy"], "invalid choice"),
    (["training", "cohorts", "--models=mlp,gpt"], "expected some of logistic,mlp,cnn, got mlp,gpt"),
    (["training", "cohorts", "--size=1"], "unrecognized arguments"),
  ],
)
def test_options_that_no_benchmark_has_are_refused(arguments, said, capsys):
  with pytest.raises(SystemExit, match="2"):
    harness.main(arguments)
  assert said in capsys.readouterr().err


def test_a_row_that_fails_ends_the_command_with_an_error(tmp_path):
  path = tmp_path / "found.jsonl"
  row = {"what": "epsilon", "ratio": 1.0, "holds": True}
  path.write_text(f"{json.dumps(row)}\n{json.dumps(row | {'holds': False})}\n")
  with pytest.raises(SystemExit, match="got 1 that fail"):
    harness.main(["accounting", "agreement", f"--table={path}"])


@pytest.mark.parametrize(
  ("arguments", "name", "page"),
  [
    ("accelerators accelerator", "accelerators", OWN),
    ("training cohorts", "cohorts", OWN),
    ("mechanisms compressed_reports", "compressed_reports", OWN),
    ("models ghost_norms", "ghost_norms", OWN),
    ("strategies correlated_noise", "correlated_noise", "correlated_noise/README.md"),
  ],
)
def test_stored_rows_make_the_tables_of_a_page(arguments, name, page, capsys):
  harness.main([*arguments.split(), f"--table={RESULTS / name}.jsonl"])
  shown = cells((EXPERIMENTS / page).read_text())
  made = cells(capsys.readouterr().out)
  assert len(made) > 5
  assert [row for row in made if row not in shown] == []


@pytest.mark.parametrize(
  ("arguments", "name"),
  [
    ("accounting epsilons", "accounting"),
    ("accounting ledgers", "ledgers"),
    ("accounting planned_noise", "planned_noise"),
    ("compilers compiled_programs", "compiled_programs"),
    ("models cnn_clients", "cnn_clients"),
    ("models language_model", "language_model"),
    ("sources sources", "sources"),
    ("strategies searches", "matrix_factorizations"),
    ("strategies whole_run", "correlated_noise_whole_run"),
    ("training cohort_sizes", "cohort_sizes"),
  ],
)
def test_all_stored_rows_are_read_by_their_command(arguments, name, capsys):
  harness.main([*arguments.split(), f"--table={RESULTS / name}.jsonl"])
  assert len(cells(capsys.readouterr().out)) > 2


def test_a_piece_that_a_device_cannot_run_is_told_and_the_others_run(tmp_path, monkeypatch, capsys):
  def exhausted():
    raise RuntimeError("RESOURCE_EXHAUSTED: out of memory\nAllocator: ...")
    yield

  pieces = {"draws": lambda: iter(()), "cohorts, MLP": exhausted, "cohorts, CNN": lambda: iter(())}
  monkeypatch.setattr(accelerators, "_pieces", lambda *arguments: pieces.items())
  path = tmp_path / "found.jsonl"
  command = ["accelerators", "accelerator", "--only=cohorts", f"--json={path}", f"--done={path}"]
  for _ in range(2):  # What failed is tried again.
    with pytest.raises(SystemExit, match="got 1 that fail"):
      harness.main(command)
    assert "RESOURCE_EXHAUSTED: out of memory" in capsys.readouterr().out
  pieces["cohorts, MLP"] = lambda: iter(())
  harness.main(command)
  assert [(row["part"], row["case"]) for row in harness.read(path)] == [
    ("faults", "cohorts, MLP"), ("pieces", "cohorts, CNN"), ("faults", "cohorts, MLP"),
    ("pieces", "cohorts, MLP"),
  ]  # fmt: skip
  harness.main([*command[:2], f"--table={path}"])
  assert "RESOURCE_EXHAUSTED" not in capsys.readouterr().out


@pytest.mark.slow
def test_the_smallest_run_on_a_device_checks_and_measures_and_prints_its_table(tmp_path):
  path = tmp_path / "found.jsonl"
  command = ["accelerators", "accelerator"]
  printed = ran(*command, "--smallest", f"--json={path}", f"--done={path}")
  rows = harness.read(path)
  checks = [row for row in rows if row["part"] == "checks"]
  assert len(checks) == 8
  assert all(row["holds"] and row["error"] <= row["most"] for row in checks)
  timed = [row for row in rows if row["part"] not in ("checks", "pieces")]
  assert {row["part"] for row in timed} == {
    "draws", "PrivUnit", "cohorts", "chunks", "adapters", "published LSTM",
  }  # fmt: skip
  assert all(row["rate"] > 0 and row["machine"]["devices"] for row in timed)
  assert ran(*command, f"--table={path}").strip() in printed
  pieces = [row["case"] for row in rows if row["part"] == "pieces"]
  assert pieces[:3] == ["checks", "ghost norms, MLP", "draws, 10000"]
  # A piece that was cut off has no row of its end. A later run does it again, and no other.
  again = [row for row in rows if row["part"] == "draws"]
  left = [row for row in rows if row["case"] != pieces[2]]
  path.write_text("".join(json.dumps(row) + "\n" for row in left))
  ran(*command, "--smallest", f"--json={path}", f"--done={path}")
  assert [row["case"] for row in harness.read(path)[len(left) :]] == [
    *(row["case"] for row in again), pieces[2],
  ]  # fmt: skip
  assert "pieces are left" in ran(*command, "--smallest", "--minutes=0")


@pytest.mark.slow
def test_processes_take_turns_with_another_checkout():
  options = ("--dim=100", "--values=1000", "--rounds=1", f"--baseline={harness.HERE}")
  (head, before, after, *_) = cells(ran("mechanisms", "streaming", *options))
  assert [head[0], before[0], after[0]] == ["case", "before", "after"]
  assert float(after[-1]) > 0
