"""Clients' gradients by model and by layer, beside what the machine and privacy allow."""

import os
import statistics
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from experiments.benchmarks import harness
from experiments.benchmarks.harness import Case, Row, benchmark, compared, compiled
from experiments.benchmarks.peers import jdp_layers, jdp_rounds
from experiments.runner.options import needed
from experiments.runner.reports.tables import table
from jdp import federated, models
from jdp.data import Examples
from jdp.federated.engine.client import ClientKeys
from jdp.federated.engine.ghost_norms import ghost_client, gradient_forms
from jdp.mechanisms import priv_unit, scalar_dp, separated
from jdp.models.language.recurrent import LanguageModel, embedded, recurrence
from jdp.models.language.word_losses import cross_entropies, weighted_cross_entropy
from jdp.numerics import vectors
from jdp.queries.base import PyTree

Run = tuple[Callable[..., PyTree], tuple[PyTree, ...]]
"""A function and its arguments."""
_CLIP_NORM = 15.0


def _clip(update: PyTree) -> PyTree:
  """A client's projection."""
  return vectors.clip(update, _CLIP_NORM)


def _limit(multiplications: float) -> dict[str, Case]:
  """One large product, as work of which a unit takes so many multiplications."""
  size = 1024
  square = jnp.ones((size, size))
  work = size**3 / multiplications
  return {"products at the machine's limit": compiled(jnp.matmul, square, square, work=work)}


_SEQUENCES, _STEPS, _BATCHES = 8, 10, 20
_TOKENS = _SEQUENCES * _STEPS


@benchmark({"words": 20, "clients": 2})
def language_model(words: int = 10_003, clients: int = 256, rounds: int = 7) -> Iterator[Row]:
  """Tokens per second of the language model's gradient and its parts, beside the machine's limit.

  A client's local batch has 8 sequences of 10 tokens, with 10,003 words. The first case is one
  large float32 matrix product. It is counted as the tokens whose forward and backward products have
  as many operations, which no implementation exceeds.

  Then it states the memory that the compiled local training of so many `clients` of 1,600 tokens
  side by side needs beside its arguments, by its own analysis.
  """
  title, model = f"language model, {words} words", models.language_model(words)
  loss = models.next_word_loss(model)
  updates = {
    "FedAvg client": federated.local_sgd(loss, 6.0, batch_size=_SEQUENCES),
    "FedSGD client": federated.gradient_step(loss, 6.0),
  }
  memory = {
    name: _held(update, jax.eval_shape(model.init, jax.random.key(0)), words, clients)
    for name, update in updates.items()
  }
  yield compared(title, "tokens", _tokens(model, loss, updates, words), rounds)
  yield {"title": title, "clients": clients, "memory": memory}


def _held(update: federated.LocalUpdate, params: PyTree, words: int, count: int) -> int:
  """The bytes that the sum of clients' clipped updates needs beside its arguments."""
  shapes = jax.eval_shape(lambda: _client(jax.random.key(0), words))
  clients = jax.tree.map(lambda x: jax.ShapeDtypeStruct((count, *x.shape), x.dtype), shapes)
  keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), count))

  def total(keys, params, clients):
    updates = jax.vmap(lambda key, client: update(key, params, client, _clip))(keys, clients)
    return jax.tree.map(lambda x: jnp.sum(x, axis=0), updates)

  return _temporary(jax.jit(total).lower(keys, params, clients).compile())


def _temporary(program: jax.stages.Compiled) -> int:
  """The bytes that a compiled program needs beside its arguments, by its own analysis."""
  return needed(program.memory_analysis()).temp_size_in_bytes


