"""Public functions of jdp, and valid arguments of each, which a fuzz replaces one by one.

A docstring's example runs up to the first call of its function: the arguments of that call are the
valid ones. A function whose own docstring has no example takes those of the first that calls it.
"""

import contextlib
import doctest
import functools
import importlib
import inspect
import io
import pathlib
import pkgutil
import sys
import tempfile
import unittest.mock

import jax

import jdp
from jdp import accounting, events, guarantees, ledger, matrix_factorization
from jdp.data.vocabulary import Vocabulary

# Packages without exports of their own, whose modules are what users import.
_OPEN_PACKAGES = ("jdp.attacks.", "jdp.audits.")
_OPEN_MODULES = ("jdp.events", "jdp.guarantees", "jdp.ledger", "jdp.transforms")
# Forms are tuples of functions or of results that factories make; a user's own are tried by what
# takes them.
_CHECKED_CLASSES = (events.EventBase, guarantees.Guarantee)
_KERNELS = "it works on arrays inside jit, and takes no number from a user"
_MAKES_A_NAME = "a second call with the same class is refused"
_READ_ELSEWHERE = {
  "jdp.federated.cohort_sum": ("shared",),
  "jdp.federated.evaluate_privately": ("params", "clients"),
  "jdp.federated.evaluate_users": ("params", "users"),
  "jdp.federated.gradient_forms": ("params", "client"),
  "jdp.federated.private_sweep": ("params", "clients", "validation"),
  "jdp.federated.train": ("params", "clients"),
}
_RUNS = "it runs for as long as it is asked to"
EXCLUDED = {
  **dict.fromkeys(
    [
      "jdp.attacks.reconstruction.nearest_in_cap",
      "jdp.attacks.reconstruction.succeeds",
      "jdp.audits.residues.float_residues",
      "jdp.audits.residues.granularity",
      "jdp.attacks.spam.largest_deviation",
      "jdp.federated.draw_and_discard.average_predictions",
      "jdp.models.with_intercept",
      "jdp.random.bits",
      "jdp.random.laplace",
      "jdp.random.normal",
      "jdp.transforms.members",
    ],
    _KERNELS,
  ),
  **dict.fromkeys(
    ["jdp.matrix_factorization.save", "jdp.models.save_params"],
    "it writes a file wherever it is told to",
  ),
  "jdp.models.load_params": "it reads the files of `save_params`",
  "jdp.federated.use_all_cores": "it takes nothing, and is refused once JAX has begun",
  "jdp.events.register": _MAKES_A_NAME,
  "jdp.events.register_sampling": _MAKES_A_NAME,
  "jdp.accounting.charge_as": _MAKES_A_NAME,
  "jdp.accounting.register_query": _MAKES_A_NAME,
  "jdp.accounting.register_sampling": _MAKES_A_NAME,
  **dict.fromkeys(
    [
      "jdp.conformance.audit",
      "jdp.conformance.run_subject",
      "jdp.conformance.unaudited",
      "jdp.federated.fastest",
    ],
    _RUNS,
  ),
}


@functools.cache
def public_functions():
  """Every public function, checked class and method of jdp by its full name, less the excluded."""
  found = {}
  for module in _modules():
    names = getattr(module, "__all__", None)
    if names is None and (
      module.__name__.startswith(_OPEN_PACKAGES) or module.__name__ in _OPEN_MODULES
    ):
      names = [n for n, v in vars(module).items() if _is_own(n, v, module)]
    for name in names or ():
      value = getattr(module, name)
      if inspect.isfunction(value) or _is_checked_class(value):
        found.setdefault(value, f"{module.__name__}.{name}")
  functions = {name: value for value, name in found.items() if name not in EXCLUDED}
  return functions | _methods()


def _methods():
  """Methods that take what a user gives, of one instance each; and what is closed after a call."""
  own_ledger = ledger.subsampled_gaussian(0.1, 1.0, 10)
  budget = accounting.renyi_filter(2.0, 1e-5)
  words = Vocabulary(("some", "words"))
  found = {
    "jdp.accounting.PrivacyFilter.admits": budget.admits,
    "jdp.accounting.PrivacyFilter.spent": budget.spent,
    "jdp.data.Vocabulary": Vocabulary,
    "jdp.data.Vocabulary.decode": words.decode,
    "jdp.data.Vocabulary.encode": words.encode,
    "jdp.guarantees.ApproxDP.repeat": guarantees.ApproxDP(1.0, 1e-6).repeat,
    "jdp.guarantees.PureDP.repeat": guarantees.PureDP(1.0).repeat,
    "jdp.ledger.DurableLedger": _closed,
    "jdp.ledger.DurableLedger.append": _appended,
    "jdp.ledger.Ledger": ledger.Ledger,
    "jdp.ledger.Ledger.append": own_ledger.append,
    "jdp.ledger.Ledger.extend": own_ledger.extend,
    "jdp.ledger.Ledger.rounds": own_ledger.rounds,
  }
  for strategy in (
    matrix_factorization.banded(10, 2),
    matrix_factorization.banded_toeplitz(10, 2),
    matrix_factorization.buffered_toeplitz(10, buffers=1),
    matrix_factorization.tree(10),
  ):
    for method in ("sensitivity", "root_mean_squared_error", "max_error", "squared_errors"):
      name = f"jdp.matrix_factorization.{type(strategy).__name__}.{method}"
      found[name] = getattr(strategy, method)
  return found


