"""Rounds of training beside other libraries, and what they take: cohorts, chunks, updates."""

import gc
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from matplotlib import pyplot as plt
from scipy import stats

from experiments.benchmarks import harness
from experiments.benchmarks.harness import Case, Row, benchmark, compared, compiled
from experiments.benchmarks.peers import jdp_rounds, serve
from experiments.runner.reports.tables import table
from jdp import data, mechanisms, models, queries, random, sampling, transforms
from jdp.federated import client_mesh, cohort_sum, gradient_step
from jdp.federated.draw_and_discard import draw_and_discard_process, spread_instances
from jdp.federated.draw_and_discard.client_updates import ClientUpdate, exact_update, laplace_update
from jdp.federated.draw_and_discard.update_stream import arrivals
from jdp.federated.engine.rounds import replicate
from jdp.models.generalised_linear import glm
from jdp.queries.base import PyTree

_CORES = os.cpu_count() or 1
MODELS = ("logistic", "MLP", "CNN", "LSTM", "transformer")


def workload(
  name: str, clients: int, *, small: bool = False, sentences: tuple[int, int] = (4, 16)
) -> tuple[models.Loss, PyTree, data.Examples]:
  """A model's loss, its parameters and so many clients.

  Users of language models have so many sentences of so many words. Such models may be small.
  """
  own = min(clients, 1000)
  if name in ("logistic", "MLP", "CNN"):
    of_images = jdp_rounds.model_of(name.lower())
    loss, init = models.cross_entropy(of_images), of_images.init
    users = jdp_rounds.clients_of("federated", own)
  else:
    words, sizes = (50, {"embedding": 8, "hidden": 8}) if small else (10_003, {})
    model = (
      models.language_model(words, **sizes)
      if name == "LSTM"
      else models.transformer(words, max_length=sentences[1], width=128)
    )
    inputs, labels = np.random.default_rng(0).integers(3, words, (2, own, *sentences), np.int32)
    mask = np.ones((own, sentences[0]), np.float32)
    loss, init = models.next_word_loss(model), model.init
    users = data.Examples(inputs, labels, mask)
  # The first thousand clients are repeated.
  users = jax.tree.map(lambda x: jnp.asarray(x[np.arange(clients) % own]), users)
  return loss, jax.jit(init)(jax.random.key(0)), users


_UNITS = {"federated": "clients", "example": "examples"}
_TITLES = {
  "federated": "DP-FedAvg, 500 clients of 10 examples, one step: clients/s",
  "example": "DP-SGD, batches of 256 examples: examples/s",
}
_SIZES = {"logistic": "logistic, 7,850", "mlp": "MLP, 79,510", "cnn": "CNN, 26,010"}
# Clients side by side, without and with ghost norms, beside the default sizes of 1 and 64.
_CHUNKS = {"0": (":4", ":16"), "1": (":16", ":256")}
_BINARY, _SCRIPT, _BEST = "jdp, a binary", "jdp, a bare script", "jdp, the best layout"
_BY_TIME: dict[str, Callable[[harness.Turn], float]] = {
  "wall": lambda turn: turn.rate,
  "cpu": lambda turn: turn.work / turn.cpu if turn.cpu else float("nan"),
}


def _cohorts_table(rows: Sequence[Row]) -> str:
  """The tables of the README. Of rows of one task and model, the last one counts."""
  if not all("shares" in row for row in rows):  # of two checkouts
    return harness.tables(rows)
  found = {row["title"]: row for row in rows}
  loads = [row["machine"]["load"] for row in rows]
  parts = [f"Load of the machine: {min(loads):.1f} to {max(loads):.1f}."]
  for task, title in _TITLES.items():
    columns = {m: found[f"{task}, {m}"] for m in _SIZES if f"{task}, {m}" in found}
    if columns:
      head = [title, *(_SIZES[model] for model in columns)]
      parts.append(table(head, _lines(list(columns.values()))))
  return "\n\n".join(parts)


def _lines(columns: Sequence[Row]) -> Iterator[list[str]]:
  peers = [t["name"] for t in columns[0]["timings"] if not t["name"].startswith("jdp")]
  for name in (*peers, _SCRIPT, _BINARY):
    yield [name, *(_rate(column, name) for column in columns)]
  yield [_BEST, *(_rate(c, c["shares"][_BINARY]["wall"]["best"]) for c in columns)]
  for measure, what in {"wall": "wall time", "cpu": "processor time"}.items():
    shares = [column["shares"][_BINARY][measure] for column in columns]
    intervals = (f"{s['median']:.2f} ({s['low']:.2f} to {s['high']:.2f})" for s in shares)
    yield [f"the binary's share of the best, {what}", *intervals]


