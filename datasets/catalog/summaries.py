"""Choice of episodes by catalog columns and SQL conditions, outcomes by group, single episodes.

For choice and groups, columns are compared as integer codes and no array is read: milliseconds for
100,000s of episodes.

Conditions are safe for untrusted input: one is parsed, its syntax tree is checked against an
allow-list (no subquery, no statement, only deterministic scalar functions), and an in-memory DuckDB
without access to files, extensions or its own settings evaluates it.

Single episodes are for people: they have names that can be typed, and are rows of a table.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import duckdb
import numpy as np
import pyarrow as pa

from gaitforge.common.errors import DatasetError, listed
from gaitforge.datasets.catalog.catalog import Catalog, distinct
from gaitforge.datasets.catalog.rows import Record, Records, from_numpy, to_numpy
from gaitforge.datasets.schema import TERRAIN_AND_SKILL, Schema


# Choice of episodes, and outcomes by group.
def select_rows(catalog: Catalog, equals: Mapping[str, Any], address: str) -> np.ndarray:
    """Shown rows whose columns have one of the values in `equals`; DatasetError lists these."""
    keep = catalog.is_shown
    for name, value in equals.items():
        codes, values = catalog.codes(catalog.check_column(name))
        shown_codes = codes if len(catalog.shown) == len(codes) else codes[catalog.shown]
        present = set(np.flatnonzero(np.bincount(shown_codes)).tolist())
        numbers = {
            option: code
            for code, option in enumerate(values)
            if option is not None and code in present
        }
        matches = np.zeros(len(values), bool)
        single = isinstance(value, str) or not isinstance(value, Iterable)
        for choice in [value] if single else value:
            try:
                matches[numbers[choice]] = True
            except (KeyError, TypeError):
                allowed = sorted(numbers, key=lambda option: (str(type(option)), option))
                raise DatasetError(
                    f"no {name} {choice!r} in {address}; allowed: {listed(allowed)}"
                ) from None
        if len(values):
            keep &= matches[codes]
    return np.flatnonzero(keep)


def grouped_outcomes(catalog: Catalog, rows: np.ndarray, names: Sequence[str]) -> Records:
    """`Selection.describe` of the given rows: sorted by key, missing keys last."""
    if len(rows) == 0:
        return Records(0, lambda first, stop: [])
    group, codes = _groups(catalog, rows, names)
    values = [catalog.codes(name)[1] for name in names]
    count = np.bincount(group, minlength=len(codes))

    def total(name: str) -> np.ndarray:
        return np.bincount(group, catalog.numbers(name)[rows], len(codes))

    steps = np.zeros(len(codes), np.int64)
    np.add.at(steps, group, catalog.lengths[rows])
    measured = {
        "episodes": count,
        "steps": steps,
        "return": total("return") / count,
        "success": total("success") / count,
        "survival": 1.0 - total("terminated") / count,
    }
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
    group, codes = _groups(catalog, rows, names)
    values = [catalog.codes(name)[1] for name in names]
    keys = [
        tuple(column[code] for column, code in zip(values, row, strict=True))
        for row in codes.tolist()
    ]
    return dict(zip(keys, np.bincount(group, minlength=len(keys)).tolist(), strict=True))


def _groups(
    catalog: Catalog, rows: np.ndarray, names: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """(E,) group number of each row, and (G, N) each group's codes of the columns."""
    group = np.zeros(len(rows), np.int64)
    codes = np.zeros((1, 0), np.int64)
    for name in names:
        column_codes, values = catalog.codes(name)
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
    return tuple(schema.group_by) == TERRAIN_AND_SKILL


ROW = "gaitforge_row"
SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": False,
    "autoload_known_extensions": False,
    "autoinstall_known_extensions": False,
    "allow_community_extensions": False,
    "python_enable_replacements": False,
    "memory_limit": "1GB",
    "threads": 1,
    # No NaN from a division by 0, which would match comparisons: the result is missing. Roots and
    # logarithms of what has none are refused.
    "ieee_floating_point_ops": False,
    "error_on_division_by_zero": False,
}
MAX_CHARACTERS = 10_000
SHOWN = 200
MAX_REASON = 1_000
EXPRESSION_CLASSES = frozenset(
    """
    BETWEEN CASE CAST COLLATE COLUMN_REF COMPARISON CONJUNCTION CONSTANT FUNCTION OPERATOR
    TYPE
    """.split()  # noqa: SIM905 (a list of words reads better than a column of them)
)
FUNCTIONS = frozenset(
    """
    + - * / // % ** ^ ~~ !~~ ~~* !~~* || abs ceil ceiling floor round trunc sign sqrt exp ln log
    log2 log10 pow power mod least greatest sin cos tan asin acos atan atan2 radians degrees pi
    isnan isinf isfinite lower upper length trim substring contains starts_with ends_with prefix
    suffix regexp_matches regexp_full_match list_value not in coalesce nullif ifnull
    """.split()  # noqa: SIM905
)
"""Deterministic scalar functions and operators, none of which can make a value large."""


