"""Labels, users and inputs are cast without loss, or refused by a message that quotes none of
them.
"""

import numpy as np
import pytest

from jdp.data import examples, group, pack, partition_by_group
from jdp.data.casts import float32, whole_numbers
from jdp.data.datasets import mnist

SECRET = 777  # in every refused array; no message may say it
INTEGERS = [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64]
FLOATS = [np.float16, np.float32, np.float64]


@pytest.mark.parametrize("dtype", [bool, *INTEGERS, *FLOATS])
def test_whole_numbers_of_every_type_keep_their_values(dtype):
  labels = whole_numbers("labels", np.array([[0, 1], [1, 1]], dtype), below=2)
  assert (labels.tolist(), labels.dtype) == ([[0, 1], [1, 1]], np.int32)
  assert whole_numbers("labels", np.array([], dtype)).shape == (0,)


@pytest.mark.parametrize("dtype", [np.int64, np.uint32, np.uint64, np.float64])
def test_the_bounds_are_exact(dtype):
  largest = 2**31 - 1
  assert whole_numbers("labels", np.array([largest], dtype)).tolist() == [largest]
  for beyond in (2**31, 2**32 - 1, 3_000_000_000):
    with pytest.raises(
      ValueError, match="labels to be whole numbers from 0 to 2147483647, got some below or above"
    ):
      whole_numbers("labels", np.array([beyond], dtype))


@pytest.mark.parametrize(
  ("dtype", "value"),
  [
    (np.float32, 2.0**31),
    (np.uint64, 2**64 - 1),
    (np.uint64, 2**63),
    (np.float64, 2.0**63),
    (np.float64, 2.0**53),
  ],
)
def test_what_wraps_or_was_rounded_is_refused(dtype, value):
  target = np.int32 if value == 2.0**31 else np.int64
  with pytest.raises(ValueError, match="got some below or above"):
    whole_numbers("writers", np.array([value], dtype), dtype=target)


@pytest.mark.parametrize(
  ("wrong", "message"),
  [
    (np.array([SECRET, 0.9]), "got fractions; round them"),
    (np.array([SECRET, np.nan]), "got NaN or infinity"),
    (np.array([SECRET, np.inf]), "got NaN or infinity"),
    (np.array([SECRET, -1]), "got some below or above"),
    (np.array([SECRET, -1.0]), "got some below or above"),
    (np.array([SECRET, 3e9]), "got some below or above"),
    (np.array([SECRET, 1000]), "from 0 to 999, got some below or above"),
    (np.array([str(SECRET), "1"]), "to be real numbers, got dtype <U3"),
    (np.array([SECRET, None]), "to be real numbers, got dtype object"),
    (np.array([SECRET, 1j]), "to be real numbers, got dtype complex128"),
  ],
)
def test_labels_that_would_become_others_are_refused_and_not_quoted(wrong, message):
  with pytest.raises(ValueError, match=message) as error:
    examples(np.zeros((2, 3)), wrong, num_classes=1000)
  assert str(SECRET) not in str(error.value)
  assert "labels" in str(error.value)


@pytest.mark.parametrize(
  ("wrong", "message"),
  [
    (np.array([SECRET, 1e39]), "finite in float32"),
    (np.array([SECRET, -1e300]), "finite in float32"),
    (np.array([SECRET, np.nan]), "finite in float32"),
    (np.array([SECRET, 2**24 + 1]), "that float32 holds exactly"),
    (np.array([SECRET, -(2**40) - 1]), "that float32 holds exactly"),
    (np.array([str(SECRET), "1.5"]), "to be real numbers, got dtype <U3"),
  ],
)
def test_inputs_that_float32_does_not_hold_are_refused_and_not_quoted(wrong, message):
  with pytest.raises(ValueError, match=message) as error:
    examples(wrong, np.zeros(2))
  assert str(SECRET) not in str(error.value)
  assert "inputs" in str(error.value)


def test_inputs_are_rounded_and_integers_kept():
  assert float32("inputs", np.array([0.1])).tolist() == [np.float32(0.1)]
  assert float32("inputs", np.array([2**24, 255, -(2**30)])).tolist() == [2**24, 255, -(2**30)]
  assert float32("inputs", np.array([np.iinfo(np.int64).min])).tolist() == [-(2.0**63)]
  same = np.ones(3, np.float32)
  assert float32("inputs", same) is same


@pytest.mark.parametrize("arrange", [group, pack])
@pytest.mark.parametrize(
  ("users", "message"),
  [
    ([[0, 1], [3]], "from 0 to 2, got some below or above"),
    ([[0, 1], [-1]], "from 0 to 2, got some below or above"),
    ([[0, 1], [1.5]], "got fractions"),
    ([np.array([True, False, True])], "got booleans; use np.flatnonzero"),
    ([], "Expected at least one user, got none"),
  ],
)
def test_users_of_examples_that_are_not_there_are_refused(arrange, users, message):
  with pytest.raises(ValueError, match=message):
    arrange(examples(np.zeros((3, 2)), np.zeros(3)), users)


@pytest.mark.parametrize(
  "groups",
  [np.array(["b", "a", "b"]), np.array([np.inf, 1.0, np.inf]), np.array([255, 0, 255], np.uint8)],
)
def test_groups_of_any_type_are_users(groups):
  assert sorted(user.tolist() for user in partition_by_group(groups)) == [[0, 2], [1]]


def test_nobody_is_the_user_nan():
  with pytest.raises(ValueError, match="Expected a group for each example, got NaN"):
    partition_by_group(np.array([1.0, np.nan, np.nan]))


def write_idx(path, array):
  header = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
  path.write_bytes(header + array.astype(np.uint8).tobytes())


@pytest.mark.parametrize(
  ("label", "writers", "message"),
  [
    (10, np.arange(4), "labels to be whole numbers from 0 to 9, got some below or above"),
    (
      1,
      np.array([0.0, 0.9, 1.0, 2.0]),
      "writers to be whole numbers from 0 to 9223372036854775807, got fractions",
    ),
    (1, np.arange(4) - 1, "writers to be whole numbers"),
    (1, np.array(["f1", "f2", "f3", "f4"]), "writers to be real numbers, got dtype <U2"),
    (1, np.arange(3), r"Expected a writer for each of 4 images in .*, got shape \(3,\)"),
    (1, np.arange(5), r"Expected a writer for each of 4 images in .*, got shape \(5,\)"),
    (1, None, "Expected an array train_writer in .*, got other"),
  ],
)
def test_files_of_other_labels_and_writers_are_refused(tmp_path, label, writers, message):
  for part in ("train", "t10k"):
    write_idx(tmp_path / f"{part}-images-idx3-ubyte", np.zeros((4, 2, 2)))
    write_idx(tmp_path / f"{part}-labels-idx1-ubyte", np.array([0, label, 2, 3]))
  arrays = {"other": np.zeros(4)} if writers is None else {"train_writer": writers}
  np.savez(tmp_path / "mnist_writer_ids.npz", **arrays)
  with pytest.raises(ValueError, match=message):
    mnist(tmp_path)


@pytest.mark.parametrize("large", [2**63 - 1, 2**62 + 1])
def test_integers_beyond_float64_are_compared_exactly(large):
  with pytest.raises(ValueError, match="Expected inputs that float32 holds exactly"):
    float32("inputs", np.array([large]))
