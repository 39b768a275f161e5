"""Choose episodes by catalog columns, and summarise their outcomes by group.

Columns are compared as integer codes and no array is read: milliseconds for 100,000s of episodes.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from gaitforge.common.errors import DatasetError, listed
from gaitforge.datasets.catalog.catalog import Catalog, distinct
from gaitforge.datasets.catalog.records import Record, Records


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
