"""The lines of a ledger file are a chain with an end: none of them can be lost by accident."""

import contextlib
import itertools
import json
import zlib

import pytest

from jdp.events import DistributedGaussianSum, GaussianSum, GroupedSums, PoissonSampling, Round
from jdp.ledger import DurableLedger, Ledger, load, load_file
from jdp.ledger.durable import LedgerMark
from tests.helpers.ledgers.example_events import EVENTS

RUN, KEY, OTHER_KEY = "run", b"k" * 32, b"o" * 32
ROUNDS = [[event] for event in EVENTS[:4]]


def durable(path, rounds=ROUNDS, *, finish=False, prior=Ledger(), key=None):
  """The marks after each of the rounds, and after the end record."""
  marks = []
  with contextlib.closing(DurableLedger(path, RUN, prior, key=key)) as ledger:
    for number, events in enumerate(rounds):
      ledger.append(number, events)
      marks.append(ledger.mark)
    if finish:
      ledger.finish()
      marks.append(ledger.mark)
  return marks


def unchained(*records):
  """A file as jdp wrote it before lines were chained."""
  texts = (json.dumps(record, separators=(",", ":")) for record in records)
  return "".join(f"{zlib.crc32(text.encode()):08x} {text}\n" for text in texts)


ENTRY = json.loads(
  '[{"type":"Round","sampling":{"type":"PoissonSampling","probability":0.1,'
  '"overflow_probability":1e-13,"population":60000},"query":{"type":"GaussianSum","clip_norm":'
  '0.3333333333333333,"stddev":0.7},"relation":"add_remove","unit":"user","observer":"model"},1]'
)
HEADER = {"format": "jdp-ledger", "version": 1}


def test_a_line_removed_moved_or_repeated_is_refused_on_every_way_in(path):
  durable(path, finish=True)
  header, *rounds, end = path.read_bytes().splitlines(keepends=True)
  wrong = [
    *([header, *rounds[:n], *rounds[n + 1 :], end] for n in range(len(rounds))),
    *([header, *order, end] for order in itertools.permutations(rounds) if order != tuple(rounds)),
    [header, rounds[0], *rounds, end],
    [*rounds, end],
    [header, *rounds, end, end],
    [header, *rounds, end, rounds[-1]],
  ]
  for lines in wrong:
    path.write_bytes(b"".join(lines))
    for read in (load, lambda p: DurableLedger(p, RUN)):
      with pytest.raises(ValueError, match="Expected"):
        read(path)


def test_a_saved_ledger_is_closed_and_says_so_no_more_when_it_is_cut(path):
  ledger = Ledger().extend((event, 2) for event in EVENTS)
  ledger.save(path)
  found = load_file(path)
  assert (found.ledger, found.closed, found.remarks, found.run) == (ledger, True, (), None)
  *lines, _ = path.read_bytes().splitlines(keepends=True)
  path.write_bytes(b"".join(lines[:-1]))
  cut = load_file(path)
  assert len(cut.ledger) < len(ledger)
  assert cut.remarks == (
    "the ledger is not closed: its run goes on, or rounds may be missing at its end",
  )


def test_a_finished_ledger_takes_no_further_rounds(path):
  durable(path)
  assert not load_file(path).closed
  with contextlib.closing(DurableLedger(path, RUN)) as ledger:
    ledger.finish()
    link = ledger.link
    ledger.finish()
  content = path.read_bytes()
  with contextlib.closing(DurableLedger(path, RUN)) as ledger:
    ledger.append(0, *ROUNDS)  # a resumed run may repeat what is on file
    ledger.finish()
    with pytest.raises(ValueError, match=r"Expected no further rounds in .* after round 3, got"):
      ledger.append(4, ROUNDS[0])
    assert (ledger.last_round, ledger.link) == (3, link)
  assert path.read_bytes() == content
  found = load_file(path)
  assert (found.closed, found.remarks, found.link, found.run) == (True, (), link, RUN)


def test_a_file_that_goes_on_from_a_mark_is_taken_and_no_other(path):
  marks = durable(path, finish=True)
  whole = path.read_bytes()
  lines = whole.splitlines(keepends=True)
  for mark in marks:
    DurableLedger(path, RUN, expected=mark).close()
    DurableLedger(path, RUN, expected=LedgerMark(*json.loads(json.dumps(mark)))).close()
  for kept in range(len(lines)):
    path.write_bytes(b"".join(lines[:kept]))
    before = path.read_bytes()
    for mark in marks[: max(0, kept - 1)]:
      DurableLedger(path, RUN, expected=mark).close()
    for mark in marks[max(0, kept - 1) :]:
      with pytest.raises(
        ValueError,
        match=f"holds round {mark.last_round} with link {mark.link} in .*, got one that ends at "
        f"round {max(-1, kept - 2)} or is another; restore it, as the epsilon would be too small",
      ):
        DurableLedger(path, RUN, expected=mark)
      assert path.read_bytes() == before
  path.unlink()
  durable(path, [[EVENTS[5]], *ROUNDS[1:]], finish=True)  # as long, but another
  for mark in marks:
    with pytest.raises(ValueError, match="or is another"):
      DurableLedger(path, RUN, expected=mark)