def _rate(column: Row, name: str) -> str:
  """A case's rate, with its ratio to the first, and the layout of jdp's best."""
  timing = next(t for t in column["timings"] if t["name"] == name)
  first = column["timings"][0]["name"]
  ratio = "" if name == first else f" ({timing['ratio']:.2g}x)"
  chosen = "" if name in (first, _BINARY, _SCRIPT) or "jdp" not in name else f": {name[5:]}"
  return f"{timing['rate']:,.0f}{ratio}{chosen}"


@benchmark({"tasks": ("federated",), "models": ("logistic",)}, table=_cohorts_table)
def cohorts(
  tasks: tuple[str, ...] = tuple(_TITLES),
  models: tuple[str, ...] = tuple(_SIZES),
  pfl_python: str = "",
  opacus_python: str = "",
  jax_privacy_python: str = "",
  baseline: str = "",
  rounds: int = 7,
) -> Iterator[Row]:
  """Clients per second of DP-FedAvg and examples per second of DP-SGD, beside three peers.

  The peers are pfl-research, Opacus and jax_privacy. Each lives in an environment of its own: `pip
  install pfl torch`, `pip install opacus`, `pip install jax_privacy optax flax`.

  DP-FedAvg has 500 users of 10 examples, one local step, clipping and Gaussian noise. DP-SGD has
  batches of 256 single examples.

  Layouts of jdp stand beside what `train` does where nobody chooses. It is called in a binary, or a
  script that calls `use_all_cores` first, and in a bare script that does not. Layouts are compiled
  as a block of rounds. The share that a choice has of a layout's rate is the median over the turns,
  with an interval of 95 %. Its share of the best is the least of them: noise makes it smaller.

  `--baseline=CHECKOUT` compares this checkout with another one instead, case by case.
  """
  peers = {
    "federated": {"pfl_research": ("pfl_research.py", pfl_python)},
    "example": {
      "opacus_ghost": ("with_opacus.py", opacus_python),
      "jax_privacy_sgd": ("with_jax_privacy.py", jax_privacy_python),
    },
  }
  for task in tasks:
    for model in models:
      layouts = _layouts(model)
      if baseline:
        commands = {
          _name(layout, devices): harness.Command(
            ("jdp_rounds.py", task, model, layout), devices, case=layout
          )
          for devices in layouts
          for layout in layouts[1]
        }
        yield from harness.before_and_after(
          f"{task}, {model}", _UNITS[task], commands, baseline, rounds
        )
        continue
      cases = {
        peer: harness.Command((script, task, model), python=python)
        for peer, (script, python) in peers[task].items()
        if python
      }
      cases |= _jdp_cases(task, model, layouts)
      turns = harness.take_turns(cases, rounds)
      row = harness.comparison(f"{task}, {model}", _UNITS[task], harness.summary(turns, cases))
      yield row | {"shares": _shares(turns, layouts)}


def _layouts(model: str) -> dict[int, list[str]]:
  """The layouts by the number of devices: few on one device, and all on all cores.

  Ghost norms are for dense layers, and the CNN has others.
  """
  kinds = ("0",) if model == "cnn" else ("0", "1")
  return {1: list(kinds), _CORES: [kind + n for kind in kinds for n in ("", *_CHUNKS[kind])]}


def _name(layout: str, devices: int) -> str:
  ghost, _, size = layout.partition(":")
  return (
    f"jdp{', ghost norms' if ghost == '1' else ''}, {devices} device{'s' if devices > 1 else ''}"
    f"{f', chunks of {size}' if size else ''}"
  )


def _jdp_cases(
  task: str, model: str, layouts: Mapping[int, list[str]]
) -> dict[str, harness.Command]:
  """All of jdp's cases by name, in two processes."""
  commands = {
    devices: harness.Command(
      ("jdp_rounds.py", task, model, *own, "train", *(["cores"] if devices > 1 else [])), None
    )
    for devices, own in layouts.items()
  }
  cases = {
    _name(layout, devices): commands[devices]._replace(case=layout)
    for devices, own in layouts.items()
    for layout in own
  }
  trained = [command._replace(case="train") for command in commands.values()]
  return cases | {_BINARY: trained[-1], _SCRIPT: trained[0]}


