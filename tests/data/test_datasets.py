"""Data sets are read whole or refused; users partition them."""

import gzip
import os
import struct

import numpy as np
import pytest

from jdp.data import (
  digits,
  examples,
  group,
  load,
  pack,
  partition_by_group,
  partition_by_label,
  partition_iid,
)
from jdp.data.datasets import mnist, read_idx

LABELS = np.repeat(np.arange(10), 21)  # 210 examples
PARTS = {"train": 30, "t10k": 10}


def idx(array):
  """The bytes of an IDX file."""
  return (
    struct.pack(f">HBB{array.ndim}i", 0, 8, array.ndim, *array.shape)
    + array.astype(np.uint8).tobytes()
  )


def write_mnist(folder, pack=lambda content: content, suffix=""):
  """A tiny MNIST of black and white pixels whose label is the number of white ones."""
  for part, count in PARTS.items():
    labels = np.arange(count) % 10
    images = 255 * (np.arange(28 * 28) < labels[:, None]).reshape(count, 28, 28)
    for name, array in (("images-idx3", images), ("labels-idx1", labels)):
      (folder / f"{part}-{name}-ubyte{suffix}").write_bytes(pack(idx(array)))
  np.savez(
    folder / "mnist_writer_ids.npz", train_writer=np.arange(30) // 4, test_writer=np.arange(10)
  )


@pytest.fixture(
  params=["raw", "gzip", "subfolder", *(["files"] if "JDP_DATA_DIR" in os.environ else [])]
)
def mnist_folder(request, tmp_path):
  """Folders that hold MNIST: tiny ones in every layout, and the real one if JDP_DATA_DIR names
  it.
  """
  if request.param == "files":
    return os.environ["JDP_DATA_DIR"]
  (tmp_path / "mnist").mkdir()
  folder = tmp_path / "mnist" if request.param == "subfolder" else tmp_path
  if folder == tmp_path:
    (tmp_path / "mnist").rmdir()
  write_mnist(folder, *((gzip.compress, ".gz") if request.param == "gzip" else ()))
  return tmp_path


def test_mnist_is_read_in_every_layout(mnist_folder):
  data = load("mnist", mnist_folder)
  assert (data.num_classes, data.input_shape) == (10, (28, 28))
  for part in (data.train, data.test):
    assert (part.inputs.dtype, part.labels.dtype, part.mask.dtype) == (
      np.float32,
      np.int32,
      np.float32,
    )
    assert part.inputs.min() == 0
    assert part.inputs.max() == 1
    assert set(part.labels) == set(range(10))
    assert np.all(part.mask == 1)
    assert len(part.inputs) == len(part.labels) == len(part.mask)
  assert data.train_groups is None or len(data.train_groups) == len(data.train.labels)


def test_mnist_keeps_images_with_their_labels_and_writers(tmp_path):
  write_mnist(tmp_path)
  data = mnist(tmp_path)
  for part in (data.train, data.test):
    np.testing.assert_array_equal(part.inputs.sum(axis=(1, 2)), part.labels)
  np.testing.assert_array_equal(data.train_groups, np.arange(30) // 4)
  (tmp_path / "mnist_writer_ids.npz").unlink()
  assert mnist(tmp_path).train_groups is None


@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 3, 4), (0, 28, 28)])
def test_idx_files_are_read_as_they_were_written(tmp_path, shape):
  array = np.random.default_rng(0).integers(0, 256, shape)
  (tmp_path / "raw").write_bytes(idx(array))
  (tmp_path / "packed.gz").write_bytes(gzip.compress(idx(array)))
  for name in ("raw", "packed.gz"):
    read = read_idx(tmp_path / name)
    assert read.dtype == np.uint8
    np.testing.assert_array_equal(read, array)


WHOLE = idx(np.arange(24).reshape(2, 3, 4))


@pytest.mark.parametrize("cut", range(len(WHOLE)))
def test_an_idx_file_cut_short_anywhere_is_refused(tmp_path, cut):
  path = tmp_path / "images"
  path.write_bytes(WHOLE[:cut])
  with pytest.raises(ValueError, match=r"Expected .* in .*images"):
    read_idx(path)


@pytest.mark.parametrize(
  ("content", "message"),
  [
    (WHOLE + b"\0", "Expected 24 bytes of data in .*, got 25"),
    (b"\x00\x00\x0d" + WHOLE[3:], "IDX file of unsigned bytes in .*, got header 00000d03"),
    (b"<html>not found</html>", "IDX file of unsigned bytes"),
  ],
)
def test_a_file_that_is_no_idx_is_refused(tmp_path, content, message):
  path = tmp_path / "images"
  path.write_bytes(content)
  with pytest.raises(ValueError, match=message):
    read_idx(path)


@pytest.mark.parametrize("missing", ["train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"])
def test_a_missing_file_is_named_with_its_place(tmp_path, missing):
  write_mnist(tmp_path)
  (tmp_path / missing).unlink()
  with pytest.raises(
    FileNotFoundError, match=rf"Expected {missing} or {missing}.gz in {tmp_path}; put"
  ):
    mnist(tmp_path)


def test_load_knows_its_names():
  with pytest.raises(ValueError, match="got 'cifar'"):
    load("cifar")
  with pytest.raises(ValueError, match="Expected data_dir for mnist"):
    load("mnist")


def test_images_without_their_labels_are_refused():
  with pytest.raises(ValueError, match="Expected as many inputs as labels, got 3 and 2"):
    examples(np.zeros((3, 2)), np.zeros(2))


