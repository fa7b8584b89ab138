"""READMEs hold the tables of results that commands wrote."""

import json
import pathlib
import shutil

import pytest
from PIL import Image

from experiments import results

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


@pytest.fixture
def experiment(tmp_path, monkeypatch):
  """A copy of an experiment's presets, whose README is `README`, and a finished run of it."""
  source = pathlib.Path(results.__file__).parent / "draw_and_discard"
  folder = tmp_path / "experiments" / "draw_and_discard"
  shutil.copytree(source / "flags", folder / "flags")
  (folder / "README.md").write_text(README)
  monkeypatch.setattr(results, "_FOLDER", folder.parent)
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


def test_no_path_of_a_machine_is_kept(experiment):
  _, run = experiment
  begun = json.loads((run / "flags.json").read_text())
  (run / "flags.json").write_text(
    json.dumps({**begun, "flags": {**begun["flags"], "data_dir": "/home/somebody"}})
  )
  text = results.keep(run, "spread").read_text()
  assert "--data_dir=DATA_DIR" in text
  assert "somebody" not in text
