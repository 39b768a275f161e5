"""HTML pages from the templates of this package, and numbers and names as their text."""

import json
import math
import re
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeGuard

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from gaitforge.common.errors import amount
from gaitforge.flows.records.records import write_file
from gaitforge.pipeline.terminal import duration

Record = Mapping[str, Any]
"""A JSON object."""

PICTURES = Path("pictures")
"""Folder of the pictures, beside their page."""
DASH = "–"
VIOLET = "#5b3a8c"
BROWN = "#6e4b1f"
GREY = "#5f6b76"
# Okabe & Ito (2008), "Color Universal Design": told apart with every common colour blindness.
# Its yellow is left out, too pale for lines on white; the last three are darker than all others.
SERIES_COLOURS = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
    VIOLET,
    BROWN,
    GREY,
)
DEEP = 0.72
"""Share of the heat colours at which black and white text contrast equally, in either mode."""
POLICY_NAMES = {
    "expert": "Expert",
    "fcnet": "FCNet",
    "bot": "BoT",
    "fcnet_rc": "FCNet, return-conditioned",
    "bot_rc": "BoT, return-conditioned",
    "first": "FCNet, first stage",
}
_SEEDED = re.compile(r"(.+)-seed-(\d+)")


@dataclass(frozen=True)
class Shade:
    """A number as text, its place from its table's lowest (0) to highest (1), and its interval."""

    text: str
    share: float | None = None
    interval: str = ""

    @property
    def deep(self) -> bool:
        """Whether the background is at the far end of the scale, which needs the other ink."""
        return self.share is not None and self.share >= DEEP


def shade(
    value: float | None,
    text: Callable[[float], str],
    limits: tuple[float, float],
    flat: float,
    interval: str = "",
) -> Shade:
    """A value's place between limits, `flat` where they are equal; a dash for no number."""
    if not is_number(value):
        return Shade(DASH)
    low, high = limits
    share = (value - low) / (high - low) if high > low else flat
    return Shade(text(value), min(max(share, 0.0), 1.0), interval)


def fixed(value: float | None, digits: int = 2) -> str:
    """A number with this many digits after the point; never -0; a dash for none."""
    return f"{value:z,.{digits}f}" if is_number(value) else DASH


def count(value: float | None) -> str:
    """A whole number with separators; a dash for none."""
    return fixed(value, 0)


def size(n_bytes: float | None) -> str:
    """Bytes in decimal units."""
    if not is_number(n_bytes):
        return DASH
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n_bytes >= scale:
            return f"{n_bytes / scale:,.1f} {unit}"
    return f"{n_bytes:,.0f} B"


def words(name: object) -> str:
    """A name with spaces for underscores."""
    return str(name).replace("_", " ")


def policy(name: str) -> str:
    """A policy's name on pages; that of a run with its seed."""
    if run := _SEEDED.fullmatch(name):
        return f"{policy(run[1])}, seed {run[2]}"
    return POLICY_NAMES.get(name, name)


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def short(value: float) -> str:
    """12000 as 12k, 3400000 as 3.4M."""
    for scale, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= scale:
            return f"{value / scale:.3g}{letter}"
    return f"{value:.3g}"


def interval(bounds: Sequence[float] | None, digits: int = 2) -> str:
    """A 95 % interval as `0.81 to 0.87`, with no-break spaces; nothing for none."""
    return "\u00a0to\u00a0".join(fixed(bound, digits) for bound in bounds or ())


def spread(measure: Record, digits: int, bounds: Sequence[float] | None = None) -> str:
    """A mean ± its standard deviation, where there is one, and in brackets its 95 % interval."""
    mean, std = (fixed(measure[name], digits) for name in ("mean", "std"))
    text = mean if measure["std"] is None else f"{mean}\u00a0±\u00a0{std}"
    return f"{text} ({interval(bounds, digits)})" if bounds else text


