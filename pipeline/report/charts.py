"""Charts as inline SVG, and the colours of heat tables.

Every chart function returns one `<svg>` element without width and height, so that the page scales
it; its natural size in CSS pixels is its viewBox. Text stays text and takes the page's font, which
is narrower than the one that the layout is computed with. The same input gives the same bytes.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

INK = "#1f2933"
MUTED = "#5c6773"
GRID = "#e3e8ee"
ACCENT = "#0072b2"
SECOND = "#d55e00"

# Okabe & Ito (2008), "Color Universal Design": told apart with every common colour blindness.
# Its yellow is left out, which is too pale for lines on white.
SERIES_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
SERIES_DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)))

_STYLE: dict[Any, Any] = {
    "axes.edgecolor": "#b8c2cc",
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
_POINTS_PER_INCH = 72
_FEW_POINTS = 30  # up to so many, a line's points are marked
_TICK_STEPS = (1, 2, 2.5, 5, 10)


@dataclass(frozen=True)
class Curve:
    """A line of a chart; `y` has the length of `x`. Lines of one label look the same."""

    label: str
    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True)
class BarSeries:
    """One bar in every group, with its spread to either side; None where there is none."""

    label: str
    values: Sequence[float | None]
    spread: Sequence[float | None]


@dataclass(frozen=True)
class Panel:
    """A chart with its title and what to read from it."""

    title: str
    svg: str
    note: str = ""


@dataclass(frozen=True)
class LatencyBar:
    """A policy's time for one control step, in microseconds."""

    label: str
    median_us: float
    p99_us: float | None


def histogram(edges: Sequence[float], counts: Sequence[float], xlabel: str, alt: str) -> str:
    """Counts (n) between edges (n + 1)."""
    with mpl.rc_context(_STYLE):
        figure, axes = _figure(236, 158)
        axes.bar(
            edges[:-1], counts, width=np.diff(edges), align="edge", color=ACCENT, edgecolor="white",
            linewidth=0.6,
        )  # fmt: skip
        axes.set_xlim(edges[0], edges[-1])
        axes.set_xlabel(xlabel)
        axes.grid(axis="y")
        if len(counts) <= 6 and np.allclose(np.diff(edges), 1):
            axes.set_xticks(np.asarray(edges[:-1]) + 0.5)  # whole numbers, a bin each
        else:
            axes.xaxis.set_major_locator(MaxNLocator(4, steps=_TICK_STEPS))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.6g}"))
        _count_axis(axes)
        return _svg(figure, alt)


def bars(labels: Sequence[str], values: Sequence[float], xlabel: str, alt: str) -> str:
    """One bar a label."""
    with mpl.rc_context(_STYLE):
        figure, axes = _figure(236, 158)
        axes.bar(range(len(labels)), values, width=0.75, color=ACCENT)
        axes.set_xticks(range(len(labels)), labels)
        axes.set_xlabel(xlabel)
        axes.grid(axis="y")
        _count_axis(axes)
        return _svg(figure, alt)


def spectrum(
    frequency_hz: Sequence[float],
    energy_share: Sequence[float],
    cut_hz: float | None,
    cut_label: str,
    alt: str,
) -> str:
    """Share of the energy at each frequency and its running sum, both 0..1 and shown in per cent.

    `cut_hz` marks the end of the frequencies that a model keeps.
    """
    frequency = np.asarray(frequency_hz, dtype=float)
    share = 100 * np.asarray(energy_share, dtype=float)
    width = float(np.min(np.diff(frequency))) if len(frequency) > 1 else 1.0
    with mpl.rc_context(_STYLE):
        figure, axes = _figure(330, 225)
        axes.bar(frequency, share, width=0.8 * width, color=ACCENT)
        axes.plot(frequency, np.cumsum(share), color=SECOND, lw=1.6)
        if cut_hz is not None:
            axes.axvspan(frequency[0] - width / 2, cut_hz, color="#eef4f8", zorder=0)
            axes.axvline(cut_hz, color=INK, lw=1, ls=(0, (4, 3)))
            axes.annotate(
                cut_label, (cut_hz, 1), xycoords=axes.get_xaxis_transform(), xytext=(0, 4),
                textcoords="offset points", ha="left", va="bottom",
            )  # fmt: skip
        axes.set_xlim(frequency[0] - width / 2, frequency[-1] + width / 2)
        axes.set_ylim(0, 104)
        axes.set_xlabel("frequency, Hz")
        axes.set_ylabel("energy, %")
        axes.grid(axis="y")
        return _svg(figure, alt)


