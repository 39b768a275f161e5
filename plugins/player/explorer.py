"""The explorer: a page in which every column of a catalog is a chart that can be brushed.

The page holds each column as one compressed byte an episode, and counts in the browser. A brush
keeps whole bins, so its counts are exact and its SQL condition selects the same episodes; of more
than `MOST_EPISODES` the page counts an even share, and says so.

`ChartColumn` is a catalog column binned to one byte an episode, with the SQL condition of each bin.
"""

import base64
import gzip
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path, PurePosixPath

import duckdb
import numpy as np
import pyarrow as pa

from gaitforge.datasets import Selection
from gaitforge.datasets.catalog.episodes import glossary
from gaitforge.pipeline.report.pages import SERIES_COLOURS, render

# Catalog columns as bins.
MOST_VALUES = 24
"""Most distinct values of a numeric column that has a code for each of them."""
MOST_NAMES = 60
"""The most frequent texts have a code each; the others share one."""
MOST_BINS = 50
_RESERVED = """
select keyword_name from duckdb_keywords() where keyword_category in ('reserved', 'type_function')
"""
"""Words that DuckDB takes for a column's name in quotes only."""


@dataclass(frozen=True)
class ChartColumn:
    """A column as codes (uint8, one per episode): its bins or values, then others, then missing.

    Attributes:
        sql: its name in a condition.
        edges: SQL numbers; bin i holds edges[i] <= value < edges[i + 1]. Empty without bins.
        values: the values of the codes, as SQL numbers, or plain text if `text`.
        others: whether there is a code for all other values.
        missing: condition of the code for no value; empty if there is none.
    """

    name: str
    sql: str
    codes: np.ndarray
    edges: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    text: bool = False
    others: bool = False
    missing: str = ""


def binned(name: str, values: pa.Array) -> ChartColumn:
    """The codes of a catalog column: text, true or false, whole or other numbers."""
    sql = f'"{name}"' if name.lower() in _reserved() or name[0].isdecimal() else name
    if pa.types.is_string(values.type):
        return _named(name, sql, values)
    missing = f"{sql} is null"
    valid = np.asarray(values.is_valid())
    filled = np.asarray(values.fill_null(False if pa.types.is_boolean(values.type) else 0))
    if pa.types.is_floating(values.type):
        valid = valid & np.isfinite(filled)
        missing = f"({missing} or not isfinite({sql}))"
    numbers = filled[valid]
    distinct = np.unique(numbers)
    few = len(distinct) <= MOST_VALUES
    edges = np.zeros(0) if few else bin_edges(distinct[0].item(), distinct[-1].item())
    codes = np.full(len(values), len(distinct) if few else len(edges) - 1, np.uint8)
    codes[valid] = (
        np.searchsorted(distinct, numbers) if few else np.searchsorted(edges, numbers, "right") - 1
    )
    texts = tuple(_literal(value) for value in (distinct if few else edges).tolist())
    bins, single = ((), texts) if few else (texts, ())
    return ChartColumn(name, sql, codes, bins, single, missing="" if valid.all() else missing)


@cache
def _reserved() -> frozenset[str]:
    with duckdb.connect() as connection:
        return frozenset(word for (word,) in connection.execute(_RESERVED).fetchall())


def _named(name: str, sql: str, values: pa.Array) -> ChartColumn:
    coded = values.dictionary_encode()
    names = coded.dictionary.to_pylist()
    counts = np.bincount(np.asarray(coded.indices.drop_null()), minlength=len(names))
    frequent = np.argsort(-counts, kind="stable")[:MOST_NAMES]
    kept = sorted(names[index] for index in frequent)
    truncated = len(kept) < len(names)
    places = {label: code for code, label in enumerate(kept)}
    of_name = [places.get(label, len(kept)) for label in names]
    to_code = np.array([*of_name, len(kept) + truncated], np.uint8)
    codes = to_code[np.asarray(coded.indices.fill_null(len(names)))]
    missing = f"{sql} is null" if values.null_count else ""
    return ChartColumn(
        name, sql, codes, (), tuple(kept), text=True, others=truncated, missing=missing
    )


