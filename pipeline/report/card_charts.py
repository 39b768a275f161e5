"""The dataset card's histograms: small SVGs that take their colours from the page.

The page's style sheet colours them, so that one drawing serves a light and a dark page; the same
input gives the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

WIDTH, HEIGHT = 260, 150
_LEFT, _RIGHT, _TOP, _BOTTOM = 36, 8, 10, 36
_BLOCKS = "▁▂▃▄▅▆▇█"


def histogram(
    edges: Sequence[float],
    counts: Sequence[int],
    xlabel: str,
    alt: str,
    declared: tuple[float, float] | None = None,
) -> str:
    """Counts (n) between edges (n + 1); ``declared`` marks a range that values should keep to."""
    low, high = edges[0], edges[-1]
    margin = 0.04 * (high - low) if declared else 0.0  # so that the range's ends can be seen
    low, high = low - margin, high + margin
    most = max(1, *counts)
    right, base = WIDTH - _RIGHT, HEIGHT - _BOTTOM

    def x(value: float) -> float:
        return _LEFT + (value - low) / (high - low or 1.0) * (right - _LEFT)

    def y(count: float) -> float:
        return base - count / most * (base - _TOP)

    marks = [f'<line class="grid" x1="{_LEFT}" x2="{right}" {_same("y", y(each))}/>'
             f'<text x="{_LEFT - 5}" y="{y(each) + 3.5:.1f}" text-anchor="end">{short(each)}</text>'
             for each in round_ticks(0, most, 3)]  # fmt: skip
    if declared:
        a, b = (x(value) for value in declared)
        marks.append(
            f'<rect class="declared" x="{a:.1f}" y="{_TOP}" width="{b - a:.1f}" '
            f'height="{base - _TOP}"/>'
        )
    for start, stop, count in zip(edges[:-1], edges[1:], counts, strict=True):
        gap = min(1.0, 0.12 * (x(stop) - x(start)))
        if count:
            marks.append(
                f'<rect class="bar" x="{x(start) + gap / 2:.1f}" y="{y(count):.1f}" '
                f'width="{x(stop) - x(start) - gap:.1f}" height="{base - y(count):.1f}"/>'
            )
    if declared:
        marks += [f'<line class="limit" {_same("x", x(v))} y1="{_TOP}" y2="{base}"/>'
                  for v in declared]  # fmt: skip
    marks.append(f'<line class="axis" x1="{_LEFT}" x2="{right}" {_same("y", base)}/>')
    marks += [f'<text x="{x(tick):.1f}" y="{base + 14}" text-anchor="middle">{tick:.6g}</text>'
              for tick in round_ticks(low, high, 5)]  # fmt: skip
    marks.append(
        f'<text class="label" x="{(_LEFT + right) / 2:.0f}" y="{HEIGHT - 5}" '
        f'text-anchor="middle">{escape(xlabel)}</text>'
    )
    return (
        f'<svg class="histogram" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(alt)}">{"".join(marks)}</svg>'
    )


def sparkline(counts: Sequence[int]) -> str:
    """A histogram as one line of text; a bin without a count is a blank of the same width."""
    most = max(1, *counts)
    return "".join(
        _BLOCKS[math.ceil(count / most * len(_BLOCKS)) - 1] if count else "·" for count in counts
    )


def round_ticks(low: float, high: float, most: int) -> list[float]:
    """Up to ``most`` + 1 multiples of 1, 2 or 5 times a power of ten in [low, high]."""
    if not high > low:
        return [low]
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(each * power for each in (1, 2, 5, 10) if each * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def short(value: float) -> str:
    """12000 as 12k, 3400000 as 3.4M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def _same(axis: str, value: float) -> str:
    return f'{axis}1="{value:.1f}" {axis}2="{value:.1f}"'
