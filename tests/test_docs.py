"""The documentation's pages: their code runs and prints what they say, what they name exists.

A page's Python runs in order in one namespace. A `text` block right behind a `python` block is what
that block prints.
"""

import configparser
import contextlib
import functools
import io
import pathlib
import re
import sys

import jax
import pytest

from docs.site import architecture, links, public_names, tables
from jdp import command_line, events, ledger

REPOSITORY = pathlib.Path(__file__).parents[1]
PAGES = [
  path
  for path in sorted([*REPOSITORY.glob("docs/**/*.md"), *REPOSITORY.glob("*.md")])
  if "generated" not in path.parts
]
TEXTS = {path.relative_to(REPOSITORY).as_posix(): path.read_text() for path in PAGES}
BLOCKS = {
  name: re.findall(r"^```python\n(.*?)^```(?:\n\n```text\n(.*?)^```)?", text, re.S | re.M)
  for name, text in TEXTS.items()
}
# They have further tests.
OF_THEIR_OWN = {"README.md", "docs/getting_started.md", "docs/your_model_and_data.md"}
FIRST = "docs/concepts.md"  # the cheapest, so that the fast part has one
RUN = sorted(
  (name for name, blocks in BLOCKS.items() if blocks and name not in OF_THEIR_OWN),
  key=lambda name: (name != FIRST, name),
)


def run(name):
  """Runs a page's code as a user would, who has no strict promotion; returns its names."""
  names = {}
  with (
    jax.numpy_dtype_promotion("standard"),
    jax.numpy_rank_promotion("allow"),
    jax.debug_key_reuse(False),
  ):
    for code, expected in BLOCKS[name]:
      printed = io.StringIO()
      with contextlib.redirect_stdout(printed):
        exec(compile(code, name, "exec"), names)
      assert not expected or printed.getvalue() == expected
  return names


@pytest.mark.sweep
@pytest.mark.parametrize("name", RUN)
def test_the_code_of_a_page_runs(name, undone, monkeypatch):
  monkeypatch.chdir(REPOSITORY)
  monkeypatch.setattr(sys, "path", list(sys.path))
  run(name)


@pytest.mark.slow
def test_your_model_and_data(undone):
  names = run("docs/your_model_and_data.md")
  assert len(BLOCKS["docs/your_model_and_data.md"]) >= 7
  assert names["result"].metrics[-1]["stopped_early"]
  (written,) = (names["folder"] / "events").iterdir()  # TensorBoard's
  assert written.stat().st_size > 100


def test_every_public_name_has_a_docstring():
  assert public_names.undocumented() == []
  assert len(public_names.all_names()) > 400


def test_the_reference_has_the_classes_of_results_that_no_package_exports():
  names = public_names.all_names()
  assert "jdp.queries.distributed.float_sums.DistributedSum" in names  # distributed_sum returns it
  assert "jdp.queries.distributed.float_sums.RoundEvents" in names  # which that makes
  assert not any("._" in name for name in names)


def test_the_reference_begins_with_what_a_package_mentions_first():
  (_, names), *_ = public_names.sections("jdp.federated")
  first = [one.name.rpartition(".")[2] for one in names[:3]]
  assert first == ["dp_fedavg", "dp_sgd", "train"]
  assert len({one.name for one in names}) == len(names)


def test_tables_have_every_sampler_and_strategy():
  tables.check_complete()


def test_packages_do_not_import_each_other_in_a_circle():
  edges = architecture.direct(architecture.imports())
  assert "random" in edges["numerics"]
  assert not edges["random"]


def test_tests_that_pages_name_exist():
  named = {
    one for text in TEXTS.values() for one in re.findall(r"tests/[\w/]+\.py(?:::\w+)?", text)
  }
  assert len(named) > 50
  for one in named:
    path, _, function = one.partition("::")
    assert (REPOSITORY / path).exists(), one
    assert not function or f"def {function}" in (REPOSITORY / path).read_text(), one


