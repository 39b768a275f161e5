"""The explorer: a page in which every column of a catalog is a chart that can be brushed.

Each column is binned here to one byte an episode. The page holds these codes column by column,
compressed, and counts them in the browser; a brush selects whole bins, so its counts are exact and
its SQL condition selects the same episodes.
"""

import base64
import gzip
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datasets import Selection
from pipeline.report.charts import SERIES_COLOURS
from pipeline.report.pages import render

MOST_VALUES = 24
"""A numeric column with up to so many distinct values has a code for each."""
MOST_NAMES = 60
"""The most frequent texts have a code each; the others share one."""
MOST_BINS = 50
IDENTIFIERS = ("episode", "seed", "start")
"""Columns that number episodes; they have no distribution worth a chart."""
FIRST_SHOWN = ("level", "return", "success", "length", "action_noise", "friction")
RESERVED = frozenset(
    """
    all analyse analyze and any array as asc asymmetric both case cast check collate column
    constraint create default deferrable desc describe distinct do else end except false fetch for
    foreign from group having in initially intersect into lambda lateral leading limit not null
    offset on only or order pivot pivot_longer pivot_wider placing primary qualify references
    returning select show some summarize symmetric table then to trailing true union unique unpivot
    using variadic when where window with
    """.split()  # noqa: SIM905
)
"""Words that DuckDB takes for a column's name in quotes only."""


@dataclass(frozen=True)
class Column:
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


def binned(name: str, values: pa.Array) -> Column:
    """The codes of a catalog column: text, true or false, whole or other numbers."""
    sql = f'"{name}"' if name.lower() in RESERVED or name[0].isdecimal() else name
    if pa.types.is_string(values.type):
        return _named(name, sql, values)
    there, missing = pc.is_valid(values), f"{sql} is null"
    if pa.types.is_floating(values.type):
        there = pc.fill_null(pc.is_finite(values), False)
        missing = f"({missing} or not isfinite({sql}))"
    known = np.asarray(there)
    numbers = np.asarray(pc.filter(values, there))
    distinct = np.unique(numbers)
    few = len(distinct) <= MOST_VALUES
    edges = np.zeros(0) if few else bin_edges(distinct[0].item(), distinct[-1].item())
    found = (
        np.searchsorted(distinct, numbers) if few else np.searchsorted(edges, numbers, "right") - 1
    )
    codes = np.full(len(values), len(distinct) if few else len(edges) - 1, np.uint8)
    codes[known] = found
    texts = tuple(_literal(each) for each in (distinct if few else edges).tolist())
    shown = {"values": texts} if few else {"edges": texts}
    return Column(name, sql, codes, **shown, missing="" if known.all() else missing)


def _named(name: str, sql: str, values: pa.Array) -> Column:
    coded = values.dictionary_encode()
    names = coded.dictionary.to_pylist()
    counts = np.bincount(np.asarray(coded.indices.drop_null()), minlength=len(names))
    frequent = np.argsort(-counts, kind="stable")[:MOST_NAMES]
    kept = sorted(names[index] for index in frequent)
    others = len(kept) < len(names)
    places = {each: code for code, each in enumerate(kept)}
    of_name = [places.get(each, len(kept)) for each in names]
    to_code = np.array([*of_name, len(kept) + others], np.uint8)
    codes = to_code[np.asarray(coded.indices.fill_null(len(names)))]
    missing = f"{sql} is null" if values.null_count else ""
    return Column(name, sql, codes, (), tuple(kept), text=True, others=others, missing=missing)


