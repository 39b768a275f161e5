"""The charts of all pages as inline SVG, with their style and their axes.

Each function of a chart returns a `Panel`.

The `<svg>` has no width and height, so that the page scales it; its natural size in CSS pixels is
its viewBox. Text stays text and takes the page's font, which is narrower than the one that the
layout is computed with. Colours are CSS variables with defaults, for the pages' dark mode. The same
input gives the same bytes.
"""

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import escape
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from gaitforge.pipeline.report.pages import (
    BROWN,
    GREY,
    SERIES_COLOURS,
    VIOLET,
    Record,
    count,
    fixed,
    is_number,
    short,
)

# Figures: style and axes.
INK = "#1f2933"
MUTED = "#5c6773"
GRID = "#e3e8ee"
EDGE = "#b8c2cc"
ACCENT = "#0072b2"
SECOND = "#d55e00"
BAND = "#eef4f8"
LIMIT_TEXT = "#a84600"
PAPER = "#ffffff"
_VARIABLES = {INK: "ink", MUTED: "muted", GRID: "line", EDGE: "edge", ACCENT: "bar",
              SECOND: "limit", BAND: "band", LIMIT_TEXT: "limit-text", PAPER: "paper",
              VIOLET: "violet", BROWN: "brown", GREY: "grey"}  # fmt: skip
"""Colour -> the page's CSS variable that may replace it."""

_STYLE: dict[Any, Any] = {
    "axes.edgecolor": EDGE,
    "axes.labelcolor": MUTED,
    "axes.axisbelow": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.family": "DejaVu Sans",
    "font.size": 10.5,
    "grid.color": GRID,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "gaitforge",
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
}
LONG_LABEL = 20
"""Characters of a legend's label of which three do not fit above a chart."""
_POINTS_PER_INCH = 72
XY = tuple[float, float]
TICK_STEPS = (1, 2, 2.5, 5, 10)


@dataclass(frozen=True)
class Panel:
    """A chart with its title and what to read from it."""

    title: str
    svg: str
    note: str = ""


@contextmanager
def drawing(width: float, height: float) -> Iterator[Axes]:
    """One pair of axes, in a figure of this size in CSS pixels."""
    size = (width / _POINTS_PER_INCH, height / _POINTS_PER_INCH)
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasSVG(figure)
        yield figure.add_subplot()


def legend(axes: Axes, handle_length: float) -> None:
    """The labels above the axes, in as many columns as fit beside each other."""
    _, labels = axes.get_legend_handles_labels()
    columns = 3 if max(map(len, labels), default=0) <= LONG_LABEL else 2
    axes.get_figure().legend(  # type: ignore[union-attr]
        loc="outside upper left", ncols=columns, handlelength=handle_length, borderaxespad=0.2
    )


def label(axes: Axes, text: str, at: XY, offset: XY, above: bool = False, **look: Any) -> None:
    """A text at an offset in points from a place; `above`: whose y is 0..1 from bottom to top."""
    kind = axes.get_xaxis_transform() if above else "data"
    axes.annotate(text, at, offset, xycoords=kind, textcoords="offset points", **look)


def label_rows(axes: Axes, labels: Sequence[str]) -> None:
    """Labels of horizontal bars, the first on top."""
    axes.set_yticks(range(len(labels)), labels)
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    axes.invert_yaxis()
    axes.grid(axis="x")


def plain_log_ticks(axes: Axes) -> None:
    """Powers of ten written out; in between, 2 and 5 where the axis spans under two decades."""
    axis = axes.yaxis if axes.get_yscale() == "log" else axes.xaxis
    low, high = sorted(axis.get_view_interval())
    subs = (1.0,) if high / low > 100 else (1.0, 2.0, 5.0)
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_minor_formatter(NullFormatter())


def count_axis(axes: Axes) -> None:
    """A grid and a few round ticks on the y axis."""
    axes.grid(axis="y")
    axes.yaxis.set_major_locator(MaxNLocator(3, steps=TICK_STEPS, integer=True))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))


