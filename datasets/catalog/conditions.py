"""Boolean SQL conditions over the catalog, safe for untrusted input.

A condition is parsed, its syntax tree is checked against an allow-list (no subquery, no statement,
only deterministic scalar functions), and an in-memory DuckDB without access to files, extensions or
its own settings evaluates it.
"""

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import duckdb
import numpy as np
import pyarrow as pa

from gaitforge.common.errors import DatasetError, listed
from gaitforge.datasets.catalog.rows import array_to_numpy, from_numpy, valid_rows

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
    # Python runs handlers of signals in the main thread only: one that raises inside DuckDB can
    # leave it waiting for ever.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_matching, catalog, condition).result()


def _matching(catalog: Columns, condition: str) -> np.ndarray:
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
    names = names or ["start"]
    row = f"row_of_{max(names, key=len)}"  # longer than any column's name, and so none of them
    columns = _without_nan(catalog.stored(names))
    numbers = from_numpy(np.arange(catalog.num_rows, dtype=np.int64))
    connection.register("episodes", columns.append_column(row, numbers))
    connection.execute("SET lock_configuration = true")
    expression = duckdb.SQLExpression(condition)
    episodes = connection.view("episodes")
    [kind] = episodes.select(expression).types
    if str(kind) != "BOOLEAN":
        raise DatasetError(f"it has type {kind}, not BOOLEAN")
    # By number, since DuckDB may change the order: it joins episodes with a list of five values or
    # more.
    rows = episodes.filter(expression).select(duckdb.ColumnExpression(row)).fetchnumpy()[row]
    return np.sort(np.asarray(rows, np.int64))


def _without_nan(columns: pa.Table) -> pa.Table:
    """The columns with NaN as a missing value: DuckDB takes it for the largest number."""
    for index, field in enumerate(columns.schema):
        if pa.types.is_floating(field.type):
            chunks = [_nan_missing(chunk) for chunk in columns.column(index).chunks]
            columns = columns.set_column(index, field, pa.chunked_array(chunks, field.type))
    return columns


def _nan_missing(values: pa.Array) -> pa.Array:
    numbers = array_to_numpy(values)
    is_nan = np.isnan(numbers)
    return pa.array(numbers, mask=is_nan | ~valid_rows(values)) if is_nan.any() else values


def _check_text(condition: str) -> None:
    if len(condition) > MAX_CHARACTERS:
        raise DatasetError(f"it has {len(condition)} characters, more than {MAX_CHARACTERS}")
    if any(character == "\0" or "\ud800" <= character <= "\udfff" for character in condition):
        raise DatasetError("it has NUL or surrogate characters")


def _columns_named(tree: Any, catalog: Columns) -> list[str]:
    """The columns in a tree, whatever their upper and lower case.

    Other names are refused: DuckDB takes some, such as `current_timestamp`, for functions.
    """
    spelled: dict[str, list[str]] = {}
    for name in catalog.column_names:
        spelled.setdefault(name.lower(), []).append(name)
    named = []
    for expression in _expressions(tree):
        if expression["class"] == "COLUMN_REF":
            name = ".".join(expression["column_names"])  # columns have no dot
            alike = spelled.get(name.lower()) or [catalog.check_column(name)]
            if len(alike) > 1:
                raise DatasetError(f"columns {listed(alike)} differ in upper and lower case only")
            named += alike
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
