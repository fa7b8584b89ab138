"""How plots look: colours that are told apart and ordered, legends beside, nothing cut."""

import itertools

import numpy as np
import pytest
from matplotlib import colors

from experiments.runner.reports import plots, style, tables
from experiments.runner.reports.statistics import Interval

# Machado, Oliveira & Fernandes (2009): what full protanopia, deuteranopia and tritanopia leave of
# linear RGB.
SIGHT = {
  "all cones": np.eye(3),
  "protan": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
  "deutan": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
  "tritan": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
}


def linear(color):
  rgb = np.array(colors.to_rgb(color))
  return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def lab(color, sight):
  """CIELAB of a colour as these eyes see it."""
  xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
  white = xyz.sum(axis=1)
  t = xyz @ np.clip(np.array(SIGHT[sight]) @ linear(color), 0, 1) / white
  f = np.where(t > (6 / 29) ** 3, np.cbrt(t), t * (29 / 6) ** 2 / 3 + 4 / 29)
  return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("sight", SIGHT)
def test_series_without_an_order_are_told_apart(sight):
  """A difference of 10 in CIELAB is seen at a glance; about 2 is just noticeable."""
  looks = style.series(["a", "b", "c", "d", "e", "f"]).values()
  seen = [lab(look["color"], sight) for look in looks]
  assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) > 10
  assert len({look["marker"] for look in looks}) == 6
  # Where there are more series than colours, too, and without lines.
  many = style.distinct(list(map(str, range(20)))).values()
  assert len({(look["color"], look["marker"]) for look in many}) == 20


@pytest.mark.parametrize("sight", SIGHT)
def test_ordered_epsilons_have_ordered_colours(sight):
  epsilons = (8, 0.5, 128, 2, 32)
  looks = style.series([f"local ε₁ = {epsilon}" for epsilon in epsilons])
  brightness = {e: lab(looks[f"local ε₁ = {e}"]["color"], sight)[0] for e in epsilons}
  found = [brightness[epsilon] for epsilon in sorted(epsilons)]
  assert np.all(np.diff(found) > 5)
  assert found[-1] < 80  # not faint on white


def test_colours_are_of_the_number_with_the_most_values():
  looks = style.series(["S = 15, C = 5000", "S = 10, C = 1667", "S = 15, C = 1250"])
  assert len({look["color"] for look in looks.values()}) == 3
  markers = [look["marker"] for look in looks.values()]
  assert markers[0] == markers[2] != markers[1]


def test_families_and_baselines():
  looks = style.series(["none", "S = 1, z = 1", "S = 1, z = 2", "S = 2, z = 1", "k = 3", "k = 4"])
  assert looks["none"]["color"] == "0.0"
  first, other_z, other_s = (looks[f"S = {s}, z = {z}"] for s, z in ((1, 1), (1, 2), (2, 1)))
  assert first["color"] == other_z["color"] != other_s["color"]
  assert first["marker"] == other_s["marker"] != other_z["marker"]
  assert looks["k = 3"]["linestyle"] != first["linestyle"]
  styles = [tuple(look.values()) for look in looks.values()]
  assert len(set(styles)) == len(styles)
  # one number, written in two ways
  assert len(style.series(["a 1", "a 1.0"])) == 2


@pytest.mark.parametrize(
  "names", [["no privacy"], ["private, noise cohort size 1000, population 9"]]
)
def test_the_legend_hides_nothing_and_nothing_is_cut(names, tmp_path, monkeypatch):
  monkeypatch.setattr(plots.plt, "close", lambda figure: None)
  made, axes = plots.figure("ε of one release", "", "A title")
  style.metric_axis(axes.yaxis, "test_accuracy")
  for name, look in style.series(names).items():
    plots.points(axes, [1, 2], [Interval(0.5, 0.1), Interval(1.0, None)], name, look)
  plots.save(made, tmp_path / "plot.png")
  assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
  assert (tmp_path / "plot.pdf").read_bytes().startswith(b"%PDF")
  legend, page = axes.get_legend().get_window_extent(), made.get_tightbbox().padded(0.01)
  assert not legend.overlaps(axes.get_window_extent())
  inches = made.dpi_scale_trans.inverted()
  for part in (legend, axes.xaxis.label.get_window_extent(), axes.title.get_window_extent()):
    (x0, y0), (x1, y1) = part.transformed(inches).get_points()
    assert page.x0 <= x0 <= x1 <= page.x1
    assert page.y0 <= y0 <= y1 <= page.y1
  assert "95 % interval" in [text.get_text() for text in axes.get_legend().get_texts()]
  assert axes.get_ylabel() == "test accuracy"
  assert axes.yaxis.get_major_formatter()(0.29) == "29 %"
  plots.plt.close(made)


def test_a_plot_of_single_runs_speaks_of_no_interval(tmp_path):
  made, axes = plots.figure("rounds", "", "")
  rows = [{"round": number, "test_loss": 1.0} for number in range(3)]
  plots.curves(axes, {"a": [rows]}, "test_loss")
  assert axes.get_legend_handles_labels()[1] == ["a"]
  plots.save(made, tmp_path / "plot.png")


def test_shares_are_in_percent_and_other_metrics_are_not():
  assert tables.metric("accuracy_top1", Interval(0.123, 0.01)) == "12.3 % ± 1.0"
  assert tables.metric("test_loss", Interval(0.123, 0.01)) == "0.123 ± 0.01"


def test_an_interval_of_a_share_does_not_stretch_its_axis_beyond_0_and_1(tmp_path):
  for metric, expected in (("test_accuracy", (-0.02, 1.02)), ("test_loss", (-0.5, 1.5))):
    figure, axes = plots.figure("rounds", metric, "")
    axes.set_ylim(-0.5, 1.5)
    style.only_shares(axes, metric)
    assert axes.get_ylim() == expected
    plots.save(figure, tmp_path / "plot.png")
