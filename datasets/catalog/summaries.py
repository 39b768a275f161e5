"""Choice of episodes by catalog columns, their outcomes by group, and lists of single episodes.

For choice and groups, columns are compared as integer codes and no array is read: milliseconds for
100,000s of episodes. Numbers of many values can be put into bins of one width.

Single episodes are for people: they have names that can be typed, and are rows of a table.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from gaitforge.common.errors import DatasetError, listed
from gaitforge.datasets.catalog.catalog import Catalog, distinct
from gaitforge.datasets.catalog.rows import Record, Records, from_numpy, to_numpy
from gaitforge.datasets.schema import COMMAND, OBS, TERRAIN_AND_SKILL, Schema

MOST_VALUES = 20
"""Most distinct numbers of a column that are groups each; more are put into bins."""

_Column = tuple[np.ndarray, list[Any]]
"""(E,) codes of a column, and the values that they index."""


# Choice of episodes, and outcomes by group.
def select_rows(catalog: Catalog, equals: Mapping[str, Any], address: str) -> np.ndarray:
    """Shown rows whose columns have one of the values in `equals`; DatasetError lists these."""
    is_shown = catalog.is_shown
    keep = is_shown.copy()
    for name, value in equals.items():
        codes, values = catalog.codes(catalog.check_column(name))
        numbers = {option: code for code, option in enumerate(values) if option is not None}
        single = isinstance(value, str) or not isinstance(value, Iterable)
        choices = [value] if single else list(value)
        chosen = [_code_of(choice, numbers) for choice in choices]
        matches = np.zeros(len(values) + 1, bool)  # the last stands for what no row has
        matches[chosen] = True
        matching = is_shown & matches[codes]
        has_rows = np.bincount(codes[matching], minlength=len(matches)) > 0
        for choice, code in zip(choices, chosen, strict=True):
            if not has_rows[code]:
                shown = set(np.unique(codes[catalog.shown]).tolist())
                options = [option for option, number in numbers.items() if number in shown]
                allowed = sorted(options, key=lambda option: (str(type(option)), option))
                raise DatasetError(f"no {name} {choice!r} in {address}; allowed: {listed(allowed)}")
        keep &= matching
    return np.flatnonzero(keep)


def _code_of(choice: Any, numbers: Mapping[Any, int]) -> int:
    """The code of a value; -1, the last, for a value that no row has."""
    try:
        return numbers.get(choice, -1)
    except TypeError:  # no value of a column, such as a list
        return -1


def grouped_outcomes(
    catalog: Catalog,
    rows: np.ndarray,
    names: Sequence[str],
    schema: Schema,
    bins: int = 0,
) -> Records:
    """`Selection.describe` of the given rows: sorted by key, missing keys last.

    Args:
        bins: about how many bins columns of more than `MOST_VALUES` numbers get, whose keys are
            [low, high]; 0 for a group of each value.
    """
    if len(rows) == 0:
        return Records(0, lambda first, stop: [])
    coded = [catalog.codes(name) for name in names]
    if bins:
        coded = [in_bins_of(column, rows, bins) for column in coded]
    group, codes = _groups(coded, rows)
    values = [column_values for _, column_values in coded]
    count = np.bincount(group, minlength=len(codes))

    def total(name: str) -> np.ndarray:
        return np.bincount(group, catalog.numbers(name, rows), len(codes))

    steps = np.zeros(len(codes), np.int64)
    np.add.at(steps, group, catalog.numbers("length", rows))
    measured = {
        "episodes": count,
        "steps": steps,
        "return": total("return") / count,
        "success": total("success") / count,
    }
    terminated = total("terminated") / count
    measured |= {"survival": 1.0 - terminated} if _legged(schema) else {"terminated": terminated}
    ranks = [_ranks(column)[codes[:, index]] for index, column in enumerate(values)]
    order = np.lexsort(ranks[::-1]) if ranks else np.zeros(1, np.int64)

    def make(first: int, stop: int) -> list[Record]:
        groups = order[first:stop]
        columns = {name: column[groups].tolist() for name, column in measured.items()}
        for index, name in enumerate(names):  # a key that is also measured keeps its value
            columns[name] = [values[index][code] for code in codes[groups, index].tolist()]
        ordered = dict.fromkeys([*names, *measured])
        return [{name: columns[name][i] for name in ordered} for i in range(len(groups))]

    return Records(len(codes), make)


def group_counts(
    catalog: Catalog, rows: np.ndarray, names: Sequence[str]
) -> dict[tuple[Any, ...], int]:
    """Episodes of the given rows by the values of some columns."""
    coded = [catalog.codes(name) for name in names]
    group, codes = _groups(coded, rows)
    values = [column_values for _, column_values in coded]
    keys = [
        tuple(column[code] for column, code in zip(values, row, strict=True))
        for row in codes.tolist()
    ]
    return dict(zip(keys, np.bincount(group, minlength=len(keys)).tolist(), strict=True))


def in_bins_of(column: _Column, rows: np.ndarray, bins: int) -> _Column:
    """A column of numbers in about `bins` bins of a round width, if its rows have many numbers.

    A bin [low, high] holds numbers from `low` to below `high`. Missing ones, NaN and infinity are
    None.
    """
    codes, values = column
    if not all(value is None or isinstance(value, int | float) for value in values):
        return column
    numbers = np.array([np.nan if value is None else value for value in values], np.float64)
    used = np.unique(codes[rows])
    finite = numbers[used][np.isfinite(numbers[used])]
    if len(finite) <= max(MOST_VALUES, bins):
        return column
    is_whole = all(value is None or isinstance(value, int) for value in values)
    least = (finite.max() - finite.min()) / bins
    if least < max(1e-300, 1e-12 * np.abs(finite).max()):
        return column  # too close for bounds that differ
    width = max(1.0, _round_width(least)) if is_whole else _round_width(least)
    places = np.floor(numbers / width + 1e-9)
    inner = places[used][np.isfinite(numbers[used])]
    first = int(inner.min())
    count = int(inner.max()) - first + 1
    edges = [float(f"{(first + k) * width:.12g}") for k in range(count + 1)]
    limits = [int(edge) for edge in edges] if is_whole else edges
    keys: list[Any] = [[limits[k], limits[k + 1]] for k in range(count)]
    inside = np.clip(np.nan_to_num(places - first), 0, count - 1)
    bin_of_value = np.where(np.isfinite(numbers), inside, count).astype(np.int64)
    return bin_of_value[codes], [*keys, None]


def _round_width(least: float) -> float:
    """The smallest of 1, 2 and 5 times a power of ten that is not below a width."""
    power = 10.0 ** np.floor(np.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))


def _groups(coded: Sequence[_Column], rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(E,) group number of each row, and (G, N) each group's codes of the columns."""
    group = np.zeros(len(rows), np.int64)
    codes = np.zeros((1, 0), np.int64)
    for column_codes, values in coded:
        combined, group = distinct(group * len(values) + column_codes[rows])
        before, last = np.divmod(combined, max(1, len(values)))
        codes = np.column_stack([codes[before], last])
    return group, codes


def _ranks(values: list[Any]) -> np.ndarray:
    """(V,) the place of each of a column's distinct values in their order, missing ones last."""
    if values and isinstance(values[0], int | float):
        array = np.array(values)
        if array.dtype.kind in "iuf" and (array[1:] > array[:-1]).all():
            return np.arange(len(values))  # as they mostly are; sorting keys takes memory
    ranks = np.empty(len(values), np.int64)
    ranks[sorted(range(len(values)), key=lambda i: (values[i] is None, values[i]))] = np.arange(
        len(values)
    )
    return ranks


# Single episodes: names, and rows of a table.
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
    """Whether a terminated episode is a fall: of robots that follow commands on terrains."""
    commanded = OBS in schema.names() and COMMAND in schema.field(OBS).slices
    return commanded and tuple(schema.group_by) == TERRAIN_AND_SKILL
