"""Phishing URLs as features in [0, 1]: hashed words of the path and the query.

No URL is ever opened. Scheme and host are left out. In public lists, harmless URLs come from few
hosts, which a model would memorise.
"""

import csv
import pathlib
import re
import zlib
from collections.abc import Iterator, Sequence

import numpy as np

from jdp import _validate
from jdp._arguments import checked
from jdp.data.clients import examples
from jdp.data.datasets import Dataset
from jdp.data.files import first_file, lines

_LABELS = {"0": 0, "1": 1, "legitimate": 0, "phishing": 1}
# A regular expression, since urllib refuses URLs that people do click on.
_URL = re.compile(r"^(?:[a-z][a-z0-9+.-]*:)?//", re.IGNORECASE)


@checked
def phishing(path: str | pathlib.Path, num_features: int = 1000) -> Dataset:
  """A data set of labelled URLs, 1 for phishing.

  A fifth of the hosts is the test set. No host is on both sides.

  Args:
    path: a CSV file, gzip'd if its name ends in .gz. It has a column "url", and a column "label"
      (0, 1) or "status" ("legitimate", "phishing"). Or a folder that holds `urls_50k.csv.gz`,
      directly or in a folder "phishing".
    num_features: see `url_features`.

  Raises:
    FileNotFoundError: if there is no such file.
    ValueError: if the file is not such a CSV, a column is missing, or there is another label. Also
      if all hosts are on one side.
  """
  urls, labels = read_urls(_csv_file(pathlib.Path(path)))
  is_test = np.array([zlib.crc32(split_url(url)[0].encode()) % 5 == 0 for url in urls])
  if not 0 < is_test.sum() < len(urls):
    raise ValueError(
      f"Expected URLs of several hosts, got {len(urls)} that are all for training or all for the "
      "test."
    )
  features = url_features(urls, num_features)
  train, test = (examples(features[part], labels[part], 2) for part in (~is_test, is_test))
  return Dataset(train, test, 2)


@checked
def read_urls(path: pathlib.Path) -> tuple[list[str], np.ndarray]:
  """(URLs, labels int32 [n]) of a CSV file; see `phishing`."""
  urls, labels = [], []
  rows = csv.DictReader(lines(path), strict=True)
  try:
    if not {"url"} < {*(rows.fieldnames or ())} & {"url", "label", "status"}:
      raise _another_file(path, "other columns in line 1")
    for row in rows:
      label = row.get("label", row.get("status"))
      # `csv` gives missing fields the value None, and fields beyond the last column the key None.
      if label not in _LABELS or None in (*row, *row.values()):
        raise _another_file(path, f"another label or number of fields in line {rows.line_num}")
      urls.append(row["url"])
      labels.append(_LABELS[label])
  except csv.Error:
    raise _another_file(path, f"no CSV after line {rows.line_num}") from None
  return urls, np.array(labels, np.int32)


def _another_file(path: pathlib.Path, got: str) -> ValueError:
  """The refusal of a file, with what was found in it and where."""
  return ValueError(
    "Expected columns url and label (0, 1) or status (legitimate, phishing) in "
    f"{path}, got {got}; put such a file there."
  )


@checked
def url_features(urls: Sequence[str], num_features: int = 1000) -> np.ndarray:
  """The features of URLs, as bits: the parts of their paths and queries.

  The first feature is always 1, an intercept. The other features are hashes (CRC-32) of:

  * the words of the path and of the query;
  * the lengths of both, in powers of two, and the depth of the path.

  A feature is 1 if anything is hashed to it. A number counts as its number of digits.

  Args:
    urls: any strings.
    num_features: >= 2.

  Returns:
    float32 [len(urls), num_features], zeros and ones.

  >>> one, other = url_features(
  ...   ["https://a.example/login?user=17", "http://b.example/login?user=99"]
  ... )
  >>> bool((one == other).all()), int(one.sum())
  (True, 7)
  """
  _validate.integer(2, num_features=num_features)
  features = np.zeros((len(urls), num_features), np.float32)
  features[:, 0] = 1
  for row, url in zip(features, urls, strict=True):
    # Feature 0 is the intercept, so hashes fall on the others.
    row[[1 + zlib.crc32(word.encode()) % (num_features - 1) for word in _hashed_words(url)]] = 1
  return features


@checked
def split_url(url: str) -> tuple[str, str, str]:
  """(host, path, query) of any string, in lower case.

  >>> split_url("HTTP://Example.org/a/b?c=d#e")
  ('example.org', '/a/b', 'c=d#e')
  """
  rest = _URL.sub("", url.strip()).lower()
  host = re.split("[/?#]", rest, maxsplit=1)[0]
  path, _, query = rest[len(host) :].partition("?")
  return host, path, query


def _hashed_words(url: str) -> Iterator[str]:
  """The strings that `url_features` hashes: words, lengths and depth, each with its URL part."""
  _, path, query = split_url(url)
  for name, part in (("path", path), ("query", query)):
    for word in re.findall(r"[a-z]+|[0-9]+", part):
      yield f"{name} {len(word)} digits" if word.isdecimal() else f"{name} {word}"
    yield f"{name} length {len(part).bit_length()}"
  yield f"depth {path.count('/')}"


def _csv_file(path: pathlib.Path) -> pathlib.Path:
  """The CSV file that a path names: itself, or in the folder."""
  return first_file(
    [path, path / "urls_50k.csv.gz", path / "phishing" / "urls_50k.csv.gz"],
    f"Expected a CSV file of URLs in {path}; put urls_50k.csv.gz there, or name a file.",
  )
