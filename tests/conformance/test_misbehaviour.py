"""Parts that raise, return what is not a result, or change what they are given: a failed row, and
the run goes on.
"""

import math

import numpy as np
import pytest

from jdp import events
from jdp.conformance import (
  Accountant,
  Aggregate,
  Calibration,
  Clip,
  Implementation,
  MatrixStrategy,
  Noise,
  Release,
  Sampling,
  check_implementation,
  failures,
)
from jdp.conformance.protocol import Verdict
from jdp.conformance.suite import check_part
from jdp.guarantees import Relation
from tests.conformance.kit_parts import bounded, failed


def raises(*arguments):
  raise RuntimeError("out of\n order")


def unanswered(*arguments):
  raise NotImplementedError("no such mode")


def small(apply, **options):
  return Aggregate("sum", apply, 1.0, Relation.ADD_REMOVE, takes_thousands=False, **options)


def parts(function):
  """A part of each kind, all of whose functions are this one."""
  law = events.PoissonSampling(0.5)
  return {
    "Clip": Clip("clip", function, 1.0),
    "Aggregate": small(function),
    "Noise": Noise("noise", function, ("a",), np.eye(2)),
    "Noise, resumed": Noise("noise", lambda seed: ok(seed), ("a",), np.eye(2), function),
    "Sampling": Sampling("sampling", function, law),
    "Sampling, resumed": Sampling("sampling", coins, law, function),
    "Accountant": Accountant("epsilon", function),
    "Calibration": Calibration("noise multiplier", function),
    "MatrixStrategy": MatrixStrategy("matrix", np.eye(3), function, ((1, 1),)),
    "Release": Release("release", function),
  }


def ok(seed):
  return np.random.default_rng(seed).normal(size=(2, 1, 512))


def coins(seed, num_rounds):
  return np.random.default_rng(seed).random((num_rounds, 8)) < 0.5


KINDS = list(parts(raises))
REFUSING = {"Accountant", "Calibration", "MatrixStrategy"}  # they state nothing by raising


@pytest.mark.parametrize("kind", KINDS)
def test_a_part_that_raises_is_one_row_and_the_next_part_is_checked(kind):
  part, sound = parts(raises)[kind], Clip("sound", bounded, 1.0)
  found = check_implementation(Implementation("own", "1", (part, sound)))
  assert len([own for own in found if own.call == "sound"]) == 4
  rows = [own for own in found if own.call == part.call]
  said = [own for own in rows if "raised RuntimeError: out of order" in str(own)]
  assert said if kind not in REFUSING - {"MatrixStrategy"} else "every call raised" in str(rows)
  assert bool(failures(rows)) == (kind not in REFUSING)


@pytest.mark.parametrize("kind", ["Noise", "Sampling", "Release"])
def test_what_a_library_does_not_offer_is_not_applicable(kind):
  found = check_part(parts(unanswered)[kind])
  assert {own.verdict for own in found} == {Verdict.NOT_APPLICABLE}
  assert "no such mode" in found[0].note


@pytest.mark.parametrize(
  "result", [None, "text", 1j, np.zeros((2, 3, 4, 5)), object(), {}], ids=lambda own: str(type(own))
)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "MatrixStrategy"])
def test_what_is_no_result_passes_nothing(kind, result):
  found = check_part(parts(lambda *arguments: result)[kind])
  # A constant aggregate has a sensitivity of zero.
  constant = kind == "Aggregate" and isinstance(result, np.ndarray)
  assert constant or failures(found)


@pytest.mark.parametrize("kind", ["NaN", "infinite"])
def test_a_clip_that_raises_for_some_records_is_refuted(kind):
  def refuses(record):
    if not np.all(np.isfinite(record)):
      raise ValueError("a record that is not finite")
    return bounded(record)

  witness = failed(Clip("refuses", refuses, 1.0))["norm, NaN and infinities"]
  assert witness.got == "raised ValueError: a record that is not finite"
  assert "reveals" in witness.consequence


@pytest.mark.parametrize("apply", [lambda x: x[:2] * 0, lambda x: 0.0, lambda x: [x * 0, x * 0]])
def test_a_clip_with_another_number_of_entries_is_refuted(apply):
  witness = failed(Clip("other", apply, 1.0))["norm, finite records"]
  assert witness.got.endswith("numbers of 4")
  assert "another result" in witness.consequence


def test_arguments_that_are_changed_are_named_and_hide_nothing():
  def in_place(record):
    record[:] = bounded(record)
    return record

  def unclipped(records):
    first = np.sum(records, axis=0)
    records[:] = 0
    return first

  assert set(failed(Clip("in place", in_place, 1.0))) == {"arguments left as they were"}
  assert set(failed(small(unclipped))) >= {
    "arguments left as they were",
    "sensitivity, finite records",
  }
  assert (
    failed(small(unclipped))["arguments left as they were"].got == "entry 0, 0 is 0 after the call"
  )


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_noise_that_is_not_finite_is_named(value):
  def draw(seed):
    noise = ok(seed)
    noise[1, 0, :3] = value
    return noise

  covariance, distribution, reuse = check_part(Noise("noise", draw, ("a",), np.eye(2)))[:3]
  assert covariance.witness.got == "6 of 2048 numbers are NaN or infinite"
  assert "more than accounted for" not in covariance.witness.consequence
  assert {distribution.verdict, reuse.verdict} == {Verdict.NOT_APPLICABLE}


@pytest.mark.parametrize("matrix", [np.full((3, 3), np.nan), np.ones(3), np.zeros((3, 0))])
def test_a_matrix_that_is_none_passes_nothing(matrix):
  assert failed(MatrixStrategy("matrix", matrix, lambda b, k: 10.0, ((1, 1),)))


def test_members_of_another_population_are_refused():
  law = events.FixedSizeSampling(4, 9)
  (witness,) = failed(Sampling("coins", coins, law)).values()
  assert "to be bool [2000, 9], got bool (2000, 8)" in witness.got
