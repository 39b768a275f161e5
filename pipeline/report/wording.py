"""Numbers and names as the text of pages and tables."""

from __future__ import annotations

import math
from typing import TypeGuard

DASH = "–"


def fixed(value: float | None, digits: int = 2) -> str:
    """With this many digits after the point; a dash for no number."""
    return DASH if not is_number(value) else f"{value:,.{digits}f}"


def count(value: float | None) -> str:
    """A whole number with separators; a dash for none."""
    return fixed(value, 0)


def duration(seconds: float | None) -> str:
    """Seconds as `8.4 s`, `95 s`, `12 min 05 s` or `3 h 20 min`."""
    if not is_number(seconds):
        return DASH
    if seconds < 10:
        return f"{seconds:.1f} s"
    if round(seconds) < 120:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 120:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def size(n_bytes: float | None) -> str:
    """Bytes in decimal units."""
    if not is_number(n_bytes):
        return DASH
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n_bytes >= scale:
            return f"{n_bytes / scale:,.1f} {unit}"
    return f"{n_bytes:,.0f} B"


def words(name: object) -> str:
    """A name of the files as words."""
    return str(name).replace("_", " ")


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