def _shares(
  turns: Sequence[Mapping[str, harness.Turn]], layouts: Mapping[int, list[str]]
) -> dict[str, Row]:
  """The shares that the binary and the script have of the best layout's rate.

  Processor time is compared where as many devices share the work.
  """
  names = {n: [_name(layout, n) for layout in own] for n, own in layouts.items()}
  anywhere = sorted({name for own in names.values() for name in own})
  return {
    choice: {
      "wall": share(turns, choice, anywhere, "wall"),
      "cpu": share(turns, choice, names[devices], "cpu"),
    }
    for choice, devices in ((_BINARY, _CORES), (_SCRIPT, 1))
  }


def share(
  turns: Sequence[Mapping[str, harness.Turn]], choice: str, layouts: Sequence[str], measure: str
) -> Row:
  """The choice's share of the best layout's rate.

  Args:
    turns: a `Turn` for each case by name.
    choice: a case.
    layouts: the cases to compare it with.
    measure: "wall" or "cpu".

  Returns:
    The "median" of the ratios to the layout for which it is the least, the "low" and the "high" end
    of its interval of 95 %, and the name of that layout, "best".
  """
  rate = _BY_TIME[measure]
  ratios = {
    layout: sorted(rate(turn[choice]) / rate(turn[layout]) for turn in turns) for layout in layouts
  }
  best = min(ratios, key=lambda layout: statistics.median(ratios[layout]))
  own = ratios[best]
  # Fewer than `tail` of the ratios lie below the median with a probability of at most 2.5 %.
  tail = max(0, int(stats.binom.ppf(0.025, len(own), 0.5)) - 1)
  return {"median": statistics.median(own), "low": own[tail], "high": own[-1 - tail], "best": best}


_LABELS = {"logistic": "logistic, 7,850 weights", "cnn": "CNN, 26,010 weights"}
_POPULATION = 60_000


def _plot_cohort_sizes(rows: Sequence[Row], path: str) -> None:
  """Draws time and memory against the size of the cohort."""
  made, (seconds, memory) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
  for model, marker in zip(_LABELS, "os", strict=True):
    own = [row for row in rows if (row["model"], row["title"]) == (model, "size")]
    own.sort(key=lambda row: row["clients"])
    sizes = [row["clients"] for row in own]
    seconds.plot(sizes, [row["seconds"] for row in own], marker=marker, label=_LABELS[model])
    beyond = [row["peak_mib"] - row["resident_mib"] for row in own]
    memory.plot(sizes, beyond, marker=marker, label=_LABELS[model])
  seconds.set(xscale="log", yscale="log", ylabel="seconds of a round")
  memory.set(xscale="log", ylim=(0, None), ylabel="MiB that rounds take")
  for axes in (seconds, memory):
    axes.set(xlabel="clients of a round")
    axes.grid(alpha=0.3)
    axes.legend()
  made.savefig(path, dpi=120)


@benchmark(
  {"models": ("logistic",), "sizes": (10,), "each": 2, "rounds": 2}, plot=_plot_cohort_sizes
)
def cohort_sizes(
  models: tuple[str, ...] = tuple(_LABELS),
  sizes: tuple[int, ...] = (100, 300, 1000, 3000, 10_000, 30_000, 50_000),
  each: int = 1000,
  rounds: int = 5,
) -> Iterator[Row]:
  """Time and memory of a round against the size of its cohort, and against the number of devices.

  Rounds of DP-FedAvg take cohorts of 60,000 users with an image each, in a new process for each
  size. A round's time should grow as its cohort does, and its memory should not: that is the
  chunk's.

  Weak scaling gives every device `each` clients: to one, to all cores, to eight simulated devices,
  and to two processes. What the machine has two of, eight devices share.

  Rounds take `peak_mib` - `resident_mib` beyond what was there after compiling, the users' data
  included.
  """
  cases = [("size", size, _CORES, 1) for size in sizes]
  ways = ((1, 1), (_CORES, 1), (8, 1), (1, 2)) if each else ()
  cases += [("weak scaling", each * d * p, d, p) for d, p in ways]
  for model in models:
    for title, clients, devices, processes in cases:
      port = _free_port() if processes > 1 else 0
      calls = [(model, clients, rounds, port, processes, number) for number in range(processes)]
      found = harness.together(cohort_rounds, calls, devices=devices)
      yield {
        "title": title,
        "model": model,
        "clients": clients,
        "devices": devices,
        "processes": processes,
        "seconds": max(own["seconds"] for own in found),
        "cpu_seconds": sum(own["cpu_seconds"] for own in found),
        "resident_mib": max(own["resident_mib"] for own in found),
        "peak_mib": max(own["peak_mib"] for own in found),
      }


