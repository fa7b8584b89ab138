"""What a ledger file says is what was saved."""

import os
import pathlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jdp.events import GaussianSum, LocalRelease, PoissonSampling, Round
from jdp.guarantees import PureDP
from jdp.ledger import Ledger, load
from jdp.ledger.file_format import to_lines
from jdp.ledger.json_form import from_json
from tests.helpers.ledgers.example_events import EVENTS

numbers = st.floats(0, exclude_min=True, allow_infinity=False)


hypothesis = settings(max_examples=60, derandomize=True, deadline=None, database=None)


def test_save_and_load_are_inverse(tmp_path):
  ledger = Ledger().extend((event, count) for count, event in enumerate(EVENTS, 1))
  ledger.save(tmp_path / "ledger")
  assert load(tmp_path / "ledger") == ledger
  assert os.listdir(tmp_path) == ["ledger"]


@hypothesis
@given(numbers, numbers, st.floats(0, 1))
def test_floats_are_saved_exactly(tmp_path_factory, clip_norm, stddev, probability):
  path = tmp_path_factory.getbasetemp() / "floats"
  ledger = Ledger().append(Round(PoissonSampling(probability), GaussianSum(clip_norm, stddev)))
  ledger.save(path)
  assert load(path) == ledger


def test_numpy_scalars_are_saved_exactly(tmp_path):
  release = LocalRelease(PureDP(np.float32(0.1)), max_releases=np.int64(3))
  ledger = (
    Ledger()
    .append(Round(PoissonSampling(np.float32(0.1)), GaussianSum(np.float64(0.1), 1)))
    .append(release)
  )
  ledger.save(tmp_path / "ledger")
  loaded, release = load(tmp_path / "ledger")
  assert loaded == Round(PoissonSampling(float(np.float32(0.1))), GaussianSum(0.1, 1))
  assert release == LocalRelease(PureDP(float(np.float32(0.1))), 3)


@pytest.mark.parametrize(
  ("record", "message"),
  [
    ({"format": "jdp-ledger", "version": 3}, "of version 2 or 1"),
    ({"format": "other", "version": 2}, "Expected a jdp-ledger file"),
    (["jdp-ledger", 2], "Expected a jdp-ledger file"),
  ],
)
def test_another_format_is_refused(tmp_path, record, message):
  path = pathlib.Path(tmp_path / "ledger")
  ((line, _),) = to_lines([record], b"", None)
  path.write_bytes(line)
  with pytest.raises(ValueError, match=message):
    load(path)


def test_an_unknown_type_of_event_is_refused():
  with pytest.raises(ValueError, match="'FutureEvent'"):
    from_json({"type": "FutureEvent"})