def bin_edges(low: float, high: float) -> np.ndarray:
    """Edges of up to `MOST_BINS` equal bins with round limits, from `low` to above `high`.

    The width is 1, 2 or 5 times a power of ten, and whole for whole numbers.
    """
    whole = isinstance(low, int)
    first, last = Decimal(repr(low)), Decimal(repr(high))
    width = Decimal(1).scaleb(((last - first) / MOST_BINS).adjusted())
    width = max(width, Decimal(1)) if whole else width
    for step in (width * factor for factor in (1, 2, 5, 10, 20)):
        start, stop = (
            int((each / step).to_integral_value("ROUND_FLOOR")) for each in (first, last)
        )
        if stop - start < MOST_BINS:
            break
    edges = [k * step for k in range(start - 1, stop + 3)]
    if whole:
        limits = np.iinfo(np.int64)
        exact = np.array([min(max(int(each), limits.min), limits.max) for each in edges])
    else:
        exact = np.array([float(each) for each in edges])
    exact = np.unique(exact)
    place = np.searchsorted(exact, [low, high], "right")
    return exact[place[0] - 1 : place[1] + 1]


def _literal(value: float) -> str:
    """A number in SQL, exact also where DuckDB would take many digits for a decimal."""
    if isinstance(value, bool | int):
        return str(value).lower()
    text = repr(value).removesuffix(".0")
    return text if "e" in text or len(text) < 17 else f"{text}e0"


def condition(cells: Mapping[str, Any], where: str | None) -> str:
    """The SQL condition of the episodes of some cells (column -> values, None for all)."""
    terms = [] if where is None else [f"({where})"]
    for name, values in cells.items():
        if values:
            terms.append(f"{name} in ({', '.join(map(_constant, values))})")
    return " and ".join(reversed(terms))


def _constant(value: object) -> str:
    return str(value) if isinstance(value, int) else "'" + str(value).replace("'", "''") + "'"


def explorer_of(selection: Selection, folder: Path, within: str = "") -> str:
    """The page of a selection, as text, for a folder; `within` is the selection's condition."""
    store = selection.store
    address = store.full_address
    place = address if "://" in address else os.path.relpath(address, folder.resolve())
    about = {"store": PurePosixPath(address).name, "place": place, "within": within}
    draws = store.schema.attributes.get("randomisation", {})
    units = {name: draw.get("unit", "1") for name, draw in draws.items()}
    return explorer_page(selection.episodes(), store.schema.group_by, about, units)


def explorer_page(
    episodes: pa.Table,
    group_by: Sequence[str],
    about: Mapping[str, str],
    units: Mapping[str, str],
) -> str:
    """The page of a catalog's rows, as text.

    Args:
        episodes: columns as in a catalog.
        group_by: the two columns that lead.
        about: `store` (its name), `place` (its address, or its path from the page's folder) and
            `within` (the condition that the rows already meet, or nothing).
        units: SI units of columns; "1" for a number without.
    """
    table = episodes.combine_chunks()
    arrays = {name: table.column(name).combine_chunks() for name in table.column_names}
    columns = [binned(*each) for each in arrays.items() if each[0] not in IDENTIFIERS]
    described = [
        {
            "name": each.name,
            "sql": each.sql,
            "unit": units.get(each.name, ""),
            **{key: getattr(each, key) for key in ("edges", "values", "text", "others", "missing")},
        }
        for each in columns
    ]
    varied = {each.name for each in columns if len(each.values) != 1 or each.others}
    shown = [*group_by, *(name for name in FIRST_SHOWN if name in varied)]
    ids = np.asarray(arrays["episode"])
    returns = np.asarray(arrays["return"])
    catalog = dict(about) | {"episodes": len(table), "cells": [*group_by, "level"]}
    return render(
        "explorer.html",
        catalog=catalog | {"columns": described, "shown": shown},
        blocks={
            **{f"column-{k}": _packed(each.codes) for k, each in enumerate(columns)},
            "ids": _packed(np.diff(ids, prepend=0).astype("<i8")),
            "returns": _packed(returns.astype("<f4")),
        },
        colours=SERIES_COLOURS,
        **{"store": about["store"], "abstract": ""},
    )


def _packed(values: np.ndarray) -> str:
    return base64.b64encode(gzip.compress(values.tobytes(), 6, mtime=0)).decode()