def test_digits_keep_every_fifth_for_the_test():
  data = load("digits")
  assert (len(data.train.labels), len(data.test.labels), data.input_shape) == (1437, 360, (8, 8))
  assert data.train.inputs.min() == 0
  assert data.train.inputs.max() == 1
  rows = {row.tobytes() for row in data.train.inputs}
  assert sum(row.tobytes() in rows for row in data.test.inputs) == 0
  assert np.bincount(digits().test.labels).min() >= 25


@pytest.mark.slow
def test_digits_are_those_of_scikit_learn():
  from sklearn import datasets  # takes seconds

  bunch, read = datasets.load_digits(), digits()
  is_test = np.arange(len(bunch.target)) % 5 == 0
  for part, chosen in ((read.train, ~is_test), (read.test, is_test)):
    np.testing.assert_array_equal(part.inputs, bunch.images[chosen] / 16)
    np.testing.assert_array_equal(part.labels, bunch.target[chosen])


def test_digits_without_scikit_learn_name_the_command_that_installs_it(monkeypatch):
  monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
  with pytest.raises(
    ImportError, match=r"Expected scikit-learn for the digits; run: .*pip install"
  ):
    digits()


def partitions(seed):
  """Every partition of `LABELS` into users of 20 examples, by name."""
  return {
    "iid": partition_iid(np.random.default_rng(seed), len(LABELS), 20),
    "by label": partition_by_label(np.random.default_rng(seed), LABELS, 20),
    "by one label": partition_by_label(np.random.default_rng(seed), LABELS, 20, labels_per_user=1),
  }


@pytest.mark.parametrize("name", partitions(0))
def test_users_of_equal_size_share_no_example(name):
  users = partitions(0)[name]
  assert [len(user) for user in users] == [20] * 10
  together = np.concatenate(users)
  assert len(np.unique(together)) == len(together) == 200
  assert together.min() >= 0
  assert together.max() < len(LABELS)
  np.testing.assert_array_equal(users, partitions(0)[name])
  assert np.any(np.asarray(users) != partitions(1)[name])


@pytest.mark.parametrize(("name", "most"), [("by label", 4), ("by one label", 2)])
def test_users_by_label_hold_few_labels(name, most):
  # A shard may lie on the border of two labels.
  labels_held = [len(np.unique(LABELS[user])) for user in partitions(0)[name]]
  assert max(labels_held) <= most
  assert min(len(np.unique(LABELS[user])) for user in partitions(0)["iid"]) > most


def test_shards_of_labels_are_dealt_out_at_random():
  spans = [np.ptp(LABELS[user]) for user in partitions(0)["by label"]]
  assert max(spans) >= 3  # shards that lie beside each other would span two labels


def test_users_by_label_get_random_examples_of_a_label():
  first, second = (partitions(seed)["by one label"] for seed in (0, 1))
  by_label = [{LABELS[user[0]]: set(user.tolist()) for user in users} for users in (first, second)]
  assert by_label[0][0] != by_label[1][0]


def test_users_by_group_are_the_groups_in_order():
  groups = np.array([7, 3, 7, 7, 5, 3])
  users = partition_by_group(groups)
  assert [user.tolist() for user in users] == [[1, 5], [4], [0, 2, 3]]


def test_group_pads_to_the_declared_bound_and_masks_the_rest():
  data = examples(np.arange(12.0).reshape(6, 2), np.arange(6) + 10)
  users = [np.array([4]), np.array([1, 5, 0]), np.array([2, 3])]
  clients = group(data, users, max_examples=3)
  assert (clients.inputs.shape, clients.labels.shape) == ((3, 3, 2), (3, 3))
  assert clients.mask.tolist() == [[1, 0, 0], [1, 1, 1], [1, 1, 0]]
  for row, user in enumerate(users):
    np.testing.assert_array_equal(clients.inputs[row, : len(user)], data.inputs[user])
    np.testing.assert_array_equal(clients.labels[row, : len(user)], data.labels[user])


@pytest.mark.parametrize(
  ("make", "message"),
  [
    (lambda rng: partition_iid(rng, 10, 11), "Expected at most 10 examples per user, got 11"),
    (lambda rng: partition_iid(rng, 10, 0), "examples_per_user to be a whole number >= 1"),
    (lambda rng: partition_by_label(rng, LABELS, 211), "Expected at most 210 examples per user"),
    (lambda rng: partition_by_label(rng, LABELS, 5), "multiple of 2 labels per user, got 5"),
    (
      lambda rng: partition_by_label(rng, LABELS, 5, labels_per_user=0),
      "labels_per_user to be a whole number >= 1",
    ),
    (
      lambda rng: group(examples(np.ones((2, 1)), [0, 1]), [np.arange(2)], max_examples=0),
      "max_examples to be a number in",
    ),
    (
      lambda rng: group(examples(np.ones((3, 1)), [0, 1, 1]), [np.arange(2), np.arange(1)]),
      "Expected max_examples with users of different sizes, got none",
    ),
    (
      lambda rng: pack(examples(np.ones((2, 1)), [0, 1]), [np.arange(1)] * 2, names=["a", "a"]),
      "Expected 2 different names, one for each user, got 1 among 2",
    ),
  ],
)
def test_bad_arguments_are_refused(make, message):
  with pytest.raises(ValueError, match=message):
    make(np.random.default_rng(0))
