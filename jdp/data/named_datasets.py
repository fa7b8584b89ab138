"""Labelled data sets by name, and your own as arrays in a file."""

import pathlib

import numpy as np

from jdp import _validate
from jdp._arguments import checked
from jdp.data.adult_table import adult
from jdp.data.cifar10_images import cifar10
from jdp.data.clients import examples
from jdp.data.datasets import Dataset, digits, mnist
from jdp.data.files import first_file, read_arrays

FOLDERS = {"mnist": mnist, "cifar10": cifar10, "adult": adult}
_PARTS = ("inputs", "labels", "test_inputs", "test_labels")
NAMES = ("digits", *FOLDERS, "arrays")


@checked
def load(
  name: str,
  data_dir: str | pathlib.Path | None = None,
  data_file: str | pathlib.Path | None = None,
) -> Dataset:
  """The data set of a given name.

  * "digits" needs no file.
  * "mnist": files in IDX format, such as `train-images-idx3-ubyte`, gzip'd or not. If
    `mnist_writer_ids.npz` lies beside them, the writers are the groups.
  * "cifar10": `data_batch_1.bin` to `data_batch_5.bin`, and `test_batch.bin`.
  * "adult": `adult.data` and `adult.test`, as UCI has them, gzip'd or not.
  * "arrays": an npz file of your own, such as `numpy.savez` writes. It holds `inputs`, real numbers
    [n, ...], and `labels`, whole numbers [n]; also `test_inputs` and `test_labels`, from people who
    are not users or from public data; and `users` [n], numbers or strings, the user of each
    example. Without `users` there are no users.

  Args:
    name: one of these.
    data_dir: the folder that holds the files of mnist, cifar10 or adult.
    data_file: the file of arrays.

  Raises:
    FileNotFoundError: if a file is missing. The message says which, and where it belongs.
    ValueError: if there is no such name, or a file is not what it should be.

  >>> import tempfile
  >>> x, y = np.zeros((4, 3)), np.array([0, 1, 2, 0])
  >>> with tempfile.TemporaryDirectory() as folder:
  ...   path = pathlib.Path(folder, "mine.npz")
  ...   np.savez(path, inputs=x, labels=y, test_inputs=x, test_labels=y)
  ...   data = load("arrays", data_file=path)
  >>> data.num_classes, data.input_shape
  (3, (3,))
  """
  _validate.one_of(NAMES, name=name)
  if name == "digits":
    return digits()
  if name == "arrays":
    if data_file is None:
      raise ValueError("Expected data_file for arrays, got none; name an npz file of yours.")
    return arrays(data_file)
  if data_dir is None:
    raise ValueError(
      f"Expected data_dir for {name}, got none; name the folder with the data's files."
    )
  return FOLDERS[name](data_dir)


@checked
def arrays(path: str | pathlib.Path) -> Dataset:
  """Your own data set, from an npz file with the arrays that `load` names.

  The number of classes is the largest label of all plus one, and is taken as public.

  Raises:
    FileNotFoundError: if there is no such file.
    ValueError: if it is damaged, an array is missing, or their shapes do not fit together.
  """
  path = first_file(
    [pathlib.Path(path)], f"Expected an npz file at {path}, got none; put it there."
  )
  found = read_arrays(path)
  missing = [name for name in _PARTS if name not in found]
  if missing:
    raise ValueError(
      f"Expected arrays {', '.join(_PARTS)} in {path}, got none named {', '.join(missing)}; save "
      "them with np.savez."
    )
  train, test = (examples(found[f"{part}inputs"], found[f"{part}labels"]) for part in ("", "test_"))
  if train.inputs.shape[1:] != test.inputs.shape[1:] or not len(train.mask) or not len(test.mask):
    raise ValueError(
      f"Expected inputs of one shape for training and test in {path}, at least one of each, got "
      f"shapes {train.inputs.shape} and {test.inputs.shape}."
    )
  users = found.get("users")
  if users is not None and users.shape != train.mask.shape:
    raise ValueError(
      f"Expected a user for each of {len(train.mask)} examples in {path}, got users of shape "
      f"{users.shape}."
    )
  return Dataset(train, test, 1 + int(max(np.max(train.labels), np.max(test.labels))), users)
