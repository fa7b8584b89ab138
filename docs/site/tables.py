"""Tables of what is registered: mechanisms, samplings with queries, accountants, strategies.

They are computed when the site is built, so they say what the code does.
"""

import configparser
import functools
import math
import types
from collections.abc import Iterable

import jax
import jax.numpy as jnp

from docs.site.paths import REPOSITORY
from experiments.benchmarks import compilers, harness
from jdp import accounting, events, matrix_factorization, mechanisms, sampling
from jdp.conformance.queries import event_of
from jdp.conformance.reference_queries import audited
from jdp.events.queries import SumQueryEvent
from jdp.events.sampling import SamplingEvent
from jdp.guarantees import Relation, rounded_down, rounded_up
from jdp.ledger import Ledger

DIM, EPSILON, DELTA = 1024, 4.0, 1e-5
NUM_ROUNDS, SEPARATION = 512, 16

_SAMPLERS = {name: entry.make(1000, 100) for name, entry in sampling.registry.registered().items()}
_STRATEGIES = {
  "identity": lambda n, b: matrix_factorization.identity(n),
  "tree": lambda n, b: matrix_factorization.tree(n),
  "square_root_toeplitz": lambda n, b: matrix_factorization.square_root_toeplitz(n, bands=b),
  "banded_inverse_square_root": matrix_factorization.banded_inverse_square_root,
  "banded_toeplitz": matrix_factorization.banded_toeplitz,
  "banded": matrix_factorization.banded,
  "buffered_toeplitz": lambda n, b: matrix_factorization.buffered_toeplitz(
    n, buffers=3, min_separation=b, max_participations=math.ceil(n / b)
  ),
}


def parts() -> dict[str, str]:
  """Every table, by the name of the file that pages include."""
  return {
    "mechanisms": mechanism_table(),
    **{f"samplings_{relation}": sampling_table(relation) for relation in Relation},
    "refusals": refusals(),
    "accountants": accountant_table(),
    "runs": run_table(),
    "strategies": strategy_table(),
    "versions": version_table(),
    "compiled_programs": compiled_programs_table(),
  }


def mechanism_table() -> str:
  """Each registered mechanism's guarantee, bytes of a report, and error of a unit vector."""
  setting = mechanisms.registry.Setting(
    DIM, EPSILON, num_projections=64, max_coordinate=1 / math.sqrt(DIM)
  )
  scope = " per value (replace one), against the server"  # which the page says of all
  rows = []
  for name, entry in mechanisms.registry.registered().items():
    mechanism = entry.make(setting)
    value = jax.ShapeDtypeStruct(mechanism.shape, jnp.float32)
    report = jax.eval_shape(mechanism.encode, jax.random.key(0), value)
    size = sum(_bytes(leaf) for leaf in jax.tree.leaves(report))
    error = mechanism.mean_squared_error(1.0)
    bound = "" if entry.exact else "≤ "
    remark = "does not average out" if entry.shares_projection else ""
    guarantee = str(mechanism.guarantee).removesuffix(scope)
    rows.append((f"`{name}`", guarantee, f"{size:,}", f"{bound}{float(error):.4g}", remark))
  head = ("registered as", "guarantee of one report", "bytes", "mean squared error", "remark")
  return _table(head, rows)


def _bytes(leaf: jax.ShapeDtypeStruct) -> int:
  """The size of an array, of a key's words where it is a key."""
  if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
    leaf = jax.eval_shape(jax.random.key_data, leaf)
  return math.prod(leaf.shape) * leaf.dtype.itemsize


@functools.cache
def query_events() -> dict[str, SumQueryEvent]:
  """An event of each type, as a registered query releases it."""
  found: dict[str, SumQueryEvent] = {}
  for name, entry in audited().items():
    if type(event_of(name)).__name__ not in found:
      query = entry.make()
      state = query.init(entry.victim)
      part = query.preprocess(jax.random.key(0), state, entry.victim, jnp.float32(1))
      _, event, _ = query.finalize(jax.random.key(1), state, part)
      found[type(event).__name__] = event
  return found


def sampling_table(relation: Relation) -> str:
  """What a record is charged for one round, beside the same round without sampling."""
  rows, samplings = [], [sampler.event(sampler.init()) for sampler in _SAMPLERS.values()]
  for name, event in query_events().items():
    unsampled = _cost(events.PoissonSampling(1.0), event, relation)
    cells = [_compared(_cost(sampled, event, relation), unsampled) for sampled in samplings]
    rows.append((f"`{name}`", *cells))
  return _table(("", *(name.replace("_", " ") for name in _SAMPLERS)), rows)


def refusals() -> str:
  """What is said of a Gaussian sum where a sampling is refused."""
  query, lines = events.GaussianSum(1.0, 1.0), []
  for relation in Relation:
    for name, sampler in _SAMPLERS.items():
      cost = _cost(sampler.event(sampler.init()), query, relation)
      if isinstance(cost, str):
        lines.append(f"- `{name}`, {relation.label}: {cost}")
  return "\n".join(lines)


def _cost(sampled: SamplingEvent, query: SumQueryEvent, relation: Relation) -> float | str:
  """The epsilon of one round at delta 1e-5, or why there is none."""
  run = Ledger().append(events.Round(sampled, query, relation))
  try:
    return accounting.epsilon(run, DELTA, relation=relation)
  except ValueError as refusal:
    return str(refusal)


