"""The code of the documentation's page on one's own model and data runs as it stands."""

import pathlib
import re

import pytest

from jdp.mechanisms import registry

PAGE = pathlib.Path(__file__).parents[1] / "docs/your_model_and_data.md"


@pytest.mark.slow
def test_the_page_runs(monkeypatch, capsys):
  monkeypatch.setattr(registry, "_MECHANISMS", {**registry._MECHANISMS})
  blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.S | re.M)
  assert len(blocks) >= 7
  names: dict = {}
  for block in blocks:
    exec(compile(block, PAGE.name, "exec"), names)
  printed = capsys.readouterr().out
  assert "mixes the examples of a batch" in printed
  assert "'stopped_early': True" in printed
  (events,) = (names["folder"] / "events").iterdir()  # TensorBoard's
  assert events.stat().st_size > 100