def panel(axes: Axes, title: str, description: str, note: str = "") -> Panel:
    """The axes' figure as an SVG element; `description` is its text for screen readers."""
    buffer = io.StringIO()
    figure: Any = axes.get_figure()
    # Laid out here, savefig draws once and not twice.
    figure.get_layout_engine().execute(figure)
    figure.set_layout_engine(None)
    figure.savefig(  # type: ignore[union-attr]
        buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None}
    )
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    # This rule would apply to the whole page, which has its own.
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text, flags=re.DOTALL)
    # Names repeat from chart to chart. Only those that are used stay; they are hashes of content.
    used = set(re.findall(r"#([\w.-]+)", text))
    text = re.sub(r' id="([\w.-]+)"', lambda match: match[0] if match[1] in used else "", text)
    text = re.sub(r"'?DejaVu Sans'?", "inherit", text)
    for colour, variable in _VARIABLES.items():
        text = text.replace(f": {colour}", f": var(--{variable}, {colour})")
    opening, _, content = text.partition(">")
    box = re.search(r'viewBox="[^"]*"', opening)
    assert box is not None, "matplotlib writes a viewBox"
    alt = escape(f"{title}. {description}")
    return Panel(title, f'<svg {box[0]} role="img" aria-label="{alt}">{content}'.strip(), note)


# Charts.

SERIES_DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)))
SERIES_HATCHES = ("", "///", "...")
"""Of bars; those beyond the last colour are hatched."""

_FEW_POINTS = 30
"""Most points of a line that are marked, and listed in its description."""
_DASHED = {"lw": 1, "ls": (0, (4, 3))}


@dataclass(frozen=True)
class Curve:
    """A line of a chart; `y` has the length of `x`. Lines of one label look the same.

    `thin` ones show the limits of another.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    thin: bool = field(default=False, kw_only=True)


def histogram(
    title: str, bins: Record, xlabel: str, declared: tuple[float, float] | None = None
) -> Panel:
    """`counts` (n) between `edges` (n + 1); `declared` marks the values' allowed range."""
    edges = bins["edges"]
    counts = bins["counts"]
    with drawing(236, 158) as axes:
        widths = np.diff(edges)
        _bars_of_a_colour(axes, np.asarray(edges[:-1]), counts, 0.94 * widths)
        margin = 0.0
        if declared is not None:
            margin = 0.04 * (edges[-1] - edges[0])  # so that the range's ends can be seen
            axes.axvspan(*declared, color=BAND, zorder=0)
            for limit in declared:
                axes.axvline(limit, color=SECOND, **_DASHED)
        axes.set_xlim(edges[0] - margin, edges[-1] + margin)
        axes.set_xlabel(xlabel)
        if len(counts) <= 6 and np.allclose(widths, 1):
            axes.set_xticks(np.asarray(edges[:-1]) + 0.5)  # whole numbers, a bin each
        else:
            axes.xaxis.set_major_locator(MaxNLocator(4, steps=TICK_STEPS))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.6g}"))
        count_axis(axes)
        description = f"Histogram from {edges[0]:.6g} to {edges[-1]:.6g} {xlabel}"
        return panel(axes, title, description)


def _bars_of_a_colour(
    axes: Axes, left: np.ndarray, heights: Sequence[float] | np.ndarray, widths: np.ndarray
) -> None:
    """Many bars as one shape, which is laid out and drawn once; matplotlib's are a shape each."""
    right = left + widths
    bottom = np.zeros(len(left))
    x = np.stack([left, left, right, right], axis=1)
    y = np.stack([bottom, heights, heights, bottom], axis=1)
    shape = PathPatch(Path.make_compound_path_from_polys(np.stack([x, y], axis=2)), fc=ACCENT, lw=0)
    shape.sticky_edges.y.append(0)
    axes.add_patch(shape)
    axes.autoscale_view()


def bars(title: str, labels: Sequence[str], values: Sequence[float], xlabel: str) -> Panel:
    """One bar per label."""
    with drawing(236, 158) as axes:
        axes.bar(range(len(labels)), values, width=0.75, color=ACCENT)
        axes.set_xticks(range(len(labels)), labels)
        axes.set_xlabel(xlabel)
        count_axis(axes)
        return panel(axes, title, _pairs(labels, values, "{:g}"))