def _compared(cost: float | str, unsampled: float | str) -> str:
  """A cell of the table; a part in a thousand is what overflows of samples cost."""
  if isinstance(cost, str):
    return "no"
  if math.isinf(cost):
    return "∞"
  if isinstance(unsampled, str) or math.isclose(cost, unsampled, rel_tol=1e-3):
    return "same"
  return "less" if cost < unsampled else "more"


def accountant_table() -> str:
  """The epsilons of 10 unsampled rounds of each event, by each accountant."""
  rows = []
  for name, event in query_events().items():
    relation = Relation.ZERO_OUT
    once = isinstance(event, events.CorrelatedGaussianSum)  # the first round of its run
    run = Ledger().append(
      events.Round(events.PoissonSampling(1.0), event, relation), count=1 if once else 10
    )
    renyi = rounded_up(accounting.epsilon(run, DELTA, accountant="rdp"), 4)
    try:
      moments = rounded_up(accounting.epsilon(run, DELTA, accountant="moments"), 4)
    except ValueError:
      moments = "refused"
    lower, upper = accounting.epsilon_interval(run, DELTA)
    interval = f"{rounded_down(lower, 4)} to {rounded_up(upper, 4)}"
    rows.append((f"`{name}`", renyi, moments, interval, _known(lower, upper)))
  return _table(("event", '"rdp"', '"moments"', "least epsilon", "charged"), rows)


def run_table() -> str:
  """The intervals of 40 rounds of a Gaussian sum by each sampler, under each relation."""
  rows = []
  for name, sampler in _SAMPLERS.items():
    sampled, state, draw = [], sampler.init(), jax.jit(sampler.sample)
    for key in jax.random.split(jax.random.key(0), 40):
      sampled.append(sampler.event(state))
      _, state = draw(key, state)
    cells = []
    for relation in Relation:
      run = Ledger()
      for one in sampled:
        run = run.append(events.Round(one, events.GaussianSum(1.0, 1.5), relation))
      try:
        lower, upper = accounting.epsilon_interval(run, DELTA)
        known = f"{rounded_down(lower, 3)} to {rounded_up(upper, 3)}, {_known(lower, upper)}"
      except ValueError:
        known = "no"
      cells.append(known)
    rows.append((f"`{name}`", *cells))
  return _table(("sampler", *(relation.label for relation in Relation)), rows)


def _known(lower: float, upper: float) -> str:
  """How far the upper end may be from the least epsilon."""
  if lower == 0:
    return "unknown"
  return "tight" if upper <= 1.02 * lower else f"at most {rounded_up(upper / lower, 3)} times"


def strategy_table() -> str:
  """Errors of strategies of correlated noise at equal privacy, and their memory."""
  rows = []
  pattern = {
    "min_separation": SEPARATION,
    "max_participations": math.ceil(NUM_ROUNDS / SEPARATION),
  }
  for name, make in _STRATEGIES.items():
    strategy = make(NUM_ROUNDS, SEPARATION)
    error, worst = strategy.root_mean_squared_error(**pattern), strategy.max_error(**pattern)
    rows.append((f"`{name}`", f"{error:.4g}", f"{worst:.4g}", f"{strategy.memory}"))
  return _table(("strategy", "error, root mean square", "error of the worst round", "memory"), rows)


def version_table() -> str:
  """The lowest version of each dependency that is tested, and the newest for two Pythons."""
  config = configparser.ConfigParser()
  config.read(REPOSITORY / "setup.cfg")
  pinned = [
    dict(line.split("==") for line in (REPOSITORY / ".ci" / name).read_text().lower().split())
    for name in ("constraints.txt", "constraints-3.13.txt")
  ]
  extras = {"": config["options"]["install_requires"], **config["options.extras_require"]}
  rows = []
  for extra, requirements in extras.items():
    for requirement in requirements.split():
      name, lowest = requirement.split(">=")
      newest = [versions.get(name.lower(), "") for versions in pinned]
      rows.append((name, f"`[{extra}]`" if extra else "always", lowest, *newest))
  return _table(("package", "needed by", "lowest", "on Python 3.11", "on Python 3.13"), rows)


def compiled_programs_table() -> str:
  """What a TPU's compiler said of each program, from the file that its benchmark wrote."""
  path = REPOSITORY / "experiments/benchmarks/results/compiled_programs.jsonl"
  return compilers.compiled_programs.table(harness.read(path))


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
  """A table in Markdown."""
  head = tuple(head)
  lines = [head, tuple("---" for _ in head), *rows]
  return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def check_complete() -> None:
  """Refuses a public strategy that no table has.

  Raises:
    ValueError: if there is one.
  """
  made = set(_makers(matrix_factorization, matrix_factorization.Strategy))
  made -= {"load"}  # a strategy, from a file
  if missing := made - _STRATEGIES.keys():
    raise ValueError(
      f"Expected every strategy in docs/site/tables.py, got no {', '.join(missing)}."
    )


def _makers(package: types.ModuleType, kind: type) -> Iterable[str]:
  """The public functions of a package that are annotated to return such an object."""
  for name in package.__all__:
    result = getattr(getattr(package, name), "__annotations__", {}).get("return")
    if isinstance(result, type) and issubclass(result, kind):
      yield name
