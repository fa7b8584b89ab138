"""Files that are not data, or more than they seem: readers refuse them by one sentence.

The sentence names the file. It quotes nothing of it, and the traceback shows nothing of it either.
"""

import gzip
import io
import math
import tracemalloc
import zipfile

import numpy as np
import pytest

from jdp.data import examples, group, pack, partition_by_group, python_modules, read_users
from jdp.data.datasets import mnist, read_idx
from jdp.data.files import read_arrays
from jdp.data.phishing import phishing, read_urls
from tests.helpers.refusals import refused

SECRET = b"wilhelmina"  # in every hostile file; no message may say it
HEADER = b"\0\0\x08"
USER = b'{"user": "%s", "text": ["%s"]}\n'
URLS = b"url,label\nhttp://a/,1\nhttp://b/,0\n"


def idx(*sizes, data=b""):
  """An IDX file of these sizes, whatever data it has."""
  return HEADER + bytes([len(sizes)]) + b"".join(n.to_bytes(4, "big") for n in sizes) + data


def npz(**members):
  """A zip file of these members, compressed."""
  content = io.BytesIO()
  with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
    for name, member in members.items():
      archive.writestr(f"{name}.npy", member)
  return content.getvalue()


def npy(array, **header):
  """An array as NumPy writes it, with some of its header replaced."""
  content = io.BytesIO()
  np.lib.format.write_array_header_1_0(
    content, {"descr": "<i8", "fortran_order": False, "shape": array.shape, **header}
  )
  return content.getvalue() + array.astype("<i8").tobytes()


def gzipped(content, cut=None, broken=None):
  """Content in gzip, cut short, or with a byte changed."""
  packed = bytearray(gzip.compress(content))
  if broken is not None:
    packed[broken] ^= 255
  return bytes(packed[:cut])


