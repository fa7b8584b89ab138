"""The code of the documentation's page on one's own model and data runs as it stands."""

import pathlib
import re
import sys
import types

import pytest

from jdp.mechanisms import registry

PAGE = pathlib.Path(__file__).parents[1] / "docs/your_model_and_data.md"


@pytest.mark.slow
def test_the_page_runs(monkeypatch, capsys):
  try:
    import tensorboardX  # noqa: F401
  except ModuleNotFoundError:  # an optional package: without it, its writer's interface
    writer = types.SimpleNamespace(add_scalar=lambda *scalar: None)
    fake = types.SimpleNamespace(SummaryWriter=lambda folder, flush_secs: writer)
    monkeypatch.setitem(sys.modules, "tensorboardX", fake)
  monkeypatch.setattr(registry, "_MECHANISMS", {**registry._MECHANISMS})
  blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.S | re.M)
  assert len(blocks) >= 7
  names: dict = {}
  for block in blocks:
    exec(compile(block, PAGE.name, "exec"), names)
  printed = capsys.readouterr().out
  assert "mixes the examples of a batch" in printed
  assert "'stopped_early': True" in printed
