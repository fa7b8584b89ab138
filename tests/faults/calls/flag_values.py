"""Hostile values of the experiments' flags, and what becomes of them before any work."""

import importlib

from absl import flags

from experiments.runner import launch, options
from experiments.runner.launch import Experiment, Location
from tests.faults.calls import outcomes

NAMES = (
  *("accounting", "audit", "client_dropout", "cohort_size", "correlated_noise", "dp_fedavg"),
  *("draw_and_discard", "general_approach", "mean_estimation", "private_federated"),
  "reconstruction",
)
_LONG, _DEEP = "n" * 300, "/" + "/".join(["deep"] * 2000)
_WITH_OTHER = 0.2  # the share of flag values that come with another one

NUMBERS = (
  *("0", "-0", "-1", "1", "2", "3", "0.5", "1.5", "-0.5", "nan", "inf", "-inf", "1e308", "1e-320"),
  *("1e400", "1000000", "1000001"),
  *("2147483647", "2147483648", "4294967296", "1000000000000"),
  "9" * 40,
  "9" * 5000,
  *("0x10", "1_000", "1,2", "1,1", "1,,2", ","),
  ",".join(map(str, range(2000))),
  *("nan,inf", "10000", "100000", "0.001", "1e-9", "1e6", "1e30"),
)
HOSTILE = (
  "",
  " ",
  *NUMBERS,
  *("none", "None", "true", "False", "x"),
  _LONG,
  _DEEP,
  *("/dev/null", "/proc/self/mem", "/nowhere/at/all", ".", ".."),
  "a\x00b",
  "line\nbreak",
  "\udcff\udcfe",
  "\u202e\u0000",
  *("é", "[]", "{}", "--help", "sgd", "cnn", "mnist", "writer", "label", "poisson", "central"),
)
WORKDIRS = ("", ".", "/dev/null", "/proc/nothing", "/etc/hostname", "/etc/hostname/x", "/", _LONG)
WORKDIRS += ("a\x00b", "\udcff", "line\nbreak", _DEEP, "~")


def fuzz(number, seed=0, *, experiments=NAMES, told=lambda outcome: None):
  """Tries so many flags with hostile values: see `outcomes.fuzz`."""
  modules = [importlib.import_module(f"experiments.{name}.__main__") for name in experiments]
  return outcomes.fuzz(hostile_flags, [m.EXPERIMENT for m in modules], number, seed, told)


def hostile_flags(experiment, rng):
  """Gives one or two hostile flags to an experiment, over its smoke preset, up to its work."""
  specs = options.specs_of(experiment.options_type)
  chosen = rng.sample([*specs, "workdir"], 1 + (rng.random() < _WITH_OTHER))
  given = {name: rng.choice(_values(name, specs.get(name), rng)) for name in chosen}
  words = f"{experiment.name} {' '.join(f'--{n}={v[:60]!r}' for n, v in given.items())}"
  return classified(words, lambda: _prepare(experiment, given))


def _values(name, spec, rng):
  """Values to choose from: half the time of the option's own type, hostile by their size alone."""
  if spec is None:
    return WORKDIRS
  if spec.allowed and rng.random() < 0.5:
    # "modules" reads all of Python's own texts, for seconds.
    choices = [choice for choice in spec.allowed if choice != "modules"]
    return [*choices, ",".join(choices), ",".join([*choices] * 2)]
  return NUMBERS if rng.random() < 0.5 else HOSTILE


def _prepare(experiment, given):
  """All that a binary does before its work, its work directory aside unless that is hostile."""
  workdir = given.get("workdir")
  arguments = [f"--{name}={value}" for name, value in given.items() if name != "workdir"]
  kind = experiment.options_type
  try:
    values = options.read_flags(kind, arguments)
  except flags.Error as error:  # absl prints it as the program's last words
    raise ValueError(str(error)) from error
  if workdir is not None:
    prepared = launch.prepare(_idle(experiment), values, Location(path=workdir))
    prepared.lock.close()
    return
  experiment.prepare(
    options.resolve(kind, values, options.read_flagfile(kind, experiment.presets["smoke"]))
  )


def _idle(experiment):
  """The experiment without its work."""
  return Experiment(experiment.name, experiment.options_type, lambda chosen: lambda workdir: None)


def classified(words, prepare):
  """Whether prepare() takes flags, refuses them in a sentence, or fails otherwise."""
  refusals = ValueError, OSError, ImportError  # what a binary prints as one sentence
  return outcomes.classified(words, prepare, refusals, _is_sentence)


def _is_sentence(error):
  """Whether it is for a reader: what was expected, or absl's and the system's own words."""
  return str(error).startswith(("Expected", "flag --", "[Errno"))
