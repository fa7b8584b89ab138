"""The body of every binary: flags and presets, the work directory, and resumption."""

import contextlib
import os
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Generic, NamedTuple, NoReturn, TypeVar

from absl import app, flags, logging

from experiments.runner import files, options, processes
from experiments.runner.cohorts import CohortOptions
from experiments.runner.help_text import help_text
from experiments.runner.runs import merging, workdir
from experiments.runner.runs.training import TrainingOptions
from experiments.runner.runs.workdir import Workdir
from jdp._imports import import_all
from jdp._pipes import ends_with_its_reader
from jdp.federated import use_all_cores

flags.disclaim_key_flags()  # The flags defined here belong to the binary.

_EXPERIMENTS = pathlib.Path(__file__).parent.parent
_SMOKE = "smoke"
_HELP = {"--help", "-help", "-h", "--helpshort", "--helpfull", "-?"}


Options = TypeVar("Options")
Work = Callable[[Workdir], None]
"""What an experiment does in its work directory, including its report."""


class Experiment(NamedTuple, Generic[Options]):
  """An experiment as a binary runs it.

  Attributes:
    name: of its folder in `experiments`.
    options_type: a dataclass of `option` fields.
    prepare: options -> work. It reads the data, makes the mechanisms, and refuses what can be
      refused, all before anything is written. The work does everything else.
  """

  name: str
  options_type: type[Options]
  prepare: Callable[[Options], Work]

  @property
  def presets(self) -> dict[str, pathlib.Path]:
    """The flagfiles of the published rows, by name."""
    return {
      path.stem: path for path in sorted((_EXPERIMENTS / self.name / "flags").glob("*.flags"))
    }


class Location(NamedTuple):
  """Which run is meant, apart from its options.

  Attributes:
    preset: a flagfile's name. None is the preset of the run to resume, else smoke.
    path: the work directory.
    resume: whether to continue there.
    merge: the folder of a sweep's finished parts, whose report is made there.
  """

  preset: str | None = None
  path: str | None = None
  resume: bool = False
  merge: str | None = None


def launch(experiment: Experiment[Options]) -> None:
  """Defines the flags, reads them and runs; bad input ends the program with its message."""
  _import_first(experiment)
  options.define(experiment.options_type, flags.FLAGS)
  flags.DEFINE_enum(
    "preset", None, list(experiment.presets), f"A flagfile to begin with. Default: {_SMOKE}."
  )
  flags.DEFINE_string("workdir", None, "Where results go: a new folder. Default: one under ./runs.")
  flags.DEFINE_boolean(
    "resume", False, "Continue in --workdir, bit for bit, with the flags it was begun with."
  )
  if issubclass(experiment.options_type, TrainingOptions):
    flags.DEFINE_string("merge", None, "The folder of a sweep's parts, to make the report of all.")
  if issubclass(experiment.options_type, CohortOptions):
    flags.DEFINE_boolean("distributed", False, "One of several processes, as the cluster says.")
    flags.DEFINE_string("coordinator", None, "Host and port of the first of several processes.")
    flags.DEFINE_integer("num_processes", None, "How many processes compute this run together.")
    flags.DEFINE_integer("process_id", None, "The number of this process, from 0.")

  def main(argv: Sequence[str]) -> None:
    with processes.fail_together(experiment.name):
      _main(experiment, argv)

  app.run(main, flags_parser=partial(_parse, experiment))


def _import_first(experiment: Experiment[Options]) -> None:
  """Imports what `--import` names, as other flags may name what it registers."""
  flags.DEFINE_multi_string("import", [], "Modules to import first, for what they register.")
  alone = flags.FlagValues()
  alone["import"] = flags.FLAGS["import"]
  try:
    alone(sys.argv, known_only=True)
    import_all(alone["import"].value or ())
  except (ValueError, flags.Error) as error:
    sys.exit(f"{experiment.name}: {error}")


def _parse(experiment: Experiment[Options], argv: Sequence[str]) -> Sequence[str]:
  """Reads the flags; answers `--help` and refuses what is not a flag."""
  asked = _HELP.intersection(argv[1:])
  try:
    rest = flags.FLAGS([word for word in argv if word not in _HELP])
  except flags.Error as error:
    sys.exit(f"{experiment.name}: {error}; --help lists the flags.")
  if asked:
    with ends_with_its_reader():
      about, preset = sys.modules["__main__"].__doc__ or "", flags.FLAGS.preset or _SMOKE
      kind, presets = experiment.options_type, experiment.presets
      print(help_text(kind, experiment.name, about, preset, presets))
    sys.exit(0)
  return rest