def flattened(value: object, prefix: str = "") -> Iterator[tuple[str, object]]:
    """The leaves of nested mappings under their dotted names; a list of plain values is a leaf."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from flattened(item, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(value, list) and any(isinstance(item, Mapping | list) for item in value):
        for index, item in enumerate(value):
            yield from flattened(item, f"{prefix}[{index}]")
    elif isinstance(value, list):
        yield prefix, ", ".join(map(str, value))
    else:
        yield prefix, DASH if value is None else value


def markdown_table(rows: Sequence[Mapping[str, object]]) -> str:
    """Records as a Markdown table."""
    lines = [rows[0].keys(), ["---"] * len(rows[0]), *(row.values() for row in rows)]
    return "".join("| " + " | ".join(map(cell, line)) + " |\n" for line in lines)


def render(
    template: str,
    filters: Mapping[str, Callable[..., object]] | None = None,
    package: str = "",
    /,
    **shown: object,
) -> str:
    """A template as text; HTML escapes its values, and a missing one is an error.

    Args:
        filters: filters of this page only.
        package: a plug-in's, whose folder `templates` has it; it may extend and include ours.
    """
    packages = ("gaitforge.pipeline.report", package)
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(name) for name in packages if name]),
        autoescape=lambda name: not (name or "").endswith(".md"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    shared = (
        amount,
        cell,
        count,
        fixed,
        flattened,
        grouped_rows,
        interval,
        policy,
        quoted,
        size,
        words,
        word_columns,
    )
    environment.filters |= {function.__name__: function for function in shared}
    environment.filters |= {"duration": partial(duration, unknown=DASH), **(filters or {})}
    return environment.get_template(template).render(**shown)


@dataclass(frozen=True)
class Section:
    """A section of a page of tables and charts; `links`: address -> name.

    `groups` are columns of the rows that are shown once, above the rows that share them.
    """

    title: str
    text: str = ""
    rows: Sequence[Mapping[str, object]] = ()
    groups: Sequence[str] = ()
    charts: Sequence[Any] = ()
    links: Mapping[str, str] = field(default_factory=dict)


def write_sections(page: Path, title: str, abstract: str, shown: Sequence[Section]) -> None:
    """Write a page of tables and charts."""
    text = render("sections.html", title=title, abstract=abstract, shown=shown)
    write_file(page, text.encode())


def grouped_rows(
    rows: Sequence[Mapping[str, object]], by: Sequence[str] = ()
) -> list[tuple[list[object], list[dict[str, object]]]]:
    """Rows without the columns `by`, after the values there that they share, in order.

    The values are empty, and the rows whole, where no two rows share any.
    """
    groups: dict[tuple[object, ...], list[dict[str, object]]] = {}
    for row in rows:
        rest = {name: value for name, value in row.items() if name not in by}
        groups.setdefault(tuple(row.get(name, "") for name in by), []).append(rest)
    if not by or len(groups) == len(rows):
        return [([], [dict(row) for row in rows])]
    return [([value for value in key if value], group) for key, group in groups.items()]


def word_columns(rows: Sequence[Mapping[str, object]]) -> list[str]:
    """The columns of a table that hold words, which stand to the left; numbers to the right."""
    word = re.compile(r"[^\W\d_]{4}")
    return [name for name in rows[0] if any(word.search(str(row[name])) for row in rows)]


def data_uri(path: Path) -> str:
    """A PNG or WebP file as a URI that a page holds."""
    kind = path.suffix[1:].lower()
    return f"data:image/{kind};base64," + b64encode(path.read_bytes()).decode("ascii")


def quoted(value: object) -> str:
    """A text as a string of Python or JSON, without the grave accents that end code in Markdown."""
    return json.dumps(str(value), ensure_ascii=False).replace("`", "\\u0060")


def cell(value: object) -> str:
    """A value in a line of Markdown, also in a table: no HTML, links or columns of its own."""
    text = re.sub(r"([\\|]|<(?=[A-Za-z/!?]))", r"\\\1", " ".join(str(value).splitlines()))
    return text.replace("](", "]\\(")
