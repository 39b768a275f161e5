"""Charts: every series has a look of its own, in the drawing and in the legend."""

import re

import pytest

from gaitforge.pipeline.report.charts import Curve, curves, grouped_bars


@pytest.mark.parametrize("count", [10, 20])
def test_lines_beyond_the_palette_differ_in_dash(count: int) -> None:
    lines = [Curve(f"learner {k}", [0, 1], [k, k + 1]) for k in range(count)]
    svg = curves("Score", lines, "steps", "score", log=False).svg
    looks = re.findall(r'style="(fill: none;[^"]*stroke-width: 1.6[^"]*)"', svg)
    assert len(set(looks)) == count
    assert all(looks.count(each) == 2 for each in set(looks)), "the line, and its legend"


def test_bars_beyond_the_palette_are_hatched() -> None:
    series = [(f"learner {k}", [{"mean": k + 1.0, "std": None}]) for k in range(10)]
    svg = grouped_bars("Return", ["flat"], series, "share").svg
    fills = set(re.findall(r"fill: (url\(#\w+\)|var\([^)]*\)|#\w+)[^\"]*\"", svg))
    hatched = {each for each in fills if each.startswith("url")}
    assert len(hatched) == 1
    assert len(fills) >= 10
