"""Executes every notebook of a folder, as a reader would: an error in a cell is an error here."""

import pathlib
import sys
import time

import nbclient
import nbformat

for path in sorted(pathlib.Path(sys.argv[1]).glob("*.ipynb")):
  start = time.time()
  notebook = nbformat.read(path, as_version=4)
  nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
  figures = sum(
    "image/png" in output.get("data", {})
    for cell in notebook.cells
    for output in cell.get("outputs", [])
  )
  print(f"{path.name}: {figures} figures in {time.time() - start:.0f} s")
  if len(sys.argv) > 2:
    nbformat.write(notebook, pathlib.Path(sys.argv[2]) / path.name)