LINE = USER % (b"a", SECRET)
ARRAY = npy(np.arange(4))
DEEP = b'{"user": "a", "text": ' + b"[" * 10**5
CELL = b'"' + SECRET * 20_000 + b'"'
HOSTILE = {
  read_idx: {
    "raw": {
      "empty": b"",
      "text": SECRET,
      "header alone": HEADER,
      "no sizes": HEADER + b"\xff",
      "another type": b"\0\0\x0d\1" + SECRET,
      "less data": idx(20, data=SECRET),
      "more data": idx(2, data=SECRET),
      "negative sizes": idx(2**32 - 1, 2**32 - 1, data=SECRET),
      "sizes whose product overflows": idx(2**31, 2**31, 4, data=SECRET),
      "255 sizes": idx(*[2**31] * 255, data=SECRET),
      "exabytes": idx(2**20, 2**20, 2**20, data=SECRET),
    },
    "gz": {
      "no gzip": idx(10, data=SECRET),
      "empty": b"",
      "cut in its header": gzipped(SECRET, cut=7),
      "cut": gzipped(idx(10, data=SECRET), cut=-9),
      "no checksum": gzipped(idx(10, data=SECRET), cut=-4),
      "another checksum": gzipped(idx(10, data=SECRET), broken=-6),
      "broken data": gzipped(idx(10, data=SECRET), broken=12),
      "bytes behind it": gzipped(idx(10, data=SECRET)) + SECRET,
      "text": gzipped(SECRET),
      "exabytes": gzipped(idx(2**20, 2**20, 2**20, data=SECRET)),
    },
  },
  read_users: {
    "raw": {
      "no JSON": LINE + SECRET,
      "half a line": LINE + LINE[:-5],
      "an empty line": LINE + b"\n" + LINE,
      "a number": LINE + b"3",
      "a list": b'["%s"]' % SECRET,
      "another key": b'{"%s": "user", "text": []}' % SECRET,
      "texts that are numbers": b'{"user": "%s", "text": [1]}' % SECRET,
      "a number with many digits": b"1" * 5000,
      "deep": DEEP,
      "Latin-1": LINE + SECRET + b"\xe9",
      "UTF-16": LINE.decode().encode("utf-16"),
      "a user twice": USER % (SECRET, b"a") + USER % (SECRET, b"b"),
      "zeros": bytes(100),
    },
    "gz": {
      "no gzip": LINE,
      "cut": gzipped(LINE * 99, cut=-9),
      "another checksum": gzipped(LINE, broken=-6),
      "broken data": gzipped(LINE, broken=20),
    },
  },
  read_urls: {
    "raw": {
      "empty": b"",
      "no header": b"http://%s/,1\nhttp://b/,0\n" % SECRET,
      "a header without url": b"%s,label\nhttp://a/,1\n" % SECRET,
      "a header without labels": b"url,%s\nhttp://a/,1\n" % SECRET,
      "another label": URLS + b"http://a/,%s\n" % SECRET,
      "a label of the other column": b"url,label,status\nhttp://a/,%s,phishing\n" % SECRET,
      "a field too many": URLS + b"http://a/,1,%s\n" % SECRET,
      "a field too few": b"url,label,%s\nhttp://a/,1\n" % SECRET,
      "an open quote": URLS + b'"http://%s/,1\n' % SECRET,
      "a quote within": URLS + b'"http://%s/"x,1\n' % SECRET,
      "a field too long": URLS + CELL + b",1\n",
      "lines that end in CR": URLS.replace(b"\n", b"\r"),
      "Latin-1": URLS + b"http://%s\xe9/,1\n" % SECRET,
      "zeros": bytes(100),
    },
    "gz": {
      "no gzip": URLS + SECRET,
      "cut": gzipped(URLS + SECRET, cut=-9),
      "another checksum": gzipped(URLS, broken=-6),
      "broken data": gzipped(URLS, broken=20),
    },
  },
  read_arrays: {
    "npz": {
      "empty": b"",
      "text": SECRET,
      "an array alone": ARRAY,
      "cut": npz(a=ARRAY)[:-9],
      "another checksum": npz(a=ARRAY).replace(ARRAY[-2:], b"xx") + b"",
      "text in a member": npz(a=SECRET),
      "a header of text": npz(a=ARRAY[:8] + SECRET + ARRAY[8:]),
      "a header cut short": npz(a=ARRAY[:40]),
      "data cut short": npz(a=ARRAY[:-5]),
      "exabytes": npz(a=npy(np.arange(4), shape=(2**60,))),
      "a negative size": npz(a=npy(np.arange(4), shape=(-4,))),
      "another type": npz(a=npy(np.arange(4), descr="no type")),
      "pickles": npz(a=npy(np.arange(4), descr="|O")),
    },
  },
}
CASES = [
  pytest.param(reader, kind, content, id=f"{reader.__name__}-{kind}-{name}")
  for reader, kinds in HOSTILE.items()
  for kind, contents in kinds.items()
  for name, content in contents.items()
]


@pytest.mark.parametrize(("reader", "kind", "content"), CASES)
def test_a_hostile_file_is_refused_by_a_sentence_that_does_not_quote_it(
  tmp_path, reader, kind, content
):
  path = tmp_path / f"data.{kind}"
  path.write_bytes(content)
  refused(reader, path, secret=SECRET.decode(), match=rf"^Expected .*{path}.*, got .*[.]$")


@pytest.mark.parametrize("reader", [read_idx, read_users, read_urls, read_arrays])
def test_a_folder_is_no_file(tmp_path, reader):
  (tmp_path / "data").mkdir()
  with pytest.raises((ValueError, FileNotFoundError), match=r"^Expected .*data.*[.]$"):
    reader(tmp_path / "data")


@pytest.mark.parametrize("reader", [mnist, read_users, phishing])
def test_names_that_no_file_can_have_are_missing_files(reader):
  for path in ("x" * 5000, "nothing/here"):
    with pytest.raises(FileNotFoundError, match=r"^Expected .*; put .*[.]$"):
      reader(path)


