"""URLs as features: what is hashed, and what is left out."""

import gzip

import numpy as np
import pytest

from jdp.data import phishing


@pytest.mark.parametrize(
  ("url", "parts"),
  [
    ("https://A.example/B/c.php?Q=1&r#x", ("a.example", "/b/c.php", "q=1&r#x")),
    ("//host", ("host", "", "")),
    ("host?q", ("host", "", "q")),
    ("javascript://%0aalert(1)", ("%0aalert(1)", "", "")),
    ("", ("", "", "")),
    ("http://[::1/broken]", ("[::1", "/broken]", "")),
  ],
)
def test_urls_are_split_whatever_they_are(url, parts):
  assert phishing.split_url(url) == parts


def test_scheme_host_and_the_digits_of_numbers_are_left_out():
  same = ["http://one.example/login/17?user=5", "HTTPS://two.example:99/login/23?user=8"]
  other = [
    "http://one.example/logout/17?user=5",
    "http://one.example/user/17?login=5",
    "http://one.example/login/170?user=5",
  ]
  features = phishing.url_features(same + other)
  np.testing.assert_array_equal(features[0], features[1])
  for row in features[2:]:
    assert np.any(row != features[0])


def test_features_are_bits_with_an_intercept_and_do_not_change_from_run_to_run():
  features = phishing.url_features(["", "http://h/é\x00/..?%zz", "http://h/a/b"], 50)
  assert features.dtype == np.float32
  assert set(np.unique(features)) == {0, 1}
  np.testing.assert_array_equal(features[:, 0], 1)
  assert np.flatnonzero(features[2]).tolist() == [0, 1, 6, 28, 30, 49]


def write(path, rows, header="url,label"):
  with gzip.open(path, "wt") as file:
    file.write("\n".join([header, *rows]) + "\n")
  return path


def test_no_host_is_in_both_parts(tmp_path):
  rows = [
    f'"http://host{i % 40}.example/{"login" if i % 3 else "news"}, {i}",{int(i % 3 > 0)}'
    for i in range(400)
  ]
  (tmp_path / "phishing").mkdir()
  write(tmp_path / "phishing" / "urls_50k.csv.gz", rows)
  found = phishing.phishing(tmp_path, num_features=30)
  urls, labels = phishing.read_urls(tmp_path / "phishing" / "urls_50k.csv.gz")
  train, test = found.train, found.test
  assert (len(train.labels) + len(test.labels), found.num_classes) == (400, 2)
  assert sorted([*train.labels, *test.labels]) == sorted(labels)
  assert len(test.labels) % 10 == 0  # Ten URLs of each host.
  assert 10 <= len(test.labels) <= 200
  np.testing.assert_array_equal(
    np.unique(np.concatenate([train.inputs, test.inputs]).sum(axis=0) > 0), [False, True]
  )
  assert urls[1] == "http://host1.example/login, 1"


def test_both_label_columns_are_read(tmp_path):
  path = write(tmp_path / "a.csv.gz", ["http://a/,legitimate", "http://b/,phishing"], "url,status")
  assert phishing.read_urls(path)[1].tolist() == [0, 1]
  plain = tmp_path / "b.csv"
  plain.write_text("label,url\n1,http://a/\n")
  assert phishing.read_urls(plain)[1].tolist() == [1]


def test_other_files_are_refused(tmp_path):
  with pytest.raises(
    FileNotFoundError, match=r"Expected a CSV file of URLs in .*put urls_50k\.csv\.gz there"
  ):
    phishing.phishing(tmp_path)
  for header, row in (("address,label", "http://a/,1"), ("url,label", "http://a/,2")):
    path = write(tmp_path / "a.csv.gz", [row], header)
    with pytest.raises(ValueError, match="Expected columns url and label"):
      phishing.phishing(path)
  path = write(tmp_path / "a.csv.gz", ["http://a/,1", "http://a/b,0"])
  with pytest.raises(ValueError, match="Expected URLs of several hosts, got 2"):
    phishing.phishing(path)
  with pytest.raises(ValueError, match="num_features"):
    phishing.url_features(["http://a/"], 1)
