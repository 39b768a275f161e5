"""Results on standard output: an aligned table for people, or JSON."""

import json
import math
from collections.abc import Mapping, Sequence

Rows = Sequence[Mapping[str, object]]


def show(records: Rows, as_json: bool) -> None:
    """Print records as a table, or as a JSON list."""
    show_result(list(records), records, as_json)


def show_one(record: Mapping[str, object], as_json: bool) -> None:
    """Print one record as lines of names and values, or as a JSON object."""
    if as_json:
        print(json_text(record))
        return
    width = max((len(name) for name in record), default=0)
    for name, value in record.items():
        print(f"{name:<{width}}  {cell(value)}")


def show_result(record: object, rows: Rows, as_json: bool, *lines: str) -> None:
    """Print a record as JSON; or, for people, rows as a table and lines below it."""
    print(json_text(record) if as_json else "\n".join([table(rows), *lines]))


def json_text(value: object, indent: int | None = 1) -> str:
    """A value as JSON for other programs: NaN and infinity, which JSON lacks, become null."""
    return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value


def fields_of(value: object, *names: str) -> dict[str, object]:
    """Some attributes of an object, as a record."""
    return {name: getattr(value, name) for name in names}


def duration(seconds: float | None, unknown: str = "-") -> str:
    """Seconds as `8.4 s`, `95 s`, `12 min 05 s` or `3 h 20 min`."""
    if seconds is None or not math.isfinite(seconds):
        return unknown
    if seconds < 10:
        return f"{seconds:.1f} s"
    if round(seconds) < 120:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 120:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def table(records: Rows) -> str:
    """An aligned text table; numbers to the right, columns in the order of the first record."""
    if not records:
        return "(nothing)"
    names = list(records[0])
    rows = [[cell(record.get(name)) for name in names] for record in records]
    widths = [max(len(name), *(len(row[i]) for row in rows)) for i, name in enumerate(names)]
    numeric = [isinstance(records[0][name], int | float) for name in names]
    lines = [_line(names, widths, numeric), "  ".join("-" * width for width in widths)]
    return "\n".join(lines + [_line(row, widths, numeric) for row in rows])


def cell(value: object) -> str:
    """A value as people read it."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3f}"
    if isinstance(value, list) and all(isinstance(each, float) for each in value):
        return f"[{', '.join(map(cell, value))}]"
    return json.dumps(value) if isinstance(value, list | dict) else str(value)


def _line(texts: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> str:
    parts = (
        f"{text:>{width}}" if right else f"{text:<{width}}"
        for text, width, right in zip(texts, widths, numeric, strict=True)
    )
    return "  ".join(parts).rstrip()