def curves(lines: Sequence[Curve], xlabel: str, ylabel: str, alt: str) -> str:
    """Lines over one logarithmic y axis, told apart by colour and dash; the legend is above."""
    labels = list(dict.fromkeys(line.label for line in lines))
    with mpl.rc_context(_STYLE):
        figure, axes = _figure(400, 280)
        for number, line in enumerate(lines):
            index = labels.index(line.label)
            first = all(each.label != line.label for each in lines[:number])
            axes.plot(
                line.x, line.y, label=line.label if first else None, lw=1.6,
                color=SERIES_COLOURS[index % len(SERIES_COLOURS)],
                ls=SERIES_DASHES[index % len(SERIES_DASHES)],
                marker="o" if len(line.x) <= _FEW_POINTS else "", ms=3.5,
            )  # fmt: skip
        axes.set_yscale("log")
        _plain_log_ticks(axes)
        axes.set_xlabel(xlabel)
        axes.set_ylabel(ylabel)
        axes.grid(axis="y")
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=_TICK_STEPS, integer=True))
        axes.xaxis.set_major_formatter(FuncFormatter(_short_count))
        figure.legend(loc="outside upper left", ncols=3, handlelength=2.4, borderaxespad=0.2)
        return _svg(figure, alt)


def grouped_bars(
    groups: Sequence[str], series: Sequence[BarSeries], reference: float, ylabel: str, alt: str
) -> str:
    """For every group a bar of each series, side by side; a dashed line at the reference."""
    width = 0.8 / len(series)
    with mpl.rc_context(_STYLE):
        figure, axes = _figure(400, 260)
        for index, each in enumerate(series):
            places = np.arange(len(groups)) + (index - (len(series) - 1) / 2) * width
            values = np.array([np.nan if value is None else value for value in each.values])
            spread = np.array([0.0 if value is None else value for value in each.spread])
            colour = SERIES_COLOURS[index % len(SERIES_COLOURS)]
            axes.bar(places, values, width=0.92 * width, color=colour, label=each.label)
            shown = spread > 0
            axes.errorbar(
                places[shown], values[shown], yerr=spread[shown],
                fmt="none", ecolor=INK, elinewidth=1, capsize=2,
            )  # fmt: skip
        axes.axhline(reference, color=INK, lw=1, ls=(0, (4, 3)))
        axes.set_xticks(range(len(groups)), groups)
        axes.tick_params(axis="x", length=0, labelcolor=INK)
        axes.set_ylabel(ylabel)
        axes.grid(axis="y")
        figure.legend(loc="outside upper left", ncols=3, handlelength=1.2, borderaxespad=0.2)
        return _svg(figure, alt)


def latency(rows: Sequence[LatencyBar], budget_us: float, alt: str) -> str:
    """Median time of one control step as a bar, 99th percentile as a tick, on a logarithmic axis.

    The dashed line is the control period, which no policy may exceed.
    """
    with mpl.rc_context(_STYLE):
        figure, axes = _figure(400, 74 + 32 * len(rows))
        shown = [value for row in rows for value in (row.median_us, row.p99_us) if value]
        left = 10 ** np.floor(np.log10(min([*shown, budget_us])) - 0.3)
        for place, row in enumerate(rows):
            axes.barh(place, row.median_us - left, left=left, height=0.55, color=ACCENT)
            text = f"{row.median_us:,.0f} µs"
            end = row.median_us
            if row.p99_us is not None:
                axes.plot([row.median_us, row.p99_us], [place, place], color=INK, lw=1)
                axes.plot([row.p99_us], [place], marker="|", ms=11, mew=1.6, color=INK)
                text += f", p99 {row.p99_us:,.0f}"
                end = max(end, row.p99_us)
            axes.annotate(
                text, (end, place), xytext=(7, 0), textcoords="offset points", va="center",
                bbox={"boxstyle": "square,pad=0.15", "fc": "white", "ec": "none"},
            )  # fmt: skip
        axes.axvline(budget_us, color=SECOND, lw=1.2, ls=(0, (4, 3)), zorder=0)
        axes.annotate(
            f"control period {budget_us / 1000:g} ms", (budget_us, 1), xytext=(0, 4),
            xycoords=axes.get_xaxis_transform(), textcoords="offset points", ha="right",
            color="#a84600",
        )  # fmt: skip
        axes.set_xscale("log")
        # room for the label of the longest bar
        axes.set_xlim(left, 30 * max([*shown, budget_us / 20]))
        _plain_log_ticks(axes)
        axes.set_yticks(range(len(rows)), [row.label for row in rows])
        axes.tick_params(axis="y", length=0, labelcolor=INK)
        axes.invert_yaxis()
        axes.set_xlabel("time of one control step, µs (logarithmic)")
        axes.grid(axis="x")
        return _svg(figure, alt)


