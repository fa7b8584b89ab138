"""Valid arguments of every public function, which a fuzz replaces one by one.

`BY_NAME` has a value for each parameter's name; `BY_FUNCTION` those that one function needs.
"""

import contextlib
import functools
import importlib
import inspect
import json
import pathlib
import pkgutil
import sqlite3
import tempfile

import equinox
import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pyarrow.parquet
from scipy import stats

import jdp
from jdp import (
  accounting,
  conformance,
  data,
  events,
  federated,
  guarantees,
  ledger,
  matrix_factorization,
  models,
  queries,
  random,
)
from jdp.attacks import reconstruction
from jdp.audits import bounds, one_run_f_dp
from jdp.conformance.suite import check_part
from jdp.data.vocabulary import Vocabulary
from jdp.federated import draw_and_discard, dropout
from jdp.mechanisms import laplace, priv_unit, registry, scalar_dp
from jdp.models.batch_norm import batch_norm_cnn
from jdp.sampling import poisson

# Packages without exports of their own, whose modules are what users import.
_OPEN_PACKAGES = ("jdp.attacks.", "jdp.audits.")
_OPEN_MODULES = ("jdp.events", "jdp.guarantees", "jdp.ledger", "jdp.transforms")
# Forms are tuples of functions or of results that factories make; a user's own are tried by what
# takes them.
_CHECKED_CLASSES = (events.EventBase, guarantees.Guarantee)
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_KERNELS = "it works on arrays inside jit, and takes no number from a user"
_MAKES_A_NAME = "a second call with the same class is refused"
_READ_ELSEWHERE = {
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
  entries = _ledger().entries
  budget = accounting.renyi_filter(2.0, 1e-5)
  found = {
    "jdp.accounting.PrivacyFilter.admits": budget.admits,
    "jdp.accounting.PrivacyFilter.spent": budget.spent,
    "jdp.data.Vocabulary": Vocabulary,
    "jdp.data.Vocabulary.decode": _vocabulary().decode,
    "jdp.data.Vocabulary.encode": _vocabulary().encode,
    "jdp.guarantees.ApproxDP.repeat": guarantees.ApproxDP(1.0, 1e-6).repeat,
    "jdp.guarantees.PureDP.repeat": guarantees.PureDP(1.0).repeat,
    "jdp.ledger.DurableLedger": _closed,
    "jdp.ledger.DurableLedger.append": _recorded,
    "jdp.ledger.Ledger": ledger.Ledger,
    "jdp.ledger.Ledger.append": ledger.Ledger(entries).append,
    "jdp.ledger.Ledger.extend": ledger.Ledger(entries).extend,
    "jdp.ledger.Ledger.rounds": ledger.Ledger(entries).rounds,
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


def _recorded(first_round, event):
  with tempfile.TemporaryDirectory() as folder:
    file = ledger.DurableLedger(pathlib.Path(folder) / "ledger", "run")
    with contextlib.closing(file) as durable:
      durable.append(first_round, [event])
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
  spec = inspect.signature(public_functions()[name]).parameters[parameter]
  return callable(valid_arguments(name)[parameter]) or "Callable" in str(spec)


@functools.cache
def valid_arguments(name):
  """Arguments that a public function takes: name -> value."""
  function, own = public_functions()[name], BY_FUNCTION.get(name, {})
  return {
    parameter: _value(own[parameter] if parameter in own else BY_NAME[parameter])
    for parameter, spec in inspect.signature(function).parameters.items()
    if parameter in own
    or (spec.default is spec.empty and spec.kind not in (spec.VAR_KEYWORD, spec.VAR_POSITIONAL))
  }


def _value(value):
  return value.make() if isinstance(value, Lazy) else value


class Lazy:
  """A value made when it is needed."""

  def __init__(self, make):
    self.make = functools.cache(make)


def _transformer(adapter_rank):
  return models.transformer(
    10, max_length=4, width=8, num_heads=2, num_layers=1, adapter_rank=adapter_rank
  )


def _examples():
  return data.examples(np.ones((12, 3), np.float32), np.arange(12) % 2)


def _vector_loss():
  return models.cross_entropy(models.logistic_regression((3,), 2))


def _groups():
  return data.group(_examples(), [np.arange(4), np.arange(4, 8), np.arange(8, 12)])


def _two_rounds():
  sizes = {"cohort_size": 2, "num_rounds": 2}
  return federated.dp_fedavg(
    _vector_loss(), _groups(), clip_norm=1.0, noise_multiplier=1.0, **sizes
  )


def _gradient(params, client):
  return jax.tree.map(jnp.ones_like, params)


def _folder():
  return pathlib.Path(tempfile.mkdtemp(prefix="jdp-fuzz-"))


def _ledger_file():
  path = _folder() / "ledger.jsonl"
  _ledger().save(path)
  return path


def _ledger():
  return ledger.subsampled_gaussian(0.1, 1.0, 10)


def _local_ledger():
  return ledger.Ledger().append(events.LocalRelease(guarantees.PureDP(1.0), max_releases=2))


def _users():
  path = _folder() / "users.jsonl"
  path.write_text('{"user": "a", "text": ["one text"]}\n{"user": "b", "text": ["another"]}\n')
  return path


def _summand(keys, shared, client, weight):
  return weight * jnp.ones(2)


def _vocabulary():
  return data.public_vocabulary(["some words of a text"], 4)


def _language():
  return models.language_model(7, embedding=4, hidden=4)


def _image():
  return models.logistic_regression((3,), 2)


def _integer_sum():
  return queries.discrete_sum(np.ones(4, np.float32), 1.0, 1.0, num_clients=12, noise="skellam")


def _folder_of_modules():
  folder = _folder()
  (folder / "module.py").write_text('"""Some words of a text."""\n')
  return folder


def _adult_folder():
  folder = _folder()
  person = "39, Private, 1, HS-grad, 9, Divorced, Sales, Wife, White, Female, 0, 0, 40, ?, <=50K"
  for name in ("adult.data", "adult.test"):
    (folder / name).write_text(person)
  return folder


def _arrays_file():
  path, inputs, labels = _folder() / "mine.npz", np.ones((2, 3)), np.array([0, 1])
  np.savez(path, inputs=inputs, labels=labels, test_inputs=inputs, test_labels=labels)
  return path


def _leaf_file():
  path = _folder() / "data.json"
  own = {"x": [[0.5] * 784], "y": [3]}
  path.write_text(json.dumps({"user_data": {"a": own}}))
  return path


def _tff_file():
  path = _folder() / "stackoverflow.sqlite"
  message = b"\x0a\x11\x0a\x0f\x0a\x06tokens\x12\x05\x0a\x03\x0a\x01a"
  with contextlib.closing(sqlite3.connect(path)) as opened, opened:
    opened.execute("CREATE TABLE client_metadata (client_id, split_name, num_examples)")
    opened.execute("CREATE TABLE examples (split_name, client_id, serialized_example_proto)")
    opened.execute("INSERT INTO client_metadata VALUES ('a', 'train', 1)")
    opened.execute("INSERT INTO examples VALUES ('train', 'a', ?)", (message,))
  return path


def _parquet_file():
  path = _folder() / "data.parquet"
  table = pyarrow.table({"who": ["al", "bo", "al"], "label": [0, 1, 2], "age": [0.2, 0.4, 0.1]})
  pyarrow.parquet.write_table(table, path)
  return path


def _strategy_file():
  path = _folder() / "strategy.npz"
  matrix_factorization.save(matrix_factorization.identity(4), path)
  return path


def _planned_sum():
  return matrix_factorization.planned_sum(matrix_factorization.identity(10), 1.0, min_separation=5)


_TURNS = events.MinSeparationSampling(5, 2, 12, by_identity=True)
_KEY = Lazy(lambda: jax.random.key(0))
_BATCH_NORM = Lazy(lambda: batch_norm_cnn((8, 8, 1), 2))
_EPSILON_OF = Lazy(lambda: bounds.quick_epsilon_bound(0.99))
_MESH = Lazy(federated.client_mesh)
_RELEASES = {"first": np.ones((8, 2)), "second": np.zeros((8, 2))}
_SCORES = {"first": np.arange(20.0), "second": np.arange(20.0) + 5, "bound": _EPSILON_OF}
_PRIOR = Lazy(lambda: reconstruction.pixel_prior(4))
_UPDATE = Lazy(lambda: draw_and_discard.laplace_update(_gradient, 1.0, 0.1))
_LANGUAGE = {
  "model": Lazy(_language),
  "params": Lazy(lambda: _language().init(jax.random.key(0))),
  "examples": Lazy(lambda: data.sequences(_vocabulary(), ["some words of a text"], unroll=2)),
  "vocabulary": Lazy(_vocabulary),
}

_NETWORK = Lazy(lambda: equinox.nn.Linear(3, 2, key=jax.random.key(0)))
_PARAMS = Lazy(lambda: _image().init(jax.random.key(0)))
_COHORT = {
  "summand": _summand,
  "keys": _KEY,
  "shared": np.ones(2, np.float32),
  "chunk_size": 2,
}
_PROCEDURE = {
  "relation": "add_remove",
  "chunk_size": 2,
  "diagnose": False,
}
_SCOPE = {"relation": "replace_one", "unit": "user", "observer": "server"}
_STREAM = {"values": np.ones((4, 2), np.float32), "block_size": 2}
_SCHEDULE = Lazy(lambda: draw_and_discard.passes(12, 4))

BY_NAME = {
  "alpha": 0.5,
  "angle": 0.5,
  "batch_size": 2,
  "bands": 2,
  "bound": 1.5,
  "buffers": 2,
  "cap": 10.0,
  "capacity": 20,
  "candidates": ["some", "words"],
  "channel": np.array([[0.7, 0.3], [0.3, 0.7]]),
  "client_fn": lambda keys, params, client: params,
  "clients": Lazy(_examples),
  "clip": 1.0,
  "clip_norm": 1.0,
  "cohort_size": 4,
  "concentration": 0.5,
  "clip_norms": {"a": 1.0, "b": 2.0},
  "clipping": Lazy(lambda: federated.flat_clipping(1.0)),
  "confidence": 0.99,
  "count": 2,
  "counts": np.array([[30, 10], [10, 30]]),
  "data": Lazy(_examples),
  "degree": 2,
  "delta": 1e-5,
  "denominator": 4.0,
  "deviations": np.arange(4.0),
  "dim": 8,
  "dimensions": {"a": 3, "b": 4},
  "direction": Lazy(lambda: priv_unit(8, 4.0)),
  "directions": np.eye(3, 8, dtype=np.float32),
  "dropout": Lazy(lambda: dropout.independent(12, 0.1)),
  "edges": np.linspace(-3.0, 3.0, 7),
  "epsilon": 1.0,
  "epsilon0": 1.0,
  "epsilon1": 4.0,
  "error": 0.01,
  "estimate": np.ones(3, np.float32),
  "examples": Lazy(_examples),
  "examples_per_user": 2,
  "expected_size": 20.0,
  "expected_weight": 4.0,
  "factor": 2.0,
  "false_positive_rate": 0.1,
  "family": "poisson",
  "gamma": 0.1,
  "gradient": _gradient,
  "gradient_of": lambda x, label: x,
  "groups": np.array([0, 0, 1, 1]),
  "honest": np.arange(4.0),
  "included": np.array([True, False, True]),
  "input_shape": (3,),
  "inputs": np.ones((4, 3), np.float32),
  "instances": np.ones((2, 3), np.float32),
  "key": _KEY,
  "keys": Lazy(lambda: jax.random.split(jax.random.key(0), 4)),
  "labels": np.array([0, 1, 0, 1]),
  "learning_rate": 0.1,
  "least_weight": 2.0,
  "ledger": Lazy(_ledger),
  "local_clip_norm": 1.0,
  "local_epsilon": 1.0,
  "local_update": Lazy(lambda: federated.gradient_step(_vector_loss(), 0.1)),
  "log_lie_probability": -1.0,
  "log_p": -1.0,
  "loss": Lazy(_vector_loss),
  "magnitude": Lazy(lambda: scalar_dp(2.0, 1.0)),
  "max_dropout": 0.5,
  "max_value": 1.0,
  "mean_rounds": 3.0,
  "mechanism": Lazy(lambda: laplace(1.0, 2.0, shape=(2,))),
  "mesh": _MESH,
  "min_total_weight": 2.0,
  "min_value": 0.1,
  "model": Lazy(_image),
  "modulus_bits": 16,
  "move": 0.1,
  "noise_key": _KEY,
  "noise_multiplier": 1.0,
  "norm": 1.0,
  "num_batches": 5,
  "num_canaries": 3,
  "num_classes": 2,
  "num_clients": 12,
  "num_components": 2,
  "num_correct": 2,
  "num_examples": 12,
  "num_guesses": 3,
  "num_instances": 3,
  "num_levels": 4,
  "num_projections": 4,
  "num_reports": 1000,
  "num_rounds": 10,
  "num_samples": 8,
  "num_users": 12,
  "numbers": np.ones((4, 2), np.float32),
  "optimizer": Lazy(lambda: optax.sgd(0.1)),
  "orders": np.array([2.0, 4.0]),
  "p": 0.9,
  "params": np.ones(3, np.float32),
  "plan": lambda z: ledger.subsampled_gaussian(0.01, z, 10),
  "population": 12,
  "present": np.arange(8.0),
  "prior": _PRIOR,
  "probability": 0.5,
  "query": Lazy(lambda: queries.gaussian_sum(1.0, 1.0)),
  "radius": 1.0,
  "rate": 0.3,
  "rates": [0.1],
  "record": {"a": {"x": np.ones(3, np.float32)}},
  "relation": "add_remove",
  "residuals": np.ones((2, 2), np.float32),
  "rng": Lazy(lambda: np.random.default_rng(0)),
  "sampler": Lazy(lambda: poisson(12, 0.5)),
  "sample": Lazy(lambda: poisson(12, 0.5).sample(jax.random.key(0), ())[0]),
  "sample_size": 3,
  "sampling_probability": 0.01,
  "scale": 1.0,
  "scheme": Lazy(queries.uncalibrated),
  "sensitivity": 1.0,
  "scores": np.arange(6.0),
  "seed": 0,
  "shape": (4, 4),
  "shift": 1.0,
  "size": 4,
  "sizes": [1, 2, 3],
  "spacing": 0.1,
  "stddev": 1.0,
  "target_epsilon": 1.0,
  "text": "some words",
  "texts": ["some words of a text"],
  "threshold": 2,
  "thresholds": np.arange(3.0),
  "trials": 10,
  "successes": 3,
  "update": _UPDATE,
  "update_variance": 0.1,
  "updates": 5,
  "variance": 1.0,
  "vocabulary_size": 10,
  "words_per_user": 2,
}  # fmt: skip

_CORRELATED = {
  "strategy": Lazy(lambda: matrix_factorization.identity(10)),
  "min_separation": 5,
  "max_participations": 2,
}
_EVENT = events.Round(events.PoissonSampling(0.1), events.GaussianSum(1.0, 1.0))
_ERRORS = {"min_separation": 5, "max_participations": 2}
_STRATEGIES = ("BandedStrategy", "ToeplitzStrategy", "BufferedStrategy", "TreeStrategy")
_WORKLOADS = {kind: np.eye(10) for kind in _STRATEGIES} | {"TreeStrategy": None}
_CLIP = conformance.Clip("x / (1 + |x|)", lambda record: record / (1 + abs(record).sum()), 1.0)
BY_FUNCTION = {
  **{f"jdp.matrix_factorization.{kind}.sensitivity": _ERRORS for kind in _STRATEGIES},
  **{
    f"jdp.matrix_factorization.{kind}.{method}": {**_ERRORS, "workload": _WORKLOADS[kind]}
    for kind in _STRATEGIES
    for method in ("root_mean_squared_error", "max_error")
  },
  **{
    f"jdp.matrix_factorization.{kind}.squared_errors": {"workload": _WORKLOADS[kind]}
    for kind in _STRATEGIES
  },
  "jdp.accounting.PrivacyFilter.admits": {"event": _EVENT, "count": 2},
  "jdp.data.Vocabulary": {"words": ("some", "words")},
  "jdp.data.Vocabulary.decode": {"numbers": [0, 1]},
  "jdp.ledger.DurableLedger": {
    "path": Lazy(lambda: str(_folder() / "ledger.jsonl")),
    "run": "run",
    "prior": Lazy(_ledger),
    "key": b"sixteen secrets!",
    "key_exposed": False,
    "expected": None,
  },
  "jdp.ledger.DurableLedger.append": {"first_round": 0, "event": _EVENT},
  "jdp.ledger.Ledger": {"entries": ((_EVENT, 2),)},
  "jdp.ledger.Ledger.append": {"event": _EVENT, "count": 2},
  "jdp.ledger.Ledger.extend": {"entries": [(_EVENT, 2)]},
  "jdp.ledger.Ledger.rounds": {"start": 1, "stop": 3},
  "jdp.federated.private_sweep": {
    "settings": Lazy(lambda: {"one": _two_rounds()}),
    "params": _PARAMS,
    "clients": Lazy(_groups),
    "score": lambda params, user: {"share": jnp.float32(0.5)},
    "score_noise": 10.0,
    "mean_runs": 2.0,
    "validation": None,
    "noise_key": Lazy(random.secure_key),
    "data_key": _KEY,
    "prior": Lazy(_ledger),
    "workdir": Lazy(_folder),
  },
  "jdp.federated.train": {
    "algorithm": Lazy(_two_rounds),
    "params": _PARAMS,
    "clients": Lazy(_groups),
    "num_rounds": 2,
    "noise_key": Lazy(random.secure_key),
    "data_key": _KEY,
    "evaluate": lambda params: {"one": jnp.float32(1)},
    "evaluate_every": 1,
    "max_epsilon": 1e3,
    "delta": 1e-5,
    "early_stop": lambda rows: False,
    "prior": Lazy(_ledger),
    "workdir": None,
    "callbacks": (),
  },
  "jdp.accounting.best_split": {"epsilon": 4.0, "norms": 0.5},
  "jdp.accounting.calibrate_cohort": {
    "plan": lambda n: ledger.subsampled_gaussian(n / 1000, 4.0, 10),
    "population": 50,
    "target_epsilon": 2.0,
  },
  "jdp.accounting.calibrate_noise_multiplier": {"accountant": "rdp"},
  "jdp.accounting.calibrate_rounds": {
    "plan": lambda n: ledger.subsampled_gaussian(0.01, 4.0, n),
    "maximum": 100,
  },
  "jdp.accounting.calibrate_sampling_probability": {
    "plan": lambda q: ledger.subsampled_gaussian(q, 4.0, 10)
  },
  "jdp.accounting.delta": {"accountant": "rdp", "relation": "add_remove", "observer": "model"},
  "jdp.accounting.epsilon": {"accountant": "rdp", "relation": "add_remove", "observer": "model"},
  "jdp.accounting.epsilon_interval": {"tolerance": 0.05},
  "jdp.accounting.from_dp_event": {"event": Lazy(lambda: accounting.to_dp_event(_ledger()).event)},
  "jdp.accounting.group_epsilon": {"group_size": 2},
  "jdp.accounting.best_of_runs": {"mean_runs": 4.0},
  "jdp.accounting.selection_epsilon": {"mean_runs": 4.0},
  "jdp.accounting.trade_off": {"false_positive_rates": (0.001, 0.01)},
  "jdp.accounting.grid_surcharge": {"spacing": 1 / 16, "large": False},
  "jdp.accounting.shuffled_delta": {"randomizer": "any"},
  "jdp.accounting.shuffled_epsilon": {"randomizer": "any"},
  "jdp.accounting.local_guarantee": {"ledger": Lazy(_local_ledger), "observer": "server"},
  "jdp.accounting.noise_multiplier": {"query": events.GaussianSum(1.0, 1.0)},
  "jdp.accounting.query_analysis": {"query": events.GaussianSum(1.0, 1.0)},
  "jdp.accounting.sampling_analysis": {"sampling": events.PoissonSampling(0.1)},
  "jdp.accounting.draw_and_discard.opportunistic_threat": {"seen": 1},
  "jdp.accounting.draw_and_discard.internal_ratios": {
    "instances": np.ones((5, 3)),
    "released": np.ones(3),
    "move": np.ones((5, 3)),
    "other_move": np.zeros((5, 3)),
  },
  "jdp.accounting.why_unbounded": {
    "accountant": "rdp",
    "relation": "add_remove",
    "observer": "model",
  },
  "jdp.accounting.would_exceed": {
    "events": events.Round(events.PoissonSampling(0.1), events.GaussianSum(1.0, 1.0)),
    "max_epsilon": 1.0,
    "accountant": "rdp",
    "relation": "add_remove",
    "observer": "model",
  },
  "jdp.audits.learned_scores.learned_score": _RELEASES,
  "jdp.audits.learned_scores.audit_releases": {**_RELEASES, "bound": _EPSILON_OF},
  "jdp.audits.one_run.count_right_guesses": {"scores": np.arange(3.0), "num_guesses": 2},
  "jdp.audits.one_run_f_dp.f_dp_p_value": {"curve": Lazy(lambda: one_run_f_dp.gaussian_curve(1.0))},
  "jdp.audits.one_run_f_dp.f_dp_bound": {"family": Lazy(lambda: one_run_f_dp.gaussian_curve)},
  "jdp.audits.one_run_f_dp.gaussian_curve": {"mu": 1.0},
  "jdp.audits.one_run_f_dp.gaussian_epsilon_of": {"mu": 1.0},
  "jdp.audits.one_run_f_dp.audit_one_run_gaussian": {"scores": np.arange(3.0), "num_guesses": (2,)},
  "jdp.audits.sequential.audit_until_refuted": {
    "batches": [(np.arange(20.0), np.arange(20.0) + 5)] * 2,
    "claim": 1.0,
    "bound": _EPSILON_OF,
  },
  "jdp.audits.scores.audit_scores": _SCORES,
  "jdp.audits.scores.choose_side": _SCORES,
  "jdp.audits.scores.best_threshold": _SCORES,
  "jdp.audits.scores.best_outcomes": _SCORES,
  "jdp.audits.canaries.cosines": {"update": np.ones(8, np.float32)},
  "jdp.audits.canaries.one_shot_estimate": {"dim": 8},
  "jdp.audits.channels.attainable_bound": {"bound": _EPSILON_OF},
  "jdp.audits.channels.binned_channel": {"laws": [stats.norm(), stats.norm(1)]},
  "jdp.audits.local_audit.projection_on": {"difference": np.ones(2, np.float32)},
  "jdp.audits.local_audit.opposite_inputs": {"radius": 1.0},
  "jdp.audits.local_audit.score_sampler": {
    "release": lambda key, value: value,
    "statistic": jnp.sum,
    "batch": 8,
  },
  "jdp.audits.local_audit.draw_scores": {"statistic": jnp.sum},
  "jdp.audits.local_audit.audit_mechanism": {
    **_SCORES,
    "first": np.ones(2, np.float32),
    "second": -np.ones(2, np.float32),
    "num_samples": 64,
  },
  "jdp.audits.one_run.audit_one_run": {"scores": np.arange(3.0), "num_guesses": 2},
  "jdp.attacks.reconstruction.principal_prior": {"inputs": np.eye(4, dtype=np.float32)},
  "jdp.attacks.reconstruction.input_of_gradient": {"gradient": np.ones((2, 4), np.float32)},
  "jdp.audits.residues.residues": {"spacing": 0.1},
  "jdp.audits.residues.audit_residues": {**_SCORES, "spacing": 0.1},
  "jdp.attacks.spam.threshold_for": {"honest": np.arange(40.0)},
  "jdp.attacks.spam.interval_test": {"threshold": 2.0},
  "jdp.conformance.check_implementation": {
    "implementation": conformance.Implementation("own", "1", (_CLIP,)),
    "seed": 0,
    "error": 1e-6,
  },
  "jdp.conformance.failures": {"findings": check_part(_CLIP)},
  "jdp.conformance.text_table": {"findings": check_part(_CLIP)},
  "jdp.conformance.registered_subject": {
    "name": "laplace",
    "setting": registry.Setting(4, 1.0),
  },
  "jdp.conformance.release_subject": {
    "release": lambda key, value: value,
    "first": np.ones(2, np.float32),
    "second": np.zeros(2, np.float32),
    "delta": 0.0,
  },
  "jdp.conformance.mechanism_subject": {"radius": 1.0},
  "jdp.data.clients_from_arrays": {
    "users": np.array([0, 1, 0, 2]),
    "num_classes": 2,
    "label_kind": "classes",
    "max_examples": 2,
  },
  "jdp.data.clients_from_pairs": {
    "pairs": [(np.ones((2, 3)), np.array([0, 1]))],
    "num_classes": 2,
    "names": ["ann"],
    "max_examples": 2,
  },
  "jdp.data.clients_from_source": {
    "source": [(np.ones((2, 3)), np.array([0, 1])), ([], [])],
    "max_examples": 2,
    "num_classes": 2,
    "names": ["ann", "bo"],
    "num_threads": 2,
  },
  "jdp.data.clients_from_table": {
    "table": {"who": [0, 1], "label": [1, 0], "x": [0.5, 0.25]},
    "user": "who",
    "label": "label",
    "inputs": ["x"],
  },
  "jdp.data.examples": {"num_classes": 2},
  "jdp.data.femnist": {"path": Lazy(_leaf_file), "split": "train"},
  "jdp.data.group": {"users": [np.arange(5), np.arange(5, 12)], "max_examples": 6},
  "jdp.data.load": {
    "name": "adult",
    "data_dir": Lazy(_adult_folder),
    "data_file": Lazy(_arrays_file),
  },
  "jdp.data.pack": {
    "users": [np.arange(5), np.arange(5, 12)],
    "names": ["ann", "bo"],
    "max_examples": 6,
  },
  "jdp.data.parquet_source": {
    "path": Lazy(_parquet_file),
    "user": "who",
    "label": "label",
    "inputs": ["age"],
  },
  "jdp.data.partition_by_label": {"labels_per_user": 2},
  "jdp.data.private_vocabulary": {
    "users": [["some words"], ["other words"]],
    "size": 2,
    "noise_multiplier": 0.1,
  },
  "jdp.data.python_modules": {"folder": Lazy(_folder_of_modules)},
  "jdp.data.read_users": {"path": Lazy(_users)},
  "jdp.data.sequences": {"vocabulary": Lazy(_vocabulary), "unroll": 2, "max_tokens": 10},
  "jdp.data.stackoverflow": {"path": Lazy(_tff_file), "split": "train"},
  "jdp.data.text_source": {
    "vocabulary": Lazy(_vocabulary),
    "users": Lazy(lambda: data.stackoverflow(_tff_file())),
    "tokens_per_user": 4,
    "unroll": 2,
  },
  "jdp.data.text_users": {
    "vocabulary": Lazy(_vocabulary),
    "users": [["some words of a text"], ["a text of some words"]],
    "tokens_per_user": 4,
    "unroll": 2,
    "equal": False,
  },
  "jdp.events.ShuffledBatches": {"starts_epoch": True, "keeps_partial": False, "population": 12},
  "jdp.events.BallsInBins": {
    "starts_epoch": True,
    "overflow_probability": 0.0,
    "population": 12,
  },
  "jdp.events.RandomAllocation": {
    "participations": 2,
    "starts_epoch": True,
    "overflow_probability": 0.0,
    "population": 12,
  },
  "jdp.events.PoissonSampling": {
    "overflow_probability": 0.0,
    "population": 12,
    "max_participations": 2,
  },
  "jdp.events.TruncatedPoissonSampling": {"capacity": 4, "population": 12},
  "jdp.events.RandomizedResponse": {"noise": 0.5, "num_values": 3, "uniform_null": True},
  "jdp.events.ConcentratedRelease": {"rho": 1.0},
  "jdp.events.GroupedSums": {"parts": (events.GaussianSum(1.0, 1.0),), "labels": ("a",)},
  "jdp.events.BestOfRuns": {
    "rounds": (events.Round(events.PoissonSampling(0.1), events.GaussianSum(1.0, 1.0)),),
    "counts": (10,),
    "mean_runs": 3.0,
  },
  "jdp.events.TreeAggregation": {"step_counts": (3, 8)},
  "jdp.events.DistributedGaussianSum": {"released": True},
  "jdp.events.DiscreteGaussianSum": {
    "l2_norm": 2.0,
    "l1_norm": 3.0,
    "share_stddev": 1.0,
    "num_shares": 3,
    "rounded": True,
  },
  "jdp.events.SkellamSum": {
    "l2_norm": 2.0,
    "l1_norm": 3.0,
    "share_variance": 1.0,
    "num_shares": 3,
    "rounded": True,
    "released": True,
  },
  "jdp.events.CorrelatedGaussianSum": {
    "strategy": "a strategy",
    "min_separation": 5,
    "max_participations": 2,
    "squared_sensitivity": 2.0,
    "largest_column_norm": 1.0,
    "index": 3,
  },
  "jdp.events.DistributedCorrelatedSum": {
    "strategy": "a strategy",
    "min_separation": 5,
    "max_participations": 2,
    "squared_sensitivity": 2.0,
    "largest_column_norm": 1.0,
    "index": 3,
  },
  "jdp.events.MinSeparationSampling": {
    "min_separation": 5,
    "max_participations": 2,
    "position": 3,
    "by_identity": True,
  },
  "jdp.events.CyclicPoissonSampling": {
    "num_groups": 5,
    "position": 3,
    "by_identity": True,
    "overflow_probability": 0.0,
  },
  "jdp.events.Round": {
    "sampling": events.PoissonSampling(0.1),
    "query": events.GaussianSum(1.0, 1.0),
    "relation": "add_remove",
    "unit": "user",
    "observer": "model",
    "number": 3,
    "key_exposed": False,
  },
  "jdp.events.LocalRelease": {"guarantee": guarantees.PureDP(1.0), "max_releases": 2},
  "jdp.federated.individual_budget": {"population": 12, "stddev": 9.0, "noise_multiplier": 2.0},
  "jdp.federated.adaptive_average": {"expected_weight": 40.0, "initial_clip_norm": 1.0},
  "jdp.federated.client_dropout": {
    "query": Lazy(lambda: queries.distributed_sum(1.0, 1.0, queries.uncalibrated())),
    "draw_shares": False,
    "unit": "user",
    "chunk_size": 2,
    "diagnose": False,
  },
  "jdp.federated.dp_fedavg": {
    "noise_multiplier": 1.0,
    "relation": "add_remove",
    "layout": federated.CohortLayout(2),
  },
  "jdp.federated.dp_sgd": {
    "num_rounds": 2,
    "noise_multiplier": 1.0,
    "relation": "add_remove",
    "layout": federated.CohortLayout(2),
  },
  "jdp.federated.cohort_sum": _COHORT,
  "jdp.federated.federated_averaging": _PROCEDURE,
  "jdp.federated.private_federated": {
    **_PROCEDURE,
    "mechanism": Lazy(lambda: laplace(1.0, 2.0, shape=(8,))),
  },
  "jdp.federated.rounds": {
    **_PROCEDURE,
    "server": Lazy(lambda: federated.add_updates(optax.sgd(0.1))),
  },
  "jdp.federated.gradient_forms": {
    "loss": Lazy(lambda: models.cross_entropy(_image())),
    "params": _PARAMS,
    "client": Lazy(_examples),
  },
  "jdp.federated.iterative_training": {**_PROCEDURE, "model": _BATCH_NORM, "rate": 0.1},
  "jdp.federated.masked_round": {
    "query": Lazy(_integer_sum),
    "protocol": Lazy(lambda: federated.secure_aggregation(12, 4, 3, 16)),
    "min_clients": 2,
  },
  "jdp.federated.p_norm_descent": {"q": 3.0},
  "jdp.federated.per_layer_clipping": {"params": _PARAMS, "shares": "equal"},
  "jdp.federated.local_sgd": {"num_epochs": 2},
  "jdp.models.example_loss": {"losses": lambda scores, labels: jnp.sum(scores, 1)},
  "jdp.models.freeze": {"params": _PARAMS, "is_trained": lambda path: path == "w"},
  "jdp.models.huber": {"threshold": 1.0},
  "jdp.models.train_adapters": {
    "model": Lazy(lambda: _transformer(2)),
    "params": Lazy(lambda: _transformer(None).init(jax.random.key(0))),
  },
  "jdp.models.transformer": {"max_length": 4, "width": 8, "num_heads": 2, "num_layers": 1},
  "jdp.models.unfreeze": {"params": _PARAMS, "trained": _PARAMS},
  "jdp.models.validate": {"dtype": "float32", "unit": "user"},
  "jdp.federated.evaluate_privately": {
    "metric": lambda params, user: {"share": jnp.sum(user.mask)},
    "relation": "add_remove",
  },
  "jdp.federated.evaluate_users": {
    "metric": lambda params, user: {"share": jnp.sum(user.mask)},
    "users": Lazy(_examples),
  },
  "jdp.federated.no_improvement": {
    "metric": "accuracy",
    "patience": 2,
    "least_gain": 0.1,
    "decreasing": False,
  },
  "jdp.federated.proximal_point": {"num_iterations": 2},
  "jdp.federated.fixed_denominator": {"relation": "add_remove", **_CORRELATED},
  "jdp.federated.clipped_denominator": {"relation": "add_remove"},
  "jdp.federated.draw_and_discard.arrivals": {"users": np.arange(6)},
  "jdp.federated.draw_and_discard.draw_and_discard": {"schedule": _SCHEDULE, "in_flight": 0},
  "jdp.federated.draw_and_discard.draw_and_discard_process": {
    "in_flight": 1,
    "random_returns": True,
    "block_size": 4,
  },
  "jdp.federated.draw_and_discard.server_batching": {"schedule": _SCHEDULE, "block_size": 4},
  "jdp.federated.draw_and_discard.exact_update": {"clip": 1.0},
  "jdp.federated.draw_and_discard.gaussian_update": {"clip": 1.0, "unit": "user"},
  "jdp.federated.draw_and_discard.laplace_update": {"clip": 1.0, "unit": "coordinate"},
  "jdp.federated.draw_and_discard.passes": {"rounds_per_pass": 2},
  "jdp.federated.dropout.by_size": {"strength": 1.0},
  "jdp.federated.dropout.with_calibrations": {"model": Lazy(lambda: dropout.independent(12, 0.1))},
  "jdp.guarantees.ApproxDP": _SCOPE,
  "jdp.guarantees.PureDP": _SCOPE,
  "jdp.guarantees.SeparatedDP": {"direction": 1.0, "magnitude": 2.0, **_SCOPE},
  "jdp.guarantees.common_scope": {"guarantees": [guarantees.PureDP(1.0)]},
  "jdp.guarantees.compose": {"guarantees": [guarantees.PureDP(1.0), guarantees.PureDP(2.0)]},
  "jdp.guarantees.rounded_up": {"digits": 4},
  "jdp.guarantees.rounded_down": {"digits": 4},
  "jdp.mechanisms.laplace": {"shape": (2,)},
  "jdp.mechanisms.gaussian": {"shape": (2,)},
  "jdp.mechanisms.l2_laplace": {"shape": (2,)},
  "jdp.mechanisms.compressed_priv_unit": {"table_key": _KEY, "bits": 6},
  "jdp.mechanisms.fast_proj_unit": {"rotation_key": _KEY},
  "jdp.mechanisms.on_grid": {"spacing": 0.5, "unbiased": False},
  "jdp.mechanisms.priv_unit": {"epsilon": 4.0, "gamma": 0.1},
  "jdp.mechanisms.priv_unit_linf": {"epsilon": 4.0, "kappa": 1},
  "jdp.mechanisms.scalar_dp": {"num_levels": 4},
  "jdp.mechanisms.stream_sum": _STREAM,
  "jdp.ledger.correlated_gaussian": {"query": Lazy(_planned_sum), "sampling": _TURNS},
  "jdp.matrix_factorization.choose_strategy": {
    "num_rounds": 4,
    "cohort_size": 4,
    "target_epsilon": 4.0,
    "memory": 0,
    "min_separation": 2,
    "relation": "zero_out",
    "objective": "max",
  },
  "jdp.matrix_factorization.load": {"path": Lazy(_strategy_file)},
  "jdp.matrix_factorization.optimizer_workload": {
    "learning_rate": 0.5,
    "momentum": 0.9,
    "weight_decay": 0.1,
  },
  "jdp.matrix_factorization.planned_sum": _CORRELATED,
  "jdp.matrix_factorization.square_root_toeplitz": {"bands": 2},
  "jdp.matrix_factorization.buffered_toeplitz": {
    "min_separation": 5,
    "max_participations": 2,
    "objective": "mean",
  },
  "jdp.matrix_factorization.banded": {"objective": "mean"},
  "jdp.matrix_factorization.banded_toeplitz": {"objective": "mean"},
  "jdp.models.from_equinox": {"module": _NETWORK, "dtype": "float32"},
  "jdp.models.from_flax": {"module": flax.linen.Dense(2), "dtype": "float32"},
  "jdp.models.accuracy": {"params": _PARAMS, "batch_size": 4},
  "jdp.models.small_cnn": {"input_shape": (16, 16, 1)},
  "jdp.models.glm": {"num_outputs": 1},
  "jdp.models.head_words": {
    **{name: _LANGUAGE[name] for name in ("model", "params", "examples")},
    "heads": (2, 4),
    "predictions": 2,
    "batch_size": 2,
  },
  "jdp.models.language_metrics": {
    **{name: _LANGUAGE[name] for name in ("model", "params", "examples")},
    "batch_size": 2,
  },
  "jdp.models.language_model": {"embedding": 4, "hidden": 4},
  "jdp.models.next_word_loss": {"model": _LANGUAGE["model"]},
  "jdp.models.next_words": {
    **{name: _LANGUAGE[name] for name in ("model", "params", "vocabulary")},
    "count": 2,
  },
  "jdp.queries.adaptive_clipped_sum": {
    "initial_clip_norm": 1.0,
    "quantile": 0.5,
    "learning_rate": 0.2,
    "count_stddev": 2.0,
    **_CORRELATED,
  },
  "jdp.queries.correlated_gaussian_sum": _CORRELATED,
  "jdp.queries.correlated_integers": {
    "record": np.ones(4, np.float32),
    "max_dropout": 0.25,
    "modulus_bits": 18,
    "max_wrap_probability": 1e-6,
    **_CORRELATED,
  },
  "jdp.queries.calibrated": {"num_calibrations": 1, "inside": True},
  "jdp.queries.discrete_sum": {
    "record": np.ones(4, np.float32),
    "modulus_bits": 16,
    "max_wrap_probability": 1e-6,
    "noise": "gaussian",
  },
  "jdp.queries.distributed_integers": {
    "record": np.ones(4, np.float32),
    "num_calibrations": 1,
    "min_clients": 2,
    "modulus_bits": 16,
    "max_wrap_probability": 1e-6,
  },
  "jdp.queries.distributed_sum": {"min_clients": 2},
  "jdp.queries.grouped": {
    "queries": Lazy(lambda: {"x": queries.gaussian_sum(1.0, 1.0)}),
    "labels": "x",
  },
  "jdp.queries.joint_clipped_sum": {"scales": {"a": 1.0, "b": 2.0}},
  "jdp.queries.per_layer": {"shares": "equal"},
  "jdp.random.marked": {"event": events.PureRelease(1.0)},
  "jdp.random.restore_key": {"data": Lazy(lambda: jax.random.key_data(random.seeded_key(0)))},
  "jdp.random.seeded_key": {"impl": "chacha20"},
  "jdp.random.secure_key": {"impl": "chacha20"},
  "jdp.random.discrete_gaussian": {"shape": (2,)},
  "jdp.sampling.cyclic_poisson": {"num_groups": 3, "groups": np.arange(12) % 3, "capacity": 4},
  "jdp.sampling.groups_by_identity": {"identities": ["a", "b"], "num_groups": 3},
  "jdp.sampling.min_separation": {"separation": 3, "max_participations": 2, "groups": None},
  "jdp.sampling.balls_in_bins": {"capacity": 12},
  "jdp.sampling.random_allocation": {"participations": 2, "capacity": 12},
  "jdp.sampling.poisson": {"capacity": 12, "max_participations": 2},
  "jdp.sampling.truncated_poisson": {"capacity": 4},
  "jdp.sampling.shuffled": {"keep_partial": True},
  "jdp.transforms.contribution_sum": {"vectors_fn": _gradient, "chunk_size": 4},
  "jdp.ledger.load_file": {"path": Lazy(_ledger_file)},
  "jdp.ledger.load": {"path": Lazy(_ledger_file)},
}