def test_links_tell_files_apart_by_run_prior_and_every_round(tmp_path):
  links = [
    durable(tmp_path / "a")[-1].link,
    durable(tmp_path / "b", prior=Ledger().append(EVENTS[0]))[-1].link,
    durable(tmp_path / "c", [*ROUNDS[:3], [EVENTS[5]]])[-1].link,
    durable(tmp_path / "d", key=KEY)[-1].link,
    durable(tmp_path / "e", key=OTHER_KEY)[-1].link,
  ]
  with contextlib.closing(DurableLedger(tmp_path / "f", "another")) as other:
    other.append(0, *ROUNDS)
    links.append(other.link)
  assert len(set(links)) == len(links)
  assert durable(tmp_path / "g")[-1].link == links[0]


def test_with_a_key_only_its_holders_write_and_read(path, tmp_path):
  saved = tmp_path / "saved"
  durable(path, key=KEY, finish=True)
  ledger = Ledger().append(EVENTS[0])
  ledger.save(saved, key=KEY)
  assert list(load(path, key=KEY)) == EVENTS[:4]
  assert load(saved, key=KEY) == ledger
  for file in (path, saved):
    with pytest.raises(ValueError, match=r"Expected the key with which .* was written, got none"):
      load(file)
    with pytest.raises(ValueError, match="damaged one at line 1, or the file was written with ano"):
      load(file, key=OTHER_KEY)
  with pytest.raises(ValueError, match="Expected the key"):
    DurableLedger(path, RUN)
  with pytest.raises(ValueError, match="another key"):
    DurableLedger(path, RUN, key=OTHER_KEY)
  # Whoever has no key can write a file without one, or change a line: both are noticed.
  ledger.save(saved)
  with pytest.raises(ValueError, match="to be written with a key, got a file without one"):
    load(saved, key=KEY)
  path.write_bytes(path.read_bytes().replace(b'"stddev":0.7', b'"stddev":0.8'))
  with pytest.raises(ValueError, match="damaged one at line 2"):
    load(path, key=KEY)


@pytest.mark.parametrize(
  ("key", "error", "message"),
  [
    ("secret", TypeError, "Expected key to be bytes or None, got str"),
    (b"short", ValueError, "Expected key to have at least 16 bytes, got 5"),
  ],
)
def test_what_is_no_key_is_refused(path, key, error, message):
  for use in (
    lambda: Ledger().save(path, key=key),
    lambda: load(path, key=key),
    lambda: DurableLedger(path, RUN, key=key),
  ):
    with pytest.raises(error, match=message):
      use()
    assert not path.exists()


def test_files_from_before_links_are_read_in_sequence_and_marked(path):
  rounds = [{"round": n, "entries": [ENTRY]} for n in range(3)]
  prior = {"round": -1, "entries": [[ENTRY[0], 5]]}
  path.write_text(unchained({**HEADER, "run": RUN}, prior, *rounds))
  found = load_file(path)
  assert found.ledger == Ledger().append(EVENTS[0], count=8)
  assert (found.link, found.closed, found.run) == (None, False, RUN)
  assert found.remarks[0].startswith("the ledger is unchained")
  for wrong in ([rounds[0], rounds[2]], rounds[1:], rounds[::-1], [rounds[0]] * 2):
    path.write_text(unchained({**HEADER, "run": RUN}, *wrong))
    with pytest.raises(ValueError, match=r"Expected line \d of .*: Expected round \d, got round"):
      load(path)
  path.write_text(unchained({**HEADER, "run": RUN}, *rounds[:1], prior))
  with pytest.raises(ValueError, match="Expected a round after rounds"):
    load(path)
  path.write_text(unchained({**HEADER, "run": RUN}, *rounds))
  with pytest.raises(ValueError, match="got version 1, which can be read only"):
    DurableLedger(path, RUN)
  with pytest.raises(ValueError, match=r"Expected .* to be written with a key"):
    load(path, key=KEY)


@pytest.mark.parametrize(
  "record",
  [
    {"entries": 3},
    {"entries": [[1.5, 1]]},
    {"entries": [[{**ENTRY[0], "type": "Unknown"}, 1]]},
    {"entries": [[{**ENTRY[0], "unit": "nobody"}, 1]]},
    {"entries": [[ENTRY[0], -90]]},
    {"entries": [[ENTRY[0], "3"]]},
    {"entries": [[ENTRY[0]["query"], 1]]},
    {"events": []},
    {"round": "0", "entries": []},
    {"round": 0, "entries": [[ENTRY[0], -90]]},
    [],
    None,
  ],
)
def test_a_record_that_is_none_of_events_is_refused_in_a_sentence(path, record):
  path.write_text(unchained(HEADER, record))
  with pytest.raises((ValueError, TypeError), match=r"Expected .*, got "):
    load(path)


def test_columns_keep_every_number_apart(tmp_path):
  """Rounds that differ in numbers alone share a line, in which no number changes its type."""

  def event(stddev, released=True, clip_norm=1.0):
    parts = GaussianSum(clip_norm, stddev), DistributedGaussianSum(1.0, stddev, released)
    return Round(PoissonSampling(0.5), GroupedSums(parts, ("a", "b")), "zero_out")

  events = [event(1.0), event(2.0), event(2.0, False), event(0.1), event(0.1, True, 3)]
  ledger = Ledger().extend((one, count) for count, one in enumerate(events, 1))
  ledger.save(tmp_path / "saved")
  assert len((tmp_path / "saved").read_bytes().splitlines()) == 3  # header, events, end
  durable(tmp_path / "durable", [])
  with contextlib.closing(DurableLedger(tmp_path / "durable", RUN)) as file:
    file.append(0, *([one] * count for count, one in enumerate(events, 1)))
  for path in (tmp_path / "saved", tmp_path / "durable"):
    found = load(path)
    assert found == ledger
    assert repr(found) == repr(ledger)  # 3 is not 3.0
