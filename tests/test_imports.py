"""What an import costs: it starts no device and loads nothing heavy, and all code is used."""

import collections
import pathlib
import pkgutil
import re
import subprocess
import sys

import pytest

import jdp

# Imports every module. A device that is started too early keeps a program from joining the
# processes that it is to run with, or from choosing its devices.
_IMPORT_ALL = """
import importlib, pkgutil
from absl import flags
from jax._src import xla_bridge
import experiments, jdp

own, starters, without = ("jdp", "experiments"), [], []
for package in (jdp, experiments):
  for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    flags.FLAGS.remove_flag_values(list(flags.FLAGS))  # Binaries have flags of the same names.
    try:
      importlib.import_module(module.name)
    except ModuleNotFoundError as error:
      assert error.name.partition(".")[0] not in own, error
      without.append(module.name)
    if xla_bridge.backends_are_initialized():
      starters.append(module.name)
      xla_bridge._clear_backends()
print(starters)
print(without)
"""

_LIGHT = "accounting, events, guarantees, ledger, mechanisms, numerics, queries, random, sampling"
_HEAVY = (
  "dp_accounting",
  "flax",
  "matplotlib",
  "optax",
  "orbax",
  "scipy.integrate",
  "scipy.optimize",
  "scipy.special",
  "scipy.stats",
  "sklearn",
)


def printed(program):
  """The lines that a program prints in a Python of its own."""
  done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
  return done.stdout.splitlines()


@pytest.mark.slow
def test_no_module_starts_a_device_when_it_is_imported():
  starters, without = map(eval, printed(_IMPORT_ALL))
  assert starters == []
  # These measure or check other libraries, which the tests do not install.
  others = {"experiments.benchmarks.peers", "experiments.conformance.adapters"}
  assert {name.rpartition(".")[0] for name in without} <= others


@pytest.mark.parametrize(
  "statement", ["import jdp", f"from jdp import {_LIGHT}", "import jdp; jdp.data.digits()"]
)
def test_mechanisms_accounting_and_digits_load_nothing_heavy(statement):
  """SciPy, Flax and optax cost more time than JAX: they are loaded when they are used."""
  program = f"import sys\n{statement}\nprint([name for name in {_HEAVY} if name in sys.modules])"
  assert printed(program) == ["[]"]


def test_every_subpackage_is_reached_from_jdp_alone():
  program = "import jdp; print(jdp.accounting.gaussian_epsilon(1.0, 1e-5) > 4, jdp.data.pack)"
  assert printed(program)[0].startswith("True <function pack")
  modules = list(pkgutil.iter_modules(jdp.__path__))
  assert {module.name for module in modules if module.ispkg} <= set(jdp.__all__) <= set(dir(jdp))
  assert set(jdp.__all__) <= {module.name for module in modules}
  with pytest.raises(AttributeError, match=r"Expected one of accounting, .* of jdp, got 'epsilon'"):
    _ = jdp.epsilon


_SHIPPED = ("jdp", "experiments", "docs", "colabs")


@pytest.mark.parametrize("folders", [_SHIPPED, (*_SHIPPED, "tests")], ids=["shipped", "all"])
def test_every_function_is_called_somewhere(folders):
  """A name that is found where it is defined, and nowhere else, is of code that nothing runs."""
  root = pathlib.Path(jdp.__file__).parents[1]
  paths = [path for folder in folders for path in (root / folder).rglob("*.*")]
  text = "\n\n\n".join(
    path.read_text() for path in paths if path.suffix in (".py", ".md", ".ipynb")
  )
  found = collections.Counter(re.findall(r"\w+", text))
  # What a decorator registers is called by whoever keeps it. Others call hooks by their names.
  defined = set(re.findall(r"\n\n *(?:def|class) (\w+)", text))
  hooks = re.compile(r"test_|pytest_|__|emit$")
  assert not {name for name in defined if found[name] == 1 and not hooks.match(name)}


def test_an_experiment_without_its_extra_says_so_in_one_line():
  """Whoever imports the experiments gets an exception instead."""
  program = "import sys; sys.modules['tqdm'] = None; sys.argv = [{argv}]; import experiments"
  command = [sys.executable, "-c", program.format(argv="'-m'")]
  done = subprocess.run(command, capture_output=True, text=True, check=False)
  assert done.returncode == 1
  assert done.stderr == (
    "Expected the extra `experiments`, got no tqdm; run: pip install 'jdp-fl[experiments]'\n"
  )
  command[-1] = program.format(argv="'my_program.py'")
  done = subprocess.run(command, capture_output=True, text=True, check=False)
  assert "ImportError: Expected the extra `experiments`, got no tqdm" in done.stderr
