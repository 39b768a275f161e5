"""Figures as inline SVG: their style and their axes.

The `<svg>` has no width and height, so that the page scales it; its natural size in CSS pixels is
its viewBox. Text stays text and takes the page's font, which is narrower than the one that the
layout is computed with. Colours are CSS variables with defaults, for the pages' dark mode. The same
input gives the same bytes.
"""

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from gaitforge.pipeline.report.pages import short

INK = "#1f2933"
MUTED = "#5c6773"
GRID = "#e3e8ee"
EDGE = "#b8c2cc"
ACCENT = "#0072b2"
SECOND = "#d55e00"
BAND = "#eef4f8"
LIMIT_TEXT = "#a84600"
PAPER = "#ffffff"
VIOLET, BROWN, GREY = "#5b3a8c", "#6e4b1f", "#5f6b76"
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
    """The labels above the axes."""
    axes.get_figure().legend(  # type: ignore[union-attr]
        loc="outside upper left", ncols=3, handlelength=handle_length, borderaxespad=0.2
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
    axes.get_figure().savefig(  # type: ignore[union-attr]
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
