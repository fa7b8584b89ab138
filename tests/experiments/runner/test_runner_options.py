"""Options, flags and presets."""

import dataclasses
import json
import math

import pytest
from absl import flags

from experiments.private_federated import __main__ as private_federated
from experiments.runner import options
from experiments.runner.options import option
from jdp import _validate


@dataclasses.dataclass(frozen=True)
class Example:
  shape: str = option("round", "The shape.", choices=("round", "square"))
  size: float = option(1.0, "In metres.", check=_validate.positive)
  corner: float | None = option(
    0.5, "Of a square.", check=_validate.positive, when={"shape": ("square",)}
  )
  edge: str | None = option(
    "sharp", "Of a corner.", choices=("sharp", "soft"), when={"shape": ("square",)}
  )
  radius: float | None = option(0.1, "Of a sharp one, too.", when={"edge": ("sharp",)})
  weights: tuple[float, ...] = option((1.0, 2.0), "Weights.", check=_validate.positive)
  colours: tuple[str, ...] = option(
    ("red",), "Colours.", choices=("red", "blue"), may_be_empty=True
  )
  price: float | None = option(None, "Or discount.", group="money")
  discount: float | None = option(None, "Or price.", group="money")
  loud: bool = option(False, "Whether.")
  count: int = option(3, "How many.", most=1000)
  name: str = option("it", "What it is called.")
  lines: tuple[str, ...] = option((), "Said.", repeated=True)


def parse(*arguments):
  values = flags.FlagValues()
  options.define(Example, values)
  values(["program", *arguments])
  return options.given(Example, values)


def test_flags_become_options():
  given = parse("--shape=square", "--weights=3,4.5", "--colours=", "--price=2", "--loud")
  assert given == {
    "shape": "square",
    "weights": (3.0, 4.5),
    "colours": (),
    "price": 2.0,
    "loud": True,
  }
  expected = Example(
    shape="square",
    corner=0.5,
    edge="sharp",
    radius=0.1,
    weights=(3.0, 4.5),
    colours=(),
    price=2.0,
    loud=True,
    count=3,
    name="it",
  )
  assert options.resolve(Example, given) == expected


@pytest.mark.parametrize(
  ("given", "message"),
  [
    (
      {"corner": 1.0, "price": 1.0},
      r"Expected --corner only with --shape=square, got --shape=round; leave it out",
    ),
    (
      {"radius": 1.0, "shape": "square", "edge": "soft", "price": 1.0},
      r"Expected --radius only with --edge=sharp, got --edge=soft",
    ),
    ({"radius": 1.0, "price": 1.0}, r"Expected --radius only with --edge=sharp, got --edge=None"),
    ({"price": 1.0, "discount": 1.0}, r"Expected exactly one of --price and --discount, got 2"),
    ({}, r"Expected exactly one of --price and --discount, got none"),
    ({"size": -1.0, "price": 1.0}, r"Expected --size to be a finite number > 0, got -1.0"),
    ({"size": math.nan, "price": 1.0}, r"Expected --size to be a finite number > 0, got nan"),
    (
      {"weights": (1.0, math.nan), "price": 1.0},
      r"Expected --weights to be a finite number > 0, got nan",
    ),
    ({"weights": (1.0, 1.0), "price": 1.0}, r"Expected --weights without repetitions, got 1.0,1.0"),
    (
      {"colours": ("red", "green"), "price": 1.0},
      r"Expected --colours to be one of red, blue, got 'green'",
    ),
    ({"count": 1001, "price": 1.0}, "Expected --count of at most 1000, got 1001"),
    ({"count": 1.5, "price": 1.0}, r"Expected --count to be a whole number, got 1.5"),
    ({"size": "1", "price": 1.0}, r"Expected --size to be a number, got '1'"),
    ({"loud": 1, "price": 1.0}, r"Expected --loud to be True or False, got 1"),
    ({"weights": 1.0, "price": 1.0}, r"Expected --weights to be a list, got 1.0"),
    ({"weights": (), "price": 1.0}, r"Expected --weights of at least one element, got none"),
    (
      {"weights": tuple(range(1, 1002)), "price": 1.0},
      r"Expected --weights of at most 1000 elements, got 1001; make more runs",
    ),
    ({"name": "n" * 256, "price": 1.0}, r"Expected --name to be printable, of at most 255 bytes"),
    ({"name": "a\x00b", "price": 1.0}, r"Expected --name to be printable"),
    ({"name": "\udcff", "price": 1.0}, r"Expected --name in UTF-8, got other bytes; rename it"),
  ],
)
def test_bad_options_are_refused(given, message):
  with pytest.raises(ValueError, match=message):
    options.resolve(Example, given)


def test_a_list_of_no_numbers_is_refused():
  with pytest.raises(
    ValueError, match="Expected --weights to be a list of numbers such as 2,8, got 1,x"
  ):
    parse("--weights=1,x")


def test_a_repeated_flag_keeps_its_commas(tmp_path):
  given = parse("--lines=a,b", "--lines=c", "--price=1")
  assert given["lines"] == ("a,b", "c")
  chosen = options.resolve(Example, given)
  (tmp_path / "run.flags").write_text(options.to_flagfile(chosen))
  assert options.read_flagfile(Example, tmp_path / "run.flags")["lines"] == ("a,b", "c")
  # nothing given clears a preset's
  assert options.resolve(Example, parse("--lines=", "--price=1"), given).lines == ()


def test_given_options_go_before_the_preset():
  preset = {"shape": "square", "corner": 0.25, "price": 3.0, "size": 2.0}
  resolved = options.resolve(Example, {"shape": "round", "discount": 0.1}, preset)
  assert resolved == Example(shape="round", size=2.0, corner=None, price=None, discount=0.1)
  assert options.resolve(Example, {}, preset).corner == 0.25


def test_options_survive_files(tmp_path):
  chosen = options.resolve(
    Example, {"shape": "square", "weights": (0.1, 1e-7), "price": 1 / 3, "loud": True}
  )
  (tmp_path / "run.flags").write_text(options.to_flagfile(chosen))
  assert options.resolve(Example, options.read_flagfile(Example, tmp_path / "run.flags")) == chosen
  assert options.from_json(Example, json.loads(json.dumps(vars(chosen)))) == chosen


def test_presets_are_valid():
  experiment = private_federated.EXPERIMENT
  assert "smoke" in experiment.presets  # what is run if nothing is said
  for path in experiment.presets.values():
    preset = options.read_flagfile(experiment.options_type, path)
    resolved = options.resolve(experiment.options_type, {}, preset)
    assert all(getattr(resolved, name) == value for name, value in preset.items()), path


@pytest.mark.parametrize("kind", [private_federated.PrivateFederatedOptions])
def test_every_option_of_an_experiment_is_a_flag_with_help(kind):
  values = flags.FlagValues()
  options.define(kind, values)
  for field in dataclasses.fields(kind):
    assert values[field.name].help.endswith("."), field.name
