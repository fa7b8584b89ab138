"""Pages hold the tables and numbers of results that commands wrote."""

import json
import pathlib
import re
import shutil

import numpy as np
import pytest
from PIL import Image

from experiments import results, stored_values
from experiments.runner.reports.statistics import mean_interval

REPORT = """# A simulation

## Variance of the instances

| run | variance |
| --- | -------- |
| k   | 1.0      |

| run | after |
| --- | ----- |
| k   | 2.0   |

![Variance](variance.png)
"""
README = """# An experiment

<!-- results/spread.json: Variance of the instances, 2 -->
<!-- end -->

![variance](results/spread_variance.png)
"""

CHOSEN = re.compile("--validation_share|Settings are|the publication's|figure2_rates")


@pytest.fixture
def experiment(tmp_path, monkeypatch):
  """A copy of an experiment's presets, whose README is `README`, and a finished run of it."""
  source = pathlib.Path(results.__file__).parent / "draw_and_discard"
  folder = tmp_path / "experiments" / "draw_and_discard"
  shutil.copytree(source / "flags", folder / "flags")
  (folder / "README.md").write_text(README)
  (folder / "results").mkdir()
  monkeypatch.setattr(results, "_FOLDER", folder.parent)
  monkeypatch.setattr(results, "pages", lambda: [folder / "README.md"])
  monkeypatch.setattr(stored_values, "document", stored_values.document.__wrapped__)
  run = tmp_path / "run"
  run.mkdir()
  kind = results.importlib.import_module("experiments.draw_and_discard.__main__")
  preset = results.options.read_flagfile(
    kind.EXPERIMENT.options_type, folder / "flags/figure1.flags"
  )
  flags = vars(results.options.resolve(kind.EXPERIMENT.options_type, {"data_seed": 7}, preset))
  begun = {
    "experiment": "draw_and_discard",
    "preset": "figure1",
    "flags": flags,
    "environment": dict.fromkeys(results._VERSIONS, "1"),
  }
  (run / "flags.json").write_text(json.dumps(begun))
  (run / "report.md").write_text(REPORT)
  (run / "results.json").write_text(json.dumps({"flags": flags, "variance": [0.123456789]}))
  Image.new("RGB", (8, 8)).save(run / "variance.png")
  return folder, run


def test_every_readme_has_the_tables_of_its_results():
  assert results.differences() == []


def test_a_kept_run_fills_its_readme(experiment):
  folder, run = experiment
  results.main(["keep", str(run), "spread", "--picture=variance"])
  content = json.loads((folder / "results/spread.json").read_text())
  assert content["command"].endswith("--preset=figure1 --data_seed=7")
  assert content["results"]["variance"] == [0.123457]
  assert len(results.differences()) == 1  # The table is not in the README yet.
  results.main(["write"])
  assert "-->\n| run | after |\n" in (folder / "README.md").read_text()
  assert results.differences() == []


@pytest.mark.parametrize(
  ("old", "new", "message"),
  [
    ("| 2.0 ", "| 2.1 ", "differs from its results"),
    ("results/spread_variance.png", "", "does not show results/spread_variance.png"),
    ("<!-- end -->", "", "beginning without an end"),
  ],
)
def test_an_edited_readme_is_refused(experiment, old, new, message):
  folder, run = experiment
  results.keep(run, "spread", ["variance"])
  results.main(["write"])
  text = (folder / "README.md").read_text()
  assert old in text
  (folder / "README.md").write_text(text.replace(old, new))
  with pytest.raises(SystemExit, match=message):
    results.main(["check"])


def test_presets_are_what_their_flag_files_say(experiment):
  folder, _ = experiment
  (folder / "README.md").write_text("<!-- flags: presets -->\n<!-- end -->\n")
  results.main(["write"])
  text = (folder / "README.md").read_text()
  rows = text.splitlines()[3:-1]
  assert rows[0].startswith("| `smoke` |")
  assert len(rows) == len(list((folder / "flags").iterdir()))
  flags = folder / "flags/smoke.flags"
  flags.write_text(f"# It takes 3 seconds.\n{flags.read_text()}")
  with pytest.raises(SystemExit, match="differs from its results"):
    results.main(["check"])
  results.main(["write"])
  with pytest.raises(SystemExit, match="says 3 seconds, and links it to no file"):
    results.main(["check"])


def test_who_chose_the_settings_of_stored_results_is_said():
  """Of what learns from real data: nobody by its test data."""
  said = {}
  for path in pathlib.Path(results.__file__).parent.glob("*/results/*.json"):
    text = path.read_text()
    if "DATA_DIR" in text and "accuracy" in text:
      preset = re.search(r"--preset=(\w+)", text)[1]
      flags = (path.parents[1] / "flags" / f"{preset}.flags").read_text()
      said[path.stem] = CHOSEN.search(" ".join(re.findall("^#.*", flags, re.M))) is not None
  assert len(said) > 60
  assert [name for name, chosen in said.items() if not chosen] == []


