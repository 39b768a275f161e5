"""Boolean SQL conditions over the catalog, safe to take from a stranger.

A condition is parsed, its tree is checked against an allow-list (no subquery, no statement, only
deterministic scalar functions), and it is evaluated by an in-memory DuckDB that may touch neither
files nor extensions nor its own settings.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from datasets.errors import DatasetError, listed

ROW = "gaitforge_row"
SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": False,
    "autoload_known_extensions": False,
    "autoinstall_known_extensions": False,
    "allow_community_extensions": False,
    "python_enable_replacements": False,
    "memory_limit": "1GB",
}
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


def matching_rows(table: pa.Table, condition: str) -> np.ndarray:
    """Ascending row numbers of ``table`` for which ``condition`` is true.

    Args:
        table: the catalog rows.
        condition: one boolean SQL expression over its columns.

    Raises:
        DatasetError: not one boolean expression, a function or clause that is not allowed, or an
            unknown column; the message lists the columns.
    """
    numbered = table.append_column(ROW, pa.array(np.arange(table.num_rows)))
    connection = duckdb.connect(":memory:", config=SETTINGS)
    try:
        _check_tree(connection, condition)
        connection.register("episodes", numbered)
        connection.execute("SET lock_configuration = true")
        expression = duckdb.SQLExpression(condition)
        episodes = connection.view("episodes")
        kind = episodes.select(expression).types[0]
        if str(kind) != "BOOLEAN":
            raise DatasetError(f"it gives {kind}, not true or false")
        rows = episodes.filter(expression).select(ROW).fetchnumpy()[ROW]
    except (duckdb.Error, DatasetError) as error:
        reason = str(error).splitlines()[0].strip()
        raise DatasetError(
            f"condition {condition!r} is not allowed: {reason}; it must be one boolean expression "
            f"over the columns {listed(table.column_names, 80)}"
        ) from error
    finally:
        connection.close()
    return np.sort(np.asarray(rows, dtype=np.int64))


def _check_tree(connection: duckdb.DuckDBPyConnection, condition: str) -> None:
    duckdb.SQLExpression(condition)  # refuses anything but one expression
    answer = connection.execute("SELECT json_serialize_sql(?)", [f"SELECT {condition}\n"])
    [(text,)] = answer.fetchall()
    tree = json.loads(text)
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
            raise DatasetError(f"function {name} is not among {listed(sorted(FUNCTIONS), 80)}")


def _expressions(tree: Any) -> Iterator[dict[str, Any]]:
    if isinstance(tree, dict):
        if "class" in tree:
            yield tree
        for value in tree.values():
            yield from _expressions(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from _expressions(value)
