"""Screenshots of every page of a built site, wide and narrow, and what a browser finds wrong.

python -m docs.site.screenshots SITE OUT --browser=/usr/bin/chromium

Needs the package `playwright` and a Chromium. Reports pictures that are missing, links within the
site that lead nowhere, requests to other places, and pages that are wider than the window. With
`--pages=WORD`, only pages whose path has the word.
"""

import argparse
import pathlib
import sys
import urllib.parse

from playwright import sync_api

_WIDTHS = (1280, 390)
_FACTS = """() => ({
  images: [...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src),
  links: [...document.links].map(a => a.href),
  ids: [...document.querySelectorAll('[id]')].map(e => e.id),
  width: document.scrollingElement.scrollWidth,
})"""


def main() -> None:
  """Reads the arguments; exits with 1 if anything is wrong."""
  parser = argparse.ArgumentParser()
  parser.add_argument("site", type=pathlib.Path)
  parser.add_argument("out", type=pathlib.Path)
  parser.add_argument("--browser", default="/usr/bin/chromium")
  parser.add_argument("--pages", default="")
  options = parser.parse_args()
  paths = sorted(options.site.resolve().rglob("*.html"))
  pages = [path for path in paths if options.pages in path.as_posix()]
  options.out.mkdir(parents=True, exist_ok=True)
  with sync_api.sync_playwright() as engine:
    browser = engine.chromium.launch(executable_path=options.browser, args=["--no-sandbox"])
    found = {path: _look_at(browser, path, options) for path in pages}
  problems = [problem for facts in found.values() for problem in facts["problems"]]
  ids = {path: set(facts["ids"]) for path, facts in found.items()}
  for path, facts in found.items():
    problems += [f"{path.name}: no {link}" for link in facts["links"] if not _leads(link, ids)]
  print(f"{len(pages)} pages, {len(problems)} problems", *sorted(set(problems)), sep="\n")
  sys.exit(bool(problems))


def _look_at(browser: sync_api.Browser, path: pathlib.Path, options: argparse.Namespace) -> dict:
  """What a page holds, and what is wrong with it; saves its screenshots."""
  facts: dict = {}
  problems: list[str] = []
  name = path.relative_to(options.site.resolve()).with_suffix("").as_posix().replace("/", "-")
  for width in _WIDTHS:
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.on("request", lambda request: _refuse_others(request, name, problems))
    page.goto(path.as_uri())
    facts = page.evaluate(_FACTS)
    problems.extend(f"{name}: no picture {source}" for source in facts["images"])
    if facts["width"] > width:
      problems.append(f"{name}: {facts['width']} pixels wide in {width}")
    page.screenshot(path=options.out / f"{name}-{width}.png", full_page=True)
    page.close()
  return {**facts, "problems": problems}


def _refuse_others(request: sync_api.Request, name: str, problems: list[str]) -> None:
  if not request.url.startswith(("file:", "data:")):
    problems.append(f"{name}: asks for {request.url}")


def _leads(link: str, ids: dict[pathlib.Path, set[str]]) -> bool:
  """Whether a link within the site leads to a file, and to a place in it."""
  parts = urllib.parse.urlsplit(link)
  if parts.scheme != "file":
    return True
  path = pathlib.Path(urllib.parse.unquote(parts.path))
  if not path.is_file():
    return False
  return not parts.fragment or path not in ids or urllib.parse.unquote(parts.fragment) in ids[path]


if __name__ == "__main__":
  main()