class Columns(Protocol):
    """Columns over which a condition is evaluated, such as a `Catalog`."""

    @property
    def column_names(self) -> list[str]:
        """Their names."""
        ...

    @property
    def num_rows(self) -> int:
        """How many values each has."""
        ...

    def check_column(self, name: str) -> str:
        """The name; DatasetError for a column that there is not."""
        ...

    def stored(self, names: Sequence[str]) -> pa.Table:
        """The named columns."""
        ...


def matching_rows(catalog: Columns, condition: str) -> np.ndarray:
    """Ascending row numbers of the catalog for which `condition` is true.

    It is one boolean SQL expression of up to `MAX_CHARACTERS`; only the columns in it are read. NaN
    counts as a missing value, which no comparison matches.
    DatasetError for anything else lists the columns.
    """
    try:
        _check_text(condition)
        with duckdb.connect(":memory:", config=SETTINGS) as connection:
            names = _columns_named(_checked_tree(connection, condition), catalog)
            return _evaluated(connection, catalog, names, condition)
    except (duckdb.Error, DatasetError) as error:
        reason = str(error).splitlines()[0].strip()
        shown = ascii(condition) if len(condition) <= SHOWN else f"{condition[:SHOWN]!a}…"
        raise DatasetError(
            f"condition {shown} is not allowed: {reason[:MAX_REASON]}; give one boolean "
            "expression over the store's columns, with text in single quotes"
        ) from error


def _evaluated(
    connection: duckdb.DuckDBPyConnection, catalog: Columns, names: list[str], condition: str
) -> np.ndarray:
    columns = _without_nan(catalog.stored([*names, *(() if names else ("start",))]))
    numbers = from_numpy(np.arange(catalog.num_rows, dtype=np.int64))
    numbered = columns.append_column(ROW, numbers)
    connection.register("episodes", numbered)
    connection.execute("SET lock_configuration = true")
    expression = duckdb.SQLExpression(condition)
    episodes = connection.view("episodes")
    kind = episodes.select(expression).types[0]
    if str(kind) != "BOOLEAN":
        raise DatasetError(f"it has type {kind}, not BOOLEAN")
    rows = episodes.filter(expression).select(ROW).fetchnumpy()[ROW]
    return np.sort(np.asarray(rows, dtype=np.int64))


def _without_nan(columns: pa.Table) -> pa.Table:
    """The columns with NaN as a missing value: DuckDB takes it for the largest number."""
    for index, field in enumerate(columns.schema):
        if not pa.types.is_floating(field.type):
            continue
        values = columns.column(index).to_numpy()  # a missing value becomes NaN
        if np.isnan(values).any():
            columns = columns.set_column(index, field, pa.array(values, mask=np.isnan(values)))
    return columns


def _check_text(condition: str) -> None:
    if len(condition) > MAX_CHARACTERS:
        raise DatasetError(f"it has {len(condition)} characters, more than {MAX_CHARACTERS}")
    if any(character == "\0" or "\ud800" <= character <= "\udfff" for character in condition):
        raise DatasetError("it has NUL or surrogate characters")


def _columns_named(tree: Any, catalog: Columns) -> list[str]:
    """The columns in a tree, whatever their upper and lower case.

    Other names are refused: DuckDB takes some, such as `current_timestamp`, for functions.
    """
    spelled = {name.lower(): name for name in catalog.column_names}
    named = []
    for expression in _expressions(tree):
        if expression["class"] == "COLUMN_REF":
            name = ".".join(expression["column_names"])  # columns have no dot
            named.append(spelled.get(name.lower()) or catalog.check_column(name))
    return list(dict.fromkeys(named))


def _checked_tree(connection: duckdb.DuckDBPyConnection, condition: str) -> Any:
    """The condition's syntax tree, if it is one expression of allowed elements only."""
    duckdb.SQLExpression(condition)  # refuses anything but one expression
    answer = connection.execute("SELECT json_serialize_sql(?)", [f"SELECT {condition}\n"])
    [(text,)] = answer.fetchall()
    try:
        tree = json.loads(text)
    except RecursionError as error:
        raise DatasetError("it is nested too deeply") from error
    statements = tree.get("statements", [])
    if tree.get("error") or len(statements) != 1:
        raise DatasetError("it is not one SQL expression")
    node = statements[0]["node"]
    clauses = ("where_clause", "modifiers", "group_expressions", "having", "qualify", "sample")
    if (
        node["type"] != "SELECT_NODE"
        or node["from_table"]["type"] != "EMPTY"
        or len(node["select_list"]) != 1
        or any(node[clause] for clause in clauses)
    ):
        raise DatasetError("it is more than an expression")
    for expression in _expressions(node["select_list"]):
        if expression["class"] not in EXPRESSION_CLASSES:
            raise DatasetError(f"{expression['class'].lower()} expressions are not allowed")
        name = expression.get("function_name", "")
        if expression["class"] == "FUNCTION" and name not in FUNCTIONS:
            raise DatasetError(f"no function {name}; allowed: {listed(sorted(FUNCTIONS), 80)}")
    return node["select_list"]


def _expressions(tree: Any) -> Iterator[dict[str, Any]]:
    """Every expression of a tree; iterative, because the input decides how deep it is."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            if "class" in node:
                yield node
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node
