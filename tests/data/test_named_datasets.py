"""CIFAR-10, Adult and arrays of one's own, from small files in their formats, or refused."""

import gzip

import numpy as np
import pytest

from jdp.data import load
from jdp.data.adult_table import adult
from jdp.data.cifar10_images import cifar10
from jdp.data.named_datasets import arrays

SECRET = "wilhelmina"
IMAGES = np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), np.uint8)
PERSON = (
  "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, "
  "2174, 0, 40, United-States, <=50K"
)
OTHER = "90, ?, 1, 11th, 8, Divorced, ?, Unmarried, Black, Female, 99999, 4356, 99, ?, >50K"


def batch(numbers):
  """Records of CIFAR-10: the class, then the planes of red, green and blue."""
  return b"".join(
    bytes([number]) + IMAGES[number].transpose(2, 0, 1).tobytes() for number in numbers
  )


@pytest.mark.parametrize("inner", ["", "cifar-10-batches-bin"])
def test_images_in_colour_have_their_classes(tmp_path, inner):
  folder = tmp_path / inner
  folder.mkdir(exist_ok=True)
  for name, numbers in (("data_batch_1", [0, 1]), ("data_batch_3", [2]), ("test_batch", [3])):
    (folder / f"{name}.bin").write_bytes(batch(numbers))
  found = load("cifar10", tmp_path)
  np.testing.assert_array_equal(found.train.inputs, IMAGES[:3] / np.float32(255))
  assert found.train.labels.tolist() == [0, 1, 2]
  np.testing.assert_array_equal(found.test.inputs, IMAGES[3:] / np.float32(255))
  assert (found.num_classes, found.input_shape) == (10, (32, 32, 3))


@pytest.mark.parametrize(
  "content", [b"", SECRET.encode(), batch([0])[:-1], bytes([10]) + batch([0])[1:]]
)
def test_other_files_than_cifar_are_refused(tmp_path, content):
  (tmp_path / "data_batch_1.bin").write_bytes(content)
  with pytest.raises(ValueError, match=r"^Expected records of 3073 bytes .*data_batch_1.bin, got"):
    cifar10(tmp_path)
  (tmp_path / "data_batch_1.bin").write_bytes(batch([0]))
  with pytest.raises(FileNotFoundError, match=r"Expected test_batch.bin in .*; put"):
    cifar10(tmp_path)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_people_are_features_in_the_unit_interval(tmp_path, suffix):
  for name, content in (
    ("adult.data", f"{PERSON}\n{OTHER}\n\n"),
    ("adult.test", f"|1x3 Cross validator\n{PERSON}.\n"),
  ):
    written = content.encode()
    (tmp_path / (name + suffix)).write_bytes(gzip.compress(written) if suffix else written)
  found = load("adult", tmp_path)
  first, second = found.train.inputs
  np.testing.assert_allclose(
    first[:5], [39 / 90, 13 / 16, 0, 40 / 99, np.log(2175) / np.log(1e5)], rtol=1e-6
  )
  np.testing.assert_allclose(second[:5], [1, 0.5, 1, 1, 1], rtol=1e-6)
  # Seven attributes, of which the other person has three unknown.
  assert (first[5:].sum(), second[5:].sum()) == (7, 4)
  assert first[5:].tolist().index(1) == 5  # State-gov
  assert found.train.labels.tolist() == [0, 1]
  assert found.test.inputs.tolist() == [first.tolist()]
  assert found.input_shape == (5 + 8 + 7 + 14 + 6 + 5 + 2 + 41,)


@pytest.mark.parametrize(
  "line",
  [SECRET, PERSON.replace("39", SECRET), PERSON.replace("White", SECRET), f"{PERSON}, {SECRET}",
   PERSON.replace("<=50K", SECRET), f'"{SECRET}', "39, " * 14 + "<=50K"],
)  # fmt: skip
def test_other_tables_than_adult_are_refused(tmp_path, line):
  (tmp_path / "adult.data").write_text(f"{PERSON}\n{line}\n")
  with pytest.raises(ValueError, match=r"^Expected a row .* in line 2 of .*adult.data") as error:
    adult(tmp_path)
  assert SECRET not in str(error.value)


OWN = {
  "inputs": np.arange(6.0).reshape(3, 2),
  "labels": np.array([0, 4, 1]),
  "test_inputs": np.ones((2, 2)),
  "test_labels": np.array([2.0, 0.0]),
}


def test_arrays_of_ones_own_with_and_without_users(tmp_path):
  path = tmp_path / "mine.npz"
  np.savez(path, **OWN)
  found = load("arrays", data_file=path)
  assert (found.num_classes, found.train_groups) == (5, None)
  np.testing.assert_array_equal(found.train.inputs, OWN["inputs"])
  np.savez_compressed(path, **OWN, users=np.array(["b", "a", "b"]))
  assert arrays(path).train_groups.tolist() == ["b", "a", "b"]


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"labels": None}, "got none named labels"),
    ({"labels": np.array([0, 1])}, "as many inputs as labels"),
    ({"labels": np.array([0.5, 1, 2])}, "whole numbers"),
    ({"test_inputs": np.ones((2, 3))}, "one shape for training and test"),
    ({"test_inputs": np.ones((0, 2)), "test_labels": np.ones(0)}, "Expected"),
    ({"users": np.array([1, 2])}, "Expected a user for each of 3 examples"),
    ({"inputs": np.array([[np.nan, 0]] * 3)}, "finite"),
  ],
)
def test_arrays_that_do_not_fit_are_refused(tmp_path, changes, message):
  path = tmp_path / "mine.npz"
  np.savez(path, **{k: v for k, v in {**OWN, **changes}.items() if v is not None})
  with pytest.raises(ValueError, match=message):
    arrays(path)


def test_a_name_without_its_file_says_which_flag():
  with pytest.raises(ValueError, match="Expected data_file for arrays"):
    load("arrays")
  with pytest.raises(ValueError, match="Expected data_dir for adult"):
    load("adult")
  with pytest.raises(FileNotFoundError, match=r"Expected an npz file at nothing.npz"):
    arrays("nothing.npz")