@pytest.mark.parametrize(
  ("reader", "content", "line"),
  [
    (read_users, (USER % (b"a", b"") + USER % (b"b", b"")) + b"{}", 3),
    (read_users, (USER % (b"a", b"") + USER % (b"b", b"")) + b"\xff", 3),
    (read_urls, b"http://a/,1\n", 1),
    (read_urls, URLS + b"http://a/,2\n", 4),
    (read_urls, URLS + b'"http://a/"x,2\n', 3),
    (read_urls, URLS + b"\xff\n", 4),
  ],
)
def test_the_line_is_named_or_the_one_before(tmp_path, reader, content, line):
  path = tmp_path / "data"
  path.write_bytes(content)
  with pytest.raises(ValueError, match=rf"(in|no CSV after) line {line}\b"):
    reader(path)


def test_what_a_damaged_file_still_gave_is_told_in_bytes(tmp_path):
  path = tmp_path / "users.jsonl.gz"
  path.write_bytes(gzipped(LINE * 10**5, cut=-9))
  with pytest.raises(
    ValueError,
    match=r"whole gzip file in .*cut short after [1-9]\d{5,} bytes of data; fetch it again",
  ):
    read_users(path)


MEMBER = gzip.compress(bytes(2**24))
ZEROS = npy(np.zeros(2**21, np.int64))  # 16 MiB, 8 of which make a bomb


def bomb(begin):
  """A gzip file of 1 MiB that holds a GiB of zeros after a beginning."""
  return gzip.compress(begin) + MEMBER * 64


def understated(content, size):
  """A zip file whose directory says that its members are small."""
  return content.replace(size.to_bytes(4, "little"), (200).to_bytes(4, "little"))


BOMBS = {
  "IDX of its header's size": (read_idx, "gz", bomb(idx(2**16, 2**14)), "at most 67108864 bytes"),
  "IDX of less": (read_idx, "gz", bomb(idx(10)), "Expected 10 bytes of data"),
  "JSON": (read_users, "gz", bomb(b'{"user": "'), "at most 67108864 bytes"),
  "CSV": (read_urls, "gz", bomb(URLS), "at most 67108864 bytes"),
  "npz": (read_arrays, "npz", npz(**dict.fromkeys("abcdefgh", ZEROS)), "at most 67108864 bytes"),
  "npz of less": (read_arrays, "npz", understated(npz(a=ZEROS), len(ZEROS)), "a whole npz file"),
}


@pytest.mark.parametrize(("reader", "kind", "content", "message"), BOMBS.values(), ids=BOMBS)
def test_a_small_file_of_much_data_takes_little_memory(tmp_path, reader, kind, content, message):
  path = tmp_path / f"data.{kind}"
  path.write_bytes(content)
  assert len(content) < 1.2 * 2**20
  tracemalloc.start()
  try:
    with pytest.raises(ValueError, match=message):
      reader(path)
    _, peak = tracemalloc.get_traced_memory()
  finally:
    tracemalloc.stop()
  assert peak < 3 * 2**26  # the limit, and what joins its parts


@pytest.mark.slow
def test_data_that_is_large_because_its_file_is_large_is_read(tmp_path):
  array = np.random.default_rng(0).integers(0, 4, 2**22, np.uint8) * 85  # packed to a quarter
  path = tmp_path / "data.gz"
  # 68 MiB, more than is always allowed.
  path.write_bytes(gzip.compress(idx(17 * len(array))) + gzip.compress(array.tobytes(), 1) * 17)
  np.testing.assert_array_equal(read_idx(path).reshape(17, -1) == array, True)
  plain = tmp_path / "data"
  plain.write_bytes(idx(2**27) + bytes(2**27))
  assert len(read_idx(plain)) == 2**27  # as many as its file has