def _main(experiment: Experiment[Options], argv: Sequence[str]) -> None:
  if len(argv) > 1:
    sys.exit(
      f"{experiment.name}: Expected flags only, got {' '.join(argv[1:])}; --help lists them."
    )
  # The checkpointer's messages would tell when each round ended, which depends on the sample's
  # size.
  logging.set_verbosity(logging.WARNING)
  values = flags.FLAGS
  merge = values.merge if "merge" in values else None
  location = Location(values.preset, values.workdir, values.resume, merge)
  try:
    if "coordinator" in values:
      described = (values.coordinator, values.num_processes, values.process_id)
      processes.join(*described, distributed=values.distributed)
    use_all_cores()
    prepared = prepare(experiment, options.given(experiment.options_type, values), location)
  except (ValueError, OSError, ImportError) as error:
    sys.exit(f"{experiment.name}: {error}")
  except RuntimeError as error:
    _end_if_refused(experiment, error)
  try:
    execute(prepared)
  except OSError as error:
    sys.exit(f"{experiment.name}: {error}; mend that, and continue with --resume.")
  except (ValueError, RuntimeError) as error:
    _end_if_refused(experiment, error)


def _end_if_refused(experiment: Experiment[Options], error: Exception) -> NoReturn:
  """Ends the program with what jdp refuses, said in such a sentence.

  Any other error keeps its traceback.
  """
  if not str(error).startswith("Expected "):
    raise error
  sys.exit(f"{experiment.name}: {error}")


class Prepared(NamedTuple):
  """A run that passed all checks: its folders, held by `lock`, and its work.

  Of several processes, the first holds the folders.
  """

  workdir: Workdir
  lock: contextlib.AbstractContextManager[object]
  work: Work


def prepare(
  experiment: Experiment[Options], given: Mapping[str, object], location: Location
) -> Prepared:
  """Checks everything and makes the work directory.

  Args:
    experiment: what to run.
    given: the options given, name -> value.
    location: which run.

  Raises:
    ValueError: if an option or the work directory is refused.
    FileNotFoundError: if a file of the data is missing.
  """
  kind = experiment.options_type

  def asked() -> tuple[str | None, str, Mapping[str, object]]:
    """The folder of a run to resume, or None, its preset and its options."""
    _check_workdir(location.path)
    if location.resume and location.merge is not None:
      raise ValueError(
        "Expected --merge without --resume, got both; continue the parts, and then merge them."
      )
    if location.resume:
      folder, preset, saved = workdir.reopen(location.path, experiment.name)
      _refuse_changes({"preset": location.preset or preset, **given}, {"preset": preset, **saved})
      return str(folder.path), preset, saved
    if location.merge is not None:
      _, preset, whole = merging.finished_parts(location.merge, experiment.name)
      _refuse_changes({"preset": location.preset or preset, **given}, {"preset": preset, **whole})
      return None, preset, whole
    preset = location.preset or _SMOKE
    flagfile = options.read_flagfile(kind, experiment.presets[preset])
    return None, preset, vars(options.resolve(kind, given, flagfile))

  begun, preset, saved = processes.told(asked)
  # The others know only now what the first one was asked for.
  processes.together(lambda: None if processes.is_first() else _refuse_changes(given, saved))
  chosen = options.from_json(kind, saved)
  work = processes.together(lambda: experiment.prepare(chosen))

  def make() -> str:
    def fill(folder: Workdir) -> None:
      if location.merge is not None:
        merging.gather(merging.finished_parts(location.merge, experiment.name).folders, folder)

    return str(workdir.create(location.path, experiment.name, preset, vars(chosen), fill).path)

  folder = Workdir(pathlib.Path(begun or processes.told(make)))
  with contextlib.ExitStack() as opened:

    def hold() -> None:
      opened.enter_context(workdir.lock(folder))
      if begun:
        workdir.note_devices(folder)
      files.write(
        folder.path / "run.flags", f"--preset={preset}\n{options.to_flagfile(chosen)}".encode()
      )

    processes.by_first(hold)
    return Prepared(folder, opened.pop_all(), work)  # The lock is held until the work is done.


def execute(prepared: Prepared) -> None:
  """Does the work. Removes the secrets when it is done; otherwise they stay for --resume."""
  folder = prepared.workdir
  if processes.is_first():
    print(
      f"Results go to {folder.path}; after an interruption continue with --resume "
      f"--workdir={folder.path}",
      flush=True,
    )
  # If the work raises, the secrets stay: the run can be resumed.
  with prepared.lock:
    prepared.work(folder)
    processes.by_first(lambda: workdir.remove_secrets(folder))


def _check_workdir(path: str | None) -> None:
  """Refuses a work directory that cannot be one, before the data is read."""
  if path is None:
    return
  options.check_text(**{"--workdir": path})
  folder = pathlib.Path(path).resolve()
  nearest = next(place for place in (folder, *folder.parents) if place.exists())
  if not folder.name or not nearest.is_dir() or not os.access(nearest, os.W_OK):
    raise ValueError(
      f"Expected --workdir to be a folder that can be written, got {path}; choose another."
    )


def _refuse_changes(given: Mapping[str, object], saved: Mapping[str, object]) -> None:
  for name, value in given.items():
    if saved[name] != (list(value) if isinstance(value, tuple) else value):
      raise ValueError(
        f"Expected --{name}={saved[name]}, with which the run was begun, got {value}; leave it "
        "out, or start anew."
      )
