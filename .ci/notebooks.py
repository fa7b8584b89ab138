"""Notebooks: executed as a reader would, with outputs, a badge and an install cell of their own.

python .ci/notebooks.py FOLDER          # checks what is stored, and executes every notebook
python .ci/notebooks.py --store FOLDER  # writes badges, install cells, and outputs of new code

The address of badges is the `url` of setup.cfg; while that has no owner, there are none. An install
cell takes the clone that the notebook lies in, else the distribution of the index. An error in a
cell is an error here. To store twice changes nothing.
"""

import argparse
import configparser
import copy
import hashlib
import pathlib
import re
import sys
import time

import nbclient
import nbformat

_GITHUB, _COLAB = "https://github.com/", "https://colab.research.google.com/"
_NO_OWNER = "_OWNER_"
_INSTALL = "install"  # the id of the cell that installs
_DIGEST = "outputs_of"  # the entry of a notebook's metadata that says which code its outputs are of
_SHOWN = ("image/png", "text/html", "text/plain")
_LARGEST = 600_000  # bytes of a notebook
_PATH = re.compile(r"(?<![\w./:])/(?:home|mnt|opt|private|root|tmp|usr|var|work|Users)/\S*")
_OWN_LINES = re.compile(r"^\[!\[Open in Colab.*\n+|\n*On Colab, install first:.*")
_FURTHER = ("equinox", "pandas", "tensorboardX")  # what the extra `experiments` has not


def dress(notebook, path, config):
  """Gives the notebook its badge and its install cell, in place."""
  address, name = config["metadata"]["url"], config["metadata"]["name"]
  page = address.replace(_GITHUB, f"{_COLAB}github/") + f"/blob/main/colabs/{path.name}"
  badge = f"[![Open in Colab]({_COLAB}assets/colab-badge.svg)]({page})\n\n"
  first = notebook.cells[0]
  text = _OWN_LINES.sub("", first.source)
  first.source = text if _NO_OWNER in address else badge + text
  notebook.cells = [cell for cell in notebook.cells if cell.id != _INSTALL]
  imports = re.findall(r"^(?:import|from) (\w+)", _code(notebook), re.M)
  further = "".join(f" {package}" for package in _FURTHER if package in imports)
  source = (
    "import importlib.util\nimport pathlib\n\n"
    'if importlib.util.find_spec("jdp") is None:\n'
    "  clone = pathlib.Path.cwd().parent\n"
    f'  source = clone if (clone / ".ci").exists() else "{name}"\n'
    f'  %pip install -q "{{source}}[experiments]"{further}'
  )
  cell = nbformat.v4.new_code_cell(source, id=_INSTALL)
  notebook.cells.insert(1, cell)


def check(notebook, path, config):
  """Refuses a notebook whose badge, install cell or outputs are not what `--store` would write."""
  dressed = copy.deepcopy(notebook)
  before = [cell.source for cell in notebook.cells]
  dress(dressed, path, config)
  problems = []
  if [cell.source for cell in dressed.cells] != before:
    problems.append("another badge or install cell than setup.cfg's url gives")
  if notebook.metadata.get(_DIGEST) != _digest(notebook):
    problems.append("outputs of other code")
  if path.stat().st_size > _LARGEST:
    problems.append(f"{path.stat().st_size:,} bytes, above {_LARGEST:,}: make its figures smaller")
  problems += [f"the path {found} in an output" for found in _PATH.findall(_outputs(notebook))]
  if problems:
    sys.exit(
      f"Expected {path} as stored, got {'; '.join(problems)}; run: python .ci/notebooks.py --store "
      f"{path.parent}"
    )


def execute(notebook):
  """Executes the notebook in place."""
  client = nbclient.NotebookClient(
    notebook, timeout=600, kernel_name="python3", record_timing=False
  )
  client.execute()


def store(notebook, path, config):
  """Dresses the notebook, executes it if its code is new, and writes it."""
  dress(notebook, path, config)
  digest, metadata = _digest(notebook), dict(notebook.metadata)
  if metadata.get(_DIGEST) != digest:
    execute(notebook)
    _strip(notebook)
  notebook.metadata = nbformat.from_dict({**metadata, _DIGEST: digest})
  nbformat.write(notebook, path)


def _code(notebook):
  """All code but the install cell's."""
  cells = (c for c in notebook.cells if c.cell_type == "code" and c.id != _INSTALL)
  return "\n\n".join(cell.source for cell in cells)


def _digest(notebook):
  return hashlib.sha256(_code(notebook).encode()).hexdigest()[:16]


def _strip(notebook):
  """Leaves what a reader sees: no progress bars and warnings, no metadata of the execution."""
  for cell in notebook.cells:
    cell.metadata.pop("execution", None)
    if cell.cell_type == "code":
      cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
      for output in cell.outputs:
        if "data" in output:
          output.data = {kind: output.data[kind] for kind in _SHOWN if kind in output.data}
          output.metadata = {}


def _outputs(notebook):
  """All text in the outputs."""
  outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
  texts = [output.get("text", "") for output in outputs]
  data = [output.get("data", {}) for output in outputs]
  return "\n".join([*texts, *(d.get("text/plain", "") + d.get("text/html", "") for d in data)])


def _figures(notebook):
  outputs = (output for cell in notebook.cells for output in cell.get("outputs", []))
  return sum("image/png" in output.get("data", {}) for output in outputs)


def main():
  """Reads the arguments; goes through the folder."""
  parser = argparse.ArgumentParser()
  parser.add_argument("folder", type=pathlib.Path)
  parser.add_argument("--store", action="store_true")
  options = parser.parse_args()
  config = configparser.ConfigParser()
  config.read(pathlib.Path(__file__).parents[1] / "setup.cfg")
  for path in sorted(options.folder.glob("*.ipynb")):
    start, notebook = time.time(), nbformat.read(path, as_version=4)
    if options.store:
      store(notebook, path, config)
      notebook = nbformat.read(path, as_version=4)
    check(notebook, path, config)
    if not options.store:
      execute(notebook)
    print(f"{path.name}: {_figures(notebook)} figures in {time.time() - start:.0f} s", flush=True)


if __name__ == "__main__":
  main()