def spectrum(
    title: str,
    frequency_hz: Sequence[float],
    energy_share: Sequence[float],
    cut_hz: float | None,
    cut_label: str,
    note: str,
) -> Panel:
    """Share of the energy at each frequency and its running sum, both 0..1 and shown in per cent.

    `cut_hz` marks the end of the frequencies that a model keeps.
    """
    frequency = np.asarray(frequency_hz, dtype=float)
    share = 100 * np.asarray(energy_share, dtype=float)
    width = float(np.min(np.diff(frequency))) if len(frequency) > 1 else 1.0
    with drawing(330, 225) as axes:
        _bars_of_a_colour(axes, frequency - 0.4 * width, share, np.full(len(share), 0.8 * width))
        axes.plot(frequency, np.cumsum(share), color=SECOND, lw=1.6)
        if cut_hz is not None:
            axes.axvspan(frequency[0] - width / 2, cut_hz, color=BAND, zorder=0)
            axes.axvline(cut_hz, color=INK, **_DASHED)
            label(axes, cut_label, (cut_hz, 1), (0, 4), above=True, ha="left", va="bottom")
        axes.set_xlim(frequency[0] - width / 2, frequency[-1] + width / 2)
        axes.set_ylim(0, 104)
        axes.set_xlabel("frequency, Hz")
        axes.set_ylabel("energy, %")
        axes.grid(axis="y")
        description = f"Share of the energy at each frequency and its running sum. {note}"
        return panel(axes, title, description, note)


def curves(
    title: str, lines: Sequence[Curve], xlabel: str, ylabel: str, note: str = "", log: bool = True
) -> Panel:
    """Lines over one y axis (`log`: logarithmic), told apart by colour and dash, with a legend."""
    labels = list(dict.fromkeys(line.label for line in lines))
    with drawing(400, 280) as axes:
        for number, line in enumerate(lines):
            index = labels.index(line.label)
            first = all(earlier.label != line.label for earlier in lines[:number])
            axes.plot(
                line.x, line.y, label=line.label if first else None,
                lw=0.6 if line.thin else 1.6,
                color=SERIES_COLOURS[index % len(SERIES_COLOURS)],
                ls=SERIES_DASHES[(index + index // 18) % len(SERIES_DASHES)],  # a pair each
                marker="o" if len(line.x) <= _FEW_POINTS and not line.thin else "", ms=3.5,
            )  # fmt: skip
        if log:
            axes.set_yscale("log")
            plain_log_ticks(axes)
        axes.set_xlabel(xlabel)
        axes.set_ylabel(f"{ylabel} (logarithmic)" if log else ylabel)
        axes.grid(axis="y")
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=TICK_STEPS, integer=log))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
        legend(axes, 2.4)
        return panel(axes, title, f"{ylabel}. {'; '.join(map(_points_text, lines))}", note)


def losses(runs: Sequence[tuple[str, Sequence[Record]]]) -> list[Panel]:
    """The training and validation losses of labelled histories, as far as they were recorded."""
    panels = []
    for title, name in (("Training loss", "loss"), ("Validation loss", "validation_loss")):
        lines = []
        for label, history in runs:
            rows = [row for row in history if is_number(row[name]) and row[name] > 0]
            if rows:
                steps, values = zip(*((row["step"], row[name]) for row in rows), strict=True)
                lines.append(Curve(label, steps, values))
        if lines:
            panels.append(curves(title, lines, "optimiser steps", "loss"))
    return panels


def grouped_bars(
    title: str, groups: Sequence[str], series: Sequence[tuple[str, Sequence[Record]]], ylabel: str
) -> Panel:
    """Bars of each series side by side for every group; a dashed line at the expert's, 1.

    A series has a label, and a `mean` and `std` per group, None where there is none.
    """
    width = 0.8 / len(series)
    with drawing(400, 260) as axes:
        for index, (label, measures) in enumerate(series):
            places = np.arange(len(groups)) + (index - (len(series) - 1) / 2) * width
            values, spread = (
                np.array([none if measure[name] is None else measure[name] for measure in measures])
                for name, none in (("mean", np.nan), ("std", 0.0))
            )
            turn, colour = divmod(index, len(SERIES_COLOURS))
            look = {"color": SERIES_COLOURS[colour], "edgecolor": PAPER, "linewidth": 0}
            hatch = SERIES_HATCHES[turn % len(SERIES_HATCHES)]
            axes.bar(places, values, width=0.92 * width, label=label, hatch=hatch, **look)
            shown = spread > 0
            axes.errorbar(
                places[shown], values[shown], yerr=spread[shown],
                fmt="none", ecolor=INK, elinewidth=1, capsize=2,
            )  # fmt: skip
        axes.axhline(1.0, color=INK, **_DASHED)
        axes.set_xticks(range(len(groups)), groups)
        axes.tick_params(axis="x", length=0, labelcolor=INK)
        axes.set_ylabel(ylabel)
        axes.grid(axis="y")
        legend(axes, 1.2)
        description = "; ".join(
            f"{label}: "
            + ", ".join(f"{g} {fixed(m['mean'])}" for g, m in zip(groups, measures, strict=True))
            for label, measures in series
        )
        note = "The dashed line is the expert."
        return panel(axes, title, f"{ylabel}. {description}", note)


