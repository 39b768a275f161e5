"""The explorer: a page in which every column of a catalog is a chart that can be brushed.

The page holds each column as one compressed byte an episode, and counts in the browser. A brush
keeps whole bins, so its counts are exact and its SQL condition selects the same episodes; of more
than `MOST_EPISODES` the page counts an even share, and says so.
"""

import base64
import gzip
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from gaitforge.datasets import Selection
from gaitforge.datasets.catalog.glossary import glossary
from gaitforge.pipeline.report.charts import SERIES_COLOURS
from gaitforge.pipeline.report.explorer.columns import binned
from gaitforge.pipeline.report.pages import render

MOST_EPISODES = 500_000
"""Most episodes of a page, which a browser holds whole; else every second, third and so on."""
IDENTIFIERS = ("episode", "seed", "start")
"""Columns that number episodes; they have no distribution worth a chart."""
FIRST_SHOWN = ("level", "return", "success", "length", "action_noise", "friction")


def condition(cells: Mapping[str, Sequence[object] | None], where: str | None) -> str:
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
