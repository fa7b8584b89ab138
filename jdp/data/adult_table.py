"""The Adult data set of UCI: whether a person earns more than 50,000 dollars a year.

All scales and lists of categories here are those of the published description, `adult.names`. None
is computed from the rows, which are the data to protect.
"""

import csv
import math
import pathlib

import numpy as np

from jdp._arguments import checked
from jdp.data.clients import Examples, examples
from jdp.data.datasets import Dataset
from jdp.data.files import inner_folder, lines, plain_or_gzipped

_FIELDS = 15
_LABELS = {"<=50K": 0, ">50K": 1}
_SCALES = {0: 90.0, 4: 16.0, 11: 4356.0, 12: 99.0}  # age, years of education, loss, hours a week
_GAIN, _LARGEST_GAIN = 10, 99_999.0
_CATEGORIES = {
  1: "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov Without-pay "
  "Never-worked",
  5: "Married-civ-spouse Divorced Never-married Separated Widowed Married-spouse-absent "
  "Married-AF-spouse",
  6: "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty "
  "Handlers-cleaners Machine-op-inspct Adm-clerical Farming-fishing Transport-moving "
  "Priv-house-serv Protective-serv Armed-Forces",
  7: "Wife Own-child Husband Not-in-family Other-relative Unmarried",
  8: "White Asian-Pac-Islander Amer-Indian-Eskimo Other Black",
  9: "Female Male",
  13: "United-States Cambodia England Puerto-Rico Canada Germany Outlying-US(Guam-USVI-etc) India "
  "Japan Greece South China Cuba Iran Honduras Philippines Italy Poland Jamaica Vietnam Mexico "
  "Portugal Ireland France Dominican-Republic Laos Ecuador Taiwan Haiti Columbia Hungary Guatemala "
  "Nicaragua Scotland Thailand Yugoslavia El-Salvador Trinadad&Tobago Peru Hong "
  "Holand-Netherlands",
}
_UNKNOWN = "?"


@checked
def adult(data_dir: str | pathlib.Path) -> Dataset:
  """Adult (B. Becker and R. Kohavi, UCI Machine Learning Repository, 1996).

  Args:
    data_dir: the folder that holds `adult.data` and `adult.test`, gzip'd or not, or a folder
      "adult" with them.

  Returns:
    People as features in [0, 1], and 1 for more than 50,000 dollars. The features are five numbers
    (age, years of education, capital gain on a logarithmic scale, capital loss, hours a week), and
    a place for each category of the seven other attributes. An unknown attribute is zeros. The
    survey's weight is left out, and so is the education's name, as its years are a feature.

  Raises:
    FileNotFoundError: if a file is missing.
    ValueError: if a file is not such a table.
  """
  folder = inner_folder(data_dir, "adult")
  return Dataset(_read(folder, "adult.data"), _read(folder, "adult.test"), 2)


def _read(folder: pathlib.Path, name: str) -> Examples:
  """The people of one file."""
  path = plain_or_gzipped(folder, name, "UCI's")
  places = {column: names.split() for column, names in _CATEGORIES.items()}
  features, labels = [], []
  rows = csv.reader(lines(path), skipinitialspace=True, strict=True)
  try:
    for row in rows:
      # Skips blank lines, and the test file's first line, which says how it was made.
      if not row or row[0].startswith("|"):
        continue
      if len(row) != _FIELDS:
        raise ValueError("another number of fields")
      labels.append(_LABELS[row[-1].removesuffix(".")])
      features.append(_features(row, places))
  except (csv.Error, LookupError, ValueError) as error:
    if str(error).startswith("Expected "):  # raised for a file that is not gzip'd or not text
      raise
    raise ValueError(
      f"Expected a row of the Adult data set in line {rows.line_num} of {path}, got another; fetch "
      "it again."
    ) from None
  if not features:
    raise ValueError(f"Expected rows of the Adult data set in {path}, got none; fetch it again.")
  return examples(np.array(features), np.array(labels), 2)


def _features(row: list[str], places: dict[int, list[str]]) -> list[float]:
  """One person's features."""
  numbers = [min(max(float(row[column]) / scale, 0.0), 1.0) for column, scale in _SCALES.items()]
  gain = min(max(float(row[_GAIN]), 0.0), _LARGEST_GAIN)
  made = [*numbers, math.log1p(gain) / math.log1p(_LARGEST_GAIN)]
  for column, names in places.items():
    own = [0.0] * len(names)
    if row[column] != _UNKNOWN:
      own[names.index(row[column])] = 1.0
    made += own
  return made
