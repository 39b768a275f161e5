"""Single episodes for people: names that can be typed, and rows of a table."""

import re
from typing import Any

import numpy as np
import pyarrow as pa

from gaitforge.common.errors import DatasetError
from gaitforge.datasets.catalog.arrow_values import from_numpy, to_numpy
from gaitforge.datasets.catalog.catalog import Catalog
from gaitforge.datasets.catalog.records import Records
from gaitforge.datasets.schema import TERRAIN_AND_SKILL, Schema

_NAME = re.compile(r"([0-9a-fA-F]{1,8})-([0-9]{1,10})")
_INDEX_BITS = 32
_MEASURED = ("level", "length", "return", "success")


def episode_name(episode: int) -> str:
    """The name of an episode id: hexadecimal digits of its plan or source, its number there.

    An id is `digits << 32 | number`; `a293cb-00017` is the 17th of plan `a293cb`. Other ids,
    below 2**32, are their own names.
    """
    unique, number = divmod(episode, 1 << _INDEX_BITS)
    return f"{unique:06x}-{number:05d}" if unique > 0 else str(episode)


def episode_id(name: str) -> int:
    """The inverse of `episode_name`, which also takes an id; DatasetError for other text."""
    if match := _NAME.fullmatch(name):
        number = int(match[2])
        if number < 1 << _INDEX_BITS:
            return (int(match[1], 16) << _INDEX_BITS) + number
    elif re.fullmatch(r"-?[0-9]{1,19}", name):
        return int(name)
    raise DatasetError(f"{name!r:.60} is no episode; give its name, such as a293cb-00017")


def episode_row(catalog: Catalog, name: str, address: str) -> int:
    """The catalog's row of the episode with a name or id; DatasetError for none or several."""
    target = episode_id(name)
    ids = catalog.numbers("episode")[catalog.shown]
    rows = catalog.shown[ids == target]
    if len(rows) == 1:
        return int(rows[0])
    if len(rows) > 1:
        parts = catalog.rows(rows, ["part"]).column("part").to_pylist()
        raise DatasetError(f"episode {name} is in several parts of {address}: {', '.join(parts)}")
    # of the distances, as Python's integers: int64 might overflow
    near = min(ids.tolist(), key=lambda episode: abs(episode - target), default=None)
    hint = "the store is empty" if near is None else f"nearest: {episode_name(near)}"
    raise DatasetError(f"no episode {name} in {address}; {hint}")


def sorted_rows(catalog: Catalog, rows: np.ndarray, sort: str) -> np.ndarray:
    """Rows by a column: "COLUMN", or "COLUMN desc" for the largest first; missing values last."""
    name, _, order = sort.strip().partition(" ")
    directions = {"": "ascending", "asc": "ascending", "desc": "descending"}
    if order.strip().lower() not in directions:
        raise DatasetError(f"sort {sort!r}: give a column, or 'COLUMN desc' for the largest first")
    table = pa.table({"value": catalog.rows(rows, [name]).column(name), "row": from_numpy(rows)})
    ordered = table.sort_by([("value", directions[order.strip().lower()]), ("row", "ascending")])
    return to_numpy(ordered.column("row"))


def shown_columns(schema: Schema) -> tuple[str, ...]:
    """The columns of every list of episodes, after the episode's name and part."""
    return *schema.group_by, *_MEASURED, "fell" if _legged(schema) else "terminated"


def listed_episodes(
    catalog: Catalog, rows: np.ndarray, schema: Schema, show: tuple[str, ...]
) -> Records:
    """A dict per row: the episode's name and part, `shown_columns`, and the columns `show`.

    Where a part has no column `fell`, it is `terminated`.
    """
    names = list(dict.fromkeys(("episode", "part", *shown_columns(schema), *show)))
    for name in names:
        if name != "fell":
            catalog.check_column(name)
    return Records(len(rows), lambda first, stop: _listed(catalog, rows[first:stop], names))


def _listed(catalog: Catalog, rows: np.ndarray, names: list[str]) -> list[dict[str, Any]]:
    read = [name for name in names if name != "fell" or name in catalog.column_names]
    table = catalog.rows(rows, [*dict.fromkeys((*read, "terminated"))])
    columns = {name: table.column(name).to_pylist() for name in table.column_names}
    columns["episode"] = [episode_name(episode) for episode in columns["episode"]]
    ended = columns["terminated"]
    fell = columns.get("fell", [None] * len(ended))
    columns["fell"] = [b if a is None else a for a, b in zip(fell, ended, strict=True)]
    return [{name: columns[name][i] for name in names} for i in range(len(rows))]


def _legged(schema: Schema) -> bool:
    return tuple(schema.group_by) == TERRAIN_AND_SKILL