def bin_edges(low: float, high: float) -> np.ndarray:
    """Edges of up to `MOST_BINS` equal bins with round limits, from `low` to above `high`.

    The width is 1, 2 or 5 times a power of ten, and whole for whole numbers.
    """
    whole = isinstance(low, int)
    first = Decimal(repr(low))
    last = Decimal(repr(high))
    width = Decimal(1).scaleb(((last - first) / MOST_BINS).adjusted())
    width = max(width, Decimal(1)) if whole else width
    steps = [width * factor for factor in (1, 2, 5, 10, 20)]
    step = next(size for size in steps if _floor(last, size) - _floor(first, size) < MOST_BINS)
    start = _floor(first, step)
    stop = _floor(last, step)
    edges = [k * step for k in range(start - 1, stop + 3)]
    if whole:
        limits = np.iinfo(np.int64)
        exact = np.array([min(max(int(edge), limits.min), limits.max) for edge in edges])
    else:
        exact = np.array([float(edge) for edge in edges])
    exact = np.unique(exact)
    positions = np.searchsorted(exact, [low, high], "right")
    return exact[positions[0] - 1 : positions[1] + 1]


def _floor(value: Decimal, step: Decimal) -> int:
    return int((value / step).to_integral_value("ROUND_FLOOR"))


def _literal(value: float) -> str:
    """A number in SQL, exact also where DuckDB would take many digits for a decimal."""
    if isinstance(value, bool | int):
        return str(value).lower()
    text = repr(value).removesuffix(".0")
    return text if "e" in text or len(text) < 17 else f"{text}e0"


# The page.
MOST_EPISODES = 500_000
"""Most episodes of a page, which a browser holds whole; else every second, third and so on."""
IDENTIFIERS = ("episode", "seed", "start")
"""Columns that number episodes; they have no distribution worth a chart."""
FIRST_SHOWN = ("level", "return", "success", "length", "action_noise", "friction")


def explorer_of(selection: Selection, folder: Path, within: str = "") -> str:
    """The page of a selection, as text, for a folder; `within` is the selection's condition."""
    store = selection.store
    address = store.full_address
    location = address
    if "://" not in address:  # keep the folders of this machine out of the page
        beside = Path(address).parent == folder.resolve().parent
        location = f"{'../' if beside else ''}{Path(address).name}"
    name = PurePosixPath(address).name
    group_by = store.schema.group_by
    step = -(-len(selection) // MOST_EPISODES) or 1
    table = selection.with_rows(selection.rows[::step]).episodes().combine_chunks()
    glosses = {gloss.name: gloss for gloss in glossary(store.schema, table.schema)}
    arrays = {name: table.column(name).combine_chunks() for name in table.column_names}
    columns = [binned(*item) for item in arrays.items() if item[0] not in IDENTIFIERS]
    described = [
        {
            "name": column.name,
            "sql": column.sql,
            "unit": glosses[column.name].unit,
            "meaning": glosses[column.name].meaning,
            **{
                key: getattr(column, key)
                for key in ("edges", "values", "text", "others", "missing")
            },
        }
        for column in columns
    ]
    varied = {column.name for column in columns if len(column.values) != 1 or column.others}
    shown = [*group_by, *(name for name in FIRST_SHOWN if name in varied)]
    ids, returns = (np.asarray(arrays[column]) for column in ("episode", "return"))
    catalog = {
        "store": name,
        "place": location,
        "within": within,
        "of": f"one in {step} of {len(selection):,}" if step > 1 else "",
        "episodes": len(table),
        "cells": [*group_by, "level"],
        "columns": described,
        "shown": shown,
    }
    return render(
        "explorer.html",
        None,
        "gaitforge.plugins.player",
        catalog=catalog,
        blocks={
            **{f"column-{k}": _packed(column.codes) for k, column in enumerate(columns)},
            "ids": _packed(np.diff(ids, prepend=0).astype("<i8")),
            "returns": _packed(returns.astype("<f4")),
        },
        colours=SERIES_COLOURS,
        store=name,
        abstract="",
    )


def _packed(values: np.ndarray) -> str:
    return base64.b64encode(gzip.compress(values.tobytes(), 6, mtime=0)).decode()
