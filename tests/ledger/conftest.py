"""What tests of ledger files share."""

import pytest


@pytest.fixture
def path(tmp_path):
  """Where a test's ledger file is."""
  return tmp_path / "ledger"