@functools.wraps(ledger.DurableLedger)
def _closed(*args, **kwargs):
  ledger.DurableLedger(*args, **kwargs).close()


@functools.wraps(ledger.DurableLedger.append)
def _appended(*args, **kwargs):
  with tempfile.TemporaryDirectory() as folder:
    file = ledger.DurableLedger(pathlib.Path(folder) / "ledger", "run")
    with contextlib.closing(file) as durable:
      durable.append(*args, **kwargs)
      return durable.ledger


def _modules():
  for info in pkgutil.walk_packages(jdp.__path__, "jdp."):
    if not any(part.startswith("_") for part in info.name.split(".")):
      yield importlib.import_module(info.name)


def _is_own(name, value, module):
  return not name.startswith("_") and getattr(value, "__module__", None) == module.__name__


def _is_checked_class(value):
  return (
    inspect.isclass(value) and issubclass(value, _CHECKED_CLASSES) and value not in _CHECKED_CLASSES
  )


def replaceable(name):
  """The arguments of a public function that a fuzz may replace.

  Parameters and examples may be read by a user's own functions alone.
  """
  read = ("params", "trained") if name.startswith("jdp.models.") else _READ_ELSEWHERE.get(name, ())
  return [parameter for parameter in valid_arguments(name) if parameter not in read]


@functools.cache
def takes_function(name, parameter):
  """Whether an argument may be a function."""
  parameters = inspect.signature(public_functions()[name]).parameters
  spec = str(parameters.get(parameter))
  return callable(valid_arguments(name)[parameter]) or "Callable" in spec


@functools.cache
def valid_arguments(name):
  """Arguments that a public function takes, defaults included: name -> value."""
  function = public_functions()[name]
  for module, docstring in _docstrings(name, function):
    arguments = first_call(_code(function), docstring, vars(module))
    if arguments is not None:
      return _by_name(function, arguments)
  raise LookupError(f"Expected an example that calls {name}; show a call of it in its docstring.")


def _by_name(function, arguments):
  """The arguments that a call by name gives again."""
  found = {}
  for name, spec in inspect.signature(function).parameters.items():
    if spec.kind is spec.VAR_KEYWORD:
      found |= arguments[name]
    elif spec.kind is not spec.VAR_POSITIONAL and name != "self":
      value = arguments[name]
      found[name] = list(value) if inspect.isgenerator(value) else value  # for several calls
  return found


def _docstrings(name, function):
  """Modules and docstrings that may call a function: its own, then others that name it."""
  own = inspect.unwrap(getattr(function, "__func__", function))
  yield sys.modules[own.__module__], inspect.getdoc(own) or ""
  call = name.rsplit(".", 1)[1] + "("
  for module, docstring, code in _package_examples():
    if call in code:
      yield module, docstring


@functools.cache
def _package_examples():
  """Every docstring of jdp with examples: (module, docstring, code of the examples)."""
  finder = doctest.DocTestFinder(exclude_empty=True)
  return [
    (module, test.docstring, "".join(example.source for example in test.examples))
    for module in _modules()
    for test in finder.find(module)
    if test.examples
  ]


class _Reached(BaseException):
  """An example has reached the call: the rest of it need not run."""


class _KeptFolder:
  """A folder that outlives its example, as its path may be an argument."""

  def __enter__(self):
    return tempfile.mkdtemp(prefix="jdp-fuzz-")

  def __exit__(self, *error):
    pass


def first_call(code, docstring, names):
  """The arguments of an example's first call of a function; None if it makes none."""
  found = []

  def stop_at_call(frame, event, _):
    if event == "call" and frame.f_code is code and not _is_traced(frame.f_locals):
      found.append(dict(frame.f_locals))
      raise _Reached

  names = dict(names)
  with (
    contextlib.suppress(_Reached),
    contextlib.redirect_stdout(io.StringIO()),
    unittest.mock.patch.object(tempfile, "TemporaryDirectory", _KeptFolder),
    jax.debug_key_reuse(False),  # the same key may begin several examples
    jax.numpy_dtype_promotion("standard"),  # as users have it
    jax.numpy_rank_promotion("allow"),
    jax.disable_jit(),  # which would give a compiled function tracers
  ):
    for example in doctest.DocTestParser().get_examples(docstring):
      statement = compile(example.source, "example", "single")
      sys.setprofile(stop_at_call)
      try:
        exec(statement, names)
      except Exception:  # it shows a refusal, or the module lacks what its package has
        continue
      finally:
        sys.setprofile(None)
  return found[0] if found else None


def _is_traced(arguments):
  return any(isinstance(value, jax.core.Tracer) for value in arguments.values())


def _code(function):
  """The code that a call of a function, a method or a class runs."""
  function = inspect.unwrap(getattr(function, "__func__", function))
  if inspect.isclass(function):
    own = "__new__" if issubclass(function, tuple) else "__init__"
    function = inspect.unwrap(getattr(function, own))
  return function.__code__