def rates(labels: Sequence[str], values: Sequence[float], xlabel: str, alt: str) -> str:
    """One horizontal bar a label on a logarithmic axis, its value written at its end."""
    with mpl.rc_context(_STYLE):
        figure, axes = _figure(400, 60 + 26 * len(labels))
        left = 10 ** np.floor(np.log10(min(values)) - 0.3)
        axes.barh(
            range(len(labels)), np.asarray(values) - left, left=left, height=0.6, color=ACCENT
        )
        for place, value in enumerate(values):
            axes.annotate(
                f"{value:,.0f}", (value, place), xytext=(5, 0), textcoords="offset points",
                va="center",
            )  # fmt: skip
        axes.set_xscale("log")
        axes.set_xlim(left, 6 * max(values))  # room for the longest bar's value
        _plain_log_ticks(axes)
        axes.set_yticks(range(len(labels)), labels)
        axes.tick_params(axis="y", length=0, labelcolor=INK)
        axes.invert_yaxis()
        axes.set_xlabel(xlabel)
        axes.grid(axis="x")
        return _svg(figure, alt)


def heat_colours(value: float, low: float, high: float) -> tuple[str, str]:
    """Background and text colour of `value` on a scale from pale (`low`) to dark blue (`high`)."""
    span = high - low
    share = min(max((value - low) / span, 0.0), 1.0) if span > 0 else 0.5
    red, green, blue = mpl.colormaps["Blues"](0.06 + 0.84 * share)[:3]
    # Relative luminance and the 0.179 at which black and white text contrast equally: WCAG 2.1.
    luminance = sum(
        weight * (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4)
        for weight, part in ((0.2126, red), (0.7152, green), (0.0722, blue))
    )
    return to_hex((red, green, blue)), ("#000000" if luminance > 0.179 else "#ffffff")


def _figure(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure of this size in CSS pixels, with one pair of axes."""
    figure = Figure(
        figsize=(width / _POINTS_PER_INCH, height / _POINTS_PER_INCH), layout="constrained"
    )
    FigureCanvasSVG(figure)
    return figure, figure.add_subplot()


def _plain_log_ticks(axes: Axes) -> None:
    """Powers of ten written out; in between, 2 and 5 where the axis spans under two decades."""
    axis = axes.yaxis if axes.get_yscale() == "log" else axes.xaxis
    low, high = sorted(axis.get_view_interval())
    subs = (1.0,) if high / low > 100 else (1.0, 2.0, 5.0)
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_minor_formatter(NullFormatter())


def _count_axis(axes: Axes) -> None:
    """A few round ticks on the y axis."""
    axes.yaxis.set_major_locator(MaxNLocator(3, steps=_TICK_STEPS, integer=True))
    axes.yaxis.set_major_formatter(FuncFormatter(_short_count))


def _short_count(value: float, _position: object = None) -> str:
    """12000 as 12k, 3000000 as 3M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def _svg(figure: Figure, alt: str) -> str:
    """The figure as one element that can stand in a page beside others of its kind."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    # This rule would reach every element of the page, which states it for itself.
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text, flags=re.DOTALL)
    # Names repeat from chart to chart; only what something points at keeps one, and those are
    # hashes of their content.
    used = set(re.findall(r"#([\w.-]+)", text))
    text = re.sub(r' id="([\w.-]+)"', lambda match: match[0] if match[1] in used else "", text)
    text = re.sub(r"'?DejaVu Sans'?", "inherit", text)
    opening, _, rest = text.partition(">")
    box = re.search(r'viewBox="[^"]*"', opening)
    assert box is not None, "matplotlib writes a viewBox"
    return f'<svg {box[0]} role="img" aria-label="{escape(alt)}">{rest}'.strip()
