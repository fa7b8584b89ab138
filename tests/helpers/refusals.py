"""How a file is refused: by one sentence, which shows nothing of what is in it."""

import traceback

import pytest


def refused(read, *arguments, secret, match=r"^Expected .*[.]$"):
  """The sentence by which `read` refuses its arguments, in whose traceback the secret is not."""
  with pytest.raises(ValueError, match=match) as error:
    read(*arguments)
  shown = "".join(traceback.format_exception(error.value))
  assert secret not in shown
  assert "During handling" not in shown  # what a library said, which may quote the file
  assert "direct cause" not in shown
  return str(error.value)
