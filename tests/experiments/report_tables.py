"""The tables of a report, as a test reads them."""

import re


def rows(report: str) -> list[list[str]]:
  """The cells of every row of a result's table, headers too; not of where it was computed."""
  results, _, _ = report.partition("## How to repeat it")
  lines = re.findall(r"^\|.*\|$", results, re.MULTILINE)
  return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