def _tokens(
  model: LanguageModel, loss: models.Loss, updates: Mapping[str, federated.LocalUpdate], words: int
) -> dict[str, Case]:
  keys = jax.random.split(jax.random.key(0), 4)
  params = model.init(keys[0])
  embedding, bias = params["words"]["embedding"], params["output"]["bias"]
  client = _client(keys[1], words)
  batch = jax.tree.map(lambda x: x[:_SEQUENCES], client)
  outputs = jax.random.normal(keys[2], (_TOKENS, embedding.shape[1]))
  errors = jax.random.normal(keys[3], (_TOKENS, words))
  labels, read_words = batch.labels.reshape(-1), embedding[batch.inputs]
  release = separated(priv_unit(_size(params), 500.0), scalar_dp(10.0, _CLIP_NORM))
  case = partial(compiled, work=_TOKENS)
  of_client = partial(compiled, work=_TOKENS * _BATCHES)

  def softmax(outputs, embedding, bias):
    weights = jnp.full(_TOKENS, 1 / _TOKENS)
    return weighted_cross_entropy(outputs, embedding, bias, labels, weights, at_once=_TOKENS)

  def read(params, inputs):
    return jnp.sum(recurrence(params["lstm"], inputs))

  def step(difference, gradient):
    return _clip(jax.tree.map(lambda d, g: d - 6.0 * g, difference, gradient))

  def norms(embedding, gradient, error):
    return jax.vjp(lambda e: embedded(e, batch.inputs), embedding)[1]((gradient, error))

  # Every weight of a matrix takes three products per token: one forward, two backward.
  matrices = [leaf for leaf in jax.tree.leaves(params) if leaf.ndim == 2]
  return {
    **_limit(3 * _size(matrices)),
    "gradient of a local batch": case(jax.grad(loss), params, batch),
    "- its loss alone": case(loss, params, batch),
    "- softmax and its gradient": case(jax.grad(softmax, (0, 1, 2)), outputs, embedding, bias),
    "-- its three products": case(
      lambda o, t, e: (o @ t.T, e @ t, e.T @ o), outputs, embedding, errors
    ),
    "- LSTM and its gradient": case(jax.grad(read, (0, 1)), params, read_words),
    "- norm 1 of all words and its gradient": case(norms, embedding, embedding, read_words),
    "local step and projection": case(step, params, params),
    **{
      name: of_client(lambda p, c, u=update: u(jax.random.key(1), p, c, _clip), params, client)
      for name, update in updates.items()
    },
    "release of a client's update by PrivUnit": of_client(
      release.privatize, jax.random.key(2), ravel_pytree(params)[0]
    ),
  }


def _client(key: jax.Array, words: int) -> Examples:
  tokens = jax.random.randint(key, (2, _BATCHES * _SEQUENCES, _STEPS), 3, words)
  return Examples(tokens[0], tokens[1], jnp.ones(_BATCHES * _SEQUENCES))


def _size(tree: PyTree) -> int:
  return sum(leaf.size for leaf in jax.tree.leaves(tree))


_IMAGES = 10
# Of an image: rows, inner size and columns of each layer's product.
_LAYERS = ((14 * 14, 8 * 8, 16), (5 * 5, 4 * 4 * 16, 32), (1, 4 * 4 * 32, 32), (1, 32, 10))


class _Plain(nn.Module):
  """The network of `small_cnn`, by XLA's convolutions and pooling windows."""

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    x = nn.relu(nn.Conv(16, (8, 8), 2, "SAME", name="Conv_0")(x))
    x = nn.relu(nn.Conv(32, (4, 4), 2, "VALID", name="Conv_1")(nn.max_pool(x, (2, 2))))
    x = nn.relu(nn.Dense(32)(nn.max_pool(x, (2, 2)).reshape(x.shape[0], -1)))
    return nn.Dense(10)(x)


