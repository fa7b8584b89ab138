"""What a binary refuses before it reads data."""

import subprocess
import sys

import pytest

from experiments.dp_fedavg import __main__ as dp_fedavg
from experiments.runner import help_text, launch, options
from experiments.runner.launch import Experiment, Location


def _unread(options):
  pytest.fail("The data was read.")


EXPERIMENT = Experiment("dp_fedavg", dp_fedavg.DPFedAvgOptions, _unread)


@pytest.mark.parametrize(
  ("name", "message"),
  [
    ("file", "Expected --workdir to be a folder that can be written"),
    ("file/below", "Expected --workdir to be a folder that can be written"),
    ("n" * 256, "Expected --workdir to be printable, of at most 255 bytes a name"),
    ("/".join(["deep"] * 1000), "Expected --workdir to be printable"),
    ("a\x00b", "Expected --workdir to be printable"),
    ("\udcff", "Expected --workdir in UTF-8"),
  ],
)
def test_a_place_that_cannot_be_a_work_directory_is_refused(tmp_path, name, message):
  (tmp_path / "file").write_text("")
  with pytest.raises(ValueError, match=message):
    launch.prepare(EXPERIMENT, {}, Location(path=f"{tmp_path}/{name}"))
  assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
  ("given", "message"),
  [
    ({"seeds": 10**12}, "Expected --seeds of at most 1000, got 1000000000000"),
    ({"num_rounds": 2**31}, "Expected --num_rounds of at most 1000000, got 2147483648"),
    ({"noise_seed": 2**32}, "Expected --noise_seed of at most 4294967295, got 4294967296"),
    ({"delta": float("nan")}, "Expected --delta to be a number in"),
    ({"runs": ()}, "Expected --runs of at least one element, got none"),
  ],
)
def test_extreme_numbers_are_refused(given, message):
  with pytest.raises(ValueError, match=message):
    launch.prepare(EXPERIMENT, given, Location())


@pytest.mark.parametrize("preset", ["smoke", "mnist_sgd"])
def test_help_shows_every_option_under_its_subject_with_the_preset_s_value(preset):
  kind = EXPERIMENT.options_type
  shown = help_text.help_text(kind, "dp_fedavg", "About.", preset, EXPERIMENT.presets)
  chosen = options.resolve(kind, {}, options.read_flagfile(kind, EXPERIMENT.presets[preset]))
  expected = []
  for name, spec in options.specs_of(kind).items():
    value = getattr(chosen, name)
    value = spec.default if value is None else value
    expected.append(f"--{name}" if value in (None, ()) else f"--{name}={options.written(value)}")
  found = [line.split()[0] for line in shown.splitlines() if line.startswith("  --")]
  run = ["--preset=NAME", "--workdir=FOLDER", "--resume", "--import=MODULE", "--flagfile=FILE"]
  run += ["--merge=FOLDER", "--distributed", "--coordinator=HOST:PORT", "--num_processes=N"]
  run += ["--process_id=N"]
  assert found[: len(run)] == run
  assert sorted(found[len(run) :]) == sorted(expected)
  headings = [line for line in shown.splitlines() if line and not line.startswith(" ")]
  for subject in (
    "Run",
    "Data and model",
    "Text, with --vocabulary=private",
    "The private average",
    "Devices and speed",
  ):
    assert subject in headings


@pytest.mark.parametrize(
  ("module", "said"), [("tests.helpers.strangers_package", "negated_laplace"), ("none", "a module")]
)
def test_flags_may_name_what_an_imported_module_registers(module, said):
  command = [sys.executable, "-m", "experiments.audit", f"--import={module}", "--help"]
  done = subprocess.run(command, capture_output=True, text=True)
  assert said in done.stdout + done.stderr
  assert done.returncode == (module == "none")
