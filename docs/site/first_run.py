"""A picture of what a command prints.

python -m experiments.private_federated > printed.txt
grep '^|' printed.txt | python -m docs.site.first_run docs/first_run.png
"""

import pathlib
import sys

from matplotlib.figure import Figure

_POINTS = 72  # per inch
_SIZE, _LEADING, _ADVANCE = 8.0, 1.35, 0.602  # of DejaVu Sans Mono: points, lines, share of a size


def picture(text: str, path: pathlib.Path) -> None:
  """Draws the lines of a terminal."""
  lines = text.rstrip().splitlines()
  width = (max(map(len, lines)) + 4) * _ADVANCE * _SIZE / _POINTS
  height = (len(lines) + 2) * _LEADING * _SIZE / _POINTS
  figure = Figure(figsize=(width, height), facecolor="#16202b")
  for number, line in enumerate(lines, 1):
    figure.text(
      2 * _ADVANCE * _SIZE / _POINTS / width,
      1 - (number + 0.5) * _LEADING * _SIZE / _POINTS / height,
      line.replace("$", r"\$"),
      family="DejaVu Sans Mono",
      fontsize=_SIZE,
      color="#dfe7ef",
    )
  figure.savefig(path, dpi=130, facecolor=figure.get_facecolor(), metadata={"Software": None})


if __name__ == "__main__":
  picture(sys.stdin.read(), pathlib.Path(sys.argv[1]))