@benchmark({"clients": 2})
def cnn_clients(clients: int = 50, rounds: int = 7) -> Iterator[Row]:
  """Clients per second of the small CNN's local gradient and its parts, beside two limits.

  A client has 10 images of 28 x 28. The first case is one large float32 matrix product, counted as
  the clients whose forward and backward products have as many operations. No implementation exceeds
  it. The other limit is XLA's own convolution of many images at once, by weights that they share. A
  step without privacy could use it, and no client's clipped gradient can.
  """
  keys = jax.random.split(jax.random.key(0), 3)
  model = models.small_cnn((28, 28), 10)
  params, loss = model.init(keys[0]), models.cross_entropy(model)
  shape = (clients, _IMAGES)
  labels = jax.random.randint(keys[1], shape, 0, 10)
  users = Examples(jax.random.normal(keys[1], (*shape, 28, 28)), labels, jnp.ones(shape))
  together = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), users)
  update = federated.gradient_step(loss, 0.1)
  case = partial(compiled, work=clients)

  def clipped(params, client):
    return update(keys[2], params, client, lambda tree: vectors.clip(tree, 0.5))

  def plain(params, examples):
    logits: PyTree = _Plain().apply({"params": params}, examples.inputs[..., None])
    return jnp.sum(jax.nn.log_softmax(logits)[jnp.arange(len(logits)), examples.labels])

  # No derivative by the images is needed.
  forward = [rows * inner * columns for rows, inner, columns in _LAYERS]
  cases = {
    **_limit(_IMAGES * (3 * sum(forward) - forward[0])),
    "clients' clipped gradients": case(_one_by_one(clipped), params, users),
    "- gradients alone": case(_one_by_one(jax.grad(loss)), params, users),
    "-- losses alone": case(_one_by_one(loss), params, users),
    "-- products alone": case(_one_by_one(_products), *_factors(keys[2], clients)),
    "gradients by XLA's convolutions": case(_one_by_one(jax.grad(plain)), params, users),
    "one gradient of all images, the same": case(jax.grad(plain), params, together),
  }
  yield compared("CNN clients", "clients", cases, rounds)


def _one_by_one(function: Callable[..., PyTree]) -> Callable[..., jax.Array]:
  """Calls a function of (what all share, a client) for each client, and uses all it returns."""

  def run(shared, clients):
    def step(used, client):
      results = jax.tree.leaves(jax.lax.optimization_barrier(function(shared, client)))
      return used + sum(x.ravel()[0] for x in results), None

    return jax.lax.scan(step, jnp.zeros(()), clients)[0]

  return run


def _products(weights: PyTree, client: PyTree) -> PyTree:
  """Each layer's product, and its derivatives by weights and (but of the images) by data."""
  data, by_results = client
  forward = [x @ w for x, w in zip(data, weights, strict=True)]
  by_weights = [x.T @ y for x, y in zip(data, by_results, strict=True)]
  by_data = [y @ w.T for y, w in zip(by_results[1:], weights[1:], strict=True)]
  return forward, by_weights, by_data


def _factors(key: jax.Array, count: int) -> tuple[PyTree, PyTree]:
  """The weights, and each client's data and derivatives by the products' results."""

  def matrices(*sizes):
    return [jax.random.normal(key, shape) for shape in zip(*sizes, strict=True)]

  rows, inner, columns = zip(*_LAYERS, strict=True)
  clients, all_rows = [count] * len(rows), [_IMAGES * n for n in rows]
  data, by_results = (matrices(clients, all_rows, sizes) for sizes in (inner, columns))
  return matrices(inner, columns), (data, by_results)


_WORDS, _LENGTH = 1000, 32
_PLAIN = "not private"


def _ghost_table(rows: Sequence[Row]) -> str:
  """The tables of the README: layers, and steps."""
  layers: dict[str, dict[str, Row]] = {}
  for row in rows:
    if "layer" in row:
      layers.setdefault(row["layer"], {})[row["case"]] = row
  head = (
    "layer", "norm", "sum", "time over vmap", "memory over vmap", "time over a plain gradient",
    "rate over Opacus's", "memory over Opacus's",
  )  # fmt: skip
  lines = []
  for name, cases in layers.items():
    ghost, plain, opacus = cases["ghost norms"], cases[_PLAIN], cases.get("Opacus")
    lines.append(
      (
        name,
        f"{ghost['norm_above_exact']:.1e}",
        f"{ghost['sum_error']:.1e}",
        f"{ghost['time']:.2f}",
        f"{ghost['memory']:.2f}",
        f"{ghost['cpu_ms'] / plain['cpu_ms']:.1f}",
        f"{opacus['cpu_ms'] / ghost['cpu_ms']:.1f}" if opacus else "it has none",
        f"{ghost['MiB'] / opacus['MiB']:.2f}" if opacus else "",
      )
    )
  steps = [
    (row["step"], row["case"], f"{row['time']:.2f}", f"{row['memory']:.2f}")
    for row in rows
    if "step" in row and row["case"] != _PLAIN
  ]
  return f"{table(head, lines)}\n\n{table(('round', 'layout', 'time', 'memory'), steps)}"