def cohort_rounds(
  model: str, clients: int, rounds: int, port: int, processes: int, number: int
) -> dict[str, float]:
  """Medians of some rounds in this process, one of those that compute each round together."""
  if port:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"localhost:{port}", processes, number)
  mesh = client_mesh() if jax.device_count() > 1 else None
  network = jdp_rounds.model_of(model)
  loss, users = models.cross_entropy(network), jdp_rounds.clients_of("example", _POPULATION)
  made = jdp_rounds.algorithm("example", loss, {"mesh": mesh}, size=clients, population=_POPULATION)
  state = made.init(network.init(jax.random.key(2)))
  users, keys = jax.tree.map(jnp.asarray, users), (random.seeded_key(0), jax.random.key(1))
  *keys, state, users = jax.block_until_ready(replicate((*keys, state, users), mesh))
  step = jax.jit(made.round).lower(*keys, state, users).compile()
  gc.collect()
  before = _memory("VmRSS")
  pathlib.Path("/proc/self/clear_refs").write_text("5")  # The peak is that of rounds alone.
  seconds, cpu = [], []
  for _ in range(1 + rounds):
    start, used = time.perf_counter(), time.process_time()
    state, *_ = jax.block_until_ready(step(*keys, state, users))
    seconds.append(time.perf_counter() - start)
    cpu.append(time.process_time() - used)
  return {
    "seconds": statistics.median(seconds[1:]),  # The first one touches its memory.
    "cpu_seconds": statistics.median(cpu[1:]),
    "resident_mib": before,
    "peak_mib": _memory("VmHWM"),
  }


def _memory(field: str) -> float:
  """MiB of this process that lie in memory: now (VmRSS), or at most since the peak was reset."""
  lines = pathlib.Path("/proc/self/status").read_text().splitlines()
  return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def _free_port() -> int:
  with socket.socket() as found:
    found.bind(("localhost", 0))
    return found.getsockname()[1]


@benchmark({"cohort_size": 8, "chunk_sizes": (4,)})
def federated_round(
  cohort_size: int = 500, chunk_sizes: tuple[int, ...] = (1, 8, 16, 64, 256), rounds: int = 7
) -> Iterator[Row]:
  """Clients per second of a round of logistic regression, and what local privacy costs.

  The first case is the naive vmap: all clients of the cohort side by side, then one sum. All cases
  do the same work with the same keys. Their results agree up to the order of summation.
  """
  users, rng = 2000, np.random.default_rng(0)
  clients = jax.tree.map(jnp.asarray, jdp_rounds.clients_of("federated", users))
  model = models.logistic_regression(serve.SHAPE, serve.CLASSES)
  params = model.init(random.seeded_key(0))
  dim = sum(x.size for x in jax.tree.leaves(params))
  chosen = jnp.asarray(rng.choice(users, cohort_size, replace=False), jnp.int32)
  weights, count = jnp.ones(cohort_size), jnp.int32(cohort_size)
  sample = sampling.Sample(chosen, weights, count, users)
  query = queries.gaussian_sum(clip_norm=1.0, stddev=1.0)
  state = query.init(jnp.zeros(dim))
  update = gradient_step(models.cross_entropy(model), learning_rate=0.1)
  # Only the time of a release matters here, not its error.
  local = mechanisms.separated(mechanisms.priv_unit(dim, 32.0), mechanisms.scalar_dp(10.0, 1.0))
  keys = {"ChaCha20": random.seeded_key(1), "threefry": jax.random.key(1)}
  releases: dict[str, Callable[..., jax.Array]] = {
    "central privacy": lambda key, vector: vector,
    "local + central privacy": local.privatize,
  }
  for title, release in releases.items():

    def client_fn(key, params, client, weight, release=release):
      mechanism_key, query_key = jax.random.split(key)
      vector = release(mechanism_key, ravel_pytree(update(key, params, client))[0])
      return query.preprocess(query_key, state, vector, weight)

    ways = {"naive vmap": _naive_sum}
    ways |= {f"chunks of {n}": partial(cohort_sum, chunk_size=n) for n in chunk_sizes}
    cases = {
      f"{way}, {generator}": compiled(
        partial(total, client_fn), key, params, sample, clients, work=cohort_size
      )
      for generator, key in keys.items()
      for way, total in ways.items()
    }
    title = f"{title}: {cohort_size} clients of {serve.USUAL.examples} examples, {dim} weights"
    yield compared(title, "clients", cases, rounds)