def write_mnist(folder, train=(4, 2, 2), train_labels=(4,), test=(4, 2, 2), test_labels=(4,)):
  """Files of MNIST with these sizes, all zero."""
  for name, sizes in {
    "train-images-idx3": train,
    "train-labels-idx1": train_labels,
    "t10k-images-idx3": test,
    "t10k-labels-idx1": test_labels,
  }.items():
    (folder / f"{name}-ubyte").write_bytes(idx(*sizes, data=bytes(math.prod(sizes))))


@pytest.mark.parametrize(
  ("sizes", "message"),
  [
    (
      {"train_labels": (3,)},
      r"in .*train-images.* and train-labels.*, got shapes .4, 2, 2. and .3",
    ),
    ({"test_labels": (5,)}, r"in .*t10k-images.* and t10k-labels.*, got shapes .4, 2, 2. and .5"),
    ({"train_labels": (4, 1)}, r"their labels \[n\]"),
    ({"train": (4, 4)}, r"images \[n, rows, columns\]"),
    ({"train": (), "train_labels": ()}, r"images \[n, rows, columns\]"),
    ({"train": (0, 2, 2), "train_labels": (0,)}, "n > 0"),
    ({"test": (4, 2, 3)}, r"images of one size in .*, got \(2, 2\) .* and \(2, 3\)"),
  ],
)
def test_files_that_disagree_are_refused(tmp_path, sizes, message):
  write_mnist(tmp_path, **sizes)
  with pytest.raises(ValueError, match=message):
    mnist(tmp_path)


@pytest.mark.parametrize(
  "content",
  [b"", SECRET, npz(train_writer=ARRAY)[:-9], npz(other=ARRAY)],
  ids=["empty", "text", "cut", "another member"],  # A zip file holds the time.
)
def test_damaged_writers_are_refused(tmp_path, content):
  write_mnist(tmp_path)
  (tmp_path / "mnist_writer_ids.npz").write_bytes(content)
  match = r"^Expected .*mnist_writer_ids.npz, got .*[.]$"
  refused(mnist, tmp_path, secret=SECRET.decode(), match=match)


@pytest.mark.parametrize("groups", [np.arange(3), np.arange(5), np.zeros((4, 1)), np.array(4)])
def test_groups_of_another_number_of_examples_are_refused(groups):
  with pytest.raises(ValueError, match=r"Expected (a group for each of 4|groups to be an array)"):
    partition_by_group(groups, num_examples=4)


@pytest.mark.parametrize("arrange", [group, pack])
@pytest.mark.parametrize("part", ["inputs", "labels", "mask"])
def test_parts_of_other_lengths_are_refused(arrange, part):
  data = examples(np.zeros((4, 2)), np.zeros(4))
  for other in (3, 5):
    with pytest.raises(ValueError, match="Expected as many inputs as labels and mask elements"):
      arrange(data._replace(**{part: np.resize(getattr(data, part), other)}), [np.arange(3)])


@pytest.mark.parametrize(
  ("inputs", "labels"),
  [(np.zeros((4, 2)), np.zeros((4, 1))), (np.zeros((4, 2)), np.array(1)), (np.array(1.0), [1])],
)
def test_labels_and_inputs_of_other_shapes_are_refused(inputs, labels):
  with pytest.raises(ValueError, match=r"Expected (inputs \[n, \.\.\.\]|inputs to|labels to) "):
    examples(inputs, labels)


def test_modules_that_are_none_are_left_out(tmp_path):
  (tmp_path / "good.py").write_text("# A note.\n")
  (tmp_path / "deep.py").write_text("-" * 10**5 + "1\n")
  (tmp_path / "folder.py").mkdir()
  (tmp_path / "dangling.py").symlink_to(tmp_path / "nothing")
  (tmp_path / "zeros.py").write_bytes(bytes(100))
  assert [user for user, _ in python_modules(tmp_path)] == ["good"]


def test_no_modules_are_refused(tmp_path):
  with pytest.raises(ValueError, match=r"Expected Python modules with comments in .*, got none"):
    python_modules(tmp_path)