def latency(times_us: Mapping[str, tuple[float, float | None]], budget_us: float) -> Panel:
    """Median time of one control step as a bar, 99th percentile as a tick, on a logarithmic axis.

    The dashed line is the control period, which no policy may exceed.
    """
    with drawing(400, 74 + 32 * len(times_us)) as axes:
        shown = [value for times in times_us.values() for value in times if value]
        left = 10 ** np.floor(np.log10(min([*shown, budget_us])) - 0.3)
        for row, (median, p99) in enumerate(times_us.values()):
            axes.barh(row, median - left, left=left, height=0.55, color=ACCENT)
            text = f"{median:,.0f} µs"
            end = median
            if p99 is not None:
                axes.plot([median, p99], [row, row], color=INK, lw=1)
                axes.plot([p99], [row], marker="|", ms=11, mew=1.6, color=INK)
                text += f", p99 {p99:,.0f}"
                end = max(end, p99)
            box = {"boxstyle": "square,pad=0.15", "fc": PAPER, "ec": "none"}
            label(axes, text, (end, row), (7, 0), va="center", bbox=box)
        axes.axvline(budget_us, color=SECOND, zorder=0, **_DASHED)
        limit = f"control period {budget_us / 1000:g} ms"
        look = {"color": LIMIT_TEXT}
        label(axes, limit, (budget_us, 1), (0, 4), above=True, ha="right", **look)
        axes.set_xscale("log")
        axes.set_xlim(left, 30 * max([*shown, budget_us / 20]))  # room for the longest bar's label
        plain_log_ticks(axes)
        label_rows(axes, list(times_us))
        axes.set_xlabel("time of one control step, µs (logarithmic)")
        texts = (
            f"{label} median {count(median)} µs, p99 {count(p99)} µs"
            for label, (median, p99) in times_us.items()
        )
        description = f"Time of one control step: {', '.join(texts)}"
        return panel(axes, "Control step", description)


def intervals(
    title: str, rows: Sequence[tuple[str, float, Sequence[float] | None]], note: str = ""
) -> Panel:
    """A score a row: its label, its bar with its value at the end, its 95 % interval as a line."""
    labels, values, bounds = zip(*rows, strict=True)
    with drawing(400, 60 + 26 * len(rows)) as axes:
        axes.barh(range(len(rows)), values, height=0.6, color=ACCENT)
        for row, (value, limits) in enumerate(zip(values, bounds, strict=True)):
            end = max(value, 0.0)
            if limits is not None:
                axes.plot(limits, [row, row], color=INK, lw=1.2, marker="|", ms=7)
                end = max(end, limits[1])
            label(axes, fixed(value, 1), (end, row), (6, 0), va="center")
        label_rows(axes, labels)
        axes.margins(x=0.12)
        axes.set_xlabel("score; the expert has 100")
        return panel(axes, title, _pairs(labels, values, "{:.1f}"), note)


def _points_text(line: Curve) -> str:
    """A line's points in words; of many points, the last."""
    if len(line.x) > _FEW_POINTS:
        return f"{line.label} ends at {line.y[-1]:.4g}"
    points = (f"{y:.4g} at {x:g}" for x, y in zip(line.x, line.y, strict=True))
    return f"{line.label}: {', '.join(points)}"


def _pairs(labels: Sequence[str], values: Sequence[float], form: str) -> str:
    pairs = zip(labels, values, strict=True)
    return ", ".join(f"{label}: {form.format(value)}" for label, value in pairs)