def _naive_sum(
  client_fn: Callable[..., jax.Array],
  key: jax.Array,
  params: PyTree,
  sample: sampling.Sample,
  clients: data.Examples,
) -> jax.Array:
  chosen = transforms.members(sample, clients)
  keys = jax.vmap(jax.random.fold_in, (None, 0))(key, sample.indices)
  return jnp.sum(jax.vmap(client_fn, (0, None, 0, 0))(keys, params, chosen, sample.weights), axis=0)


_FEATURES, _CLASSES, _EXAMPLES, _USERS, _INSTANCES = 784, 10, 10, 6000, 20
_RATE, _EPSILON = 0.1, 1.0


@benchmark({"updates": 100})
def draw_and_discard(updates: int = 4096, rounds: int = 7) -> Iterator[Row]:
  """Updates per second of Draw and Discard.

  The model is multinomial regression with 784 features and 10 classes. Each update has 10 examples
  and Laplace noise. The first case is a numpy loop written directly from the paper.
  """
  rng = np.random.default_rng(0)
  inputs = rng.random((_USERS, _EXAMPLES, _FEATURES), np.float32)
  labels = rng.integers(0, _CLASSES, (_USERS, _EXAMPLES))
  mask = jnp.ones(labels.shape)
  clients = data.Examples(jnp.asarray(inputs), jnp.asarray(labels, jnp.int32), mask)
  users = jnp.arange(updates, dtype=jnp.int32) % _USERS
  gradient = glm("multinomial", (_FEATURES,), _CLASSES).gradient

  def case(update: ClientUpdate, key: jax.Array, in_flight: int = 0) -> Case:
    process = draw_and_discard_process(update, _INSTANCES, in_flight=in_flight)
    params, noise_key = jnp.zeros((_CLASSES, _FEATURES)), jax.random.key(1)
    start = process.init(spread_instances(noise_key, params, _INSTANCES, update.noise_variance))
    coming = arrivals(users, _USERS)
    return compiled(process.run, key, start, coming, clients, update.settings, work=updates)

  laplace, threefry = laplace_update(gradient, _EPSILON, _RATE), jax.random.key(0)
  # The numpy loop is slow; its rate does not depend on the number of updates.
  few = max(1, updates // 4)
  cases = {
    "numpy loop": Case(partial(_numpy_loop, inputs.astype(np.float64), labels, few), few),
    "jdp, threefry": case(laplace, threefry),
    "jdp, ChaCha8": case(laplace, random.seeded_key(0, "chacha8")),
    "jdp, ChaCha20": case(laplace, random.seeded_key(0)),
    "jdp, threefry, 100 clients at once": case(laplace, threefry, in_flight=100),
    "jdp, without noise": case(exact_update(gradient, _RATE), threefry),
  }
  title = (
    f"{_FEATURES} x {_CLASSES} weights, {_EXAMPLES} examples, Laplace noise, {_INSTANCES} instances"
  )
  yield compared(title, "updates", cases, rounds)


def _numpy_loop(inputs: np.ndarray, labels: np.ndarray, count: int) -> np.ndarray:
  rng = np.random.default_rng(0)
  instances, one_hot = np.zeros((_INSTANCES, _FEATURES, _CLASSES)), np.eye(_CLASSES)
  for t in range(count):
    theta, x = instances[rng.integers(_INSTANCES)], inputs[t % _USERS]
    scores = x @ theta
    chances = np.exp(scores - scores.max(axis=1, keepdims=True))
    chances /= chances.sum(axis=1, keepdims=True)
    gradient = np.clip(x.T @ (chances - one_hot[labels[t % _USERS]]) / _EXAMPLES, -1, 1)
    noise = rng.laplace(scale=2 * _RATE / _EPSILON, size=theta.shape)
    instances[rng.integers(_INSTANCES)] = theta - _RATE * gradient + noise
  return instances


@benchmark()
def imports(
  opacus_python: str = "", jax_privacy_python: str = "", rounds: int = 7
) -> Iterator[Row]:
  """Seconds of an import in a new process, beside those of `import jax`."""
  statements = {
    "jax": (sys.executable, "import jax"),
    "jdp": (sys.executable, "import jdp"),
    "jdp, with mechanisms and accounting": (
      sys.executable, "from jdp import mechanisms, accounting",
    ),
    "jdp, with all that trains a model": (
      sys.executable, "from jdp import accounting, data, federated, models",
    ),
    "jax_privacy": (jax_privacy_python, "import jax_privacy"),
    "opacus": (opacus_python, "import opacus"),
  }  # fmt: skip
  cases = {
    name: Case(partial(subprocess.run, [python, "-c", statement], check=True), 1.0)
    for name, (python, statement) in statements.items()
    if python
  }
  yield compared("import", "imports", cases, rounds)
