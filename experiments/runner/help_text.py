"""The text of `--help`: an experiment's options by subject, with the defaults of a preset."""

import dataclasses
import pathlib
import textwrap
from collections.abc import Iterator, Mapping

from experiments.runner import options
from experiments.runner.cohorts import CohortOptions
from experiments.runner.runs.training import TrainingOptions

_WIDTH = 100
_INDENT = 34
_PROCESSES = {
  "distributed": "One of several processes that SLURM, Open MPI, Kubernetes or a TPU pod has begun "
  "with the same flags. They compute this run together, on all devices; the first has its folder.",
  "coordinator=HOST:PORT": "Elsewhere: of the first of several processes, each begun with the same "
  "flags but for its number.",
  "num_processes=N": "How many processes there are.",
  "process_id=N": "The number of this process, from 0.",
}
_PARTS = {
  "merge=FOLDER": "The folder with the work directories of a sweep's parts (--part), all finished: "
  "makes the report of the sweep in --workdir, with the parts' flags.",
}
_RUN = {
  "preset=NAME": "A flagfile to begin with: {presets}.",
  "workdir=FOLDER": "Where results go: a new folder. Default: one under ./runs.",
  "resume": "Continue in --workdir, bit for bit, with the flags it was begun with.",
  "import=MODULE": "Imported first, for what it registers; may be given again. With --resume too.",
  "flagfile=FILE": "Flags from a file, such as a run's run.flags.",
}


def help_text(
  options_type: type, experiment: str, about: str, preset: str, presets: Mapping[str, pathlib.Path]
) -> str:
  """The help.

  Args:
    options_type: a dataclass of `option` fields. A class that it inherits from says what its
      options are about in `SUBJECT`.
    experiment: its name.
    about: what it does.
    preset: whose values are shown.
    presets: the flagfiles, by name.
  """
  given = options.read_flagfile(options_type, presets[preset])
  chosen = vars(options.resolve(options_type, {}, given))
  head = f"""{about.strip()}

    python -m experiments.{experiment} --FLAG=VALUE ...

The values shown are those of --preset={preset}.
Of another preset: --preset=NAME --help.

Run"""
  merge = _PARTS if issubclass(options_type, TrainingOptions) else {}
  flags = _RUN | merge | (_PROCESSES if issubclass(options_type, CohortOptions) else {})
  run = [_entry(f"--{key}", text.format(presets=", ".join(presets))) for key, text in flags.items()]
  parts = [
    "\n".join([title, *entries]) for title, entries in _by_subject(options_type, chosen).items()
  ]
  return "\n\n".join(["\n".join([head, *run]), *parts])


def _by_subject(options_type: type, chosen: Mapping[str, object]) -> dict[str, list[str]]:
  """Entries by heading: the subject, and under it the choices that options belong to."""
  found: dict[str, list[str]] = {}
  for subject, name in sorted(_subjects(options_type), key=lambda pair: pair[0]):
    spec = options.specs_of(options_type)[name]
    title = f"{subject[1]}, with {options.conditions(spec)}" if spec.when else subject[1]
    value = spec.default if chosen[name] is None else chosen[name]
    flag = f"--{name}" if value in (None, ()) else f"--{name}={options.written(value)}"
    found.setdefault(title, []).append(_entry(flag, _meaning(spec, value)))
  return found


def _subjects(options_type: type) -> Iterator[tuple[tuple[int, str], str]]:
  """((order, subject), name) of each option; what an experiment adds of its own comes first."""
  kinds = options_type.__mro__
  for field in dataclasses.fields(options_type):
    # The most general class that has the option.
    number = max(n for n, kind in enumerate(kinds) if field.name in vars(kind).get(_FIELDS, ()))
    subject = vars(kinds[number]).get("SUBJECT", "This experiment")
    yield (number, subject), field.name


_FIELDS = "__dataclass_fields__"


def _meaning(spec: options.Spec, value: object) -> str:
  """Its help, with what may be chosen."""
  if not spec.allowed:
    return spec.help
  several = "Some" if isinstance(value, tuple) else "One"
  return f"{spec.help} {several} of {', '.join(spec.allowed)}."


def _entry(flag: str, text: str) -> str:
  """A flag with its text, indented; a long flag has a line of its own."""
  lines = textwrap.wrap(text, _WIDTH - _INDENT, break_on_hyphens=False)
  first = f"  {flag}"
  if len(first) < _INDENT:
    first, lines = first.ljust(_INDENT) + lines[0], lines[1:]
  return "\n".join([first, *(" " * _INDENT + line for line in lines)])