@benchmark({"clients": 4, "only": "dense 784", "tables": ("layers",)}, table=_ghost_table)
def ghost_norms(
  clients: int = 32,
  tables: tuple[str, ...] = ("layers", "steps"),
  only: str = "",
  opacus_python: str = "",
  rounds: int = 7,
) -> Iterator[Row]:
  """Ghost norms layer by layer, and the steps of a transformer with and without privacy.

  A layer's rows say how exact ghost norms are, and what the clipped sum of a chunk of clients
  takes, beside gradients that are made for each client (vmap), and Opacus's fast gradient clipping
  of the same layer. These cases take turns. A ratio is the median over the turns.

  A step's rows compare whole rounds, noise and the server's step included, with a step of SGD on
  the same examples, whose loss is one mean over all tokens. The library's own loss goes by pieces,
  so a second such step has that.

  All run on one core, and times are of processors. Memory is what the compiled program needs beside
  its arguments, by its own analysis. Opacus's is the peak that PyTorch's allocator tells. Cases
  whose names do not hold `only` are left out.
  """
  os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # Before JAX counts the cores.
  found = []
  if "layers" in tables:
    names = [name for name in jdp_layers.layers() if only in name]
    found.append(_layer_rows(names, clients, opacus_python, rounds))
  if "steps" in tables:
    found += [
      _step_rows(name, model, examples, clients, rounds)
      for name, model in _networks().items()
      for examples in (None, 4)
      if only in name
    ]
  for rows in found:
    yield from (row | {"clients": clients} for row in rows)


def _layer_rows(
  names: Collection[str], clients: int, opacus_python: str, rounds: int
) -> Iterator[Row]:
  """The rows of all these layers, whose cases take turns with Opacus's."""
  own = harness.Command(("jdp_layers.py", str(clients)))
  theirs = harness.Command(("with_opacus.py", "layers", str(clients)), python=opacus_python)
  held_there = (
    harness.peer_says("with_opacus.py", "memory", str(clients), python=opacus_python) or {}
  )
  cases = {
    f"{name}: {case}": own._replace(case=f"{name}: {case}")
    for name in names
    for case in ("vmap", "ghost norms", _PLAIN)
  }
  cases |= {f"{name}: Opacus": theirs._replace(case=name) for name in names if name in held_there}
  turns = harness.take_turns(cases, rounds)
  for name in names:
    facts, memory = _facts(name, jdp_layers.layer_of(*jdp_layers.layers()[name], clients))
    memory |= {"Opacus": held_there[name]} if name in held_there else {}
    for case, held in memory.items():
      seconds, base = (
        [_seconds(turn[f"{name}: {which}"], clients) for turn in turns] for which in (case, "vmap")
      )
      ratios = [mine / other for mine, other in zip(seconds, base, strict=True)]
      times = {"cpu_ms": 1e3 * statistics.median(seconds), "time": statistics.median(ratios)}
      yield facts | {"case": case} | times | _memory(held, memory["vmap"])


def _memory(held: int, base: int) -> Row:
  return {"MiB": held / 2**20, "memory": held / base}


def _seconds(turn: harness.Turn, clients: int) -> float:
  """The processor time of one sum."""
  assert turn.cpu is not None
  return clients * turn.cpu / turn.work


