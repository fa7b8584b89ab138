"""Implementations that are broken on purpose, each in one part, for the kit to find.

They are written in NumPy, as small as the fault allows. Beside each stands what is right, so that
the kit is seen to pass that too.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from experiments.conformance.adapters.wrapping import (
  noise_covariance,
  toeplitz_matrix,
  unsampled_replace_one,
)
from jdp import accounting, events
from jdp.conformance import (
  Accountant,
  Aggregate,
  Calibration,
  Clip,
  MatrixStrategy,
  Noise,
  Sampling,
)
from jdp.conformance.protocol import Part, Plan, add_remove_ledger
from jdp.guarantees import Relation
from jdp.matrix_factorization import banded_toeplitz

_ROUNDS, _SIZE, _STDDEV, _DEVICES = 3, 4096, 2.0, 4
_POPULATION, _RATE = 12, 0.25
_LEAVES = ("leaf a", "leaf b")
_CLIP_NORM = 1.0


class Fault(NamedTuple):
  """A fault, and the same part without it.

  Attributes:
    broken: the part with the fault.
    sound: the part as it should be; the kit must pass it.
  """

  broken: Part
  sound: Part


def faults() -> dict[str, Fault]:
  """All faults by name."""
  return {**_of_sums(), **_of_noise(), **_of_sampling(), **_of_accounting(), **_of_strategies()}


def _clip(record: np.ndarray) -> np.ndarray:
  """The record within the clip norm, zero where it is not finite."""
  record = record.astype(np.float64)
  norm = np.linalg.norm(record)
  return record / max(1.0, norm / _CLIP_NORM) if np.isfinite(norm) else np.zeros(record.shape)


def _careless_clip(record: np.ndarray) -> np.ndarray:
  """min(1, NaN) is 1 in Python."""
  return record * min(1.0, _CLIP_NORM / max(float(np.linalg.norm(record)), 1e-30))


def _clip_by_layer(record: np.ndarray) -> np.ndarray:
  """Each half within the whole clip norm."""
  return np.concatenate([_clip(half) for half in np.split(record, 2)])


def _clip_at_half_precision(record: np.ndarray) -> np.ndarray:
  """The norm is computed in float16: one of 1.0003 is 1 there."""
  with np.errstate(all="ignore"):
    half = record.astype(np.float16)
    norm = np.sqrt(np.sum(half * half, dtype=np.float16))
    return np.nan_to_num(record / np.maximum(np.float32(norm), np.float32(_CLIP_NORM)), posinf=0)


def _clip_in_place(record: np.ndarray) -> np.ndarray:
  record[:] = _clip(record)
  return record


def _clipped(records: np.ndarray) -> np.ndarray:
  return np.stack([_clip(record) for record in records]) if len(records) else 1.0 * records


def _of_sums() -> dict[str, Fault]:
  def total(records: np.ndarray) -> np.ndarray:
    return _clipped(records).sum(axis=0)

  def mean(records: np.ndarray) -> np.ndarray:
    return total(records) / 4

  def realised_mean(records: np.ndarray) -> np.ndarray:
    return total(records) / max(len(records), 1)

  def microbatch_means(records: np.ndarray) -> np.ndarray:
    batches = np.array_split(np.nan_to_num(records), max(len(records) // 2, 1))
    means = [_clip(batch.mean(axis=0)) for batch in batches if len(batch)]
    return np.sum(means, axis=0) if means else np.zeros(records.shape[1])

  def running(records: np.ndarray) -> np.ndarray:
    start = np.zeros((1, records.shape[1]), np.float32)
    return np.cumsum(np.concatenate([start, _clipped(records).astype(np.float32)]), axis=0)[-1]

  def padded(records: np.ndarray) -> np.ndarray:
    # Batches of four, whose last one is filled up with the last record.
    missing = -len(records) % 4
    return total(np.concatenate([records, np.repeat(records[-1:], missing, axis=0)]))

  def direction(records: np.ndarray) -> np.ndarray:
    found = total(records)
    return found / max(float(np.linalg.norm(found)), 1e-6)

  def aggregate(
    apply: Callable[[np.ndarray], np.ndarray],
    sensitivity: float = _CLIP_NORM,
    relation: Relation = Relation.ADD_REMOVE,
    takes_thousands: bool = False,
  ) -> Aggregate:
    call = f"{apply.__name__}, {relation.label}"
    return Aggregate(call, apply, sensitivity, relation, takes_thousands=takes_thousands)

  replaced, share = Relation.REPLACE_ONE, _CLIP_NORM / 4
  return {
    "a record of NaN passes the clipping": Fault(
      Clip("min(1, S / norm)", _careless_clip, _CLIP_NORM), Clip("clip", _clip, _CLIP_NORM)
    ),
    "each layer is clipped to the bound of all": Fault(
      Clip("clip by layer", _clip_by_layer, _CLIP_NORM),
      Clip("clip by layer", _clip_by_layer, math.sqrt(2) * _CLIP_NORM),
    ),
    "norms are computed in float16": Fault(
      Clip("float16 norm", _clip_at_half_precision, _CLIP_NORM), Clip("clip", _clip, _CLIP_NORM)
    ),
    "records are clipped in place": Fault(
      Clip("x[:] = clip(x)", _clip_in_place, _CLIP_NORM), Clip("clip", _clip, _CLIP_NORM)
    ),
    "replace-one sensitivity is off by 2": Fault(
      aggregate(total, relation=replaced), aggregate(total, 2 * _CLIP_NORM, replaced)
    ),
    "the sensitivity of a mean is stated of a sum": Fault(
      aggregate(total, share), aggregate(mean, share)
    ),
    "the sum is divided by the realised batch size": Fault(
      aggregate(realised_mean, share), aggregate(mean, share)
    ),
    "a sample is cut into microbatches": Fault(aggregate(microbatch_means), aggregate(total)),
    "the last batch is filled up with its last record": Fault(aggregate(padded), aggregate(total)),
    "the sum is scaled to norm 1": Fault(aggregate(direction), aggregate(total)),
    "a running float32 sum": Fault(
      aggregate(running, takes_thousands=True), aggregate(total, takes_thousands=True)
    ),
  }


def _of_noise() -> dict[str, Fault]:
  def fresh(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, _STDDEV, (_ROUNDS, 2, _SIZE))

  def one_key_for_leaves(seed: int) -> np.ndarray:
    return np.repeat(fresh(seed)[:, :1], 2, axis=1)

  def one_key_for_rounds(seed: int) -> np.ndarray:
    return np.repeat(fresh(seed)[:1], _ROUNDS, axis=0)

  def fixed_seed(seed: int) -> np.ndarray:
    del seed
    return fresh(0)

  def key_restarts(seed: int) -> np.ndarray:
    return np.concatenate([fresh(seed)[:2], fresh(seed)[:1]])

  def per_device(seed: int) -> np.ndarray:
    return sum(fresh(_DEVICES * seed + i) for i in range(_DEVICES))  # type: ignore[return-value]

  def same_on_devices(seed: int) -> np.ndarray:
    return np.tile(fresh(seed)[:, :, : _SIZE // 2], 2)

  def of_mean(seed: int) -> np.ndarray:
    return fresh(seed) / 4

  def of_sum(seed: int) -> np.ndarray:
    return 4 * fresh(seed)

  def uniform(seed: int) -> np.ndarray:
    edge = math.sqrt(3) * _STDDEV
    return np.random.default_rng(seed).uniform(-edge, edge, (_ROUNDS, 2, _SIZE))

  def cut_off(seed: int) -> np.ndarray:
    return np.clip(fresh(seed), -3 * _STDDEV, 3 * _STDDEV)

  def from_one_stream(begin: int) -> np.ndarray:
    stream = np.random.default_rng(0).normal(0, _STDDEV, 8 * _ROUNDS * _SIZE)
    return stream[begin : begin + 2 * _ROUNDS * _SIZE].reshape(_ROUNDS, 2, _SIZE)

  def overlapping(seed: int) -> np.ndarray:
    # A leaf's numbers begin where another one's are only half used up.
    stream = np.random.default_rng(seed).normal(0, _STDDEV, (_ROUNDS, 2 * _SIZE))
    return np.stack([stream[:, :_SIZE], stream[:, _SIZE // 4 : _SIZE // 4 + _SIZE]], axis=1)

  def noise(draw: Callable[[int], np.ndarray], **options: Callable[[int], np.ndarray]) -> Noise:
    return Noise(draw.__name__, draw, _LEAVES, _STDDEV**2 * np.eye(_ROUNDS), **options)

  right = noise(fresh, resumed=fresh)
  broken = {
    "leaves share a key": noise(one_key_for_leaves),
    "rounds share a key": noise(one_key_for_rounds),
    "runs share a seed": noise(fixed_seed),
    "a resumed run draws its first noise again": noise(fresh, resumed=key_restarts),
    "every device adds the whole noise": noise(per_device),
    "devices draw their shards with one key": noise(same_on_devices),
    "noise is uniform, of the right deviation": noise(uniform),
    "noise is cut off at three deviations": noise(cut_off),
    "leaves draw from overlapping parts of a stream": noise(overlapping),
    "a seed is an offset into one stream": noise(from_one_stream),
    "a sum is noised as a mean": noise(of_mean),
    "a mean is noised as a sum": noise(of_sum),
  }
  return {name: Fault(part, right) for name, part in broken.items()} | {
    "correlated noise forgets its past when resumed": _of_correlated_noise()
  }


def _of_correlated_noise() -> Fault:
  matrix = toeplitz_matrix(np.array([1.0, 0.5, 0.25]), _ROUNDS)
  inverse = np.linalg.inv(matrix)

  def correlated(seed: int) -> np.ndarray:
    fresh = np.random.default_rng(seed).normal(0, _STDDEV, (_ROUNDS, 2, _SIZE))
    return np.einsum("tj,jls->tls", inverse, fresh)

  def forgotten(seed: int) -> np.ndarray:
    # The last round begins a new run of the strategy.
    return np.concatenate([correlated(seed)[:2], correlated(seed + 10**6)[:1]])

  covariance = noise_covariance(matrix, _STDDEV)
  part = Noise("C^-1 Z", correlated, _LEAVES, covariance, correlated)
  return Fault(part._replace(resumed=forgotten), part)


def _of_sampling() -> dict[str, Fault]:
  size = round(_RATE * _POPULATION)

  def poisson(seed: int, num_rounds: int) -> np.ndarray:
    return np.random.default_rng(seed).random((num_rounds, _POPULATION)) < _RATE

  def fixed(seed: int, num_rounds: int) -> np.ndarray:
    order = np.random.default_rng(seed).random((num_rounds, _POPULATION)).argsort(axis=1)
    return order < size

  def shuffled(seed: int, num_rounds: int) -> np.ndarray:
    batches = _POPULATION // size
    rng = np.random.default_rng(seed)
    epochs = [rng.permutation(_POPULATION) for _ in range(-(-num_rounds // batches))]
    order = np.stack(epochs)
    rows = [order // size == batch for batch in range(batches)]
    return np.stack(rows, axis=1).reshape(-1, _POPULATION)[:num_rounds]

  def clamped(seed: int, num_rounds: int) -> np.ndarray:
    # Indices past the end stand for the last record: it takes part far too often.
    drawn = np.random.default_rng(seed).random((num_rounds, 2 * _POPULATION)) < _RATE
    drawn[:, _POPULATION - 1] |= drawn[:, _POPULATION:].any(axis=1)
    return drawn[:, :_POPULATION]

  def cut_to_capacity(seed: int, num_rounds: int) -> np.ndarray:
    # Whoever is drawn beyond the sixth place of a batch is left out: one round in seventy.
    drawn = poisson(seed, num_rounds)
    return drawn & (np.cumsum(drawn, axis=1) <= 6)

  def fetched_twice(seed: int, num_rounds: int) -> np.ndarray:
    # From round 1 on, every second batch is used for two rounds.
    return poisson(seed, num_rounds)[(np.arange(num_rounds) + 1) // 2 * 2 - 1]

  def repeats(seed: int, num_rounds: int) -> np.ndarray:
    return poisson(seed, num_rounds)[np.arange(num_rounds) % (num_rounds // 2)]

  def drawn_again(seed: int, num_rounds: int) -> np.ndarray:
    drawn = poisson(seed, num_rounds)
    return np.concatenate([drawn[: num_rounds // 2], drawn[: num_rounds - num_rounds // 2]])

  def in_turn(seed: int, num_rounds: int) -> np.ndarray:
    order = np.random.default_rng(seed).permutation(_POPULATION) % 4
    return order[None] == (np.arange(num_rounds) % 4)[:, None]

  right = Sampling("poisson", poisson, events.PoissonSampling(_RATE))
  law = events.MinSeparationSampling(4, 2**20, _POPULATION)

  def called_poisson(draw: Callable[[int, int], np.ndarray]) -> Fault:
    return Fault(right._replace(call=draw.__name__, draw=draw), right)

  return {
    "fixed batches are called Poisson": called_poisson(fixed),
    "a shuffled epoch is called Poisson": called_poisson(shuffled),
    "Poisson batches are cut to a capacity": called_poisson(cut_to_capacity),
    "a batch that was fetched early is used twice": called_poisson(fetched_twice),
    "who takes part repeats itself": called_poisson(repeats),
    "a resumed run draws its first samples again": Fault(
      right._replace(resumed=drawn_again), right._replace(resumed=poisson)
    ),
    "indices past the end stand for the last record": called_poisson(clamped),
    # A new order in each epoch: the last of one may be the first of the next.
    "epochs are shuffled anew where rounds must be apart": Fault(
      Sampling("too_close", shuffled, law), Sampling("in_turn", in_turn, law)
    ),
  }


def _of_accounting() -> dict[str, Fault]:
  def gaussian(plan: Plan, noise_multiplier: float) -> float:
    return accounting.gaussian_epsilon(noise_multiplier / math.sqrt(plan.num_rounds), plan.delta)

  def replaced(plan: Plan, noise_multiplier: float) -> float:
    return gaussian(plan, noise_multiplier / 2)

  def epsilon(plan: Plan, noise_multiplier: float) -> float:
    ledger = add_remove_ledger(plan, noise_multiplier)
    return accounting.epsilon(ledger, plan.delta, accountant="rdp")

  def central_limit(plan: Plan, noise_multiplier: float) -> float:
    q, z = plan.sampling_probability, noise_multiplier
    mu = q * math.sqrt(plan.num_rounds * math.expm1(min(z**-2, 700.0)))
    return accounting.gaussian_epsilon(max(1 / mu, 1e-4), plan.delta)

  def one_round_short(plan: Plan, noise_multiplier: float) -> float:
    return gaussian(plan._replace(num_rounds=max(plan.num_rounds - 1, 1)), noise_multiplier)

  def delta_each_round(plan: Plan, noise_multiplier: float) -> float:
    once = plan._replace(num_rounds=1, delta=plan.delta)
    return math.sqrt(plan.num_rounds) * gaussian(once, noise_multiplier)

  def noise(plan: Plan, target: float) -> float:
    return accounting.calibrate_noise_multiplier(
      target, plan.delta, plan.sampling_probability, plan.num_rounds, accountant="rdp"
    )

  def loose_noise(plan: Plan, target: float) -> float:
    return noise(plan, target + 0.5)

  def exact_noise(plan: Plan, target: float) -> float:
    found = accounting.gaussian_noise_multiplier(target, plan.delta)
    return found * math.sqrt(plan.num_rounds)

  def cut_noise(plan: Plan, target: float) -> float:
    return math.floor(10 * exact_noise(plan, target)) / 10

  one = {"ledger": unsampled_replace_one, "unsampled": True}
  return {
    "replace-one is accounted for as add/remove": Fault(
      Accountant("gaussian, replace one", gaussian, **one),  # type: ignore[arg-type]
      Accountant("gaussian, replace one", replaced, **one),  # type: ignore[arg-type]
    ),
    "a run's last round is not counted": Fault(
      Accountant("gaussian, T - 1", one_round_short, unsampled=True),
      Accountant("gaussian", gaussian, unsampled=True),
    ),
    "delta is spent in every round": Fault(
      Accountant("gaussian, composed", delta_each_round, unsampled=True),
      Accountant("gaussian", gaussian, unsampled=True),
    ),
    "the noise multiplier is cut to a decimal": Fault(
      Calibration("cut noise", cut_noise, unsampled=True),
      Calibration("noise", exact_noise, unsampled=True),
    ),
    "the central limit is taken for a bound": Fault(
      Accountant("central limit", central_limit), Accountant("RDP", epsilon)
    ),
    "a search for the noise stops half an epsilon late": Fault(
      Calibration("loose search", loose_noise), Calibration("search", noise)
    ),
  }


def _of_strategies() -> dict[str, Fault]:
  strategy = banded_toeplitz(12, 4)
  gram = strategy.matrix().T @ strategy.matrix()
  unit = 1 / np.sqrt(np.diagonal(gram))
  gram = gram * np.outer(unit, unit)
  rows = np.linalg.cholesky(gram)  # X = L L^T, so L has unit rows
  columns = np.linalg.cholesky(gram[::-1, ::-1])[::-1, ::-1].T  # X = C^T C: unit columns

  def single(b: int, k: int) -> float:
    del b, k
    return float(np.max(np.linalg.norm(strategy.matrix(), axis=0)))

  def right(b: int, k: int) -> float:
    return strategy.sensitivity(min_separation=b, max_participations=k)

  def orthogonal(b: int, k: int) -> float:
    # Columns of a wider band than the separation are not orthogonal.
    del b
    return math.sqrt(k) * single(1, 1)

  def equal_gaps(b: int, k: int) -> float:
    patterns = (range(first, 40, gap)[:k] for gap in range(b, 40) for first in range(40))
    return max(float(np.linalg.norm(uneven[:, list(own)].sum(axis=1))) for own in patterns)

  def all_gaps(b: int, k: int) -> float:
    # Orthogonal columns: the longest ones that are far enough apart, found from the last backwards.
    lengths, best = np.diagonal(uneven) ** 2, np.zeros((k + 1, 40 + b))
    for taken in range(1, k + 1):
      for t in reversed(range(40)):
        best[taken, t] = max(best[taken, t + 1], lengths[t] + best[taken - 1, t + b])
    return math.sqrt(best[k, 0])

  uneven = np.diag(np.where(np.isin(np.arange(40), (3, 11, 30)), 2.0, 1.0))
  sound = MatrixStrategy("banded_toeplitz(12, 4)", strategy.matrix(), right, ((4, 3),))
  return {
    "row norms are taken for column norms": Fault(
      MatrixStrategy("cholesky(X)", rows, lambda b, k: math.sqrt(k), ((4, 3),)),
      MatrixStrategy("C, C^T C = X", columns, lambda b, k: math.sqrt(k), ((4, 3),)),
    ),
    "participations are not counted": Fault(sound._replace(sensitivity=single), sound),
    "overlapping bands are taken for orthogonal": Fault(
      sound._replace(sensitivity=orthogonal, patterns=((2, 3),)),
      sound._replace(patterns=((2, 3),)),
    ),
    "participations are counted at equal gaps alone": Fault(
      MatrixStrategy("equal gaps", uneven, equal_gaps, ((5, 3),)),
      MatrixStrategy("all gaps", uneven, all_gaps, ((5, 3),)),
    ),
  }