def test_statements_that_docstrings_name_exist():
  theory = "".join(text for name, text in TEXTS.items() if "/theory/" in name)
  stated = set(re.findall(r"^## Statement (\d\.\d)", theory, re.M))
  code = "".join(path.read_text() for path in (REPOSITORY / "jdp").rglob("*.py"))
  named = {
    number
    for sentence in re.findall(r"Statements? [\d., and\n]+", code + theory)
    for number in re.findall(r"\d\.\d", sentence)
  }
  assert len(stated) > 25
  assert named <= stated


def test_names_of_jdp_in_pages_exist():
  for name, text in TEXTS.items():
    if name != "CHANGELOG.md":  # which tells of names that are gone
      links.outside_fences(links.with_names, text)


def test_links_between_files_lead_somewhere():
  for name, text in TEXTS.items():
    for target in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", text):
      path = (REPOSITORY / name).parent / target
      assert path.exists() or "generated" in target, (name, target)


def test_links_to_results_lead_to_their_files_from_a_copied_page():
  """The page lies elsewhere on the site. A link's title is the path of its number."""
  link = '[84 times](results/cohorts.jsonl "federated, cnn > ratio")'
  page = "generated/experiments/benchmarks"
  place = "../../../experiments/benchmarks/results/cohorts.jsonl"
  found = links._LINK.sub(functools.partial(links._link, page), link)
  assert found == link.replace("results/cohorts.jsonl", place)


def test_commands_name_what_there_is():
  commands = {
    line
    for text in TEXTS.values()
    for line in re.findall(r"^    (?:\S*python -m |jdp ).*", text, re.M)
  }
  for line in map(str.split, commands):
    if line[0] == "jdp":
      assert command_line._parser().parse_args(line[1 : (*line, "#").index("#")])
    elif line[2].startswith("experiments.") and "<" not in line[2]:
      folder = REPOSITORY / line[2].replace(".", "/")
      assert folder.is_dir(), line
      presets = (word.partition("=")[2] for word in line if word.startswith("--preset="))
      assert all((folder / f"flags/{preset}.flags").exists() for preset in presets), line


TOOL = sorted(set(re.findall(r"^    (jdp .*)", "\n".join(TEXTS.values()), re.M)))


@pytest.mark.sweep
@pytest.mark.parametrize("line", TOOL[::-1])  # the cheapest first
def test_commands_of_the_tool_run_as_written(line, tmp_path, monkeypatch, capsys, undone):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, "path", [*sys.path])
  monkeypatch.delitem(sys.modules, "my_package", raising=False)
  (tmp_path / "my_package.py").write_text(
    "from jdp import mechanisms\n"
    "mechanisms.registry.register('my_mechanism', lambda s: mechanisms.laplace(s.epsilon, 2.0))"
  )
  words = line.partition("#")[0].split()[1:]
  for path in (pathlib.Path(word) for word in words if word.endswith(".jsonl")):
    path.parent.mkdir(exist_ok=True)
    run = events.Round(events.PoissonSampling(0.01), events.GaussianSum(1.0, 2.0))
    ledger.Ledger().append(run).save(path)
  assert command_line.main(words) == 0
  assert capsys.readouterr().out


def test_the_readme_is_short_and_its_commands_are_its_first():
  readme = TEXTS["README.md"]
  assert len(readme.encode()) <= 8_000
  set_up = re.findall(r"^ *python3 -m venv .*", readme, re.M)
  assert len(set_up) == 2
  assert set_up[0].endswith("-m experiments.private_federated")
  assert "pytest" in set_up[1]


@pytest.mark.slow
def test_the_readmes_models_train_within_their_targets():
  names = run("README.md")
  epsilon = names["jdp"].accounting.epsilon
  assert 7.92 < epsilon(names["result"].ledger, 1e-3) <= 8.0
  assert 3.96 < epsilon(names["other"].ledger, 1e-4) <= 4.0


def test_every_dependency_of_the_documentation_is_pinned():
  config = configparser.ConfigParser()
  config.read(REPOSITORY / "setup.cfg")
  pinned = (REPOSITORY / ".ci/constraints.txt").read_text().lower()
  for requirement in config["options.extras_require"]["docs"].split():
    assert f"\n{requirement.split('>=')[0].lower()}==" in pinned