def _facts(name: str, layer: jdp_layers.Layer) -> tuple[Row, dict[str, int]]:
  """What a layer's rows have in common, and the bytes that each of its programs needs."""
  loss, params, data, cases = layer
  ghost = ghost_client(loss, 1.0)

  def norms(params, data):
    keys = ClientKeys(jax.random.key(0), jax.random.key(1))
    return jax.vmap(lambda client: ghost(keys, (params,), client)[0].norm)(data)

  programs = {case: jax.jit(run).lower(params, data).compile() for case, run in cases.items()}
  gradients = jax.jit(jax.vmap(jax.grad(loss), (None, 0)))(params, data)
  exact = [np.asarray(x, np.float64).reshape(len(data), -1) for x in jax.tree.leaves(gradients)]
  lengths = np.linalg.norm(np.concatenate(exact, axis=1), axis=1)
  ratios = np.asarray(jax.jit(norms)(params, data)) / lengths - 1
  by_vmap, by_ghost = (
    np.asarray(ravel_pytree(programs[case](params, data))[0], np.float64)
    for case in ("vmap", "ghost norms")
  )
  facts = {
    "layer": name,
    "factors": {
      form.path: form.rows for form in gradient_forms(loss, params, data[0]) if form.rows
    },
    "norm_above_exact": float(np.max(ratios)),
    "norm_below_exact": float(np.min(ratios)),
    "sum_error": float(np.linalg.norm(by_ghost - by_vmap) / np.linalg.norm(by_vmap)),
  }
  return facts, {case: _temporary(program) for case, program in programs.items()}


def _networks() -> dict[str, LanguageModel]:
  """The transformer, all of it and its adapters alone."""
  plain, adapted = (
    models.transformer(_WORDS, max_length=_LENGTH, width=128, adapter_rank=rank)
    for rank in (None, 4)
  )
  params = jax.jit(plain.init)(jax.random.key(1))
  return {
    "transformer": plain,
    "its adapters": models.train_adapters(adapted, params, jax.random.key(2)),
  }


def _step_rows(
  name: str, model: LanguageModel, examples: int | None, clients: int, rounds: int
) -> Iterator[Row]:
  """The rows of one step: of users with so many examples, or of examples (None)."""
  loss = models.next_word_loss(model)
  words = np.random.default_rng(0).integers(3, _WORDS, (clients, examples or 1, _LENGTH + 1))
  inputs, labels = (jnp.asarray(words[..., own], jnp.int32) for own in (slice(-1), slice(1, None)))
  users = Examples(inputs, labels, jnp.ones(inputs.shape[:2]))
  batch = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), users)
  params = jax.jit(model.init)(jax.random.key(1))

  def at_once(params, batch):
    losses = cross_entropies(
      model.apply(params, batch.inputs).reshape(-1, _WORDS), batch.labels.reshape(-1)
    )
    return jnp.mean(losses)

  def descend(loss, params, batch):
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params, batch))

  layouts: dict[str, federated.CohortLayout | None] = {
    "one by one": federated.CohortLayout(1),
    f"chunks of {clients}": federated.CohortLayout(clients),
    f"ghost norms, chunks of {clients}": federated.CohortLayout(clients, ghost_norms=True),
    "ghost norms, chunks of 8": federated.CohortLayout(8, ghost_norms=True),
    "by the rule": None,
  }
  cases: dict[str, Run] = {
    _PLAIN: (partial(descend, at_once), (params, batch)),
    "not private, by pieces": (partial(descend, loss), (params, batch)),
  }
  task, data = ("example", batch) if examples is None else ("federated", users)
  keys = jax.random.key(3), jax.random.key(4)
  for title, layout in layouts.items():
    options = layout._asdict() if layout else {}
    made = jdp_rounds.algorithm(task, loss, options, size=clients, population=clients)
    run = lambda *args, made=made: made.round(*args)[0]  # noqa: E731
    cases[title] = (run, (*keys, made.init(params), data))
  step = {"step": f"{name}, {examples or 'single'} examples of a client"}
  yield from (step | row for row in _measured(cases, clients, rounds))


def _measured(cases: Mapping[str, Run], clients: int, rounds: int) -> Iterator[Row]:
  """A row for each case: its time and memory, and their ratios to the first one's."""
  timed, memory = {}, {}
  for name, (run, args) in cases.items():
    program = jax.jit(run).lower(*args).compile()
    memory[name], timed[name] = _temporary(program), Case(partial(program, *args), clients)
  timings = harness.compare(timed, rounds)
  first = needed(timings[0].cpu_seconds)
  for timing in timings:
    used = needed(timing.cpu_seconds)
    yield {
      "case": timing.name,
      "ms": 1e3 * timing.seconds,
      "cpu_ms": 1e3 * used,
      "time": used / first,
      **_memory(memory[timing.name], memory[_PLAIN]),
    }