def test_no_private_run_ends_above_every_baseline():
  """Beyond the paired interval: else the best baseline does not show what privacy costs."""
  compared, above = 0, []
  for path in pathlib.Path(results.__file__).parent.glob("*/results/*.json"):
    found = json.loads(path.read_text())
    found = found.get("results", {}) if isinstance(found, dict) else {}
    protected = {
      row["label"]: any(row.get(of) for of in ("central", "release", "local"))
      for row in found.get("summary", ())
      if "label" in row
    }
    for metric in ("test_accuracy", "accuracy_top1"):
      ends = {label: _ends(found["runs"], label, metric) for label in protected}
      free = [values for label, values in ends.items() if values and not protected[label]]
      if not free:
        continue
      best = max(free, key=lambda values: np.mean(list(values.values())))
      for label, values in ends.items():
        if protected[label] and len(values.keys() & best.keys()) > 1:
          mean, width = mean_interval([values[s] - best[s] for s in values.keys() & best.keys()])
          compared += 1
          above += [f"{path.stem}: {label} by {mean:.4f}"] if mean > width else []
  assert compared > 100
  assert above == []


def _ends(runs, label, metric):
  """The last values of a setting's runs, by seed."""
  return {
    row["seed"]: row["metrics"][metric]
    for row in runs
    if row.get("label") == label and metric in row.get("metrics", ())
  }


def test_a_missing_table_is_refused(experiment):
  folder, run = experiment
  results.keep(run, "spread")
  (folder / "README.md").write_text(README.replace("instances, 2", "instances, 3"))
  with pytest.raises(ValueError, match="Expected a table of"):
    results.differences()


def test_an_unfinished_run_is_refused(experiment):
  _, run = experiment
  (run / "report.md").unlink()
  with pytest.raises(ValueError, match=r"Expected report\.md in .*; finish the run with --resume"):
    results.keep(run, "spread")


@pytest.mark.parametrize(
  ("shown", "message"),
  [
    ('[0.45 s](results/speed.jsonl "size=64 > own.seconds") alone', None),
    ('[448 ms](results/speed.jsonl "size=64 > own.seconds") alone', None),
    ('[5 times](results/speed.jsonl "size=64 > peer.seconds divided by own.seconds")', "nothing"),
    ('[10 times](results/speed.jsonl "size=64 > ratio") as fast', None),
    ('[0.44 s](results/speed.jsonl "size=64 > own.seconds") alone', "differs from its results"),
    ('[0.45 s](results/speed.jsonl "size=65 > own.seconds") alone', "Expected a value at"),
    ('[0.45 s](results/speed.jsonl "size=64 > own.seconds"), a peer 4 s', "says 4 s, and links"),
    ('[0.45 to 0.5 s](results/speed.jsonl "size=64 > own.seconds") alone', "Expected one number"),
    ('[2.5 minutes](results/speed.jsonl "size=8 > own.seconds") alone', None),
    ('[2.5 minutes](results/speed.jsonl "size=8 > own.seconds"), 9 a second', None),
    (
      '[2.5 minutes](results/speed.jsonl "size=8 > own.seconds"), 9 rows a second',
      "says 9 rows a second",
    ),
    ('[4 s](results/speed.jsonl "layer=dense, 2 rows, size=9 > seconds") alone', None),
    ('[1.5 hours](results/run.json "processor_minutes") alone', None),
    ('[2 times](results/run.json "Sums > a > error divided by Sums > b > error") as much', None),
    ("3 s, though no number of its page has a file", "says 3 s, and links"),
    ("3\nminutes", "says 3\nminutes"),
    ("[3 s](https://arxiv.org/abs/1812.00984), as published", None),
    ("at most `3 s`, or `--limit=3 %\nmore`, or $3 s$, within a 95 %\ninterval", None),
    ("`a`, then 3 %, then `b`", "says 3 %"),
  ],
)
def test_a_number_of_a_page_is_that_of_its_file(experiment, shown, message):
  folder, _ = experiment
  rows = [{"setting": {"size": 64}, "own": {"seconds": 0.4476}, "ratio": 9.97}]
  rows += [{"size": 8, "own": {"seconds": 150.0}}]
  rows += [{"layer": f"dense, {n} rows", "size": 9, "seconds": 2.0 * n} for n in (2, 3)]
  table = "| run | error |\n| --- | --- |\n| a | 5.0 ± .1 |\n| b | 2.5 ± .1 |"
  run = {"processor_minutes": 90, "tables": {"Sums": [table]}}
  (folder / "results/speed.jsonl").write_text("\n".join(map(json.dumps, rows)))
  (folder / "results/run.json").write_text(json.dumps(run))
  (folder / "README.md").write_text(f"# Speed\n\nIt takes {shown}.\n")
  if message is None:
    assert results.differences() == []
  else:
    with pytest.raises((SystemExit, ValueError), match=message):
      results.main(["check"])


