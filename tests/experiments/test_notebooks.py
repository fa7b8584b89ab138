"""The tool that stores notebooks: what it writes once stays, and what is stale is refused."""

import configparser
import importlib.util
import pathlib

import nbformat
import pytest

from jdp import _distribution

ROOT = pathlib.Path(__file__).parents[2]
_SPEC = importlib.util.spec_from_file_location("notebooks", ROOT / ".ci" / "notebooks.py")
notebooks = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(notebooks)
_NEW = nbformat.v4


@pytest.fixture
def config():
  found = configparser.ConfigParser()
  found.read(ROOT / "setup.cfg")
  found["metadata"]["url"] = "https://github.com/anybody/jdp"
  return found


@pytest.fixture
def stored(tmp_path, monkeypatch, config):
  """A notebook as `--store` leaves it, without a kernel: its code printed "1"."""

  def execute(notebook):
    cell = notebook.cells[-1]
    cell.outputs = [
      _NEW.new_output("stream", name="stderr", text="A warning of /tmp/place.\n"),
      _NEW.new_output("stream", name="stdout", text="1\n"),
    ]

  monkeypatch.setattr(notebooks, "execute", execute)
  cells = [_NEW.new_markdown_cell("# Title"), _NEW.new_code_cell("import pandas\nprint(1)")]
  path = tmp_path / "own.ipynb"
  notebooks.store(_NEW.new_notebook(cells=cells), path, config)
  return path


def test_the_distribution_has_one_name(config):
  assert config["metadata"]["name"] == _distribution.NAME


def test_storing_gives_a_badge_an_install_cell_and_outputs_once(stored, config):
  notebook, content = nbformat.read(stored, as_version=4), stored.read_bytes()
  first, install, code = notebook.cells
  assert first.source.startswith("[![Open in Colab](")
  assert first.source.endswith("/blob/main/colabs/own.ipynb)\n\n# Title")
  assert install.source.endswith('%pip install -q "{source}[experiments]" pandas')
  assert 'else "jdp-fl"' in install.source
  assert [output.text for output in code.outputs] == ["1\n"]
  notebooks.check(notebook, stored, config)
  notebooks.store(notebook, stored, config)
  assert stored.read_bytes() == content


@pytest.mark.parametrize(
  ("change", "message"),
  [
    (lambda cells: cells[2].update(source="print(2)"), "outputs of other code"),
    (lambda cells: cells[0].update(source="# Title"), "another badge or install cell"),
    (lambda cells: cells.pop(1), "another badge or install cell"),
    (lambda cells: cells[2].outputs[0].update(text="in /root/x"), "the path /root/x in an output"),
  ],
)
def test_what_is_not_as_stored_is_refused(stored, config, change, message):
  notebook = nbformat.read(stored, as_version=4)
  change(notebook.cells)
  with pytest.raises(SystemExit, match=message):
    notebooks.check(notebook, stored, config)


def test_there_is_no_badge_while_the_address_has_no_owner(config):
  config["metadata"]["url"] = "https://github.com/_OWNER_/jdp"
  notebook = _NEW.new_notebook(cells=[_NEW.new_markdown_cell("# Title")])
  notebooks.dress(notebook, ROOT / "colabs/own.ipynb", config)
  assert notebook.cells[0].source == "# Title"


def test_another_address_changes_badges_and_keeps_the_outputs(stored, config, monkeypatch):
  monkeypatch.setattr(notebooks, "execute", lambda notebook: pytest.fail("It was executed."))
  config["metadata"]["url"] = "https://github.com/somebody/jdp"
  notebook = nbformat.read(stored, as_version=4)
  with pytest.raises(SystemExit, match="another badge"):
    notebooks.check(notebook, stored, config)
  notebooks.store(notebook, stored, config)
  assert "research.google.com/github/somebody/jdp/blob/main/colabs/own.ipynb" in stored.read_text()
  notebooks.check(nbformat.read(stored, as_version=4), stored, config)
