"""One absl binary per paper, all on one runner: `python -m experiments.<name> --help`."""

import importlib.util
import sys

from jdp import _distribution

_NEEDED = ("matplotlib", "orbax", "sklearn", "tqdm")  # by the extra `experiments`

missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
if missing:
  message = (
    f"Expected the extra `experiments`, got no {', '.join(missing)}; run: "
    f"{_distribution.install('experiments')}"
  )
  if sys.argv[:1] == ["-m"]:  # A binary is about to run, and ends with this line alone.
    sys.exit(message)
  raise ImportError(message)
