"""A ledger file that is damaged is refused or flagged, and a writer whose calls fail loses nothing.

`python -m tests.faults.ledger_faults` runs the long form.
"""

from tests.faults.ledger_faults import damage, errors


def test_every_flipped_bit_and_every_truncation_is_refused_or_flagged(tmp_path):
  """No damage is believed: neither read without a remark, nor gone on with against a mark."""
  counted = damage(tmp_path, 1, every=11)
  assert sum(counted.values()) > 6000
  assert set(counted) == {
    "flip: refused",
    "flip: refused, refused",
    "cut: refused",
    "cut: refused, continued",  # torn before the first round: nothing was released
    "cut: read as not closed",
    "cut: read as not closed, continued",
  }


def test_a_writer_whose_calls_fail_loses_nothing_and_doubles_nothing(tmp_path):
  assert sum(errors(tmp_path, 3).values()) > 100