def test_a_written_number_keeps_its_digits(experiment):
  folder, _ = experiment
  (folder / "results/speed.jsonl").write_text('{"name": "jdp", "rate": 3466.49}')
  link = '[{} clients/s](results/speed.jsonl "jdp > rate")'
  (folder / "README.md").write_text(link.format("9,000.0"))
  results.main(["write"])
  assert (folder / "README.md").read_text() == link.format("3,466.5")


def test_a_benchmark_fills_a_page_with_its_rows(experiment):
  folder, _ = experiment
  (folder / "results/sizes.jsonl").write_text('{"clients": 10, "seconds": 0.25, "machine": {}}')
  page = "<!-- results/sizes.jsonl: training cohort_sizes -->\n<!-- end -->\n"
  (folder / "README.md").write_text(page)
  assert len(results.differences()) == 1
  results.main(["write"])
  assert "\n| 10      | 0.25    |\n" in (folder / "README.md").read_text()
  assert results.differences() == []


def test_a_paired_difference_is_by_seed():
  runs = [
    {"label": label, "seed": seed, "metrics": {"test_accuracy": accuracy}}
    for label, accuracies in {"a": (0.5, 0.7, 0.9), "b": (0.48, 0.69, 0.87)}.items()
    for seed, accuracy in enumerate(accuracies)
  ]
  shown = stored_values.value({"results": {"runs": runs}}, "Results > a - b > test_accuracy")
  assert shown == "+2.0 ± 2.5 points"  # .01 * 4.303 / sqrt(3)
  with pytest.raises(ValueError, match="of the same seeds"):
    stored_values.value({"results": {"runs": runs[:5]}}, "Results > a - b > test_accuracy")


def test_a_command_gives_its_figures_again(experiment, capsys):
  folder, _ = experiment
  table = "| of | moments |\n| --- | --- |\n| Table 1 | 42 of 42 |\n| Table 2 | {} of 6 |"
  stored = {"command": "python -m experiments.accounting --task=published --accountants=moments"}
  for name, count in (("right", 6), ("wrong", 5)):
    tables = {"Equal to the printed digits": [table.format(count)]}
    (folder / f"results/{name}.json").write_text(json.dumps(stored | {"tables": tables}))
  results.main(["again", "draw_and_discard/right"])
  assert "All cells are equal" in capsys.readouterr().out
  with pytest.raises(SystemExit, match="'5 of 6' was stored, '6 of 6' came now"):
    results.main(["again", "draw_and_discard/wrong"])


@pytest.mark.parametrize(
  ("old", "new", "meet"),
  [
    ("88.7 % ± 1.1", "87.0 % ± 0.7", True),
    ("88.7 % ± 1.1", "86.8 % ± 0.7", False),
    ("1,991.2 ± 42", "1,940 ± 10", True),
    ("1.060", "1.061", False),
    ("8.8 % ± 0.1", "8.7 % ± 0.0", True),
    ("12.72 +- 0.014", "12.73 +- 0.014", True),
    ("+0.09 ± 0.81", "-0.10 ± 0.81", True),
    ("0.98 ± 0.03 (2)", "0.98 ± 0.04 (1)", False),
    ("88.7 % ± 1.1", "0.9 ± 88", False),
    ("0.0 % [0.0, 1.2]", "0.3 % [0.0, 1.8]", True),
    ("0.0 % [0.0, 1.2]", "4.3 % [1.3, 8.8]", False),
  ],
)
def test_figures_with_intervals_may_differ_as_far_as_these_meet(old, new, meet):
  table = "| a |\n| --- |\n| {} |"
  found = results.disagreements({"A": [table.format(old)]}, {"A": [table.format(new)]})
  assert (list(found) == []) == meet


def test_no_path_of_a_machine_is_kept(experiment):
  _, run = experiment
  begun = json.loads((run / "flags.json").read_text())
  (run / "flags.json").write_text(
    json.dumps({**begun, "flags": {**begun["flags"], "data_dir": "/home/somebody"}})
  )
  text = results.keep(run, "spread").read_text()
  assert "--data_dir=DATA_DIR" in text
  assert "somebody" not in text
